"""The sentences that tests search logs and errors for: no started run goes unmentioned."""

from __future__ import annotations

from workflow_automation_provider.exceptions import Code

MAYBE_STARTED = Code.START_UNKNOWN.consequence.partition(":")[0]
WAS_STARTED = Code.UNIDENTIFIED.consequence.partition(",")[0]

# What the log of each try says beforehand, for one that cannot say anything afterwards.
ASKING = "If the log ends here"
