"""The page Flow runs in Chromium, and who may see it: with the simple auth manager, and with FAB's."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

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
from browser import HEIGHT, WIDTH, AirflowUi, browser_page
from live_entries import DIGEST, LiveEntries, ago

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
WAITING, DOUBT, STARTED, BATCH = "waiting", "doubt", "started", "batch"
HOURS = 2 * 60 * 60


@contextmanager
def airflow_with_runs(name: str, settings: dict[str, str]) -> Iterator[tuple[Airflow, LiveEntries]]:
    """Start an Airflow whose tasks nobody executes, with runs in several states."""
    with temporary_home(name) as home:
        dags = home / "dags"
        dags.mkdir()
        (dags / "flows.py").write_text(DAGS)
        database = PostgreSQL(home)
        airflow = Airflow(
            home, dags, components=[API_SERVER, DAG_PROCESSOR], database=database, settings=settings
        )
        if settings:
            airflow.prepare()
            run_commands(airflow, "users", BEFORE)
        with airflow, closing(LiveEntries(database.url)) as entries:
            make_runs(airflow, entries)
            yield airflow, entries


def make_runs(airflow: Airflow, entries: LiveEntries) -> None:
    airflow.api.trigger("nightly_report", WAITING)
    airflow.api.trigger("nightly_report", STARTED)
    airflow.api.trigger("invoices", DOUBT)
    airflow.api.trigger("import_customers", BATCH)
    target = {"conn_id": "workflow_automation_default", "max_tries": 0}

    def outcome(number: int) -> dict[str, object]:
        run = {"run_id": str(number), "run_link": f"{airflow.url}/api/v2/version?run={number}"}
        return {"kind": "run", "at": ago(29), "run": run}

    at = ("nightly_report", WAITING)
    waiting = {"since": ago(HOURS), "until": ago(HOURS - 24 * 60 * 60)}
    entries.set_state(*at, "awaiting_input", {"waiting": waiting})
    entries.put(*at, "start/1/0", at=ago(HOURS + 8), flow_id="nightly", token=DIGEST, waits=True, **target)
    entries.put(*at, "outcome/1/0", **outcome(1001) | {"at": ago(HOURS + 7)})
    entries.put(*at, f"run/{DIGEST}", claim={"at": ago(HOURS + 6), "run_id": "1001"})
    say(entries, "Reading orders", 0.25)
    at = ("nightly_report", STARTED)
    entries.set_state(*at, "running")
    entries.put(*at, "start/1/0", at=ago(30), flow_id="nightly", **target)
    entries.put(*at, "outcome/1/0", **outcome(1002))
    at = ("invoices", DOUBT)
    entries.set_state(*at, "failed")
    entries.put(*at, "start/1/0", at=ago(3600), flow_id="invoices", **target)
    at = ("import_customers", BATCH)
    entries.set_state(*at, "running")
    counts = {"total": 400, "started": 280, "rejected": 15, "unknown": 5, "remaining": 100}
    entries.put(*at, "batch_000000", at=ago(5), max_tries=0, counts=counts)


def say(entries: LiveEntries, message: str, progress: float) -> None:
    entries.put("nightly_report", WAITING, f"word/{DIGEST}", message=message, progress=progress, at=ago(3))


@pytest.fixture(scope="module")
def deployment() -> Iterator[tuple[Airflow, LiveEntries]]:
    with airflow_with_runs("runs", {}) as found:
        yield found


@pytest.fixture(scope="module")
def ui(deployment: tuple[Airflow, LiveEntries]) -> Iterator[AirflowUi]:
    with browser_page() as page:
        ui = AirflowUi(page, deployment[0].url)
        ui.log_in(USER, PASSWORD)
        yield ui


@pytest.fixture
def entries(deployment: tuple[Airflow, LiveEntries]) -> LiveEntries:
    return deployment[1]


def background(frame: FrameLocator) -> str:
    return str(frame.locator("body").evaluate("body => getComputedStyle(body).backgroundColor"))


def has_sideways_scroll(frame: FrameLocator) -> bool:
    return bool(frame.locator("html").evaluate("html => html.scrollWidth > html.clientWidth"))


def set_theme(page: Page, theme: str) -> None:
    """Choose a theme, as Airflow's menu does."""
    page.evaluate("theme => localStorage.setItem('theme', theme)", theme)


def test_list(ui: AirflowUi, pictures: Path) -> None:
    failures: list[str] = []
    ui.page.on("console", lambda message: failures.append(message.text) if message.type == "error" else None)
    ui.page.set_viewport_size({"width": 1440, "height": HEIGHT})
    ui.page.get_by_role("button", name="Browse").click()
    ui.page.get_by_role("menuitem", name="Flow runs").click()
    frame = ui.page.frame_locator("iframe[title='Flow runs']")
    expect(frame.get_by_role("heading", name="Flow runs")).to_be_visible()
    rows = frame.get_by_role("row")
    expect(rows).to_have_count(5)
    expect(frame.get_by_role("columnheader")).to_have_count(6)
    expect(rows.nth(1)).to_contain_text("in doubt")
    expect(frame.get_by_role("status")).to_contain_text("1 in doubt")
    waiting = rows.filter(has_text="1001")
    expect(waiting).to_contain_text("waiting")
    expect(waiting).to_contain_text("Reading orders")
    expect(waiting.get_by_role("progressbar")).to_have_attribute("value", "0.2500")
    expect(rows.filter(has_text="import_customers")).to_contain_text(
        "280 of 400 started, 15 rejected, 5 unknown"
    )
    assert not has_sideways_scroll(frame)
    ui.shoot(pictures / "flow-runs.png")
    assert not [text for text in failures if "Content Security Policy" in text or "sandbox" in text]
    ui.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})


def test_progress_moves(ui: AirflowUi, entries: LiveEntries) -> None:
    frame = ui.open_flow_runs()
    bar = frame.get_by_role("row").filter(has_text="1001").get_by_role("progressbar")
    expect(bar).to_have_attribute("value", "0.2500")
    frame.locator("html").evaluate("html => { html.dataset.loaded = 'once' }")
    say(entries, "Writing orders", 0.75)
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


def test_tab(ui: AirflowUi, entries: LiveEntries, pictures: Path) -> None:
    say(entries, "Writing the report", 0.9)
    frame = ui.open_flow_run_tab("nightly_report", WAITING, "trigger")
    steps = frame.get_by_role("region", name="Conversation").get_by_role("listitem")
    expect(steps.locator("strong")).to_have_text(
        ["Sent", "Response: a run was started", "Claimed by the run", "Last word"]
    )
    advice = frame.get_by_role("region", name="What you can do now")
    expect(advice).to_contain_text("mark the task as success or failed")
    ui.shoot(pictures / "flow-run-tab.png")


def test_themes(ui: AirflowUi) -> None:
    frame = ui.open_flow_runs()
    expect(frame.get_by_role("row")).to_have_count(5)
    found = []
    for theme in ("light", "dark"):
        set_theme(ui.page, theme)
        expect(frame.locator("html")).to_have_attribute("data-theme", theme)
        found.append(background(frame))
    assert found == ["rgb(255, 255, 255)", "rgb(17, 17, 17)"]
    ui.page.reload()
    expect(frame.locator("html")).to_have_attribute("data-theme", "dark")
    set_theme(ui.page, "light")


def test_on_a_phone(ui: AirflowUi, deployment: tuple[Airflow, LiveEntries]) -> None:
    """Alone, as a link to it opens it: Airflow's own frame is wider than a phone."""
    ui.page.set_viewport_size({"width": 390, "height": 844})
    try:
        for path in (LIST, f"{TAB}?dag_id=nightly_report&run_id={WAITING}&task_id=trigger"):
            ui.page.goto(f"{deployment[0].url}{path}")
            expect(ui.page.get_by_role("main")).to_contain_text("Writing the report")
            scroll = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
            assert ui.page.evaluate(scroll)
        ui.page.goto(f"{deployment[0].url}{LIST}")
        expect(ui.page.get_by_role("row")).to_have_count(5)
        expect(ui.page.get_by_role("row").nth(1).get_by_role("cell").first).to_contain_text("in doubt")
    finally:
        ui.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})


def test_without_a_login(ui: AirflowUi, deployment: tuple[Airflow, LiveEntries]) -> None:
    browser = ui.page.context.browser
    assert browser
    with closing(browser.new_context()) as context:
        page = context.new_page()
        page.goto(f"{deployment[0].url}{LIST}?q=invoices")
        page.locator("input[name=username]").fill(USER)
        page.locator("input[name=password]").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(re.compile(re.escape(LIST)))
        expect(page.get_by_role("row")).to_have_count(2)


# Permissions of FAB, the auth manager of most deployments ----------------------------------------------


PEOPLE = {USER: "Admin", "reader": "Viewer", "one": "OnlyOne", "none": "Nothing"}
BEFORE = [
    "sync-perm",
    "roles create OnlyOne Nothing",
    "roles add-perms OnlyOne Nothing -a can_read -r Website 'DAG Runs' 'Task Instances'",
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
    with airflow_with_runs("fab", {"CORE__AUTH_MANAGER": FAB}) as (airflow, _):
        run_commands(airflow, "permissions", AFTER)
        yield airflow


def logged_in(airflow: Airflow, name: str) -> httpx.Client:
    http = httpx.Client(base_url=airflow.url, timeout=60, trust_env=False)
    response = http.post("/auth/token", json={"username": name, "password": name})
    response.raise_for_status()
    http.cookies.set("_token", response.json()["access_token"])
    return http


def test_fab(with_fab: Airflow) -> None:
    pages = [f"{TAB}?dag_id={dag_id}&run_id={run_id}&task_id=trigger" for dag_id, run_id in
             (("nightly_report", WAITING), ("invoices", DOUBT))]  # fmt: skip
    expected: dict[str, tuple[set[str], list[int]]] = {
        USER: (DAG_IDS, [200, 200]),
        "reader": (DAG_IDS, [200, 200]),
        "one": ({"nightly_report"}, [200, 403]),
    }
    for name, (dags, tabs) in expected.items():
        with closing(logged_in(with_fab, name)) as http:
            response = http.get(LIST)
            assert response.status_code == 200, (name, response.text)
            assert {dag for dag in DAG_IDS if dag in response.text} == dags
            assert [http.get(page).status_code for page in pages] == tabs
            for more in ("&dag_id=nightly_report", "&dag_id=~"):
                if name == "one":
                    assert "invoices" not in http.get(f"{pages[1]}{more}").text
    with closing(logged_in(with_fab, "none")) as http:
        response = http.get(LIST)
        assert response.status_code == 403 or "No flow run" in response.text
        assert [http.get(page).status_code for page in pages] == [403, 403]
