"""The connection's form, the Test button and the link "Open run", in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from airflow_launcher.airflow import PASSWORD, USER
from airflow_launcher.processes import free_port, wait_for
from browser import HEIGHT, WIDTH, AirflowUi, browser_page
from entry_keys import ADOPTED
from services import FLOW_ID, KEY, Service
from workflow_automation_provider.client.settings import CONNECTION_FIELDS, FIELD_BEHAVIOUR

if TYPE_CHECKING:
    from pathlib import Path

    from stack import Stack

CONN_ID = "nightly_report"
FILLED = {
    "flow_id": FLOW_ID,
    "timeout": "45",
    "key_expires_on": "2099-01-31",
    "file_format": '{"name": "name", "content": "base64"}',
    "headers": '{"X-Team": "data"}',
}


@pytest.fixture(scope="module")
def ui(stack: Stack) -> Iterator[AirflowUi]:
    with browser_page() as page:
        ui = AirflowUi(page, stack.url)
        ui.log_in(USER, PASSWORD)
        yield ui


def test_add_a_connection(stack: Stack, service: Service, ui: AirflowUi, pictures: Path) -> None:
    form = ui.open_connection_form(CONN_ID)

    for name, value in (("host", service.base_url), ("password", KEY)):
        field = form.get_by_label(FIELD_BEHAVIOUR["relabeling"][name])
        expect(field).to_have_attribute("placeholder", FIELD_BEHAVIOUR["placeholders"][name])
        if name == "host":
            ui.shoot_form(pictures / "connection-form.png", form)
        field.fill(value)
    for hidden in ("Schema", "Login", "Port"):
        expect(form.get_by_text(hidden, exact=True)).to_have_count(0)
    form.get_by_role("button", name="Extra Fields", exact=True).click()
    for name, declared in CONNECTION_FIELDS.items():
        expect(form.get_by_text(declared["label"], exact=True)).to_be_visible()
        expect(form.get_by_text(declared["description"], exact=True)).to_be_visible()
        field = form.locator(f"input[name=element_{name}]")
        # For an extra Airflow shows no placeholder of ours: it offers the schema's examples.
        if examples := declared["schema"].get("examples"):
            expect(field).to_have_attribute("placeholder", "Start typing to see options")
            offered = form.locator(f"datalist#list_{name} option").all()
            assert [option.get_attribute("value") for option in offered] == examples
        if name in FILLED:
            field.fill(FILLED[name])
    ui.shoot_form(pictures / "connection-form-extra.png", form)
    ui.save(form)

    saved = stack.api.ask("GET", f"/connections/{CONN_ID}")
    assert (saved["conn_type"], saved["host"]) == ("workflow_automation", service.base_url)
    extra = json.loads(saved["extra"])
    assert {name: extra[name] for name in FILLED} == {**FILLED, "timeout": 45}
    assert extra["verify"] is True
    assert KEY not in json.dumps(saved)


def test_flow_run_button(
    stack: Stack, service: Service, ui: AirflowUi, pictures: Path, tmp_path: Path
) -> None:
    case, go = "report-2026-01-31", tmp_path / "go"
    # So that the grid has a history.
    stack.api.trigger(
        "nightly_report", "report-2026-01-30", {"conn_id": CONN_ID, "go": str(tmp_path)}
    )
    assert stack.api.finished("nightly_report", "report-2026-01-30") == "success"
    stack.api.trigger("nightly_report", case, {"conn_id": CONN_ID, "go": str(go)})
    go.touch()
    assert stack.api.finished("nightly_report", case) == "success"
    (run,) = service.runs_of(case)

    ui.open_task("nightly_report", case, "trigger", "/details")
    expect(ui.flow_run_link).to_be_visible()
    ui.page.set_viewport_size({"width": WIDTH, "height": 560})
    ui.shoot(pictures / "grid-with-link.png")
    ui.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    opened = ui.press_flow_run()
    assert opened.url == f"{service.url}/runs/{run.run_id}"
    expect(opened.get_by_text(re.compile(re.escape(str(run.run_id)))).first).to_be_visible()
    opened.set_viewport_size({"width": 1000, "height": 420})
    ui.shoot(pictures / "run-page.png", of=opened)
    opened.close()


def test_give_a_failed_task_its_run_by_hand(
    stack: Stack, service: Service, ui: AirflowUi, tmp_path: Path
) -> None:
    case, go = "report-2026-02-01", tmp_path / "go"
    go.touch()
    service.add_fault("drop_after", case)
    stack.api.trigger("nightly_report", case, {"go": str(go)})
    assert stack.api.finished("nightly_report", case) == "failed"
    (run,) = service.runs_of(case)

    ui.open_task("nightly_report", case, "trigger")
    form = ui.enter_in_storage(ADOPTED, f'"{run.run_id}"')
    ui.save(form)
    ui.clear_task()

    wait_for(
        "the Clear", lambda: stack.api.task("nightly_report", case, "trigger")["try_number"] == 2
    )
    assert stack.api.finished("nightly_report", case) == "success"
    assert stack.api.xcom("nightly_report", case, "trigger")["run_id"] == run.run_id
    assert service.runs_of(case) == [run]


def test_test_button(stack: Stack, service: Service, ui: AirflowUi) -> None:
    """It starts no run, and sends no key."""
    before, runs = len(service.journal.requests()), service.journal.runs()
    # With a port of its own: Airflow to 3.3.2 refuses to test a connection without one (its PR
    # 73298).
    for conn_id, port in (("there", service.port), ("nowhere", free_port())):
        at = {"host": "http://127.0.0.1/api", "port": port, "password": KEY}
        stack.api.add_connection(
            conn_id, {"conn_type": "workflow_automation", **at, "extra": {"flow_id": FLOW_ID}}
        )
    messages = {conn_id: ui.test(conn_id) for conn_id in ("there", "nowhere")}
    assert messages["there"].startswith("Test Connection Successful")
    assert "Not checked, as it takes a run: the path and the API key" in messages["there"]
    assert messages["nowhere"].startswith("Test Connection Failed")
    assert KEY not in str(messages)
    assert service.journal.runs() == runs
    assert not any(request.key_sent for request in service.journal.requests()[before:])
