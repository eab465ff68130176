"""
What a person settles in the tab Flow run, in Chromium, with the rights of each role.

Airflow executes real tasks here, and its own REST API decides and does what the tab asks for.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from airflow_launcher.airflow import (
    API_SERVER,
    DAG_PROCESSOR,
    SCHEDULER,
    Airflow,
    temporary_home,
)
from airflow_launcher.databases import PostgreSQL
from airflow_launcher.processes import wait_for
from browser import HEIGHT, AirflowUi, browser_page, new_page
from real_airflow import QUICK_RECOVERY
from services import FLOW_ID, KEY
from workflow_automation_provider.testing import Key, LocalService

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import FrameLocator, Page

USERS = {"viewer": "viewer", "user": "user", "op": "op"}
"""The users and their roles; the passwords are the names."""

DAGS = """
from airflow.sdk import DAG, task

from workflow_automation_provider.operators.flows import TriggerFlowOperator
from workflow_automation_provider.taskflow import trigger_flow_once

INPUTS = {"case": "{{ run_id }}", "task": "{{ task.task_id }}"}
OPTIONS = {"send_retry_timeout": 0}


@task
def read(result=None):
    return result


with DAG("report", schedule=None, is_paused_upon_creation=False):
    started = TriggerFlowOperator(task_id="trigger", inputs=INPUTS, **OPTIONS)
    started >> read()

with DAG("waits", schedule=None, is_paused_upon_creation=False):
    waiting = TriggerFlowOperator(
        task_id="trigger", inputs=INPUTS, wait_for_completion=True, **OPTIONS
    )
    read(waiting.output["result"])

with DAG("chain", schedule=None, is_paused_upon_creation=False):
    TriggerFlowOperator(task_id="trigger", inputs=INPUTS, **OPTIONS) >> TriggerFlowOperator(
        task_id="after", inputs=INPUTS, trigger_rule="all_done", **OPTIONS
    )

with DAG("mapped", schedule=None, is_paused_upon_creation=False):
    TriggerFlowOperator.partial(task_id="trigger", **OPTIONS).expand(
        inputs=[{"case": "{{ run_id }}", "row": row} for row in range(3)]
    )

with DAG("named", schedule=None, is_paused_upon_creation=False):

    @task
    def trigger(dag_run=None):
        for name in ("ada", "grace"):
            trigger_flow_once(name, inputs={"case": dag_run.run_id, "name": name})

    trigger()
"""

IN_DOUBT = ("continue-user", "continue-op", "start-user", "start-op", "mark-user", "mark-op")
UNTOUCHED = ("viewer", "half", "strangers", "changed")
REJECTED = ("again-user", "again-op")
WAITING = ("succeed-user", "succeed-op", "fail-user", "fail-op")
RESULT = {"rows": 3, "text": "<b>&"}


class Deployment:
    """
    An Airflow with a local service, and tasks that ended as a person finds them.

    :param airflow: the Airflow, which runs
    :param flows: the service that it triggers
    """

    def __init__(self, airflow: Airflow, flows: LocalService) -> None:
        self.airflow = airflow
        self.api = airflow.api
        self.flows = flows

    def prepare(self) -> None:
        """Trigger all that the tests look at, and wait until a person is needed."""
        for case in (*IN_DOUBT, *UNTOUCHED):
            self.flows.faults.add("drop_after", inputs={"case": case})
        for case in REJECTED:
            self.flows.faults.add("reject", inputs={"case": case})
        for task_id in ("trigger", "after"):
            self.flows.faults.add("drop_after", inputs={"case": "both", "task": task_id})
        self.flows.faults.add("drop_after", inputs={"case": "one", "row": 1})
        self.flows.faults.add("drop_after", inputs={"case": "two", "name": "grace"})

        failing = [("report", case) for case in (*IN_DOUBT, *UNTOUCHED, *REJECTED)]
        failing += [("mapped", "one"), ("named", "two"), ("chain", "both")]
        for dag_id, case in failing:
            self.api.trigger(dag_id, case)
        for case in WAITING:
            self.api.trigger("waits", case)
        for dag_id, case in failing:
            assert self.api.finished(dag_id, case) == "failed"
        for case in WAITING:
            wait_for(f"{case} to wait", partial(self.waits, case), pause=0.5)

    def waits(self, case: str) -> bool:
        return bool(self.api.task("waits", case, "trigger")["state"] == "awaiting_input")

    def runs(self, case: str, **inputs: object) -> list[str]:
        """Return the ids of the runs that a DAG run has started."""
        wanted = {"case": case, **inputs}
        return [
            str(run.run_id)
            for run in self.flows.runs
            if wanted.items() <= (run.inputs or {}).items()
        ]

    def entries(self, dag_id: str, case: str) -> set[str]:
        path = f"/dags/{dag_id}/dagRuns/{case}/taskInstances/trigger/state-store"
        return {entry["key"] for entry in self.api.ask("GET", path)["task_state_store"]}


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    with temporary_home("actions") as home:
        dags = home / "dags"
        dags.mkdir()
        (dags / "flows.py").write_text(DAGS)
        airflow = Airflow(
            home,
            dags,
            components=[API_SERVER, SCHEDULER, DAG_PROCESSOR],
            database=PostgreSQL(home),
            users=USERS,
            settings=QUICK_RECOVERY,
        )
        with LocalService([Key(KEY, FLOW_ID)], journal=home / "flows.jsonl") as flows, airflow:
            connection = flows.airflow_connection()
            airflow.api.add_connection("workflow_automation_default", connection)
            found = Deployment(airflow, flows)
            found.prepare()
            yield found


@pytest.fixture(scope="module")
def browser(deployment: Deployment) -> Iterator[Page]:
    with browser_page() as page:
        yield page


@pytest.fixture(scope="module")
def people(deployment: Deployment, browser: Page) -> dict[str, AirflowUi]:
    """Everybody, logged in with a password."""
    found = {}
    for name in USERS:
        found[name] = AirflowUi(new_page(browser), deployment.airflow.url)
        found[name].log_in(name, name)
    return found


def press(frame: FrameLocator, label: str) -> str:
    """Press a button of the tab, and return the sentence that asks once more."""
    frame.get_by_role("button", name=label).click()
    question = frame.get_by_role("group", name="Confirm").locator("p").first
    expect(question).to_be_visible()
    return str(question.inner_text())


def confirm(frame: FrameLocator) -> str:
    """Confirm, and return what the page reports."""
    frame.get_by_role("button", name="Confirm").click()
    report = frame.locator("#report")
    expect(report).to_be_visible()
    return str(report.inner_text())


@pytest.mark.parametrize("role", ["user", "op"])
class TestEachAction:
    def test_continue(
        self, deployment: Deployment, people: dict[str, AirflowUi], role: str
    ) -> None:
        case = f"continue-{role}"
        (run_id,) = deployment.runs(case)
        frame = people[role].open_flow_run_tab("report", case, "trigger")
        expect(frame.get_by_text("in doubt")).to_be_visible()
        frame.get_by_label("Run ID").fill(f" {run_id} ")
        question = press(frame, "Continue with this run")
        assert question == (
            f"The task continues with run {run_id}. "
            "Clears this task and 1 task instance downstream. "
            "Without a link, the next tasks get no run_link."
        )
        report = confirm(frame)
        assert "were cleared" in report
        assert deployment.api.finished("report", case) == "success"
        assert deployment.api.xcom("report", case, "trigger")["run_id"] == run_id
        assert deployment.runs(case) == [run_id]
        assert "workflow_automation_run" not in deployment.entries("report", case)

    def test_start(self, deployment: Deployment, people: dict[str, AirflowUi], role: str) -> None:
        case = f"start-{role}"
        frame = people[role].open_flow_run_tab("report", case, "trigger")
        question = press(frame, "No run was started: start one")
        assert "a second run if there is one already" in question
        assert "starts again" in confirm(frame)
        assert deployment.api.finished("report", case) == "success"
        assert len(deployment.runs(case)) == 2

    def test_mark(self, deployment: Deployment, people: dict[str, AirflowUi], role: str) -> None:
        case = f"mark-{role}"
        frame = people[role].open_flow_run_tab("report", case, "trigger")
        assert "no run_id" in press(frame, "The run did the work: mark as success")
        assert confirm(frame).startswith("The task was marked as success.")
        assert deployment.api.finished("report", case) == "success"
        assert len(deployment.runs(case)) == 1

    def test_start_after_another_failure(
        self, deployment: Deployment, people: dict[str, AirflowUi], role: str
    ) -> None:
        case = f"again-{role}"
        frame = people[role].open_flow_run_tab("report", case, "trigger")
        expect(frame.locator("form")).to_have_count(1)
        press(frame, "Start a run")
        confirm(frame)
        assert deployment.api.finished("report", case) == "success"
        assert len(deployment.runs(case)) == 1

    def test_succeed(self, deployment: Deployment, people: dict[str, AirflowUi], role: str) -> None:
        case = f"succeed-{role}"
        frame = people[role].open_flow_run_tab("waits", case, "trigger")
        frame.get_by_text("Settle by hand").click()
        press(frame, "The run succeeded")
        frame.get_by_label("Result of the flow").fill(json.dumps(RESULT))
        assert "with this result" in confirm(frame)
        assert deployment.api.finished("waits", case) == "success"
        assert deployment.api.xcom("waits", case, "read") == RESULT
        assert len(deployment.runs(case)) == 1

    def test_fail(self, deployment: Deployment, people: dict[str, AirflowUi], role: str) -> None:
        case = f"fail-{role}"
        frame = people[role].open_flow_run_tab("waits", case, "trigger")
        frame.get_by_text("Settle by hand").click()
        assert "without a retry" in press(frame, "The run failed")
        assert confirm(frame).startswith("The task was marked as failed.")
        assert deployment.api.finished("waits", case) == "failed"
        # The run is known, so that a person can change their mind.
        expect(frame.get_by_label("Run ID")).to_have_value(deployment.runs(case)[0])


def test_another_flow_task_in_doubt_downstream_starts_no_second_run(
    deployment: Deployment, people: dict[str, AirflowUi]
) -> None:
    (run_id,) = deployment.runs("both", task="trigger")
    frame = people["user"].open_flow_run_tab("chain", "both", "trigger")
    marked = press(frame, "The run did the work: mark as success")
    assert "starts a second run of after" in marked
    frame.get_by_role("button", name="Cancel").click()
    frame.get_by_label("Run ID").fill(run_id)
    question = press(frame, "Continue with this run")
    assert "Clears this task. Leaves after as it is" in question
    confirm(frame)
    assert deployment.api.finished("chain", "both") == "failed"
    assert deployment.api.task("chain", "both", "trigger")["state"] == "success"
    assert deployment.api.task("chain", "both", "after")["try_number"] == 1
    assert len(deployment.runs("both")) == 2


def test_one_of_a_mapped_task(deployment: Deployment, people: dict[str, AirflowUi]) -> None:
    (run_id,) = deployment.runs("one", row=1)
    frame = people["user"].open_mapped_tab("mapped", "one", "trigger", 1)
    frame.get_by_label("Run ID").fill(run_id)
    assert press(frame, "Continue with this run").endswith("Clears this task.")
    assert "was cleared" in confirm(frame)
    assert deployment.api.finished("mapped", "one") == "success"
    assert len(deployment.runs("one")) == 3
    assert deployment.api.xcom("mapped", "one", "trigger", map_index=1)["run_id"] == run_id
    tries = [len(deployment.api.tries("mapped", "one", "trigger", row)) for row in range(3)]
    assert tries == [1, 2, 1]


def test_each_name_has_its_field(deployment: Deployment, people: dict[str, AirflowUi]) -> None:
    ada, grace = deployment.runs("two")
    frame = people["user"].open_flow_run_tab("named", "two", "trigger")
    expect(frame.get_by_label("Run ID of ada")).to_have_value(ada)
    frame.get_by_label("Run ID of grace").fill(grace)
    assert f"run {ada} for ada, run {grace} for grace" in press(frame, "Continue with this run")
    confirm(frame)
    assert deployment.api.finished("named", "two") == "success"
    assert deployment.runs("two") == [ada, grace]


def test_viewer_is_told_who_may(deployment: Deployment, people: dict[str, AirflowUi]) -> None:
    frame = people["viewer"].open_flow_run_tab("report", "viewer", "trigger")
    expect(frame.get_by_text("takes the right to edit task instances")).to_be_visible()
    expect(frame.locator("form")).to_have_count(0)


def test_right_that_is_lost_meanwhile(
    deployment: Deployment, people: dict[str, AirflowUi], browser: Page
) -> None:
    ui = AirflowUi(new_page(browser), deployment.airflow.url)
    ui.log_in("user", "user")
    frame = ui.open_flow_run_tab("report", "viewer", "trigger")
    press(frame, "The run did the work: mark as success")
    ui.page.context.clear_cookies()
    ui.page.context.add_cookies(people["viewer"].page.context.cookies())
    report = confirm(frame)
    assert "Airflow responded 403" in report
    assert "the right to edit task instances" in report
    assert deployment.api.task("report", "viewer", "trigger")["state"] == "failed"


def test_clear_that_fails_after_the_run_was_given(
    deployment: Deployment, people: dict[str, AirflowUi]
) -> None:
    """Nothing that is half done is hidden, and it can be finished."""
    (run_id,) = deployment.runs("half")
    page = people["op"].page
    frame = people["op"].open_flow_run_tab("report", "half", "trigger")
    frame.get_by_label("Run ID").fill(run_id)
    press(frame, "Continue with this run")
    page.route(
        "**/clearTaskInstances", lambda route: route.fulfill(status=503, json={"detail": "Busy"})
    )
    report = confirm(frame)
    assert f"The task is given run {run_id}." in report
    assert "But the rest failed: Airflow responded 503: Busy" in report
    expect(frame.get_by_text(f"Run {run_id} is given to this task")).to_be_visible()
    page.unroute("**/clearTaskInstances")

    expect(frame.get_by_label("Run ID")).to_have_value(run_id)
    press(frame, "Continue with this run")
    confirm(frame)
    assert deployment.api.finished("report", "half") == "success"
    assert deployment.runs("half") == [run_id]


def test_task_that_changed_meanwhile(deployment: Deployment, people: dict[str, AirflowUi]) -> None:
    frame = people["user"].open_flow_run_tab("report", "changed", "trigger")
    press(frame, "No run was started: start one")
    deployment.api.mark("report", "changed", "trigger", "success")
    assert "Nothing was sent" in confirm(frame)
    assert len(deployment.runs("changed")) == 1


def test_without_a_script_what_is_known_remains(
    deployment: Deployment, people: dict[str, AirflowUi], browser: Page
) -> None:
    page = new_page(browser, java_script_enabled=False)
    page.context.add_cookies(people["user"].page.context.cookies())
    query = "dag_id=report&run_id=strangers&task_id=trigger"
    page.goto(f"{deployment.airflow.url}/workflow-automation/runs/task?{query}")
    expect(page.get_by_text("look in the workflow's list of runs")).to_be_visible()
    expect(page.get_by_role("button")).to_have_count(0)


# What others can make a browser do ----------------------------------------------------------------

ATTACK = """<!doctype html><iframe name="out"></iframe>
<form id="f" method="post" enctype="text/plain" target="out"
 action="{url}/api/v2/dags/report/clearTaskInstances">
<input name='{{"dry_run":false,"only_failed":false,"task_ids":["trigger"],"x":"' value='"}}'></form>
<iframe id="tab" src="{url}/workflow-automation/runs/task?{query}"></iframe>
<script>
const api = "{url}/api/v2/dags/report/";
const body = JSON.stringify({{dry_run: false, only_failed: false, task_ids: ["trigger"]}});
const ti = "dagRuns/strangers/taskInstances/trigger";
const send = (path, options) =>
  fetch(api + path, {{credentials: "include", ...options}}).then((r) => r.status || r.type, () => "blocked");
const json = {{"content-type": "application/json"}};
window.attacks = () => Promise.all([
  send("clearTaskInstances", {{method: "POST", mode: "no-cors", body}}),
  send("clearTaskInstances", {{method: "POST", mode: "no-cors", body: new Blob([body])}}),
  send("clearTaskInstances", {{method: "POST", headers: json, body}}),
  send(`${{ti}}/state-store/workflow_automation_run`, {{method: "PUT", headers: json, body: '{{"value": "7"}}'}}),
  send(ti, {{method: "PATCH", headers: json, body: '{{"new_state": "success"}}'}}),
  send(`${{ti}}/state-store/workflow_automation_start/1/0`, {{method: "DELETE"}}),
]);
document.getElementById("f").submit();
</script>"""


@contextmanager
def attacker(html: str) -> Iterator[int]:
    """Serve a page of another origin, and yield its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"], ids=["same site", "another site"])
def test_page_of_another_origin_can_do_nothing(
    deployment: Deployment, people: dict[str, AirflowUi], host: str
) -> None:
    """Another port of Airflow's host is the same site: there, the cookie is sent along."""
    before = deployment.entries("report", "strangers")
    page = people["op"].page
    query = "dag_id=report&run_id=strangers&task_id=trigger"
    with attacker(ATTACK.format(url=deployment.airflow.url, query=query)) as port:
        page.goto(f"http://{host}:{port}/")
        found = page.evaluate("window.attacks()")
        page.wait_for_timeout(500)
        # Neither can it draw the tab, to have its buttons pressed.
        assert page.frame_locator("#tab").locator("form").count() == 0
    assert found == ["opaque", "opaque", "blocked", "blocked", "blocked", "blocked"]
    task = deployment.api.task("report", "strangers", "trigger")
    assert (task["state"], task["try_number"]) == ("failed", 1)
    assert deployment.entries("report", "strangers") == before


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_picture(people: dict[str, AirflowUi], pictures: Path, tmp_path: Path, theme: str) -> None:
    ui = people["user"]
    ui.page.set_viewport_size({"width": 1440, "height": HEIGHT})
    ui.page.evaluate("theme => localStorage.setItem('theme', theme)", theme)
    frame = ui.open_flow_run_tab("report", "strangers", "trigger")
    frame.get_by_label("Run ID").fill("1003")
    press(frame, "Continue with this run")
    folder = pictures if theme == "light" else tmp_path
    ui.shoot(folder / "flow-run-continue.png")
    is_wide = "html => html.scrollWidth > html.clientWidth"
    assert not frame.locator("html").evaluate(is_wide)
