"""Every example DAG runs in real Airflow."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from local_airflow import KEYS, MAILBOX, script_flows
from sentences import WITHOUT_CLAIM
from workflow_automation_provider.testing import DEMO_KEY, Key


@pytest.fixture
def run(run_dag):
    """Run an example, perhaps with some of its text replaced."""
    return lambda name, *more, **options: run_dag(
        f"workflow_automation_{name}.py", *more, **options
    )


def inputs_of(service, name):
    return sorted(run.inputs[name] for run in service.runs)


def uploads_of(service, name):
    """Return which files the run with each input was given."""
    runs = {run.run_id: run.inputs[name] for run in service.runs}
    return {
        runs[upload.run_id]: [file["name"] for file in upload.files] for upload in service.uploads
    }


def test_trigger(run, service):
    run("trigger")
    assert inputs_of(service, "dag") == ["workflow_automation_trigger"]


def test_trigger_upload(run, service):
    result = run("trigger_upload")
    assert uploads_of(service, "customer") == {"Ada": ["orders.csv"]}
    assert service.runs[0].run_id in result.xcom("announce")


def test_trigger_mapped(run, service):
    result = run("trigger_mapped")
    assert inputs_of(service, "customer") == ["Ada", "Edsger", "Grace"]
    assert result.xcom("count") == 3


def test_trigger_upload_mapped(run, service):
    """
    Whichever trigger fails, every other item's file is at its own run.

    The failed one's is nowhere.
    """
    service.faults.add("reject", inputs={"customer": "Edsger"})
    run("trigger_upload_mapped", ends="failed")
    assert inputs_of(service, "customer") == ["Ada", "Grace"]
    assert uploads_of(service, "customer") == {"Ada": ["Ada.csv"], "Grace": ["Grace.csv"]}


def test_taskflow(run, service):
    result = run("taskflow")
    assert [run.inputs for run in service.runs] == [
        {"customer": name} for name in ("Ada", "Grace", "Edsger")
    ]
    assert result.xcom("trigger") == [run.run_id for run in service.runs]


def test_decorator(run, service):
    result = run("decorator")
    runs = {run.inputs["customer"]: run for run in service.runs}
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
    assert result.xcom("announce") == f"Run {run_id}: {service.url}/runs/{run_id}"


def test_notifier(run, service):
    result = run("notifier", ends="failed", run_conf={"rows": 0})
    name = f"workflow_automation_notifier/{result.dag_run.run_id}/check_rows/-1/1"
    message = "Task check_rows of workflow_automation_notifier failed."
    assert [run.inputs for run in service.runs] == [{"message": message, "event": name}]


def test_batch(run, service, tmp_path):
    service.faults.add("reject", inputs={"customer": "Grace"})
    result = run("batch", run_conf={"folder": f"file://{tmp_path}"})
    started = {run.inputs["customer"]: run.inputs["region"] for run in service.runs}
    assert started == {"Ada": "north", "Edsger": "west", "Barbara": "north"}
    assert result.xcom("report") == "3 of 4 runs were started, 1 rows were rejected."


@pytest.fixture
def mailbox(workflow_automation_connect, tmp_path):
    """Have the runs of a connection write their ends to a folder."""
    extra = {"callback_base_url": (tmp_path / "ends").as_uri()}
    return lambda *key: workflow_automation_connect(MAILBOX, *key, extra=extra)


def test_batch_rest(run, service, tmp_path):
    """The second item of the file, which has a blank line before it."""
    batch, runs = tmp_path / "customers.jsonl", tmp_path / "runs.jsonl"
    batch.write_text('{"customer": "Ada"}\n\n{"customer": "Grace"}\n')
    items = [{"index": 0, "status": "started"}, {"index": 1, "status": "rejected"}]
    runs.write_text("".join(f"{json.dumps(item)}\n" for item in items))
    run("batch_rest", run_conf={"batch": batch.as_uri(), "runs": runs.as_uri()})
    assert inputs_of(service, "customer") == ["Grace"]
    (item,) = map(json.loads, (tmp_path / "runs.jsonl.rest").read_text().splitlines())
    assert (item["index"], item["status"]) == (0, "started")


@pytest.mark.since_3_3
def test_batch_wait(run, service, mailbox, tmp_path):
    mailbox()
    for score, customer in enumerate(["Ada", "Edsger"]):
        service.callbacks.add(result={"score": score}, inputs={"customer": customer}, delay=0.2)
    service.callbacks.add("failed", message="No such customer")
    result = run("batch_wait", run_conf={"folder": f"file://{tmp_path}"})
    assert result.xcom("load") == "Ada: 0, Edsger: 1; 1 failed"
    assert [callback.status for callback in service.journal.callbacks()] == [200] * 3


@pytest.mark.since_3_3
@pytest.mark.parametrize("workflow_automation_keys", [[KEYS[MAILBOX]]])
def test_batch_wait_in_make_ui(run, service, mailbox, tmp_path):
    mailbox(KEYS[MAILBOX])
    script_flows(service, None, delay=0.2)
    result = run("batch_wait", run_conf={"folder": f"file://{tmp_path}"})
    assert result.xcom("load") == "Ada: 3, Grace: 5, Edsger: 6; 0 failed"


def test_assets(run, service):
    started = run("assets", dag_id="workflow_automation_assets_start")
    continued = run("assets", dag_id="workflow_automation_assets_continue", cause=started)
    (flow_run,) = service.runs
    link = f"{service.url}/runs/{flow_run.run_id}"
    assert continued.xcom("announce") == [f"Run {flow_run.run_id} of {flow_run.flow_id}: {link}"]


@pytest.mark.since_3_3
def test_wait(run, service, workflow_automation_callback_base_url):
    service.callbacks.add(
        result=lambda run: {"rows": 3, "file": f"{run.inputs['report']}.csv"}, delay=0.2
    )
    result = run("wait")
    assert result.xcom("announce") == "3 rows are in orders.csv"
    (callback,) = service.journal.callbacks()
    assert (callback.status, callback.attempts) == (200, 1)
    prefix = f"{workflow_automation_callback_base_url}/workflow-automation/callback?token="
    (flow_run,) = service.runs
    assert flow_run.inputs == {"report": "orders", "callback_url": f"{prefix}(withheld)"}


@pytest.mark.since_3_3
def test_wait_in_a_mailbox(run, service, workflow_automation_connect, tmp_path):
    folder = tmp_path / "callbacks"
    workflow_automation_connect(extra={"callback_base_url": folder.as_uri()})
    service.callbacks.add(result={"rows": 3, "file": "orders.csv"}, delay=0.2)
    assert run("wait").xcom("announce") == "3 rows are in orders.csv"
    (callback,) = service.journal.callbacks()
    assert (callback.status, callback.url) == (200, next(folder.glob("*.json")).as_uri())


@pytest.mark.since_3_3
def test_claim(run, service, workflow_automation_callback_base_url):
    service.faults.add("drop_after")
    service.callbacks.add(None, started=0.2)
    result = run("claim")
    (worked,) = service.journal.worked()
    assert [run.run_id for run in service.runs] == [worked.run_id]
    assert result.xcom("announce") == f"Continuing with run {worked.run_id}"


CHECKS = {
    "complete": ({"started": 0, "running": [{"progress": 0.5}]}, "started, running, success"),
    "no claim": ({}, "success"),
    "silent": ({"status": None}, None),
}


@pytest.mark.since_3_3
@pytest.mark.parametrize(("flow", "order"), CHECKS.values(), ids=CHECKS)
def test_check_flow(
    run, service, workflow_automation_callback_base_url, task_errors, capfd, flow, order
):
    service.callbacks.add(**flow)
    ends = flow.get("status", "success") is not None
    quicker = [] if ends else [("timedelta(seconds=30)", "timedelta(seconds=2)")]
    run("check_flow", *quicker, ends="success" if ends else "failed")
    output = capfd.readouterr().out + "".join(map(str, task_errors))
    # An error is also in the log.
    (line,) = {*re.findall(r"The run (?:said: (.+)|has said nothing)\.(?= |\n)", output)}
    names = re.sub(r"( \(its last\))? at [0-9:]{8}", "", line)
    assert (names or None) == order
    assert (WITHOUT_CLAIM in output) == (ends and "started" not in flow)
    assert len(service.runs) == 1


# Recipes of the cookbook --------------------------------------------------------------------------


def test_nightly(run, service):
    result = run("nightly", logical_date=datetime(2026, 3, 1, 2, tzinfo=UTC))
    started = {run.inputs["region"]: run.inputs["day"] for run in service.runs}
    assert started == dict.fromkeys(("north", "south", "west"), "2026-03-01")
    for index, region in enumerate(("north", "south", "west")):
        ti = result.ti("trigger", index)
        assert (ti.rendered_map_index, ti.pool) == (region, "workflow_automation")


FLOWS = [Key("orders-key", "orders-flow"), Key("invoices-key", "invoices-flow")]


@pytest.mark.parametrize("workflow_automation_keys", [FLOWS])
def test_connections(run, service, workflow_automation_connect):
    for key, report in zip(FLOWS, ("orders", "invoices"), strict=True):
        workflow_automation_connect(f"workflow_automation_{report}", key)
    run("connections")
    flows = {run.inputs["report"]: run.flow_id for run in service.runs}
    assert flows == {"invoices": "invoices-flow", "orders": "orders-flow"}
    assert uploads_of(service, "report") == {"invoices": ["invoices.csv"], "orders": ["orders.csv"]}
    assert {upload.flow_id for upload in service.uploads} == {*flows.values()}


def test_next_dag(run, service):
    for _ in range(2):
        run("next_dag", dag_id="workflow_automation_next_dag_start")
    sent = {"rows": 3, "file": "may.csv"}
    result = run("next_dag", dag_id="workflow_automation_next_dag", run_conf=sent)
    assert len({*inputs_of(service, "dag_run_id")}) == 2
    assert result.xcom("announce") == "3 rows are in may.csv"


@pytest.mark.since_3_3
def test_s3(run, service, workflow_automation_callback_base_url, monkeypatch):
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    from local_s3 import LocalS3

    orders = {"orders/a.csv": b"order\n1001\n", "orders/b.csv": b"order\n1002\n"}
    with LocalS3() as s3:
        monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps(s3.connection))
        for key, content in orders.items():
            s3.put(key, content)
        service.callbacks.add(
            result=lambda run: s3.put(
                run.inputs["key"], b"customer,total\nAda,19.99\nGrace,240.00\n"
            ),
            delay=0.2,
        )
        result = run("s3")
    assert result.xcom("read") == 2
    (flow_run,) = service.runs
    written = f"results/{result.dag_run.run_id}.csv"
    assert (flow_run.inputs["bucket"], flow_run.inputs["key"]) == ("reports", written)
    (upload,) = service.uploads
    sent = {f"orders/{file['name']}": base64.b64decode(file["content"]) for file in upload.files}
    assert sent == orders


def test_key_expiry(run, workflow_automation_connect, task_errors):
    days = {"undated": None, "later": 30, "soon": 29}
    for name, left in days.items():
        expires_on = str(datetime.now(UTC).date() + timedelta(days=left or 0))
        workflow_automation_connect(name, extra={"key_expires_on": expires_on} if left else {})
    result = run("key_expiry", ('["workflow_automation_default"]', str([*days])), ends="failed")
    undated, later = (result.xcom("check_key", map_index=index) for index in range(2))
    assert undated == "undated does not say when its API key expires"
    assert later.endswith(", in 30 days")
    (error,) = task_errors
    assert str(error).endswith(", in 29 days")
    assert result.ti("check_key", 2).rendered_map_index == "soon"


@pytest.mark.parametrize(
    "workflow_automation_keys", [[DEMO_KEY, Key("new-key", DEMO_KEY.flow_id, name="new")]]
)
def test_a_key_is_replaced_while_a_batch_runs(
    run, service, workflow_automation_connect, workflow_automation_keys, tmp_path
):
    """What began before goes on with the old key."""
    service.faults.add("delay", seconds=0.5, times=4)
    service.faults.add("delay", seconds=0.2, inputs={"customer": "Barbara"})

    def replace():
        while not service.journal.requests():
            time.sleep(0.02)
        workflow_automation_connect(key=workflow_automation_keys[1])

    flow = threading.Thread(target=replace, daemon=True)
    flow.start()
    run("batch", run_conf={"folder": f"file://{tmp_path}"})
    flow.join(300)
    run("trigger")
    assert [run.key for run in service.runs] == ["demo"] * 4 + ["new"]
