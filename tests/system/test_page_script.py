"""What the script of the tab Flow run sends, in Chromium, in front of a stand-in for Airflow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

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
SELF = {"task_id": "trigger", "map_index": -1}
FOUND = {"task_instances": [SELF], "total_entries": 1}


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
        self.others: list[tuple[str, int]] = []
        self._task = task
        self.page = new_page(chromium)
        self.page.route("**/*", self._respond)
        self.page.goto(f"{ORIGIN}/workflow-automation/runs/task")

    def _respond(self, route: Route) -> None:
        path = route.request.url.removeprefix(ORIGIN)
        asked = urlsplit(path)
        query = dict(parse_qsl(asked.query))
        if asked.path.endswith("/task/run"):
            route.fulfill(json=self.flow_run(query))
            return
        if asked.path.endswith("/task/others"):
            route.fulfill(json=self.others)
            return
        if not path.startswith("/api/"):
            tab = pages.tab(self._task, base="", may_change=True)
            route.fulfill(body=bytes(tab.body), headers={**tab.headers})
            return
        self.sent.append((route.request.method, path, route.request.post_data or ""))
        route.fulfill(json=self.cleared)

    def flow_run(self, query: dict[str, str]) -> dict[str, str]:
        return pages.flow_run_of_a_person(self._task, query.get("name", ""), query["flow_run"])

    def change(self, **columns: Any) -> None:
        row = SimpleNamespace(**{**vars(self._task.row), **columns})
        self._task = queries.Task(row, self._task.entries)

    def add(self, key: str, value: object) -> None:
        self._task.entries[key] = value

    def choose(self, kind: str, **fields: str) -> str:
        """Fill in a form, and press its button; return what it asks, or what is wrong."""
        form = self.page.locator(f"form[data-kind={kind}]")
        if not form.is_visible():
            self.settle_by_hand()
        for name, value in fields.items():
            form.locator(f"[name={name}]").fill(value)
        form.locator("> button").click()
        asked = form.locator(".ask:not([hidden]) p, .fault:not([hidden])")
        expect(asked).to_be_visible()
        return str(asked.inner_text())

    def settle_by_hand(self) -> None:
        self.page.get_by_text("Settle by hand").click()

    def confirm(self) -> str:
        """Confirm it; return what the page reports."""
        self.page.locator(".yes:visible").click()
        report = self.page.locator("#report")
        expect(report).to_be_visible()
        return str(report.inner_text())


@pytest.fixture
def tab(chromium: Page) -> Iterator[Callable[..., Tab]]:
    opened: list[Tab] = []

    def open_tab(
        state: str = "failed", name: str = "", *, waits: bool = False, **entries: Any
    ) -> Tab:
        now = datetime.now(UTC)
        columns = {"dag_id": "reports", "run_id": "r+1:2", "task_id": "trigger", "map_index": -1}
        columns |= {"try_number": 1, "max_tries": 2, "date": now, "batch": None, "state": state}
        row = SimpleNamespace(**{**dict.fromkeys(queries.COLUMNS), **columns})
        start: dict[str, Any] = {"at": now.isoformat(), "max_tries": 2}
        if waits:
            start["completion_timeout"] = 3600
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
    opened = tab(state="awaiting_input", waits=True)
    opened.choose("succeed")
    opened.page.get_by_label("Result").fill('{"id": 12345678901234567890, "share": 1.0}')
    opened.sent.clear()
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


def test_the_question_hides_no_character(tab: Callable[..., Tab]) -> None:
    asked = tab().choose("continue", run_id="7\u202egnp")
    assert "run 7\\u202egnp" in asked


def test_a_run_that_the_task_refuses_is_not_asked_about(tab: Callable[..., Tab]) -> None:
    opened = tab()
    assert "quotes" in opened.choose("continue", run_id='"7"')
    assert opened.sent == []


OTHERS = [
    {"task_id": "read", "map_index": -1},
    {"task_id": "flow", "map_index": -1},
    {"task_id": "rows", "map_index": 2},
]


def test_what_a_clear_keeps_and_leaves_is_in_the_question(tab: Callable[..., Tab]) -> None:
    opened = tab()
    opened.page.evaluate("document.querySelector('.forms').dataset.keepsState = ''")
    opened.cleared = {"task_instances": [SELF, *OTHERS], "total_entries": 4}
    opened.others = [("flow", -1), ("rows", 1)]
    asked = opened.choose("start")
    assert "2 task instances downstream. Leaves flow as it is" in asked
    assert "All of them keep their task state." in asked
    opened.confirm()
    *trials, cleared = [json.loads(one[2]) for one in opened.sent]
    assert [trial["dry_run"] for trial in trials] == [True, True]
    assert cleared["keep_task_state"] is True
    assert cleared["only_failed"] is True
    assert cleared["task_ids"] == ["trigger", "read", ["rows", 2]]
    assert "include_downstream" not in cleared


def test_what_a_mark_starts_again_is_in_the_question(tab: Callable[..., Tab]) -> None:
    opened = tab()
    opened.cleared = {"task_instances": [SELF, *OTHERS], "total_entries": 4}
    opened.others = [("flow", -1), ("rows", 2)]
    asked = opened.choose("succeed")
    assert "Clears 1 task instance downstream." in asked
    assert "starts a second run of flow, rows [2]." in asked


def test_what_was_given_is_taken_back(tab: Callable[..., Tab]) -> None:
    opened = tab(workflow_automation_run="7")
    assert "no longer has run 7" in opened.choose("take-back")
    opened.confirm()
    ((method, path, _),) = opened.sent
    assert method == "DELETE"
    assert "/state-store/workflow_automation_run?" in path


def test_a_task_that_has_not_failed_is_not_cleared(tab: Callable[..., Tab]) -> None:
    opened = tab()
    opened.cleared = {"task_instances": [], "total_entries": 0}
    assert "no longer failed" in opened.choose("start")


# How it looks --------------------------------------------------------------------------------------


def colors(tab: Tab) -> set[str]:
    """Return the colors of all buttons that are shown."""
    color = "buttons => buttons.map(button => getComputedStyle(button).backgroundColor)"
    return {*tab.page.locator("button:visible").evaluate_all(color)}


def test_while_a_task_waits_nothing_stands_out(tab: Callable[..., Tab]) -> None:
    opened = tab(state="awaiting_input", waits=True)
    expect(opened.page.locator("button:visible")).to_have_count(0)
    opened.settle_by_hand()
    opened.page.evaluate("refresh()")
    expect(opened.page.locator("button:visible")).to_have_count(2)
    assert colors(opened) == {"rgb(255, 255, 255)"}
    expect(opened.page.get_by_label("Result")).to_be_hidden()
    opened.choose("succeed")
    expect(opened.page.get_by_label("Result")).to_be_visible()


def test_a_result_that_is_no_json_can_be_corrected(tab: Callable[..., Tab]) -> None:
    opened = tab(state="awaiting_input", waits=True)
    opened.choose("succeed")
    opened.page.get_by_label("Result").fill("{rows: 3}")
    assert "Result: expected JSON" in opened.confirm()
    assert {json.loads(body).get("dry_run") for _, _, body in opened.sent} == {True}
    opened.page.get_by_label("Result").fill('{"rows": 3}')
    opened.page.locator(".yes:visible").click()
    expect(opened.page.locator("#report")).to_contain_text("marked as success, with this result")


def test_a_failure_is_said_above_the_forms(tab: Callable[..., Tab]) -> None:
    opened = tab()
    opened.choose("start")
    opened.cleared = {"task_instances": [], "total_entries": 0}
    opened.confirm()
    report, forms = opened.page.locator("#report"), opened.page.locator(".forms")
    above, below = report.bounding_box(), forms.bounding_box()
    assert above
    assert below
    assert above["y"] < below["y"]


def test_a_run_to_continue_with_comes_before_its_button_stands_out(
    tab: Callable[..., Tab],
) -> None:
    opened = tab()
    assert len(colors(opened)) == 1
    opened.page.locator("[name=run_id]").fill("7")
    assert len(colors(opened)) == 2


def test_what_a_person_can_do_unfolds_once_the_task_has_failed(tab: Callable[..., Tab]) -> None:
    opened = tab(state="awaiting_input", waits=True)
    opened.change(state="failed")
    opened.page.evaluate("refresh()")
    expect(opened.page.get_by_role("button", name="Continue with this run")).to_be_visible()


# With a keyboard, and while the page refreshes -----------------------------------------------------


def press_enter_twice(opened: Tab) -> None:
    """Press it at once, as a key that is held repeats it, and again once the question is there."""
    opened.page.keyboard.down("Enter")
    opened.page.keyboard.down("Enter")
    expect(opened.page.locator(".ask:not([hidden])")).to_be_focused()
    opened.page.keyboard.down("Enter")
    opened.page.keyboard.up("Enter")
    opened.page.keyboard.press("Enter")


@pytest.mark.parametrize("kind", ["continue", "fail"])
def test_a_key_that_is_held_confirms_nothing(tab: Callable[..., Tab], kind: str) -> None:
    opened = tab() if kind == "continue" else tab(state="awaiting_input", waits=True)
    form = opened.page.locator(f"form[data-kind={kind}]")
    if kind == "continue":
        form.locator("[name=run_id]").fill("7")
    else:
        opened.settle_by_hand()
        form.locator("> button").focus()
    press_enter_twice(opened)
    assert {method for method, *_ in opened.sent} <= {"POST"}
    assert all(json.loads(body)["dry_run"] for _, _, body in opened.sent)


def test_with_only_a_keyboard(tab: Callable[..., Tab]) -> None:
    """The question is what a screen reader reads; then come Confirm and Cancel."""
    opened = tab()
    opened.page.locator("[name=run_id]").focus()
    opened.page.keyboard.type("7")
    opened.page.keyboard.press("Enter")
    question = opened.page.get_by_role("group", name="Confirm")
    expect(question).to_be_focused()
    expect(question).to_have_accessible_description(re.compile("continues with run 7"))
    opened.page.keyboard.press("Tab")
    opened.page.keyboard.press("Tab")
    opened.page.keyboard.press("Enter")
    expect(opened.page.get_by_role("button", name="Continue with this run")).to_be_focused()
    opened.page.keyboard.press("Enter")
    expect(question).to_be_focused()
    opened.page.keyboard.press("Tab")
    opened.page.keyboard.press("Enter")
    expect(opened.page.locator("#report")).to_contain_text("was cleared")
    assert [method for method, *_ in opened.sent if method == "PUT"] == ["PUT"]


def test_a_refresh_leaves_what_has_not_changed(tab: Callable[..., Tab]) -> None:
    lines = {"status": "unidentified", "at": datetime.now(UTC).isoformat(), "reason": "x\n" * 200}
    opened = tab(**{"workflow_automation_outcome/1/0": lines})
    page = opened.page
    page.locator("pre").evaluate(
        "pre => { pre.scrollTop = 50; pre.focus(); getSelection().selectAllChildren(pre); }"
    )
    page.evaluate("document.querySelector('#history small time').textContent = '1 h ago'")
    page.evaluate("refresh()")
    expect(page.locator("#history small time").first).not_to_have_text("1 h ago")
    assert page.locator("pre").evaluate("pre => pre.scrollTop") == 50
    expect(page.locator("pre")).to_be_focused()
    assert page.evaluate("getSelection().toString().length") > 200


def test_a_refresh_shows_what_has_changed(tab: Callable[..., Tab]) -> None:
    opened = tab()
    expect(opened.page.locator("#history li")).to_have_count(1)
    at = datetime.now(UTC).isoformat()
    opened.add("workflow_automation_outcome/1/0", {"status": "not started", "at": at})
    opened.page.evaluate("refresh()")
    expect(opened.page.locator("#history li")).to_have_count(2)
    expect(opened.page.locator("form")).to_have_count(1)
    expect(opened.page.get_by_role("button", name="Start a run")).to_be_visible()
