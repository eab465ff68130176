"""One DAG run of the crash tests: what is done to its task, and what came of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from airflow_launcher.waiting import wait_for
from gate import Hold
from outcomes import Outcome, outcome, run_ids
from workflow_automation_provider.execution.callback import PATH

if TYPE_CHECKING:
    from deployment import Deployment
    from workflow_automation_provider.testing import LocalService
    from workflow_automation_provider.testing.journal import SentCallback

START, OUTCOME = "/workflow_automation_start/", "/workflow_automation_outcome/"


class Flow:
    """The last step of a flow, which a test holds back until it lets it go."""

    def __init__(self) -> None:
        self._goes_on = threading.Event()

    def __call__(self, run: object) -> dict[str, Any]:
        assert self._goes_on.wait(1200)
        return {"rows": 3}

    def end(self) -> None:
        self._goes_on.set()


class Case:
    """One DAG run."""

    def __init__(self, deployment: Deployment, service: LocalService, dag_id: str, name: str) -> None:
        self.deployment, self.service, self.api = deployment, service, deployment.api
        self.dag_id, self.run_id = dag_id, name.replace("_", "-")

    def calls_back(self, **options: Any) -> None:
        self.service.callbacks.add(inputs={"case": self.run_id}, wait=0.2, attempts=20, **options)

    def held_flow(self) -> Flow:
        flow = Flow()
        self.calls_back(result=flow)
        return flow

    def hold(
        self, point: Literal["before", "after"], method: str, path: str, says: str = "", *, lost: bool = False
    ) -> Hold:
        return self.deployment.gate.hold(Hold(self.run_id, point, method, path, says, lost=lost))

    def hold_first_step(self) -> Hold:
        """Hold what the first run says first, however often it says so."""
        hold = Hold(self.run_id, "before", "POST", PATH, '"started"', lost=False, again=True)
        return self.deployment.gate.hold(hold)

    def begin(self, **conf: str) -> None:
        self.api.trigger(self.dag_id, self.run_id, conf)

    @property
    def state(self) -> str:
        found: str = self.api.task(self.dag_id, self.run_id, "trigger")["state"]
        return found

    def parked(self, times: int = 1) -> None:
        """
        Wait until the task waits, and will not look by itself for an hour.

        :param times: how often it has left its worker
        """

        def is_parked() -> bool:
            if not self.deployment.put_off_check(self.run_id):
                return False
            # On Airflow 3.3, a task can be lost that continues before the scheduler has seen that it left its worker:
            # as if it was answered within a second.
            executions = len(self.deployment.gate.tries_of(self.run_id))
            return times <= executions <= self.deployment.executions_seen(self.run_id)

        wait_for("the task parked", is_parked)

    def kill(self) -> None:
        """Kill the task's process and its supervisor."""
        self.deployment.kill("both", self.deployment.gate.tries_of(self.run_id)[-1])

    def kill_task(self) -> None:
        """Kill the task's process: its supervisor tells Airflow at once."""
        self.deployment.kill("task", self.deployment.gate.tries_of(self.run_id)[-1])

    @property
    def log(self) -> str:
        return self.deployment.log(self.dag_id, self.run_id)

    @property
    def runs(self) -> list[str]:
        return run_ids(self.service, self.run_id)

    @property
    def worked(self) -> list[str]:
        """The runs that went past their first step."""
        return [
            str(work.run_id) for work in self.service.journal.worked() if work.inputs["case"] == self.run_id
        ]

    def called(self, times: int = 1) -> list[SentCallback]:
        """Wait until the flow has called, and return how."""

        def found() -> list[SentCallback] | None:
            runs = self.runs
            calls = [call for call in self.service.journal.callbacks() if str(call.run_id) in runs]
            return calls if len(calls) >= times else None

        return wait_for("the callback", found)

    def end(self, state: str) -> Outcome:
        found = outcome(self.deployment, self.service, self.dag_id, self.run_id)
        assert found.state == state, found.log
        return found

    def end_well(self, runs: int = 1) -> Outcome:
        """Expect the result, and the run that it is of."""
        found = self.end("success")
        assert len(found.runs) == runs
        assert found.result
        assert found.result.get("run_id") == found.runs[-1]
        assert found.result["result"] == {"rows": 3}
        return found


Outcomes = dict[Callable[..., None], "Future[None]"]


@contextmanager
def at_once(
    cases: Mapping[Callable[..., None], str], case_of: Callable[[Callable[..., None], str], Case]
) -> Iterator[Outcomes]:
    """
    Play cases side by side, each in a DAG run of its own.

    :param cases: what happens to a task, and the DAG that it is of
    """
    # More at once only wait for one another.
    with ThreadPoolExecutor(12) as pool:
        yield {run: pool.submit(run, case_of(run, dag_id)) for run, dag_id in cases.items()}
