"""
The page Flow runs in Chromium, and who may see it.

With the simple auth manager, and with FAB's.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from playwright.sync_api import expect

from airflow_launcher.airflow import (
    API_SERVER,
    DAG_PROCESSOR,
    PASSWORD,
    START_TIMEOUT,
    USER,
    Airflow,
    temporary_home,
)
from airflow_launcher.databases import PostgreSQL
from airflow_launcher.processes import Program
from batch_counts import batch_counts
from browser import HEIGHT, WIDTH, AirflowUi, browser_page
from stack import query

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import FrameLocator, Page

LIST, TAB = "/workflow-automation/runs/", "/workflow-automation/runs/task"
FAB = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
DAGS = """
from airflow.sdk import DAG
from workflow_automation_provider.operators.flows import TriggerFlowOperator
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator

for dag_id in ("nightly_report", "invoices"):
    with DAG(dag_id, schedule=None):
        TriggerFlowOperator(task_id="trigger", inputs={"day": "2026-11-22"})
with DAG("import_customers", schedule=None):
    TriggerFlowBatchOperator(task_id="import", batch=[{"n": 1}])
"""
DAG_IDS = {"nightly_report", "invoices", "import_customers"}
DIGEST = "d" * 64
WAITING, DOUBT, STARTED, BATCH = "waiting", "doubt", "started", "batch"
HOURS = 2 * 60 * 60


@contextmanager
def airflow_with_runs(name: str, settings: dict[str, str]) -> Iterator[Airflow]:
    """Start an Airflow whose tasks nobody executes, with runs in several states."""
    with temporary_home(name) as home:
        dags = home / "dags"
        dags.mkdir()
        (dags / "flows.py").write_text(DAGS)
        airflow = Airflow(
            home,
            dags,
            components=[API_SERVER, DAG_PROCESSOR],
            database=PostgreSQL(home),
            settings=settings,
        )
        if settings:
            airflow.prepare()
            run_commands(airflow, "users", BEFORE)
        with airflow:
            make_runs(airflow)
            yield airflow


def in_database(airflow: Airflow, statement: str, **values: Any) -> None:
    query(airflow.env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"], statement, **values)


def set_state(airflow: Airflow, dag_id: str, run_id: str, state: str) -> None:
    """Have the only task of a DAG run be in a state."""
    in_database(
        airflow,
        "UPDATE task_instance SET state = :state, try_number = 1, start_date = now(), end_date = now(), max_tries = 0 "
        "WHERE dag_id = :dag_id AND run_id = :run_id",
        dag_id=dag_id,
        run_id=run_id,
        state=state,
    )


def put(airflow: Airflow, dag_id: str, dag_run_id: str, key: str, /, **value: object) -> None:
    """Write an entry of ours for the only task of a DAG run."""
    in_database(
        airflow,
        "INSERT INTO task_state_store (dag_run_id, dag_id, run_id, task_id, map_index, key, value, updated_at) "
        "SELECT d.id, d.dag_id, d.run_id, t.task_id, t.map_index, :key, :value, now() "
        "FROM dag_run d JOIN task_instance t ON t.dag_id = d.dag_id AND t.run_id = d.run_id "
        "WHERE d.dag_id = :dag_id AND d.run_id = :run_id "
        "ON CONFLICT (dag_run_id, task_id, map_index, key) DO UPDATE SET value = :value, updated_at = now()",
        dag_id=dag_id,
        run_id=dag_run_id,
        key=f"workflow_automation_{key}",
        value=json.dumps(value),
    )


def ago(seconds: float) -> str:
    """Return a time in the past, as entries have it."""
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds")


def make_runs(airflow: Airflow) -> None:
    airflow.api.trigger("nightly_report", WAITING)
    airflow.api.trigger("nightly_report", STARTED)
    airflow.api.trigger("invoices", DOUBT)
    airflow.api.trigger("import_customers", BATCH)
    target = {"conn_id": "workflow_automation_default", "max_tries": 0}

    def outcome(number: int) -> dict[str, object]:
        run = {"run_id": str(number), "run_link": f"{airflow.url}/api/v2/version?run={number}"}
        return {"status": "started", "at": ago(29), "run": run}

    at = ("nightly_report", WAITING)
    set_state(airflow, *at, "awaiting_input")
    put(
        airflow,
        *at,
        "start/1/0",
        at=ago(HOURS + 8),
        flow_id="nightly",
        token_hash=DIGEST,
        completion_timeout=24 * 60 * 60,
        callback_url="https://airflow.example/workflow-automation/callback",
        **target,
    )
    put(airflow, *at, "outcome/1/0", **outcome(1001) | {"at": ago(HOURS + 7)})
    put(airflow, *at, f"report/{DIGEST}", claim={"at": ago(HOURS + 6), "run_id": "1001"})
    say(airflow, "Reading orders", 0.25)
    at = ("nightly_report", STARTED)
    set_state(airflow, *at, "running")
    put(airflow, *at, "start/1/0", at=ago(30), flow_id="nightly", **target)
    put(airflow, *at, "outcome/1/0", **outcome(1002))
    at = ("invoices", DOUBT)
    set_state(airflow, *at, "failed")
    put(airflow, *at, "start/1/0", at=ago(3600), flow_id="invoices", **target)
    at = ("import_customers", BATCH)
    set_state(airflow, *at, "running")
    counts = batch_counts(400, started=280, rejected=15, unknown=5)
    put(airflow, *at, "batch_000000", at=ago(5), max_tries=0, counts=counts)


def say(airflow: Airflow, message: str, progress: float) -> None:
    put(
        airflow,
        "nightly_report",
        WAITING,
        f"message/{DIGEST}",
        message=message,
        progress=progress,
        at=ago(3),
    )


@pytest.fixture(scope="module")
def deployment() -> Iterator[Airflow]:
    with airflow_with_runs("runs", {}) as found:
        yield found


@pytest.fixture(scope="module")
def ui(deployment: Airflow) -> Iterator[AirflowUi]:
    with browser_page() as page:
        ui = AirflowUi(page, deployment.url)
        ui.log_in(USER, PASSWORD)
        yield ui


def of(dag_id: str, run_id: str) -> str:
    """Return the query of a task's tab."""
    return f"dag_id={dag_id}&run_id={run_id}&task_id=trigger"


def background(page: Page) -> str:
    """Return the color behind Airflow's own page."""
    colors = (
        "[document.body, document.documentElement].map(e => getComputedStyle(e).backgroundColor)"
    )
    found = page.evaluate(f"{colors}.find(color => color !== 'rgba(0, 0, 0, 0)')")
    return str(found)


def color(page: Page, name: str) -> str:
    """Return one of Airflow's own colors."""
    style = "getComputedStyle(document.documentElement)"
    return str(page.evaluate(f"{style}.getPropertyValue('--chakra-colors-{name}')"))


def has_sideways_scroll(frame: FrameLocator) -> bool:
    return bool(frame.locator("html").evaluate("html => html.scrollWidth > html.clientWidth"))


def set_theme(page: Page, theme: str) -> None:
    """Choose a theme, as Airflow's menu does."""
    page.evaluate("theme => localStorage.setItem('theme', theme)", theme)


def test_list(ui: AirflowUi, pictures: Path) -> None:
    failures: list[str] = []
    ui.page.on(
        "console",
        lambda message: failures.append(message.text) if message.type == "error" else None,
    )
    ui.page.set_viewport_size({"width": 1440, "height": HEIGHT})
    ui.page.get_by_role("button", name="Browse").click()
    ui.page.get_by_role("menuitem", name="Flow runs").click()
    frame = ui.page.frame_locator("iframe[title='Flow runs']")
    expect(frame.get_by_role("heading", name="Flow runs")).to_be_visible()
    rows = frame.get_by_role("row")
    expect(rows).to_have_count(5)
    expect(frame.get_by_role("columnheader")).to_have_count(7)
    expect(rows.nth(1)).to_contain_text("in doubt")
    expect(frame.get_by_role("status")).to_contain_text("2 in doubt")
    waiting = rows.filter(has_text="1001")
    expect(waiting).to_contain_text("waiting")
    expect(waiting).to_contain_text("Reading orders")
    expect(waiting.get_by_role("progressbar")).to_have_attribute("value", "0.2500")
    expect(rows.filter(has_text="import_customers")).to_contain_text(
        "Of 400 items: 280 started, 15 rejected, 5 unknown"
    )
    ui.shoot(pictures / "flow-runs.png")
    for width in (1440, 1280, 800):
        ui.page.set_viewport_size({"width": width, "height": HEIGHT})
        heights = rows.evaluate_all("rows => rows.map(row => row.offsetHeight)")
        assert max(heights) <= 56
        assert not has_sideways_scroll(frame)
        expect(waiting).to_contain_text(re.compile(r"\d\d:\d\d:\d\d 2 hours ago"))
    assert not [text for text in failures if "Content Security Policy" in text or "sandbox" in text]
    ui.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})


def test_progress_moves(ui: AirflowUi, deployment: Airflow) -> None:
    frame = ui.open_flow_runs()
    bar = frame.get_by_role("row").filter(has_text="1001").get_by_role("progressbar")
    expect(bar).to_have_attribute("value", "0.2500")
    frame.locator("html").evaluate("html => { html.dataset.loaded = 'once' }")
    say(deployment, "Writing orders", 0.75)
    expect(bar).to_have_attribute("value", "0.7500")
    # It was not loaded anew: filters, focus and place stay.
    expect(frame.locator("html")).to_have_attribute("data-loaded", "once")


def test_links_leave_the_frame(ui: AirflowUi) -> None:
    frame = ui.open_flow_runs()
    with ui.page.context.expect_page() as opened:
        frame.get_by_role("link", name="1001", exact=True).click()
    opened.value.wait_for_load_state()
    assert opened.value.url.endswith("/api/v2/version?run=1001")
    assert opened.value.evaluate("window.opener") is None
    opened.value.close()
    frame.get_by_role("row").filter(has_text="invoices").get_by_role("link", name="trigger").click()
    ui.page.wait_for_url(re.compile("/dags/invoices/runs/doubt/tasks/trigger/plugin/flow-run"))


def test_tab(ui: AirflowUi, deployment: Airflow, pictures: Path) -> None:
    say(deployment, "Writing the report", 0.9)
    frame = ui.open_flow_run_tab("nightly_report", WAITING, "trigger")
    steps = frame.get_by_role("group", name="Conversation").get_by_role("listitem")
    expect(steps.locator("strong")).to_have_text(
        ["Sent", "Response: a run was started", "Claimed by the run", "Last message"]
    )
    advice = frame.get_by_role("region", name="What you can do now")
    expect(advice).to_contain_text("ends once the run calls Airflow")
    ui.shoot(pictures / "flow-run-tab.png")
    expect(frame.get_by_role("button", name="The run succeeded")).to_be_hidden()
    frame.get_by_text("Settle by hand").click()
    expect(frame.get_by_role("button", name="The run succeeded")).to_be_visible()


def test_themes(ui: AirflowUi) -> None:
    frame = ui.open_flow_runs()
    expect(frame.get_by_role("row")).to_have_count(5)
    found = []
    for theme in ("light", "dark"):
        set_theme(ui.page, theme)
        expect(frame.locator("html")).to_have_attribute("data-theme", theme)
        ui.page.reload()
        expect(frame.locator("html")).to_have_attribute("data-theme", theme)
        of_airflow = background(ui.page)
        expect(frame.locator("body")).to_have_css("background-color", of_airflow)
        of_links, of_buttons = color(ui.page, "fg-info"), color(ui.page, "brand-fg")
        expect(frame.get_by_role("link", name="1001")).to_have_css("color", of_links)
        expect(frame.get_by_role("button", name="Search")).to_have_css("color", of_buttons)
        found.append(of_airflow)
    assert found[0] == "rgb(255, 255, 255)"
    assert found[1] != found[0]
    set_theme(ui.page, "light")


def test_on_a_phone(ui: AirflowUi, deployment: Airflow) -> None:
    """Alone, as a link to it opens it: Airflow's own frame is wider than a phone."""
    ui.page.set_viewport_size({"width": 390, "height": 844})
    try:
        for path in (LIST, f"{TAB}?{of('nightly_report', WAITING)}"):
            ui.page.goto(f"{deployment.url}{path}")
            expect(ui.page.get_by_role("main")).to_contain_text("Writing the report")
            scroll = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
            assert ui.page.evaluate(scroll)
        ui.page.goto(f"{deployment.url}{LIST}")
        expect(ui.page.get_by_role("row")).to_have_count(5)
        expect(ui.page.get_by_role("row").nth(1).get_by_role("cell").first).to_contain_text(
            "in doubt"
        )
    finally:
        ui.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})


# Permissions of FAB, the auth manager of most deployments -----------------------------------------


PEOPLE = {USER: "Admin", "one": "OnlyOne"}
BEFORE = [
    "sync-perm",
    "roles create OnlyOne",
    "roles add-perms OnlyOne -a can_read -r Website 'DAG Runs' 'Task Instances'",
    *(
        f"users create --username {name} --password {name} --role {role} "
        f"--firstname {name} --lastname {name} --email {name}@app.test"
        for name, role in PEOPLE.items()
    ),
]
AFTER = ["sync-perm --include-dags", "roles add-perms OnlyOne -a can_read -r DAG:nightly_report"]
# All in one process: each takes Airflow some seconds to start.
CLI = """
import shlex, sys
from airflow.cli import cli_parser

for line in sys.argv[1:]:
    parsed = cli_parser.get_parser().parse_args(shlex.split(line))
    parsed.func(parsed)
"""


def run_commands(airflow: Airflow, name: str, lines: list[str]) -> None:
    program = Program(name, [sys.executable, "-c", CLI, *lines], airflow.home, airflow.env)
    assert program.start().wait(START_TIMEOUT) == 0, program.tail()


@pytest.fixture(scope="module")
def with_fab() -> Iterator[Airflow]:
    pytest.importorskip("airflow.providers.fab")
    with airflow_with_runs("fab", {"CORE__AUTH_MANAGER": FAB}) as airflow:
        run_commands(airflow, "permissions", AFTER)
        yield airflow


def logged_in(airflow: Airflow, name: str) -> httpx.Client:
    http = httpx.Client(base_url=airflow.url, timeout=60, trust_env=False)
    response = http.post("/auth/token", json={"username": name, "password": name})
    response.raise_for_status()
    http.cookies.set("_token", response.json()["access_token"])
    return http


def test_fab(with_fab: Airflow) -> None:
    with closing(logged_in(with_fab, USER)) as http:
        text = http.get(LIST).text
        assert [dag_id for dag_id in DAG_IDS if dag_id not in text] == []
    with closing(logged_in(with_fab, "one")) as http:
        text = http.get(LIST).text
        assert [dag_id for dag_id in DAG_IDS if dag_id in text] == ["nightly_report"]
        mine, others = f"{TAB}?{of('nightly_report', WAITING)}", f"{TAB}?{of('invoices', DOUBT)}"
        assert [http.get(path).status_code for path in (mine, others)] == [200, 403]
        for more in ("&dag_id=nightly_report", "&dag_id=~"):
            assert "invoices" not in http.get(f"{others}{more}").text
