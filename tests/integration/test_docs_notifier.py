"""What docs/notifier.md shows works, and its table is that of the code."""

from __future__ import annotations

import asyncio
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from code_blocks import read_code_blocks
from doc_pages import is_from_example
from workflow_automation_provider.notifications.flows import FlowNotifier

PAGE = Path(__file__).parents[2] / "docs" / "notifier.md"
TEXT = PAGE.read_text()
CALLBACK, TASK, DEADLINE = (
    block.text for block in read_code_blocks(PAGE, "python") if not is_from_example(block)
)


@pytest.fixture
def service(workflow_automation_service, workflow_automation_connection):
    return workflow_automation_service


def test_the_callback(run_dag, service, capfd):
    result = run_dag(CALLBACK, preamble="")
    assert result.state == "failed"
    (run,) = service.runs
    assert run.inputs["message"] == "Task load of orders failed."
    assert run.inputs["event"] == f"orders/{result.dag_run.run_id}/load/-1/1"
    assert "Started run 1001: http" in capfd.readouterr().out


def test_the_line_of_a_rejection(run_dag, service, capfd):
    service.faults.add("reject")
    assert run_dag(CALLBACK, preamble="").state == "failed"
    out = capfd.readouterr().out
    for words in ("FlowNotifier: ", "No run was started."):
        assert words in out
        assert words in TEXT


def test_the_task(run_dag, service):
    source = (
        "with DAG('instead', schedule=None, start_date=START):\n"
        "    @task\n    def load():\n        raise ValueError\n\n    loaded = load()\n    loaded >> "
    ) + textwrap.indent(TASK, "    ").lstrip()
    run_dag(source)
    assert [set(run.inputs) for run in service.runs] == [{"dag_run"}]


def test_the_deadline(service):
    source = DEADLINE.replace("\n):", "\n) as dag:")
    namespace: dict[str, Any] = {"__name__": "orders_in_time"}
    exec(source, namespace)
    found = namespace["dag"].deadline
    (alert,) = found if isinstance(found, list) else [found]
    assert alert.callback.path == f"{FlowNotifier.__module__}.{FlowNotifier.__name__}"

    async def miss():
        context = {"dag_run": {"dag_id": "orders_in_time"}, "deadline": {"id": "7"}}
        await FlowNotifier(**alert.callback.kwargs, context=context)

    asyncio.run(miss())
    (run,) = service.runs
    assert run.inputs == {"message": "orders_in_time is late", "event": "7"}


def test_the_arguments():
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in TEXT.partition("| Argument |")[2].partition("\n\n")[0].splitlines()[2:]
    ]
    known = {
        name: parameter
        for name, parameter in inspect.signature(FlowNotifier).parameters.items()
        if name != "kwargs"
    }
    assert [row[0].strip("`") for row in rows] == list(known)
    (templated,) = re.findall("^Templated, nested values too: (.+)", TEXT, re.MULTILINE)
    assert {*re.findall(r"`(\w+)`", templated)} == {*FlowNotifier.template_fields}
    for name, _, default, _ in rows:
        parameter = known[name.strip("`")]
        assert (default == "required") is (parameter.default is inspect.Parameter.empty)
        if default.startswith("`"):
            assert default == f"`{parameter.default!r}`".replace("'", '"')
