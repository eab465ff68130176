"""What the script of the tab Flow run sends, in Chromium, in front of a stand-in for Airflow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from browser import browser_page, new_page
from workflow_automation_provider.plugins import page as pages
from workflow_automation_provider.plugins import queries

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

ORIGIN = "http://127.0.0.1:1"
API = "/api/v2/dags/reports/"
TASK = f"{API}dagRuns/r%2B1%3A2/taskInstances/trigger"
START = "workflow_automation_start/1/0"
FOUND = {"task_instances": [], "total_entries": 1}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Page]:
    with browser_page() as page:
        yield page


class Tab:
    """
    The tab of a task.

    :param sent: the requests to Airflow's API: method, path with query, and body
    """

    def __init__(self, chromium: Page, task: queries.Task) -> None:
        self.sent: list[tuple[str, str, str]] = []
        self.cleared: dict[str, Any] = FOUND
        self._task = task
        self.page = new_page(chromium)
        self.page.route("**/*", self._respond)
        self.page.goto(f"{ORIGIN}/workflow-automation/runs/task")

    def _respond(self, route: Route) -> None:
        path = route.request.url.removeprefix(ORIGIN)
        if not path.startswith("/api/"):
            tab = pages.tab(self._task, base="", may_change=True)
            route.fulfill(body=bytes(tab.body), headers={**tab.headers})
            return
        self.sent.append((route.request.method, path, route.request.post_data or ""))
        route.fulfill(json=self.cleared)

    def choose(self, kind: str, **fields: str) -> str:
        """Fill in a form, and press its button; return what it asks, or what is wrong."""
        form = self.page.locator(f"form[data-kind={kind}]")
        for name, value in fields.items():
            form.locator(f"[name={name}]").fill(value)
        form.locator("> button").click()
        asked = form.locator(".ask:not([hidden]) p, .fault:not([hidden])")
        expect(asked).to_be_visible()
        return str(asked.inner_text())

    def confirm(self) -> str:
        """Confirm it; return what the page reports."""
        self.page.locator(".yes:visible").click()
        report = self.page.locator("#report")
        expect(report).to_be_visible()
        return str(report.inner_text())


@pytest.fixture
def tab(chromium: Page) -> Iterator[Callable[..., Tab]]:
    opened: list[Tab] = []

    def open_tab(state: str = "failed", name: str = "", **entries: Any) -> Tab:
        now = datetime.now(UTC)
        columns = {"dag_id": "reports", "run_id": "r+1:2", "task_id": "trigger", "map_index": -1}
        columns |= {"try_number": 1, "max_tries": 2, "date": now, "batch": None, "state": state}
        row = SimpleNamespace(**{**dict.fromkeys(queries.COLUMNS), **columns})
        start = {"at": now.isoformat(), "max_tries": 2}
        key = f"{START}/{name}" if name else START
        opened.append(Tab(chromium, queries.Task(row, {key: start, **entries})))
        return opened[-1]

    yield open_tab
    for one in opened:
        one.page.context.close()


@pytest.mark.parametrize("name", ["a/b", "ä %2F?#", ".", "..", "../..", "a/../b"])
def test_a_run_is_given_to_its_name(tab: Callable[..., Tab], name: str) -> None:
    from urllib.parse import unquote

    opened = tab(name=name)
    opened.choose("continue", run_id="7")
    opened.confirm()
    ((_, path, body),) = [one for one in opened.sent if one[0] == "PUT"]
    store, _, key = path.partition("/state-store/")
    assert store == TASK
    assert unquote(key) == f"workflow_automation_run/{name}?map_index=-1"
    assert json.loads(body) == {"value": "7", "expires_at": None}


def test_a_result_is_sent_as_it_was_written(tab: Callable[..., Tab]) -> None:
    opened = tab(state="awaiting_input")
    opened.choose("succeed", result='{"id": 12345678901234567890, "share": 1.0}')
    opened.confirm()
    method, path, body = opened.sent[0]
    assert (method, path) == ("POST", f"{TASK}/xcomEntries")
    assert '"value": {"id": 12345678901234567890, "share": 1.0}' in body
    assert json.loads(body)["key"] == "result"
    assert [one[0] for one in opened.sent] == ["POST", "PATCH"]


@pytest.mark.parametrize("run_id", ["$&", "{result}", "{runs}", "<b>", "__proto__"])
def test_the_question_names_the_run(tab: Callable[..., Tab], run_id: str) -> None:
    asked = tab().choose("continue", run_id=run_id)
    assert asked.startswith(f"The task continues with run {run_id}.")


def test_what_a_clear_keeps_is_in_the_question(tab: Callable[..., Tab]) -> None:
    opened = tab()
    opened.page.evaluate("document.querySelector('.forms').dataset.keepsState = ''")
    opened.cleared = {"task_instances": [], "total_entries": 3}
    asked = opened.choose("start")
    assert "2 task instances downstream. All of them keep their task state." in asked
    assert json.loads(opened.sent[0][2])["keep_task_state"] is True


def test_nothing_to_clear_is_reported(tab: Callable[..., Tab]) -> None:
    opened = tab()
    opened.cleared = {"task_instances": [], "total_entries": 0}
    assert "finds no task instance to clear" in opened.choose("start")
