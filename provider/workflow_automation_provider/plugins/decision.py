"""
What the endpoint says to a run: a table, without Airflow and without a database.

A run is *wanted* while its token is valid: the token's entry exists for the task instance's current ``max_tries``,
and the task has not ended, or is green because it does not wait for the run. Of all runs of a task instance since
its last Clear, one at most has the claim.

===============  ====================  ===========================  ==========================  ==================
The run sends    it is not wanted,     another run has the claim    it has the claim            nobody has claimed
                 or was told to stop
===============  ====================  ===========================  ==========================  ==================
``started``      STOP                  OTHER_RUN                    GO_ON                       CLAIM
``running``      STOP                  OTHER_RUN                    GO_ON, and keep the word    CLAIM_FIRST
an end           STOP                  OTHER_RUN                    END                         END
the same end     SAME_END              SAME_END                     SAME_END                    SAME_END
another end      OTHER_END             OTHER_END                    OTHER_END                   OTHER_END
===============  ====================  ===========================  ==========================  ==================

A run is told to STOP only once that is recorded, unless it has ended: a cleared task must not return it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workflow_automation_provider.execution.callback import Answer, Running, Started

if TYPE_CHECKING:
    from workflow_automation_provider.execution.callback import ClaimRow, Said


class Verdict(enum.Enum):
    """What the endpoint says to a run, and what it writes before."""

    STOP = "stop"
    CLAIM = "claim"
    GO_ON = "go on"
    CLAIM_FIRST = "claim first"
    OTHER_RUN = "other run"
    END = "end"
    SAME_END = "same end"
    OTHER_END = "other end"


@dataclass(frozen=True, slots=True)
class Receipt:
    """
    What the endpoint keeps of an end.

    :param at: when it came, as ISO 8601 text
    """

    status: str
    at: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Seen:
    """
    What the entries of a task instance say of a token, at one time.

    :param is_wanted: whether the token is valid
    :param claim: the one that counts for the current ``max_tries``, None if there is none
    :param own: the token's last claim, also one of before a Clear; None if there is none
    :param receipt: of the token's end, None if there is none
    """

    is_wanted: bool
    claim: ClaimRow | None = None
    own: ClaimRow | None = None
    receipt: Receipt | None = None


def decide(said: Said, token: str, digest: str, seen: Seen) -> Verdict:
    """
    Decide what to say to a run.

    :param said: what it sends
    :param digest: of the token
    """
    if isinstance(said, Answer) and seen.receipt is not None:
        is_same = seen.receipt.fingerprint == said.fingerprint(token)
        return Verdict.SAME_END if is_same else Verdict.OTHER_END
    if not seen.is_wanted or (seen.own is not None and "stopped" in seen.own):
        return Verdict.STOP
    if seen.claim is None:
        if isinstance(said, Answer):
            return Verdict.END
        return Verdict.CLAIM if isinstance(said, Started) else Verdict.CLAIM_FIRST
    if seen.claim["digest"] != digest or not _is_of(said, seen.claim):
        return Verdict.OTHER_RUN
    return Verdict.END if isinstance(said, Answer) else Verdict.GO_ON


def _is_of(said: Said, claim: Any) -> bool:
    """
    Return whether what a run sends is of the run that has claimed with the same token.

    It is not where something between the task and the service has sent one request twice, which started two runs.
    """
    claimed = claim.get("run_id")
    if isinstance(said, Answer):
        # The end of a run that did not name itself when it claimed is not lost.
        return claimed in (None, said.run_id)
    return said.run_id == claimed or (isinstance(said, Running) and said.run_id is None)
