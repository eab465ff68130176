"""
A task instance, its runs, and whoever clears, marks or enters.

A world to break the promise in; for Airflow 3.3+.

Real are the operator, Airflow's rows, the endpoint that decides over them, and the local service
with its faults. The task state store has the face and the semantics of Airflow's SDK: a ``get``
finds nothing where the response is a 404, or the task instance is another's by now; a ``set`` then
raises; a slow call is repeated, and the first may be carried out later. A test scripts what happens
at which call of a process (see :mod:`world_calls`):

===============  ===================================================================================================
``kill``         it is killed before the call, also where Airflow has no retries left
``kill after``   it is killed once the call was carried out, also where no other follows
``lost``         Airflow responds with 404, and does nothing
``fail after``   the call was carried out, and an error returned
``slow``         the call was carried out, and its repeat is in flight: see :attr:`World.late`
a function       it is called first: what others do meanwhile, as a whole try does where Airflow has lost this process
===============  ===================================================================================================
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx

from entry_keys import ADOPTED
from workflow_automation_provider.testing._server.callback_sender import write_mailbox
from workflow_automation_provider.testing.callbacks import headers_of
from world_calls import Happening, Script, together
from world_machinery import KEY as KEY
from world_machinery import Machinery
from world_process import Killed, Process, Store


@dataclass
class Run:
    """
    A run that the service has started.

    :param url: which it was given, None if it was given none
    :param clears: how often the task had been cleared before the process that started it began
    :param reported: the status that each report names, that of the response, and how often the task
        had been cleared by then
    """

    run_id: str
    url: str | None
    clears: int
    reported: list[tuple[str, int, int]] = field(default_factory=list)

    def last_response(self, clears: int) -> int | None:
        """
        Return the last response when it asked whether to go on, after so many Clears.

        None if it did not ask.
        """
        responses = [
            response
            for status, response, at in self.reported
            if status in ("started", "running") and at == clears
        ]
        decided = [response for response in responses if response in (200, 404, 409)]
        return decided[-1] if decided else None

    @property
    def end(self) -> str | None:
        """The end for which it got 200, None if there is none."""
        for status, response, _ in self.reported:
            if status in ("success", "failed") and response == 200:
                return status
        return None


class Flow:
    """The runs that the service has started for the task, and what they report."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.runs: list[Run] = []

    def reports(self, status: str, run: int | Run = -1, **fields: Any) -> int:
        """
        Have a run report to Airflow; return the status of the response.

        :param run: itself, or its number
        :param fields: of the body; its own ``run_id`` is ``run_id=True``
        """
        run = self.runs[run] if isinstance(run, int) else run
        assert run.url, "It was given no URL"
        if fields.get("run_id") is True:
            fields["run_id"] = run.run_id
        body = {"status": status, **fields}
        if _is_mailbox(run.url):
            response = write_end(run.url, body)
        else:
            response = self._world.ask(run.url, body=body)
        run.reported.append((status, response, self._world.clears))
        return response


def _is_url(value: object) -> bool:
    """Return whether an input is the URL by which the run reports."""
    if not isinstance(value, str):
        return False
    return "token=" in value or _is_mailbox(value)


def _is_mailbox(url: str) -> bool:
    return url.startswith("file:") or headers_of(url) is not None


def write_end(url: str, body: dict[str, Any]) -> int:
    """
    Write an end to a mailbox, as a run does; return the status of the response.

    :param url: the one that the run is given
    """
    if url.startswith("file:"):
        return write_mailbox(url, json.dumps(body).encode()).status or 0
    return httpx.put(url, json=body, headers=headers_of(url)).status_code


class World:
    """
    A task instance from its first try on.

    :param operator: which each try executes as a copy
    :param extra: of the connection
    """

    def __init__(self, operator: Any, **extra: Any) -> None:
        import airflow_rows

        self.operator = operator
        self.rows = airflow_rows.Rows(_machinery.dag_of(operator), operator.task_id)
        self.store_error = airflow_rows.store_error
        self.flow = Flow(self)
        self.faults = _machinery.service.faults
        self.faults.clear()
        self.late: list[Callable[[], Any]] = []
        """What was asked of Airflow twice, and may be carried out again at any time."""
        self.processes: list[Process] = []
        """Those that have executed the task, in the order in which they began."""
        self.xcoms: dict[str, Any] = {}
        self.clears = 0
        self.responses: list[str] = []
        self.requests: list[str] = []
        """The paths of the requests that were sent to the service, in order."""
        _machinery.connect(**extra)
        _machinery.on_request, _machinery.on_run = self.requests.append, self._begin

    @property
    def state(self) -> str | None:
        """The state of the task instance."""
        return self.rows.state

    @property
    def last(self) -> Process:
        """The process that began last."""
        return self.processes[-1]

    @property
    def current(self) -> Process:
        """The process that makes a call now."""
        assert _machinery.process
        return _machinery.process

    def try_(self, *scripts: Script) -> Process:
        """
        Execute the next try, or continue the one that is suspended.

        Return once it has ended, or was killed, and all that was to happen by name has.
        """
        may_begin = (None, "up_for_retry", "awaiting_input", "deferred", "up_for_reschedule")
        assert self.state in may_begin, self.state
        before = self.state
        self.rows.begin()
        row = self.rows.current
        process = Process(self, row, together(*scripts))
        self.processes.append(process)
        if before in (None, "up_for_retry"):
            self.xcoms = {}
        with _machinery.supervised(process):
            self._execute(process, row, before)
        if process.is_dead:
            self.lose(process)
        for script in scripts:
            if isinstance(script, Happening):
                assert script.has_happened, f"There was no such call: {script}, {process.calls}"
        return process

    def until_end(self, *scripts: Script) -> Process:
        """Execute tries until the task has ended, or is suspended; the scripts are of the first."""
        process = self.try_(*scripts)
        while self.state in ("up_for_retry", "up_for_reschedule"):
            process = self.try_()
        return process

    def lose(self, process: Process) -> None:
        """
        Have Airflow take a process for dead, which may go on.

        As where its heartbeats do not arrive.
        """
        if self.rows.is_running(process.ti_id):
            self.rows.end("retry")
        self.rows.release(was_killed=True)

    def clear(self, *, keep: bool = True) -> None:
        """
        Clear the task, as a person does.

        :param keep: whether its entries are kept on 3.4; 3.3 always keeps them
        """
        self.clears += 1
        self.rows.clear(keep=keep)

    def mark(self, state: str) -> None:
        """
        Mark the task as *success* or *failed*, as a person does.

        Its process may go on for a moment.
        """
        self.rows.mark(state)

    def adopt(self, run_id: str) -> None:
        """Give the task a run to continue with, as a person does under Storage."""
        self.rows.put(ADOPTED, run_id)

    def ask(self, url: str, method: str = "POST", body: Any = None) -> int:
        """Send a request to the endpoint; return the status of the response."""
        response = _machinery.ask(url, method, body)
        self.responses.append(response.text)
        return response.status_code

    def _begin(self, run: Any, inputs: dict[str, Any]) -> None:
        url = next(
            (value for value in inputs.values() if _is_url(value)),
            None,
        )
        if (process := _machinery.process) is None:  # of a test that sends a request itself
            return
        started = Run(str(run.run_id), url, process.clears)
        self.flow.runs.append(started)
        process.runs.append(started)

    def _execute(self, process: Process, row: Any, before: str | None) -> None:
        from airflow.sdk.exceptions import AirflowFailException, TaskAwaitingInput, TaskDeferred

        operator = copy.copy(self.operator)
        context = self._context(process, row, operator, before)
        kwargs = dict(row.next_kwargs or {})
        if before == "deferred":
            kwargs["event"] = {}
        if before == "awaiting_input":
            kwargs["event"] = {"error": "The time is up.", "error_type": "timeout"}
        try:
            if row.next_method:
                process.result = operator.resume_execution(row.next_method, kwargs, context)
            else:
                process.result = operator.execute(context)
            process.call(
                "push", "return_value", lambda: self._push(process, "return_value", process.result)
            )
            self._report(process, "success", lambda: self.rows.end("success"))
        except Killed:
            process.state = "killed"
        except TaskAwaitingInput as suspended:
            then = (suspended.method_name, suspended.kwargs, suspended.timeout)
            self._report(process, "awaiting_input", lambda: self.rows.suspend(*then))
        except TaskDeferred as deferred:
            process.trigger = deferred.trigger
            after = (deferred.method_name, deferred.kwargs, deferred.timeout)
            self._report(process, "deferred", lambda: self.rows.defer(*after))
        except AirflowFailException as error:
            process.error = error
            self._report(process, "failed", lambda: self.rows.end("failed"))
        except Exception as error:
            if process.is_dead:
                return
            process.error = error
            self._report_failure(process, operator, context, error)

    def _report_failure(
        self, process: Process, operator: Any, context: Any, error: Exception
    ) -> None:
        ti = context["ti"]
        policy = operator.retry_policy
        action = (
            policy.evaluate(error, ti.try_number, ti.max_tries, context).action.value
            if policy
            else ""
        )
        if action == "reschedule":
            self._report(process, "up_for_reschedule", self.rows.reschedule)
        else:
            state = "failed" if action == "fail" else "retry"
            self._report(process, state, lambda: self.rows.end(state))

    def _report(self, process: Process, state: str, report: Callable[[], None]) -> None:
        """
        Report the end of a process.

        Airflow takes no notice where the task is another's by now, or was marked.
        """
        process.state = state
        if self.rows.is_running(process.ti_id):
            report()
        self.rows.release(was_killed=False)

    def _push(self, process: Process, key: str, value: Any) -> None:
        """Keep an XCom, unless the task is another process's by now."""
        if self.rows.is_running(process.ti_id):
            self.xcoms[key] = value

    def _context(
        self, process: Process, row: Any, operator: Any, before: str | None
    ) -> dict[str, Any]:
        dag_run = self.rows.dag_run
        names = ("id", "task_id", "dag_id", "run_id", "map_index", "try_number", "max_tries")
        regions = {"region_id", "region_index"} & {*row._fields}
        own = {"dag_id": row.dag_id, "map_index": row.map_index}
        own |= {"task_ids": [row.task_id], "run_ids": [row.run_id]}

        def push(key: str, value: Any) -> None:
            process.call("push", key, lambda: self._push(process, key, value))

        ti = SimpleNamespace(
            **{name: getattr(row, name) for name in (*names, *regions)},
            task=operator,
            xcom_push=push,
            get_task_states=lambda **of: process.call(
                "states",
                "",
                lambda: {row.run_id: {row.task_id: self.state}} if of == own else {},
                lost=dict,
            ),
            _ti_context_from_server=SimpleNamespace(next_method=row.next_method),
        )
        reschedules = (
            sum(p.ti_id == process.ti_id for p in self.processes[:-1])
            if before == "up_for_reschedule"
            else 0
        )
        return {
            "ti": ti,
            "dag_run": SimpleNamespace(
                start_date=dag_run.start_date, clear_number=dag_run.clear_number
            ),
            "task": operator,
            "task_state_store": Store(self, process),
            "task_reschedule_count": reschedules,
        }


_machinery: Machinery


@contextmanager
def airflow(home: Path) -> Iterator[None]:
    """Make what worlds need, and end it."""
    global _machinery
    _machinery = Machinery(home)
    with _machinery.service, _machinery.patches():
        yield
