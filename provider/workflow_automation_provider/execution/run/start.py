"""
Start a run at most once: for operators and TaskFlow.

1. **Read** the last start; :mod:`~.start_decision` decides whether to return its run, to report it,
   or to send. A read may find nothing where there is something, so most decisions are made twice,
   with a probe between.
2. **Settle** a start in doubt whose run was given a URL, before anything else is decided
   (:mod:`~.claim_wait`).
3. **Record** the start and **send** the request (:mod:`~.send`), if none of that found a run.
   Between the two, the caller makes the whole request: an error in it is raised before anything is
   recorded or sent.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Literal

from workflow_automation_provider.client.urls import origin_of
from workflow_automation_provider.exceptions import (
    Code,
    InvalidRequestError,
    OutcomeUnknownError,
    RunFailedError,
    UnidentifiedError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.record.start_decision import (
    Decision,
    KnownStart,
    decide,
    is_certain,
    not_continued,
    why_not,
)
from workflow_automation_provider.execution.run.claim_wait import settle
from workflow_automation_provider.execution.run.send import REVOKED, StartSender
from workflow_automation_provider.wording import one_line, run_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workflow_automation_provider.client.protocol import Request
    from workflow_automation_provider.execution.record.entries import Place, RunResult
    from workflow_automation_provider.execution.run.tools import RunTools

OnUnknownStart = Literal["fail", "start_again"]
"""
What to do if it is unknown whether a run was started.

An operator can also wait for the run to ``"claim"`` its start.
"""

_LOOK = "Look in the workflow's list of runs."


def request_digest(inputs: object, flow_id: object) -> str | None:
    """
    Return a hash of the request.

    :return: None if its inputs cannot be encoded: sending them will say why
    """
    from workflow_automation_provider.client.json_values import encode

    with contextlib.suppress(InvalidRequestError):
        return hashlib.sha256(encode("", [flow_id, inputs])).hexdigest()

    return None


class RunStarter:
    """Start the run of one record, unless an earlier try did."""

    def __init__(self, tools: RunTools) -> None:
        self._tools = tools
        self.earlier: WorkflowAutomationError | None = None
        """
        What an earlier try left, as an error.

        An error of this try must mention it, if this try started nothing.
        """
        self.known: KnownStart
        """What is known of the start whose run is returned."""
        self._last: KnownStart | None
        self._adopted: RunResult | None

    def find(self) -> RunResult | None:
        """
        Return the run that an earlier try started, or that a person gives the task.

        :return: None if a run is to be started: then :meth:`send` it
        :raises WorkflowAutomationError: if none may be started
        """
        try:
            decision = self._decide_certainly()
            if decision is Decision.SETTLE:
                self._last = self._settled_last()
                decision = decide(self._last, self._tools.options)
        except WorkflowAutomationError:
            raise
        except Exception:
            # An error of the store, which says nothing of the run that an earlier try started.
            if self.earlier:
                self._tools.log.error(self.earlier.message)
            raise

        if decision is Decision.ADOPT:
            return self._adopt()
        if decision is Decision.RETURN:
            return self._return_last()
        if decision is not Decision.SEND:
            raise self._error_for(decision)
        if self._tools.options.is_resumed and not self._was_cleared():
            if self._last:
                self._tools.check_goes_on(self._last)
            raise UnidentifiedError(
                "What the task recorded of its run while it waited is gone from Airflow's task "
                "state store."
            )

        self._log_earlier()
        return None

    def send(self, request: Request, url_fields: Mapping[str, str]) -> RunResult:
        """
        Start a run, where :meth:`find` found none.

        :param url_fields: the fields ``token_hash``, and ``callback_url`` or ``mailbox``, of its
            start, if its run is given a URL
        :raises WorkflowAutomationError: if no run was started, or it is unknown whether one was
        """
        start = self._tools.record.new_start(
            request=self._tools.options.request,
            conn_id=self._tools.hook.workflow_automation_conn_id,
            origin=origin_of(request.url),
            flow_id=request.flow_id,
            earlier=self._earlier_starts(),
            **self._tools.options.wait_fields,
            **url_fields,
        )
        before = self._text(self._last) if self._last and start.earlier else ""
        sender = StartSender(self._tools, request, start)
        try:
            return self._return(sender.send(self._last))
        except (OutcomeUnknownError, UnidentifiedError) as error:
            # Where no run was started, the task's error mentions what an earlier try left.
            if not before:
                raise
            consequence = f"{error.consequence}\nBefore, {before}"
            raise error.with_facts(consequence=consequence) from error.__cause__

    # Decide -------------------------------------------------------------------------------------

    def _decide_certainly(self) -> Decision:
        """
        Read the record, and decide.

        Unless one read is enough, it is repeated, after a probe, until two find the same.

        :raises RuntimeError: if the store does not return the probe
        """
        decision = self._decide()
        while not is_certain(
            decision,
            self._last,
            is_adopted=self._adopted is not None,
            is_first=not self._tools.record.may_have_entries,
            is_own=self._tools.options.is_resumed and self._is_of_this_try(),
        ):
            before = (decision, self._last, self._adopted)
            self._tools.record.probe()
            decision = self._decide()
            if (decision, self._last, self._adopted) == before:
                break

        return decision

    def _decide(self) -> Decision:
        """Read the last start and the run that a person gives the task, and decide."""
        last = self._last = self._tools.record.last_start()
        if last and last.is_since_clear(self._tools.options.max_tries):
            self.earlier = self._as_error(last)
        # A task that was resumed has its run already.
        reads_adopted = not self._tools.options.is_resumed or self._was_cleared()
        self._adopted = self._tools.record.adopted() if reads_adopted else None
        return decide(last, self._tools.options, self._adopted["run_id"] if self._adopted else None)

    def _is_of_this_try(self) -> bool:
        """Return whether this try has made the last start."""
        this_try = self._tools.record.try_number
        return self._last is not None and self._last.start.try_number == this_try

    def _was_cleared(self) -> bool:
        """Return whether a person has cleared the task since its last start, for another run."""
        max_tries = self._tools.options.max_tries
        return self._last is not None and not self._last.is_since_clear(max_tries)

    # An earlier start ---------------------------------------------------------------------------

    def _settled_last(self) -> KnownStart:
        """
        Wait for what the run of the last start reports; if it has not begun, revoke its token.

        :return: what is known of the start by then
        :raises Exception: if it is not certain that its token is revoked
        """
        last = self._last
        assert last  # noqa: S101
        text = self._text(last)
        if text:
            self._tools.log.warning(_sentence(text))

        return settle(self._tools, last)

    def _adopt(self) -> RunResult:
        """
        Adopt the run that a person gives the task, if it may be that of the last start.

        :raises InvalidRequestError: if it may not
        """
        run, last = self._adopted, self._last
        assert run  # noqa: S101
        if last and last.start.token_hash:
            self._tools.record.all_starts()
            self._tools.record.probe()  # one of them may not have been seen
            last, *others = self._tools.record.all_starts()
            reason = why_not(run["run_id"], last, others)
            if reason:
                raise not_continued(run["run_id"], reason)
        elif self._tools.options.wait_for_completion:
            reason = "nobody can tell its end, since it was given no URL"
            raise not_continued(run["run_id"], reason)

        self._tools.log.info(
            "Returning run %s, which was entered in the task's state store, not starting another.",
            one_line(run["run_id"]),
        )
        known = self._tools.record.adopt(run, last, **self._tools.options.wait_fields)
        return self._return(known)

    def _return_last(self) -> RunResult:
        """
        Return the run of the last start.

        If a person has entered a run, it is the same one: the entry is deleted.
        """
        assert self._last  # noqa: S101
        run = self._return(self._last)
        if self._adopted:
            self._tools.record.forget_adopted()
        return run

    def _return(self, known: KnownStart) -> RunResult:
        """
        Return the run of a start.

        :raises WorkflowAutomationError: if it was told to stop, or another one has the task
        """
        self._tools.check_goes_on(known)
        self.known = known
        run = self._tools.run_of(known)
        self._log_return(known, run)
        return run

    def _log_return(self, known: KnownStart, run: RunResult) -> None:
        """Log what a person may want to know of a run that is returned."""
        start, reports = known.start, known.reports
        asked, is_resumed = self._tools.options.request, self._tools.options.is_resumed
        is_of_earlier_try = start.place[0] != self._tools.record.try_number
        is_returned = is_of_earlier_try and not start.run and not is_resumed
        if self.earlier and is_returned:
            text = _sentence(self._text(known))
            self._tools.log.info("%s Returning that run, not starting another.", text)

        # Not at each look of a task that waits: a template may give the time.
        if asked and start.request and start.request != asked and not is_resumed:
            self._tools.log.warning(
                "The inputs or the flow_id differ from those of try %d, which its run has.",
                start.try_number,
            )

        if reports.claim:
            self._tools.log.info("%s has claimed this start.", run_text(run.get("run_id")))

        is_named = "run_id" in run or "response" in run
        if reports.has_begun and not is_named and not reports.run_id:
            self._tools.log.warning(
                "The run_id is unknown: it was lost with the response, or with the try that "
                "started it, and the run did not say it."
            )

    def _error_for(self, decision: Decision) -> WorkflowAutomationError:
        """Return the error for a start after which nothing may be sent."""
        last = self._last
        assert last  # noqa: S101
        if decision is Decision.CHANGED:
            # Such as names by position in a list that changed: the recorded run is that of another
            # request.
            return InvalidRequestError(
                f"{self._tools.record.name!r} has other inputs or another flow_id than in try "
                f"{last.start.try_number}.",
                consequence="Nothing was sent for it in this try.",
                next_step=(
                    "Inside a task, use a name for each start that means the same in every try."
                ),
            )

        text = _sentence(self._text(last))
        error: WorkflowAutomationError = OutcomeUnknownError(text, consequence=_LOOK)
        if last.outcome and decision is Decision.UNIDENTIFIED:
            error = UnidentifiedError(last.outcome.reason, consequence=f"{text} {_LOOK}")

        is_revoked = last.is_settled and last.start.can_call
        return error.with_facts(next_step=REVOKED) if is_revoked else error

    def _log_earlier(self) -> None:
        """Log why another run is started, where an earlier try may have started one."""
        last = self._last
        if last is None:
            return

        text = self._text(last)
        if text:
            self._tools.log.warning(
                "%s Starting another run: %s.", _sentence(text), self._why_another(last)
            )

    def _why_another(self, last: KnownStart) -> str:
        """Return why another run is started after the last start."""
        if not last.is_since_clear(self._tools.options.max_tries):
            return "the task has been cleared since"
        if last.reports.stopped:
            return "its run was told to stop"
        if last.reports.end:
            return "its run failed"
        if last.is_settled and last.start.can_call:
            return "no run has claimed that start, and one that asks from now on is told to stop"
        return f"on_unknown_start is {self._tools.options.on_unknown_start!r}"

    def _as_error(self, known: KnownStart) -> WorkflowAutomationError | None:
        """Return what a start may have left, as an error; None if nothing."""
        text = self._text(known)
        if not text:
            return None

        end = known.reports.end
        if end and end.status == "failed":
            return RunFailedError(text)

        run_id = self._tools.run_of(known).get("run_id")
        if run_id:
            return UnidentifiedError(text, code=Code.CONNECTION, run_id=run_id)

        kind = UnidentifiedError if known.has_run else OutcomeUnknownError
        return kind(f"{text} {_LOOK}")

    def _earlier_starts(self) -> tuple[Place, ...]:
        """Return the starts since the last Clear that have a run, or may have one."""
        last = self._last
        if last is None or not last.is_since_clear(self._tools.options.max_tries):
            return ()
        return last.with_run

    def _text(self, known: KnownStart) -> str:
        """Return in words what a start and those before it may have left; empty if nothing."""
        return self._tools.record.text(known, self._tools.redactor_of)


def _sentence(text: str) -> str:
    """Return the text of a start as a sentence: it begins with a small "try"."""
    return f"{text[:1].upper()}{text[1:]}"
