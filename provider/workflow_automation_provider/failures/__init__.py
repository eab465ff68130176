"""
The words of every failed request, task and batch: facts in, the text of an error out.

An error says, in lines of their own: its code and what happened; what that means; what earlier tries did; whether
Airflow retries the task; what to do next; and the connection, flow and run. docs/if-it-fails.md is ordered by code.
An invalid argument is worded where it is checked.
"""

from workflow_automation_provider.failures.claim import *
from workflow_automation_provider.failures.request import *
from workflow_automation_provider.failures.task import *
