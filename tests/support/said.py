"""The one sentence that tests search logs and errors for: no started run goes unmentioned."""

from __future__ import annotations

from workflow_automation_provider.client.protocol import Operation
from workflow_automation_provider.exceptions import Accepted
from workflow_automation_provider.failures import consequence_of

MAYBE_STARTED = consequence_of(Operation.TRIGGER_BY_KEY, Accepted.MAYBE).removesuffix(".")
