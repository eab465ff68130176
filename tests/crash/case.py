"""One DAG run of the crash tests: what is done to its task, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import pytest

from airflow_launcher.processes import wait_for
from gate import Hold
from real_airflow import Flow, executions_seen

if TYPE_CHECKING:
    from concurrent.futures import Future

    from deployment import Blow, Deployment
    from gate import Try
    from workflow_automation_provider.testing import LocalService
    from workflow_automation_provider.testing.faults import ScriptedFault

Play = Callable[["Case"], None]
Test = Callable[["Played", str], None]
Played = dict[tuple[Test, str], "Future[None]"]
"""What happens to each DAG."""

PLAYS: dict[Test, Play] = {}
"""The tests that are plays."""


def play(*dag_ids: Any) -> Callable[[Play], Test]:
    """
    Make a test of what happens to a task of each of these DAGs.

    All but those that are skipped are played side by side, each in a DAG run of its own.
    """

    def decorate(happens: Play) -> Test:
        @pytest.mark.parametrize("dag_id", dag_ids)
        def test(played: Played, dag_id: str) -> None:
            played[test, dag_id].result()

        PLAYS[test] = happens
        return test

    return decorate


class Case:
    """
    One DAG run.

    :param run_id: its name
    """

    def __init__(
        self, deployment: Deployment, service: LocalService, dag_id: str, run_id: str
    ) -> None:
        self.deployment, self.service, self.api = deployment, service, deployment.api
        self.dag_id, self.run_id = dag_id, run_id

    # What is to happen

    def fault(self, kind: str, **options: Any) -> ScriptedFault:
        return self.service.faults.add(kind, **{"inputs": {"case": self.run_id}, **options})

    def calls_back(self, **options: Any) -> None:
        self.service.callbacks.add(inputs={"case": self.run_id}, wait=0.2, attempts=20, **options)

    def held_flow(self, **options: Any) -> Flow:
        flow = Flow()
        self.calls_back(result=flow, **options)
        return flow

    def hold(self, point: Literal["before", "after"], method: str, path: str) -> Hold:
        return self.deployment.gate.hold(Hold(self.run_id, point, method, path))

    def begin(self) -> None:
        self.api.trigger(self.dag_id, self.run_id)

    def kill(self, blow: Blow = "both") -> None:
        self.deployment.kill(blow, self.tries[-1])

    def clear(self) -> None:
        self.api.clear(self.dag_id, self.run_id, "trigger")

    def mark(self, state: str, task_id: str = "trigger", map_index: int = -1) -> None:
        self.api.mark(self.dag_id, self.run_id, task_id, state, map_index=map_index)

    # What has happened

    @property
    def state(self) -> str:
        found: str = self.api.task(self.dag_id, self.run_id, "trigger")["state"]
        return found

    def until_seen(self, executions: int) -> None:
        """
        Wait until the scheduler has seen the task leave its worker so often.

        On Airflow 3.3 it takes the end of an execution, if it sees it late, for that of the next
        one of the same try.
        """
        wait_for(
            f"the end of execution {executions} of {self.run_id}",
            lambda: executions <= executions_seen(self.deployment.home, self.run_id),
        )

    def suspended(self) -> None:
        """Wait until the task waits, and will not look by itself for an hour."""
        wait_for(f"{self.run_id} suspended", lambda: self.deployment.put_off_check(self.run_id))
        self.until_seen(len(self.tries))

    def deferred(self) -> None:
        """Wait until a trigger looks for the task."""
        wait_for(f"{self.run_id} deferred", lambda: self.state == "deferred")
        self.until_seen(len(self.tries))

    @property
    def tries(self) -> list[Try]:
        return self.deployment.gate.tries_of(self.run_id)

    @property
    def log(self) -> str:
        return self.deployment.log(self.dag_id, self.run_id)

    @property
    def runs(self) -> list[str]:
        """The runs that were started, by the service's journal."""
        return [str(run.run_id) for run in self.service.runs if run.inputs["case"] == self.run_id]

    @property
    def worked(self) -> list[str]:
        """The runs that went past their first step."""
        return [
            str(work.run_id)
            for work in self.service.journal.worked()
            if work.inputs["case"] == self.run_id
        ]

    def answers(self, number: int = 1) -> list[int | None]:
        """Wait until flows have called so often, and return what each got."""

        def found() -> list[int | None]:
            runs = self.runs
            calls = self.service.journal.callbacks()
            statuses = [call.status for call in calls if str(call.run_id) in runs]
            return statuses if len(statuses) >= number else []

        return wait_for(f"a callback of {self.run_id}", found)

    def end(self, state: str, *, runs: int, tries: int = 9) -> dict[str, Any]:
        """
        Wait for the end, and expect so many runs.

        Return the task's result, which is of the last one.

        :param tries: how many there may be
        """
        self.api.finished(self.dag_id, self.run_id)
        task = self.api.task(self.dag_id, self.run_id, "trigger")
        assert (task["state"], len(self.runs)) == (state, runs), self.log
        assert len(self.api.tries(self.dag_id, self.run_id, "trigger")) <= tries, self.log
        if state != "success":
            return {}
        result: dict[str, Any] = self.api.xcom(self.dag_id, self.run_id, "trigger")
        assert result.get("run_id") in (None, self.runs[-1])
        return result

    def end_well(self) -> None:
        """Expect the result, and the run that it is of."""
        result = self.end("success", runs=1)
        assert result["run_id"]
        assert result["result"] == {"rows": 3}
