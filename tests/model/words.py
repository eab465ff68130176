"""What may happen in the model, and which rules it can leave out, in words."""

from __future__ import annotations

from dataclasses import dataclass

MAY_HAPPEN = {
    "wait": "the task waits, suspended, for the end of its run",
    "ends": "runs say how they ended",
    "fails": "runs also fail",
    "again": 'on_run_failed="start_again"',
    "on-fail": 'on_unknown_start="fail" in place of "claim"',
    "on-start-again": 'on_unknown_start="start_again" in place of "claim"',
    "odd": "a 2xx does not say which run was started",
    "marks": "a person marks the task, whose process lives on for a while",
    "gone": "the DAG run is deleted",
    "enter": "a person enters a run, and clears the task",
    "enter-now": "a person enters a run for a retry, without a Clear",
    "denied": "the person also enters a run of which a gateway said that it was not started",
    "entry-stays": "nobody takes back what a person has entered, and the task leaves it",
    "person": "a person presses what the tab offers, half done or whole",
    "two": "so do two people at once",
    "same-gen": "a Clear leaves max_tries as it was",
    "restarts": "a Clear of a running task leaves max_tries, and its process lives on for a while",
    "deletes": "a Clear deletes the entries, as in Airflow 3.4",
    "again-words": "a run that has ended asks again",
    "busy": "a gateway lies, and the request is sent again in the same try",
    "proxy": "a proxy sends the request twice",
    "orphan": "a process sends after it was killed",
    "honest": "no gateway lies",
    "no-id": "runs do not say their run_id",
    "no-first": "runs do not claim",
    "no-url": "runs are given no URL",
    "mailbox": "runs cannot ask: each writes its end, once, to a mailbox of its own",
    "unread": "a mailbox cannot be read for a while",
    "no-read": "from some time on, mailboxes cannot be read: a right is missing",
    "no-report": "what a run writes to its mailbox may be no report",
    "expired": "the URL of a mailbox may have expired when its run ends",
    "trigger": "the trigger may end at any time, whatever is in the mailbox",
    "collide": "an execution takes the key of one that was killed, whose write comes late",
    "blind": "once, a read of an entry that is there finds nothing",
    "unwritten": "an outcome cannot be recorded",
    "which": "nothing happens, but it is checked which run the task returns",
    "live": "nothing happens, but it is checked that all comes to an end",
}

LEAVE_OUT = {
    # The task.
    "one-key": "each start has a key of its own",
    "no-revoke": "to close a start, the task writes revoked",
    "no-touch": "to close a start, the task writes it once more",
    "enter-touch": "the task does so where it continues with a run that a person entered",
    "no-readback": "the task reads its start back before it sends",
    "no-check": "after a close, the task reads its own state before it sends",
    "odd-open": "a start whose run's id is unknown is closed",
    "nothing-open": "so is one that a response denies, where no try follows",
    "odd-sends": "after such a start, nothing is sent",
    "all-nothing": "a try whose request is in doubt writes no outcome",
    "no-look": "once the outcome is written, the task looks which run has claimed",
    "no-probe": "before what was not seen decides anything, the task writes a probe, and reads again",
    "hasty": "so it does also where the run that it sees has begun, and failed",
    "no-find": "so it does after it has closed a start",
    "over": "after a Clear that left max_tries, the task does not start over",
    "enter-other": "a run that a person entered must be the last start's",
    "enter-ended": "no other run may have ended",
    "enter-refused": "it must not have been refused",
    "no-mailbox-look": "the task looks into the mailbox before it decides",
    "mailbox-claims": "a doubt with a mailbox stays one, whatever on_unknown_start is asked for",
    "unread-is-empty": "a mailbox that cannot be read decides nothing",
    "no-report-fails": "what is no report is not taken for a run that failed",
    "one-mailbox": "each start has a mailbox of its own",
    # The tab.
    "no-same": "before the first request, the page looks whether it is still the same",
    "clear-first": "the run is given before the task is cleared",
    "given-stays": "each action takes back what was given",
    "no-given": "the tab knows what was given",
    "since-clear": "it shows the last start also after a Clear, once the task has failed",
    "no-version": "it says whether a Clear drops what was given",
    "no-end": "it knows the end of the run",
    "no-outcome": "it knows what the response said",
    "no-unread": "it names the mailbox, which it cannot read",
    "no-others": "it asks of a run that is entered whether it may be that of another start",
    # The endpoint.
    "no-lock": "it decides under locks on the task instance and on the start that gave out the token",
    "no-stop-lock": "so it does for a stop",
    "no-end-lock": "so it does for an end",
    "last-lock": "a run that a person entered is not the start that gave out the token",
    "stop-current": "a stop is recorded also where the start no longer counts",
    "end-revoked": "an end of a revoked start waits while the task decides",
    "stale-revoke": "a revoke no longer counts once the task is suspended or green",
    "failed-words": "a run that said that it failed may not go on",
    "late-words": "that a run asked after its end is not recorded",
    "revoked-first": "whether a run is wanted comes before whether its start is revoked",
    "unheard": "who is refused because of another run is noted",
    "end-unheard": "an end of a start that is not the last is recorded as a stop",
}


@dataclass(frozen=True, slots=True)
class Size:
    """
    How much may happen.

    :param tokens: how many starts are sent at most
    :param kills: how often the task is killed, or retried
    :param clears: how often it is cleared
    :param repeats: how many writes are to be carried out again at a time
    :param words: what may happen, and what is left out
    """

    tokens: int
    kills: int
    clears: int
    repeats: int
    words: frozenset[str]

    @classmethod
    def read(cls, text: str) -> Size:
        """Read it from a line, such as ``2 1 1 0 wait ends``."""
        fields = text.split()
        if unknown := {*fields[4:]} - MAY_HAPPEN.keys() - LEAVE_OUT.keys():
            raise ValueError(f"Unknown: {', '.join(sorted(unknown))}")
        tokens, kills, clears, repeats = map(int, fields[:4])
        return cls(tokens, kills, clears, repeats, frozenset(fields[4:]))

    @property
    def runs(self) -> int:
        """How many runs there may be."""
        return self.tokens + (1 if self.words & {"busy", "proxy", "orphan"} else 0)
