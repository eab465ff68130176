"""
``FlowNotifier`` as a callback in real Airflow, as docs/taskflow.md has it.

It changes nothing of what it reports on.
"""

from __future__ import annotations

import asyncio
import textwrap
from typing import Any

from code_blocks import read_code_blocks
from doc_pages import ROOT
from workflow_automation_provider.notifications.flows import FlowNotifier

PAGE = ROOT / "docs" / "taskflow.md"
CALLBACK, TASK, DEADLINE = (
    block.text for block in read_code_blocks(PAGE, "python", "FlowNotifier")
)


def test_of_many_tasks_and_of_their_dag(run_dag, service, task_errors, capfd):
    """
    One notifier is called several times in one process, each time with templates of its own.

    A task gets none of its arguments, although some have the names of its own. A callback that
    fails raises nothing, and the next one is called.
    """
    result = run_dag(
        """
        EVENT = {"event": "{{ dag.dag_id }}/{{ ti.task_id }}/{{ ti.map_index }}/{{ ti.try_number }}"}
        NOTIFIER, BY_PATH = FlowNotifier(EVENT), FlowNotifier(EVENT, "demo-flow")
        FAILING = [FlowNotifier({"a": "{{ missing.attribute }}"}), FlowNotifier({}, None, "missing")]

        def after(context):
            print("The next callback")

        with DAG("ends", schedule=None, on_failure_callback=FlowNotifier({"event": "{{ dag.dag_id }} {{ reason }}"})):
            @task(on_execute_callback=BY_PATH)
            def begin(inputs=None, flow_id=None):
                return [inputs, flow_id]

            @task(on_success_callback=[*FAILING, NOTIFIER, BY_PATH, after])
            def succeed():
                pass

            @task(on_retry_callback=NOTIFIER, retries=1, retry_delay=0)
            def retry(ti=None):
                if ti.try_number == 1:
                    raise ValueError

            @task(on_skipped_callback=NOTIFIER)
            def skip():
                raise AirflowSkipException

            @task(on_failure_callback=NOTIFIER)
            def fail(number):
                raise KeyError

            begin(), succeed(), retry(), skip(), fail.expand(number=[1, 2])
        """,
        ends="failed",
    )
    assert result.xcom("begin") == [None, None]
    by_path = ["ends/begin/-1/1", "ends/succeed/-1/1"]
    by_key = ["fail/0/1", "fail/1/1", "retry/-1/1", "skip/-1/1", "succeed/-1/1"]
    by_key = ["ends task_failure", *(f"ends/{name}" for name in by_key)]
    found = sorted((run.by, run.inputs["event"]) for run in service.runs)
    assert found == [*(("key", name) for name in by_key), *(("path", name) for name in by_path)]
    assert sorted(type(error).__name__ for error in task_errors) == [
        "KeyError",
        "KeyError",
        "ValueError",
    ]
    out = capfd.readouterr().out
    assert out.count("FlowNotifier: ") >= 2
    assert "The next callback" in out
    assert "Failed to" not in out


def test_the_callback_of_the_page(run_dag, service, capfd):
    result = run_dag(CALLBACK, preamble="", ends="failed")
    (run,) = service.runs
    assert run.inputs["message"] == "Task load of orders failed."
    assert run.inputs["event"] == f"orders/{result.dag_run.run_id}/load/-1/1"
    assert "Started run 1001: http" in capfd.readouterr().out

    service.faults.add("reject")
    run_dag(CALLBACK, preamble="", ends="failed")
    out = capfd.readouterr().out
    assert "FlowNotifier: " in out
    assert "FlowNotifier: " in PAGE.read_text()
    assert "No run was started." in out


def test_the_task_of_the_page(run_dag, service):
    source = (
        "with DAG('instead', schedule=None):\n"
        "    @task\n    def load():\n        raise ValueError\n\n    loaded = load()\n    loaded >> "
    ) + textwrap.indent(TASK, "    ").lstrip()
    run_dag(source)
    assert [set(run.inputs) for run in service.runs] == [{"dag_run"}]


def test_the_deadline_of_the_page(service):
    source = DEADLINE.replace("\n):", "\n) as dag:")
    namespace: dict[str, Any] = {"__name__": "orders_in_time"}
    exec(source, namespace)
    found = namespace["dag"].deadline
    (alert,) = found if isinstance(found, list) else [found]
    assert alert.callback.path == f"{FlowNotifier.__module__}.{FlowNotifier.__name__}"
    context = {"dag_run": {"dag_id": "orders_in_time"}, "deadline": {"id": "7"}}

    async def miss():
        await FlowNotifier(**alert.callback.kwargs, context=context)

    asyncio.run(miss())
    assert [run.inputs for run in service.runs] == [
        {"message": "orders_in_time is late", "event": "7"}
    ]
