"""
What the endpoint says to a run: a table, without Airflow and without a database.

A start is *current* if it is the task instance's last one, and has its ``max_tries``, which a Clear changes. A run is
*wanted* if its start is current, and the task has not ended, or is green and does not wait. The first row that fits:

==================================================  =====================  =====================  ====================
The run                                             ``started``            ``running``            an end
==================================================  =====================  =====================  ====================
has ended                                           STOP                   STOP                   SAME_END, OTHER_END
was told to stop                                    STOP                   STOP                   STOP
is not wanted                                       STOP, recorded         STOP, recorded
is not that which claimed, ended or was entered     OTHER_RUN, recorded    OTHER_RUN, recorded    OTHER_RUN, recorded
is of a start that is not the last                                                                STOP, recorded
has a task that is being restarted                  WAIT                   WAIT
has claimed                                         GO_ON                  GO_ON                  END
has a start that is frozen, and the task decides    WAIT                   WAIT                   WAIT, while it runs
none of these                                       CLAIM                  CLAIM_FIRST            END
==================================================  =====================  =====================  ====================

Two runs that hold one token are told apart by their ``run_id`` alone; a claim without one takes that of the
first word that has one. If another run has the task, the caller's ``run_id`` is recorded in place of a stop.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from datetime import datetime

from workflow_automation_provider.execution.callback import Ended, Running, Said, Started
from workflow_automation_provider.execution.ledger import NOTHING_SAID, Claim, End, Spoken

# More than these are made up.
_MAX_REFUSED = 20


class Verdict(enum.Enum):
    """What the endpoint says to a run, and records before."""

    STOP = "stop"
    CLAIM = "claim"
    GO_ON = "go on"
    CLAIM_FIRST = "claim first"
    OTHER_RUN = "other run"
    END = "end"
    SAME_END = "same end"
    OTHER_END = "other end"
    WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """
    What the endpoint sees of the start that gave out a token, at one time.

    :param spoken: what its run has said
    :param is_last: whether it is the task instance's last start
    :param is_current: whether it also has the task instance's ``max_tries``
    :param is_frozen: whether no run may claim it while the task decides
    :param waits: whether the task waits for the end of the run
    :param entered: the run that a person entered, None if there is none
    :param task: the task's state in Airflow, *ended* for each final state but success
    """

    spoken: Spoken = NOTHING_SAID
    is_last: bool = True
    is_current: bool = True
    is_frozen: bool = False
    waits: bool = False
    entered: str | None = None
    task: str | None = "running"

    @property
    def is_wanted(self) -> bool:
        """Whether a run may go on."""
        return (
            self.is_current and self.task != "ended" and not (self.task == "success" and self.waits)
        )


def decide(said: Said, seen: Seen, now: datetime) -> tuple[Verdict, Spoken]:
    """
    Decide what to say to a run, and what to record before.

    :return: the verdict, and all that the run has said and was told by then
    """
    spoken, end = seen.spoken, seen.spoken.end
    is_end = isinstance(said, Ended)
    if end and end.run_id in (None, said.run_id):
        if not is_end:
            return Verdict.STOP, spoken
        stored = Ended(end.status, end.result, end.message, end.run_id)
        # As JSON: 1, 1.0 and True are three values.
        is_same = json.dumps(said, sort_keys=True) == json.dumps(stored, sort_keys=True)
        return Verdict.SAME_END if is_same else Verdict.OTHER_END, spoken
    if spoken.stopped:
        return Verdict.STOP, spoken
    is_other = not spoken.run_ids <= {said.run_id}
    # A flow that never says its run_id must be able to end the run that a person entered.
    is_other |= said.run_id is not None and seen.entered not in (None, said.run_id)
    if not is_end and not seen.is_wanted:
        return Verdict.STOP, _refused(spoken, said.run_id) if is_other else spoken._replace(
            stopped=now
        )
    if is_other:
        return Verdict.OTHER_RUN, _refused(spoken, said.run_id)
    if is_end and not seen.is_last:
        return Verdict.STOP, spoken._replace(stopped=now)
    verdict = _verdict(said, seen)
    match verdict, said:
        case Verdict.CLAIM, Started():
            spoken = spoken._replace(claim=Claim(now, said.run_id, said.run_link))
        case Verdict.GO_ON, _ if spoken.claim:
            spoken = spoken._replace(claim=spoken.claim._replace(run_id=said.run_id))
        case Verdict.END, Ended():
            spoken = spoken._replace(
                end=End(now, said.status, said.run_id, said.result, said.message)
            )
    return verdict, spoken


def _verdict(said: Said, seen: Seen) -> Verdict:
    """Decide what to say to a run that is wanted or says its end, where no other run has the task."""
    has_claimed = seen.spoken.claim is not None
    if isinstance(said, Ended):
        decides = seen.is_frozen and not has_claimed and seen.task in ("running", "restarting")
        return Verdict.WAIT if decides else Verdict.END
    if seen.task == "restarting":
        return Verdict.WAIT
    if has_claimed:
        return Verdict.GO_ON
    if seen.is_frozen and seen.task not in ("awaiting_input", "success"):
        return Verdict.WAIT
    return Verdict.CLAIM_FIRST if isinstance(said, Running) else Verdict.CLAIM


def _refused(spoken: Spoken, run_id: str | None) -> Spoken:
    if run_id is None or run_id in spoken.refused or len(spoken.refused) >= _MAX_REFUSED:
        return spoken
    return spoken._replace(refused=(*spoken.refused, run_id))
