"""Airflow's UI in Debian's Chromium."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from playwright.sync_api import expect, sync_playwright

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, FrameLocator, Locator, Page

WIDTH, HEIGHT = 1280, 900
TIMEOUT = 180_000

# A toast goes after some seconds: what it says is kept as soon as it is there.
_LISTEN = """() => {
    const shown = {}
    const look = () => { shown.text ||= document.querySelector("[data-scope=toast][data-part=root]")?.innerText }
    new MutationObserver(look).observe(document.body, {childList: true, subtree: true, characterData: true})
    return shown
}"""


@contextmanager
def browser_page() -> Iterator[Page]:
    """Open a page in Chromium, which reaches this machine and nothing else."""
    arguments = [
        "--disable-dev-shm-usage",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            chromium_sandbox=False,
            args=[*arguments, "--no-proxy-server"],
        )
        expect.set_options(timeout=TIMEOUT)
        yield _page_of(browser)
        browser.close()


def new_page(page: Page, *, java_script_enabled: bool = True) -> Page:
    """Open a page of another person, in the same Chromium."""
    browser = page.context.browser
    assert browser
    return _page_of(browser, java_script_enabled=java_script_enabled)


def _page_of(browser: Browser, *, java_script_enabled: bool = True) -> Page:
    context = browser.new_context(
        viewport={"width": WIDTH, "height": HEIGHT},
        locale="en-GB",
        java_script_enabled=java_script_enabled,
    )
    context.set_default_timeout(TIMEOUT)
    return context.new_page()


class AirflowUi:
    """
    What a person does in Airflow's UI.

    :param page: the browser's page
    :param url: Airflow's address
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self._url = url

    def log_in(self, user: str, password: str) -> None:
        self.page.goto(f"{self._url}/")
        self.page.locator("input[name=username]").fill(user)
        self.page.locator("input[name=password]").fill(password)
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.get_by_role("heading", name="Welcome")).to_be_visible()

    def open_connection_form(self, conn_id: str) -> Locator:
        """Open the form of a new connection, and choose our type."""
        self.page.goto(f"{self._url}/connections")
        self.page.get_by_role("button", name="Add Connection").click()
        form = self.page.get_by_role("dialog")
        form.locator("input[name=connection_id]").fill(conn_id)
        form.get_by_role("combobox").first.fill("Workflow Automation")
        self.page.get_by_role("option", name="Workflow Automation").click()
        return form

    def save(self, form: Locator) -> None:
        form.get_by_role("button", name="Save").click()
        expect(form).to_be_hidden()

    def test(self, conn_id: str) -> str:
        """Press the Test button in a connection's row, and return what Airflow says."""
        self.page.goto(f"{self._url}/connections")
        row = self.page.get_by_role("row").filter(has=self.page.get_by_text(conn_id, exact=True))
        shown = self.page.evaluate_handle(_LISTEN)
        row.get_by_role("button", name=re.compile("Test")).click()
        return str(self.page.wait_for_function("shown => shown.text", arg=shown).json_value())

    def open_task(self, dag_id: str, run_id: str, task_id: str, tab: str = "") -> None:
        self.page.goto(f"{self._url}/dags/{dag_id}/runs/{run_id}/tasks/{task_id}{tab}")

    def open_flow_runs(self) -> FrameLocator:
        """Open the page **Flow runs**, and return the frame that it is drawn in."""
        self.page.goto(f"{self._url}/plugin/flow-runs")
        return self.page.frame_locator("iframe[title='Flow runs']")

    def open_flow_run_tab(self, dag_id: str, run_id: str, task_id: str) -> FrameLocator:
        """
        Open the tab **Flow run** of a task instance.

        And return the frame that it is drawn in.
        """
        self.open_task(dag_id, run_id, task_id)
        self.page.get_by_role("link", name="Flow run", exact=True).click()
        return self.page.frame_locator("iframe[title='Flow run']")

    def open_mapped_tab(
        self, dag_id: str, run_id: str, task_id: str, map_index: int
    ) -> FrameLocator:
        """Open the tab **Flow run** of one instance of a mapped task."""
        self.open_task(dag_id, run_id, task_id, f"/mapped/{map_index}/plugin/flow-run")
        return self.page.frame_locator("iframe[title='Flow run']")

    @property
    def flow_run_link(self) -> Locator:
        """The button **Open run**, which opens the application."""
        return self.page.get_by_role("link", name="Open run", exact=True)

    def press_flow_run(self) -> Page:
        """Press the button, and return the page that it opens."""
        with self.page.context.expect_page() as opened:
            self.flow_run_link.click()
        opened.value.wait_for_load_state()
        return opened.value

    def enter_in_storage(self, key: str, value: str) -> Locator:
        """Fill in a new entry in the tab Storage of the open task, and return its form."""
        self.page.get_by_role("link", name="Storage", exact=True).click()
        self.page.get_by_role("button", name="Add Task State Store").click()
        form = self.page.get_by_role("dialog")
        form.get_by_role("textbox").first.fill(key)
        form.locator(".monaco-editor").click()
        self.page.keyboard.insert_text(value)
        return form

    def clear_task(self) -> None:
        """Clear the open task."""
        self.page.get_by_role("button", name="Press shift+c to clear").first.click()
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_role("button", name="Confirm").click()
        expect(dialog).to_be_hidden()

    def shoot(self, path: Path, *, of: Page | None = None) -> None:
        """Take a screenshot of all of it, when nothing moves any more."""
        page = of or self.page
        page.wait_for_timeout(700)
        page.screenshot(path=path, animations="disabled")

    def shoot_form(self, path: Path, form: Locator) -> None:
        """Take a screenshot of a form, however long it is."""
        self.page.set_viewport_size({"width": WIDTH, "height": 1800})
        self.page.wait_for_timeout(700)
        form.screenshot(path=path, animations="disabled")
        self.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
