"""What is promised: in each state, at each step, and in the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from state import NO_REPORT, NOBODY, Start, State, numbered, run_id

if TYPE_CHECKING:
    from events import World


class Promises:
    """What must hold in a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.on = world.on
        self.has_ids = "no-id" not in self.on

    def state(self, s: State) -> str:
        """
        Return what is broken in a state, empty if nothing is.

        At most one run is told to go on, a task that is green or suspended has that one, and every run
        is mentioned.
        """
        if breach := self.world.is_misled(s):
            return breach
        works = [run.token for run in s.runs if run.does == "works"]
        if not all(self._is_mentioned(s, number) for number in range(len(s.runs))):
            return "a run goes unmentioned"
        # Where a run cannot be told to stop, "start_again" accepts a second one.
        is_second_accepted = self.world.has_mailbox and self.world.policy == "start_again"
        if len(works) > 1 and not is_second_accepted:
            return "two runs work"
        if s.step[0] not in ("done", "suspended"):
            return ""
        token, is_green = s.step[1], s.step[0] == "done"
        has_reports = token != NOBODY and token < len(s.reports)
        end = s.reports_of(token).end if has_reports else None
        is_stopped = has_reports and s.reports_of(token).stopped is not None
        own = [run.does for run in s.runs if run.token == token]
        if own and all(does == "stopped" for does in own) and not is_stopped and not end:
            return f"a {s.task} task has a run that was told to stop, and cannot know"
        if is_green and is_stopped:
            return "a green task has a run that was told to stop"
        if any(other != token for other in works) and not is_second_accepted:
            return f"a {s.task} task has another run than the one that works"
        run = s.last.run if s.last and s.last.token == token else NOBODY
        if run != NOBODY and end and end.run_id not in (None, run_id(run)):
            return "a task takes the end of another run than the one that a person entered"
        working = {n for n, run in enumerate(s.runs) if run.token == token and run.does == "works"}
        if is_green and "which" in self.on and working - {s.step[2]}:
            return "a task returns another run than the one that works"
        if (
            not is_green
            and token in s.revoked
            and not s.reports_of(token).has_begun
            and "stale-revoke" in self.on
        ):
            return "a task waits for a run that can never go on"
        if is_green and self.world.has_mailbox and self.world.waits:
            written = {n for n, run in enumerate(s.runs) if run.token == token}
            if not end or (self.has_ids and end.run_id not in {run_id(n) for n in written}):
                return "a green task has the end of another start's run, or none"
        counting = {start.token for start in s.starts if start.max_tries == s.max_tries}
        if is_green and self._succeeded(s, counting - {token}):
            return "a successful end is lost"
        return ""

    def step(self, s: State, t: State) -> str:
        """
        Return what is broken by a step, empty if nothing is.

        A request is sent only where no run may go on, and a task does not fail in doubt where its
        run has claimed.
        """
        if breach := self.world.is_betrayed(s, t):
            return breach
        name = s.step[0]
        fails = (
            t.step == ("ended",) and s.task == "running" and t.kills == s.kills and not t.is_gone
        )
        token = s.step[1].token if name == "look" else s.token
        # What a person has entered may be refused because of a run that has claimed.
        has_failed = (
            name == "ended"
            and s.task == "running"
            and t.task == "failed"
            and not self.on & {"enter", "person"}
        )
        if (
            ((fails and name in ("look", "unidentified")) or has_failed)
            and self.world.has_url
            and s.reports_of(token).has_begun
        ):
            return "a task fails though its run has claimed"
        if (
            name in ("run", "take")
            and t.step[0] == "finish"
            and self.has_ids
            and self.world.has_url
        ):
            claim = s.reports_of(t.step[1]).claim if t.step[1] != NOBODY else None
            if claim and claim.run_id != run_id(t.step[2]):
                return "a task returns another run than the one that has claimed"
        if fails and name in ("look", "look_once", "doubt") and self.world.has_mailbox:
            last = s.last
            is_read = last and last.token != NOBODY and not self.world.is_unknown(s, last)
            if last and is_read and self.world.mailbox(s, last.token) not in (0, NO_REPORT):
                return "a task fails in doubt though its mailbox has the end"
        sends = t.step == ("new",) and name != "new" and self.world.has_mailbox
        counts = s.last is not None and s.counts(s.last.token)
        if sends and counts and s.last and (breach := self._is_ended(s, s.last.token)):
            return breach
        has_given_up = name == "finish" and s.task == "running" and t.task == "failed"
        is_others = t.is_gone or t.marks != s.marks or t.kills != s.kills or t.people != s.people
        gives_up = has_given_up and not is_others
        counting = {s.last.token} if s.last and s.counts(s.last.token) else set()
        if gives_up and self._succeeded(s, counting):
            return "a successful end is lost: the task fails"
        if t.step[0] != "send" or name not in ("start", "check"):
            return ""
        before = {start.token for start in s.starts if start.max_tries == s.max_tries} - {NOBODY}
        if self._succeeded(s, before):
            return "a successful end is lost: another run is sent"
        stopped = {token for token in before if s.reports_of(token).stopped}
        is_alone = not self.world.size.repeats and not s.clears and "again" not in self.on
        known = {outcome.token for outcome in s.outcomes if outcome.status != "not started"}
        if is_alone and known & (before - stopped):
            return "a second run is sent, by itself, beside one that is known"
        # With a mailbox, there is nobody to ask whether the run was claimed.
        keeps_doubt = self.world.policy == "fail" or (
            self.world.has_mailbox and self.world.policy == "claim"
        )
        if keeps_doubt and not self.on & {"again", "same-gen"}:
            exist = (before - stopped - {s.token}) & {run.token for run in s.runs}
            if any(start.token in exist and not self._is_nothing(s, start) for start in s.starts):
                return "a second run is sent, by itself, in doubt"
        return ""

    def _is_ended(self, s: State, token: int) -> str:
        """Return what is broken if another run is sent, by what is in a mailbox."""
        if token == NOBODY:
            return ""
        written = self.world.mailbox(s, token)
        if written == NO_REPORT:
            return "another run is sent after an end that is no report"
        end = numbered(written).end
        if end and end.status == "success":
            return "another run is sent though a mailbox has a successful end"
        return ""

    def _is_nothing(self, s: State, start: Start) -> bool:
        outcome = next((x for x in s.outcomes if x.token == start.token), None)
        return outcome is not None and outcome.status == "not started"

    def _succeeded(self, s: State, tokens: set[int]) -> bool:
        ends = [s.reports_of(token).end for token in tokens if token != NOBODY]
        return any(end.status == "success" for end in ends if end)

    def _is_mentioned(self, s: State, number: int) -> bool:
        """
        Whether a run is named by an entry, or a start says that one may exist.

        Who lies is found out once it speaks.
        """
        if self.on & {"deletes", "no-id"} or s.is_gone:
            return True  # the entries were deleted; or nothing tells two runs of one token apart
        token, does, _ = s.runs[number]
        issuer = self.world.issuer(s, token)
        if issuer is None:
            return False
        reports = s.reports_of(token)
        if run_id(number) in reports.run_ids.union(reports.refused) or reports.stopped:
            return True
        if any(start.run == number for start in s.starts):
            return True
        outcome = next((x for x in s.outcomes if x.token == token), None)
        if outcome and (
            outcome.status == "not started"
            or (outcome.status == "started" and outcome.run != number)
        ):
            return "honest" not in self.on and does != "stopped"
        return True

    @property
    def goals(self) -> dict[str, Callable[[State], bool]]:
        """What comes in the end, from every state, by what comes by itself."""
        goals: dict[str, Callable[[State], bool]] = {
            "the task comes to an end, or suspends": self._is_over,
            "every run that asks is answered": self._is_answered,
        }
        if "ends" in self.on:
            goals["a task that waits hears the end, and a run that works can say it"] = (
                self._is_heard
            )
        return goals

    def _has_no_more(self, s: State) -> bool:
        return s.step == ("new",) and s.token + 1 >= self.world.size.tokens

    def _is_over(self, s: State) -> bool:
        ended = s.step[0] in ("done", "ended") and s.task != "running"
        return ended or s.step[0] == "suspended" or self._has_no_more(s)

    def _is_answered(self, s: State) -> bool:
        return not any(run.does in ("exists", "old exists") for run in s.runs) or self._has_no_more(
            s
        )

    def _is_heard(self, s: State) -> bool:
        return s.step[0] != "suspended" and not any(
            run.does in ("works", "old works") for run in s.runs
        )
