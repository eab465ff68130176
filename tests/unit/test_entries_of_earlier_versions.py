"""
A task goes on with what another version has stored: its entries, its wait, its trigger, its XComs.

All that is data, in a file for each version that changed it. ``GOLDEN=1`` writes what this version
stores anew: only before it is released.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

import pytest
from airflow.sdk import BaseOperator

from airflow_rows import IS_3_4
from entry_keys import RUN, START
from sentences import LET_IT_END, OTHER_VERSION
from workflow_automation_provider.hooks.mailbox import Mailbox
from workflow_automation_provider.hooks.mailboxes import azure, gcs, s3
from workflow_automation_provider.links import FlowRunLink
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import UploadFilesOperator
from workflow_automation_provider.taskflow import trigger_flow_once
from world import write_end
from world_calls import TRIGGER, at

from .starts import claims, struck, trigger, waits

pytestmark = pytest.mark.since_3_3

FOLDER = Path(__file__).parent / "entries"
RESULT = {"rows": 3}
HOME = "/home/airflow"
"""Stands for the test's own folder."""


# How what is stored comes about -------------------------------------------------------------------


class Named(BaseOperator):
    """A task that starts a run by a name."""

    def execute(self, context):
        return trigger_flow_once("ada", inputs={"a": 1}, send_retry_timeout=0, context=context)


def named():
    return Named(task_id="trigger", retries=2)


def batch(**options):
    items = [{"n": 0}, {"n": 1}]
    return TriggerFlowBatchOperator(task_id="trigger", batch=items, retries=2, **options)


def batch_that_waits():
    output = str(Path(os.environ["ENTRIES_HOME"]) / "runs.jsonl")
    return batch(wait_for_completion=True, output_path=output)


def upload():
    return UploadFilesOperator(task_id="trigger", run_id="1001", files=[{"name": "a"}], retries=2)


def with_files():
    return trigger(files=[{"name": "a"}])


def by_path():
    return trigger(flow_id="demo-flow")


def reports(task, **body):
    assert task.ask(task.flow.runs[0].url, body=body) == 200


def executed(world, operator, *scripts, **extra):
    task = world(operator, **extra)
    last = task.try_(*scripts)
    assert last.error is None, last.error
    return task


def busy(world):
    return struck(world, trigger(), "busy")


def in_doubt(world):
    return struck(world, trigger())


def claimed(world):
    """Its task was killed before it knew of the run."""
    task = executed(world, claims(), at("send", TRIGGER, "kill after"))
    reports(task, status="started", run_id=task.flow.runs[0].run_id)
    return task


def revoked(world):
    return struck(world, claims())


def adopted(world):
    """A person has found the run of a start in doubt; the task waits for its end."""
    task = struck(world, waits())
    task.mark("failed")
    task.adopt(task.flow.runs[0].run_id)
    task.clear()
    task.try_()
    return task


def ended(world):
    task = executed(world, waits())
    reports(task, status="running", message="Half of it", progress=0.5)
    reports(task, status="success", result=RESULT)
    return task


def uploading(world):
    """For the first run of the service."""
    executed(world, trigger())
    return executed(world, upload())


def mailboxes():
    return (Path(os.environ["ENTRIES_HOME"]) / "mailboxes").as_uri()


def to_a_mailbox(world, operator, folder=""):
    return executed(world, operator, callback_base_url=folder or mailboxes())


class Case(NamedTuple):
    """
    A kind of task.

    :param make: how what it stores comes about
    :param operator: what executes it later
    :param requests: how many requests that sends
    :param store: the fixture of the store in which its mailbox is
    """

    make: Callable[[Any], Any]
    operator: Callable[[], Any]
    requests: int = 0
    store: str = ""


def in_store(folder, store):
    return Case(lambda world: to_a_mailbox(world, waits(), folder), waits, store=store)


CASES = {
    "by key": Case(lambda world: executed(world, trigger()), trigger),
    "by path": Case(lambda world: executed(world, by_path()), by_path),
    "busy": Case(busy, trigger, 1),
    "in doubt": Case(in_doubt, trigger),
    "claimed": Case(claimed, claims),
    "revoked": Case(revoked, claims, 1),
    "waits": Case(lambda world: executed(world, waits()), waits),
    "ended": Case(ended, waits),
    "adopted": Case(adopted, waits),
    "mailbox": Case(lambda world: to_a_mailbox(world, waits()), waits),
    "mailbox in S3": in_store("s3://s3_entries@entries/callbacks", "in_s3"),
    "mailbox in Azure": in_store("abfs://azure_entries@entries/callbacks", "in_azure"),
    "mailbox in Google Cloud": in_store("gs://google_entries@entries/callbacks", "in_google"),
    "named": Case(lambda world: executed(world, named()), named),
    "uploaded": Case(lambda world: executed(world, with_files()), with_files),
    "upload": Case(uploading, upload),
    "batch": Case(lambda world: executed(world, batch()), batch),
    "batch that waits": Case(
        lambda world: to_a_mailbox(world, batch_that_waits()), batch_that_waits
    ),
}


def stored(task):
    """Return all that is stored of a task, as JSON values."""
    row, last = task.rows.ti, task.last
    found = {
        "state": task.state if row.next_method else None,
        "try_number": last.try_number,
        "max_tries": row.max_tries,
        "entries": {key: json.loads(value) for key, value in sorted(task.rows.entries.items())},
        "next_method": row.next_method,
        "next_kwargs": row.next_kwargs,
        "trigger": last.trigger and last.trigger.serialize(),
        "xcoms": task.xcoms,
    }
    text = json.dumps(found).replace(os.environ["ENTRIES_HOME"], HOME)
    return json.loads(re.sub(r"http://127\.0\.0\.1:\d+", "https://service.example", text))


# The stores ---------------------------------------------------------------------------------------


def define(monkeypatch, conn_id, connection):
    """Define a connection, of which no client of an earlier test is left."""
    for store in (s3, azure, gcs):
        store.open_client.cache_clear()
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))


@pytest.fixture(scope="session")
def entries_bucket(s3_port):
    from s3_bucket import Bucket

    return Bucket("entries")


@pytest.fixture
def in_s3(entries_bucket, s3_port, monkeypatch):
    define(monkeypatch, entries_bucket.conn_id, entries_bucket.connection(s3_port))
    yield
    for key in [*entries_bucket.keys()]:
        entries_bucket.delete(key)


@pytest.fixture
def in_azure(monkeypatch):
    pytest.importorskip("airflow.providers.microsoft.azure.hooks.wasb")
    from azure_account import AzureAccount

    with AzureAccount("entries").running() as account:
        define(monkeypatch, "azure_entries", account.connection())
        yield


@pytest.fixture
def in_google(tmp_path, monkeypatch):
    pytest.importorskip("airflow.providers.google.common.hooks.base_google")
    from google_cloud import GoogleCloud

    with GoogleCloud("entries").running(tmp_path / "google.pem") as cloud:
        define(monkeypatch, "google_entries", cloud.connection())
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{cloud.port}")
        yield


@pytest.fixture(params=CASES)
def name(request):
    """Name a kind of task, whose store runs."""
    if store := CASES[request.param].store:
        request.getfixturevalue(store)
    return request.param


# The files ----------------------------------------------------------------------------------------

VERSIONS = sorted(FOLDER.glob("*.json"))


def of_version(path, name):
    """Return what a version has stored, in the test's own folder."""
    text = json.dumps(json.loads(path.read_text())[name])
    return json.loads(text.replace(HOME, os.environ["ENTRIES_HOME"]))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ENTRIES_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def written():
    """Write what this version stores, if that was asked for."""
    found: dict[str, dict[str, Any]] = {}
    yield found
    if os.environ.get("GOLDEN"):
        text = json.dumps(found, indent=1, ensure_ascii=False)
        name = f"{version('airflow-provider-workflow-automation')}.json"
        (FOLDER / name).write_text(f"{text}\n")


def names_in(value):
    """Return a value with the types of what it holds, and without hashes and numbers in keys."""
    if isinstance(value, dict):
        return {re.sub(r"[0-9a-f]{64}|\d{6}", "N", key): names_in(v) for key, v in value.items()}
    if isinstance(value, list):
        return [names_in(item) for item in value]
    return type(value).__name__


def test_what_this_version_stores(world, written, name):
    """By the same names as in its file, and of the same types."""
    written[name] = stored(CASES[name].make(world))
    if not os.environ.get("GOLDEN"):
        assert names_in(written[name]) == names_in(json.loads(VERSIONS[-1].read_text())[name])


# Go on --------------------------------------------------------------------------------------------


def restored(world, name, found):
    """Return a task that has stored what was found, and goes on in this version."""
    in_mailboxes = {"callback_base_url": mailboxes()} if found["state"] == "deferred" else {}
    task = world(CASES[name].operator(), **in_mailboxes)
    for key, value in found["entries"].items():
        task.rows.store(None, "set", key, json.dumps(value))

    if found["state"]:
        task.rows.begin()
        next_step = (found["next_method"], found["next_kwargs"])
        if found["state"] == "deferred":
            task.rows.defer(*next_step)
        else:
            task.rows.suspend(*next_step, timedelta())

    next_one = IS_3_4 and not found["state"]
    task.rows.change(try_number=found["try_number"] + next_one, max_tries=found["max_tries"])
    return task


def end_its_runs(task, found):
    """Have the runs of a task that waits end, as far as they have not."""
    end = {"status": "success", "result": RESULT}
    entries = found["entries"]
    mailboxes = {entry.get("mailbox") for entry in entries.values()} - {None}
    folders = {entry.get("folder") for entry in entries.values()} - {None}
    for name in (*mailboxes, *(f"{folder}/{n}.json" for folder in folders for n in range(2))):
        url = Mailbox(name).sign(timedelta(hours=1))
        assert write_end(url, end) in (200, 201)

    tokens = {entry["token_hash"] for entry in entries.values() if "token_hash" in entry}
    for token in tokens:
        if found["state"] and not mailboxes and f"{RUN}{token}" not in entries:
            at_ = datetime.now(UTC).isoformat()
            task.rows.put(f"{RUN}{token}", {"end": {"at": at_, **end}})


def goes_on(world, name, found):
    """Check that a task goes on with what was stored."""
    task = restored(world, name, found)
    end_its_runs(task, found)
    if found["trigger"]:
        path, kwargs = found["trigger"]
        looks = resolve_name(path)(**kwargs)
        assert looks._is_due()
        assert looks.serialize()[1].items() <= kwargs.items()

    last = task.try_()
    assert len(task.requests) == CASES[name].requests
    if name == "in doubt":
        assert "[start-unknown]" in str(last.error)
        return

    assert task.state == "success", last.error
    result = last.result
    if found["state"]:
        assert (result["success"] == 2) if "success" in result else (result["result"] == RESULT)
    if task.requests or name == "batch that waits":
        return

    recorded = json.dumps(found["entries"])
    for one in result if isinstance(result, list) else [result]:
        assert f'"{one["run_id"]}"' in recorded


@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.stem)
def test_a_task_goes_on_with_what_is_stored_by(world, path, name):
    goes_on(world, name, of_version(path, name))


@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.stem)
def test_the_button_opens_what_is_stored_by(path):
    link = FlowRunLink()
    xcoms = of_version(path, "waits")["xcoms"]
    assert xcoms[link.xcom_key] == xcoms["run_link"]
    assert xcoms["return_value"]["run_id"] == xcoms["run_id"]


# What versions before 1.0.0 stored ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "in_mailbox"), [(claims, False), (waits, False), (waits, True)]
)
def test_a_start_of_before_names_the_mend_and_nothing_is_sent(world, operator, in_mailbox):
    """It has ``token`` in place of ``token_hash``. Its run asks again until it is read."""
    extra = {"callback_base_url": mailboxes()} if in_mailbox else {}
    task = executed(world, operator(), at("send", TRIGGER, "kill after"), **extra)
    key = f"{START}1/0"
    entry = json.loads(task.rows.entries[key])
    entry["token"] = entry.pop("token_hash")
    task.rows.put(key, entry)

    if not in_mailbox:
        assert task.ask(task.flow.runs[0].url, body={"status": "started"}) == 503
    error = task.try_().error
    assert LET_IT_END in str(error)
    assert (task.state, len(task.requests)) == ("failed", 1)


# What a newer version stores ----------------------------------------------------------------------


def with_more(value):
    """Return JSON values with a field more in each object of ours that is not by index."""
    if isinstance(value, list):
        return [with_more(item) for item in value]
    if not isinstance(value, dict):
        return value

    is_by_index = all(key.isdecimal() for key in value)
    more = {} if is_by_index else {"newer": {"a": [1]}}
    of_user = ("result", "response")
    return {
        **{key: item if key in of_user else with_more(item) for key, item in value.items()},
        **more,
    }


def test_a_field_of_a_newer_version_is_left_out(world, name):
    found = of_version(VERSIONS[-1], name)
    found["entries"] = {key: with_more(entry) for key, entry in found["entries"].items()}
    if found["next_kwargs"]:
        found["next_kwargs"]["newer"] = 1
    if found["trigger"]:
        found["trigger"][1]["newer"] = 1
    goes_on(world, name, found)


def with_other_statuses(value):
    if isinstance(value, dict):
        return {
            key: "newer" if key == "status" else with_other_statuses(item)
            for key, item in value.items()
        }
    return value


@pytest.mark.parametrize("name", ["by key", "busy", "named", "ended", "batch"])
def test_a_status_of_a_newer_version_is_an_error_and_nothing_is_sent(world, name):
    found = of_version(VERSIONS[-1], name)
    found["entries"] = {key: with_other_statuses(entry) for key, entry in found["entries"].items()}
    task = restored(world, name, found)
    error = task.try_().error
    assert OTHER_VERSION in str(error)
    assert (task.state, task.requests) == ("failed", [])


def test_a_start_is_written_again_as_it_is(world):
    """As a newer version has written it: the task revokes its token, and waits for the endpoint."""
    found = of_version(VERSIONS[-1], "revoked")
    key = f"{START}1/0"
    found["entries"] = {key: {**found["entries"][key], "newer": 1}}
    task = restored(world, "revoked", found)
    task.try_()
    assert json.loads(task.rows.entries[key]) == found["entries"][key]
