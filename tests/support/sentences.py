"""
The sentences that tests search logs and errors for.

No test names one itself: whoever words a message anew changes it here, or in ``unit/golden``.
"""

from __future__ import annotations

from workflow_automation_provider.exceptions import Code

# No started run goes unmentioned.
MAYBE_STARTED = Code.START_UNKNOWN.consequence.partition(":")[0]
WAS_STARTED = Code.UNIDENTIFIED.consequence.partition(",")[0]
NOTHING_SENT = "Nothing was sent."
NOTHING_SENT_NOW = "Nothing was sent in this try."

# What the log of each try says beforehand, for one that cannot say anything afterwards.
ASKING = "If the log ends here"

# Of a start and its claim.
AWAITS_CLAIM = "Waiting up to"
NO_CLAIM = "No run has claimed"
HAS_CLAIMED = "has claimed"
STARTS_ANOTHER = "Starting another run"
IS_SETTLED = "no run has claimed that start"
BEGUN_ANYWAY = "The run has begun anyway"
NOT_SETTLED = "could not be settled"
STOPS_WHO_CLAIMS = "claims its start from now on is told to stop"
INTERRUPTED = "Interrupted by TaskTimeout"
ENDED = "nothing more is sent"

# Of what is recorded of a run.
NO_RUN_ID = "has no run_id"
RUN_ID_UNKNOWN = "The run_id is unknown"
NOT_RECORDED = "could not be recorded"
NOT_STORED = "could not be stored"
NOT_PUSHED = "not be pushed"
NO_LINK = "The Open run button will be missing"

# Of a run that was asked for otherwise.
OTHER_INPUTS = "The inputs or the flow_id differ"

# Of a wait.
WITHOUT_RETRIES = "waits without retries"
WITHOUT_CLAIM = "The run has not claimed its start"
OTHER_RUN = "has the task, and not run"
WITHOUT_FILES = "no files are uploaded"

# Of the arguments of a task.
NO_EFFECT = "has no effect without"

# Of an entry that cannot be read.
OTHER_VERSION = "a newer version of this provider"
LET_IT_END = "Let the version that wrote it end the task."
