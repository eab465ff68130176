"""Every example DAG runs in real Airflow."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from workflow_automation_provider.testing import DEMO_KEY, Key

EXAMPLES = Path(__file__).parents[2] / "example_dags"


@pytest.fixture
def connection(workflow_automation_service, monkeypatch):
    key = workflow_automation_service.keys[0]
    monkeypatch.setenv(
        "AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT",
        json.dumps(
            {
                "conn_type": "workflow_automation",
                "host": workflow_automation_service.base_url,
                "password": key.value,
                "extra": {"flow_id": key.flow_id},
            }
        ),
    )


def test_trigger(run_dag, workflow_automation_service, connection):
    result = run_dag("workflow_automation_trigger.py")

    assert result.state == "success"
    (run,) = workflow_automation_service.runs
    assert run.inputs["dag"] == "workflow_automation_trigger"


def test_trigger_upload(run_dag, workflow_automation_service, connection):
    result = run_dag("workflow_automation_trigger_upload.py")

    assert result.state == "success"
    (run,) = workflow_automation_service.runs
    assert run.inputs["customer"] == "Ada"
    (upload,) = workflow_automation_service.uploads
    assert upload.run_id == run.run_id
    assert [file["name"] for file in upload.files] == ["orders.csv"]
    assert run.run_id in result.xcom("announce")


def test_trigger_mapped(run_dag, workflow_automation_service, connection):
    result = run_dag("workflow_automation_trigger_mapped.py")

    assert result.state == "success"
    assert sorted(run.inputs["customer"] for run in workflow_automation_service.runs) == [
        "Ada",
        "Edsger",
        "Grace",
    ]
    assert result.xcom("count") == 3


def test_taskflow(run_dag, workflow_automation_service, connection):
    result = run_dag("workflow_automation_taskflow.py")

    assert result.state == "success"
    runs = workflow_automation_service.runs
    assert [run.inputs for run in runs] == [{"customer": name} for name in ("Ada", "Grace", "Edsger")]
    assert result.xcom("trigger") == [run.run_id for run in runs]


def test_decorator(run_dag, workflow_automation_service, connection):
    result = run_dag("workflow_automation_decorator.py")

    assert result.state == "success"
    runs = {run.inputs["customer"]: run for run in workflow_automation_service.runs}
    assert sorted(runs) == ["Ada", "Barbara", "Edsger", "Grace"]
    assert runs["Ada"].inputs == {
        "customer": "Ada",
        "greeting": "Dear Ada",
        "language": "en",
        "dag": "workflow_automation_decorator",
    }
    mapped = [result.xcom("trigger_all", "run_id", map_index=index) for index in range(3)]
    assert mapped == [runs[name].run_id for name in ("Ada", "Grace", "Edsger")]
    run_id = runs["Barbara"].run_id
    assert result.xcom("announce") == f"Run {run_id}: {workflow_automation_service.url}/runs/{run_id}"


def test_notifier(run_dag, workflow_automation_service, connection):
    result = run_dag("workflow_automation_notifier.py", run_conf={"rows": 0})

    assert result.state == "failed"
    name = f"workflow_automation_notifier/{result.dag_run.run_id}/check_rows/-1/1"
    message = "Task check_rows of workflow_automation_notifier failed."
    assert [run.inputs for run in workflow_automation_service.runs] == [{"message": message, "event": name}]


def test_batch(run_dag, workflow_automation_service, connection, tmp_path):
    workflow_automation_service.faults.add("reject", inputs={"customer": "Grace"})
    result = run_dag("workflow_automation_batch.py", run_conf={"folder": f"file://{tmp_path}"})

    assert result.state == "success"
    started = {run.inputs["customer"]: run.inputs["region"] for run in workflow_automation_service.runs}
    assert started == {"Ada": "north", "Edsger": "west", "Barbara": "north"}
    assert result.xcom("report") == "3 of 4 runs were started, 1 rows were rejected."


def test_assets(run_dag, workflow_automation_service, connection):
    example = "workflow_automation_assets.py"
    started = run_dag(example, dag_id="workflow_automation_assets_start")
    continued = run_dag(example, dag_id="workflow_automation_assets_continue", cause=started)

    assert (started.state, continued.state) == ("success", "success")
    (run,) = workflow_automation_service.runs
    link = f"{workflow_automation_service.url}/runs/{run.run_id}"
    assert continued.xcom("announce") == [f"Run {run.run_id} of {run.flow_id}: {link}"]


def test_trigger_upload_mapped(run_dag, workflow_automation_service, connection):
    """Whichever trigger fails, every other item's file is at its own run, and the failed one's is nowhere."""
    workflow_automation_service.faults.add("reject", inputs={"customer": "Edsger"})

    result = run_dag("workflow_automation_trigger_upload_mapped.py")

    assert result.state == "failed"
    started = {run.run_id: run.inputs["customer"] for run in workflow_automation_service.runs}
    expected = ["Ada", "Grace"]
    assert sorted(started.values()) == expected
    taken = [
        (started[upload.run_id], [file["name"] for file in upload.files])
        for upload in workflow_automation_service.uploads
    ]
    assert sorted(taken) == [(name, [f"{name}.csv"]) for name in expected]


@pytest.mark.since_3_3
def test_wait(
    run_dag,
    workflow_automation_service,
    workflow_automation_connection,
    workflow_automation_callback_base_url,
):
    workflow_automation_service.callbacks.add(
        result=lambda run: {"rows": 3, "file": f"{run.inputs['report']}.csv"}, delay=0.5
    )

    result = run_dag("workflow_automation_wait.py")

    assert result.state == "success"
    assert result.xcom("announce") == "3 rows are in orders.csv"
    (callback,) = workflow_automation_service.journal.callbacks()
    assert (callback.status, callback.attempts) == (200, 1)
    (run,) = workflow_automation_service.runs
    prefix = f"{workflow_automation_callback_base_url}/workflow-automation/callback?token="
    assert run.inputs == {"report": "orders", "callback_url": f"{prefix}(withheld)"}


@pytest.mark.since_3_3
def test_claim(
    run_dag,
    workflow_automation_service,
    workflow_automation_connection,
    workflow_automation_callback_base_url,
):
    workflow_automation_service.faults.add("drop_after")
    workflow_automation_service.callbacks.add(None, started=0.5)

    result = run_dag("workflow_automation_claim.py")

    assert result.state == "success"
    (run,) = workflow_automation_service.journal.worked()
    assert [one.run_id for one in workflow_automation_service.runs] == [run.run_id]
    assert result.xcom("announce") == f"Continuing with run {run.run_id}"


CHECKS = {
    "complete": ({"started": 0, "running": [{"progress": 0.5}]}, "started, running, success"),
    "no claim": ({}, "success"),
    "silent": ({"status": None}, None),
}


@pytest.mark.since_3_3
@pytest.mark.parametrize(("flow", "order"), CHECKS.values(), ids=CHECKS)
def test_check_flow(
    run_dag,
    workflow_automation_service,
    workflow_automation_connection,
    workflow_automation_callback_base_url,
    task_errors,
    capfd,
    flow,
    order,
):
    workflow_automation_service.callbacks.add(**flow)
    source = (EXAMPLES / "workflow_automation_check_flow.py").read_text()
    assert "completion_timeout=timedelta(seconds=30)" in source

    result = run_dag(source.replace("timedelta(seconds=30)", "timedelta(seconds=2)"), preamble="")

    ends = flow.get("status", "success") is not None
    assert result.state == ("success" if ends else "failed")
    said = capfd.readouterr().out + "".join(map(str, task_errors))
    (line,) = set(
        re.findall(r"The run (?:said: (.+)|has said nothing)\.(?= |\n)", said)
    )  # an error is also in the log
    names = re.sub(r"( \(its last\))? at [0-9:]{8}", "", line)
    assert (names or None) == order
    assert ("has not claimed its start" in said) == (ends and "started" not in flow)
    assert len(workflow_automation_service.runs) == 1


# Recipes of the cookbook --------------------------------------------------------------------------------


def test_nightly(run_dag, workflow_automation_service, connection):
    day = datetime(2026, 3, 1, 2, tzinfo=UTC)
    result = run_dag("workflow_automation_nightly.py", logical_date=day)

    assert result.state == "success"
    started = {run.inputs["region"]: run.inputs["day"] for run in workflow_automation_service.runs}
    assert started == dict.fromkeys(("north", "south", "west"), "2026-03-01")
    names = [result.dag_run.get_task_instance("trigger", map_index=index) for index in range(3)]
    assert [(name.rendered_map_index, name.pool) for name in names] == [
        (region, "workflow_automation") for region in ("north", "south", "west")
    ]


FLOWS = [Key("orders-key", "orders-flow"), Key("invoices-key", "invoices-flow")]


@pytest.mark.parametrize("workflow_automation_keys", [FLOWS])
def test_connections(run_dag, workflow_automation_service, workflow_automation_connect):
    for key, report in zip(FLOWS, ("orders", "invoices"), strict=True):
        workflow_automation_connect(f"workflow_automation_{report}", key)

    result = run_dag("workflow_automation_connections.py")

    assert result.state == "success"
    runs = {run.run_id: run for run in workflow_automation_service.runs}
    assert sorted((run.flow_id, run.inputs["report"]) for run in runs.values()) == [
        ("invoices-flow", "invoices"),
        ("orders-flow", "orders"),
    ]
    taken = [
        (runs[upload.run_id].inputs["report"], upload.flow_id, upload.files[0]["name"])
        for upload in workflow_automation_service.uploads
    ]
    assert sorted(taken) == [
        ("invoices", "invoices-flow", "invoices.csv"),
        ("orders", "orders-flow", "orders.csv"),
    ]


# On Airflow 3.1.3, a sensor that is rescheduled fails in dag.test().
@pytest.mark.parametrize("after", [0, pytest.param(0.5, marks=pytest.mark.since_3_3)])
def test_wait_for_file(run_dag, workflow_automation_service, connection, tmp_path, after):
    """
    The flow has written its file when the task first looks, or not yet.

    :param after: how many seconds after its start the flow writes the file
    """

    def write():
        while not (runs := workflow_automation_service.runs):
            time.sleep(0.05)
        time.sleep(after)
        result = {"rows": 3, "file": "orders.csv"}
        path = Path(runs[0].inputs["result_file"].removeprefix("file://"))
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(result))
        unfinished.rename(path)

    flow = threading.Thread(target=write, daemon=True)
    flow.start()
    source = (EXAMPLES / "workflow_automation_wait_for_file.py").read_text()
    assert "poke_interval=30," in source
    source = source.replace("poke_interval=30,", "poke_interval=1,")
    result = run_dag(source, preamble="", run_conf={"folder": f"file://{tmp_path}"})
    flow.join()

    assert result.state == "success"
    assert result.xcom("announce") == "3 rows are in orders.csv"


def test_next_dag(run_dag, workflow_automation_service, connection):
    example = "workflow_automation_next_dag.py"
    for _ in range(2):
        assert run_dag(example, dag_id="workflow_automation_next_dag_start").state == "success"
    sent = {"rows": 3, "file": "may.csv"}
    result = run_dag(example, dag_id="workflow_automation_next_dag", run_conf=sent)

    first, second = [run.inputs["dag_run_id"] for run in workflow_automation_service.runs]
    assert first != second
    assert result.xcom("announce") == "3 rows are in may.csv"


@pytest.mark.since_3_3
def test_s3(
    run_dag,
    workflow_automation_service,
    workflow_automation_connection,
    workflow_automation_callback_base_url,
    s3,
    monkeypatch,
):
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps(s3.connection))
    orders = {"orders/a.csv": b"order\n1001\n", "orders/b.csv": b"order\n1002\n"}
    for key, content in orders.items():
        s3.put(key, content)

    def flow(run):
        s3.put(run.inputs["key"], b"customer,total\nAda,19.99\nGrace,240.00\n")

    workflow_automation_service.callbacks.add(result=flow, delay=0.5)

    result = run_dag("workflow_automation_s3.py")

    assert result.state == "success"
    assert result.xcom("read") == 2
    (run,) = workflow_automation_service.runs
    assert (run.inputs["bucket"], run.inputs["key"]) == ("reports", f"results/{result.dag_run.run_id}.csv")
    (upload,) = workflow_automation_service.uploads
    assert [(f["name"], base64.b64decode(f["content"])) for f in upload.files] == [
        (Path(key).name, content) for key, content in orders.items()
    ]


@pytest.mark.parametrize(
    ("days", "state", "text"),
    [
        (None, "success", "workflow_automation_default does not say"),
        (30, "success", "in 30 days"),
        (29, "failed", "in 29 days"),
    ],
)
def test_key_expiry(run_dag, workflow_automation_connect, task_errors, days, state, text):
    extra = {} if days is None else {"key_expires_on": str(datetime.now(UTC).date() + timedelta(days=days))}
    workflow_automation_connect(extra=extra)

    result = run_dag("workflow_automation_key_expiry.py")

    assert result.state == state
    said = str(task_errors[0]) if task_errors else result.xcom("check_key", map_index=0)
    assert text in said
    task = result.dag_run.get_task_instance("check_key", map_index=0)
    assert task.rendered_map_index == "workflow_automation_default"


@pytest.mark.since_3_3
@pytest.mark.parametrize(
    "workflow_automation_keys", [[DEMO_KEY, Key("new-key", DEMO_KEY.flow_id, name="new")]]
)
def test_a_key_is_replaced_while_a_task_waits(
    run_dag,
    workflow_automation_service,
    workflow_automation_connect,
    workflow_automation_keys,
    workflow_automation_callback_base_url,
):
    workflow_automation_connect()

    def flow(run):
        workflow_automation_connect(key=workflow_automation_keys[1])
        return {"rows": 3, "file": "orders.csv"}

    workflow_automation_service.callbacks.add(result=flow, delay=0.5)

    states = [run_dag("workflow_automation_wait.py").state for _ in range(2)]

    assert states == ["success", "success"]
    assert [run.key for run in workflow_automation_service.runs] == ["demo", "new"]


@pytest.mark.parametrize(
    "workflow_automation_keys", [[DEMO_KEY, Key("new-key", DEMO_KEY.flow_id, name="new")]]
)
def test_a_key_is_replaced_while_a_batch_runs(
    run_dag, workflow_automation_service, workflow_automation_connect, workflow_automation_keys, tmp_path
):
    workflow_automation_connect()
    workflow_automation_service.faults.add("delay", seconds=1, times=4)
    workflow_automation_service.faults.add("delay", seconds=0.5, inputs={"customer": "Barbara"})
    replaced = threading.Event()

    def replace():
        while not workflow_automation_service.journal.requests():
            time.sleep(0.05)
        workflow_automation_connect(key=workflow_automation_keys[1])
        replaced.set()

    threading.Thread(target=replace, daemon=True).start()
    folder = {"folder": f"file://{tmp_path}"}
    assert run_dag("workflow_automation_batch.py", run_conf=folder).state == "success"
    assert replaced.wait(300)
    assert run_dag("workflow_automation_trigger.py").state == "success"

    assert [run.key for run in workflow_automation_service.runs] == ["demo"] * 4 + ["new"]
