"""
What an error says of a rejected argument, connection, file or callback.

Each once, in golden/argument_errors.txt.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException

import golden
from sentences import MAYBE_STARTED, NOTHING_SENT
from workflow_automation_provider.client.files import upload_bodies
from workflow_automation_provider.client.json_values import encode
from workflow_automation_provider.exceptions import FileUnavailableError, InvalidRequestError
from workflow_automation_provider.execution.batch.output import OutputFile
from workflow_automation_provider.execution.batch.source import BatchSource
from workflow_automation_provider.execution.record.callback import parse
from workflow_automation_provider.hooks.files.sources import resolve
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.notifications.flows import FlowNotifier
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator
from workflow_automation_provider.taskflow import trigger_flow_once

SECRET = "the-customers-secret"

LOOP: list[object] = []
LOOP.append(LOOP)


def trigger(**arguments: Any) -> Any:
    return TriggerFlowOperator(**{"task_id": "trigger", **arguments})


def upload(**arguments: Any) -> Any:
    return UploadFilesOperator(
        **{"task_id": "upload", "run_id": "1", "files": {"row": 1}, **arguments}
    )


def batch(**arguments: Any) -> Any:
    return TriggerFlowBatchOperator(**{"task_id": "batch", "batch": [{}], **arguments})


class Once(SimpleNamespace):
    """A start by a name, in place of an operator."""

    task_id = "task"

    def execute(self, context: Any) -> object:
        return trigger_flow_once(**{"name": "ada", "context": context, **vars(self)})


OPERATORS = (trigger, upload, batch)

DAY = timedelta(days=1)
ZERO = (0, timedelta(0), 1e-9)
LIMITS = (0, -1, 1.5, "1", True)


def no_durations(longest: timedelta, *others: object) -> tuple[object, ...]:
    """Return what is neither a timedelta nor seconds, or is too short or too long."""
    too_long = longest + timedelta.resolution
    numbers = (-1, too_long.total_seconds(), 10**400, 1e300, float("inf"), float("nan"))
    return (*numbers, timedelta(seconds=-1), too_long, "5", "PT1H", False, *others)


# What makes it, the argument, and values that are errors of the DAG file.
WRONG: list[tuple[Callable[..., Any], str, tuple[object, ...]]] = [
    *((make, "send_retry_timeout", no_durations(7 * DAY, None)) for make in OPERATORS),
    *((make, "flow_id", (None,)) for make in OPERATORS),
    *((make, "on_unknown_start", ("retry",)) for make in (trigger, batch)),
    (trigger, "wait_for_completion", (1,)),
    (trigger, "callback_input", ("", None)),
    (trigger, "on_run_failed", ("retry",)),
    (trigger, "claim_timeout", no_durations(DAY, None, *ZERO)),
    (trigger, "heartbeat_timeout", no_durations(365 * DAY, *ZERO)),
    *(
        (make, "completion_timeout", no_durations(365 * DAY, None, *ZERO))
        for make in (trigger, batch)
    ),
    (upload, "files_per_request", LIMITS),
    (upload, "max_request_bytes", LIMITS),
    *((upload, "file_format", (value,)) for value in ("b64", {"a": "b64"}, 5)),
    (batch, "on_rejected", ("ignore",)),
    (batch, "max_concurrency", (0, 257)),
    (batch, "max_starts_per_second", (0, float("inf"), "8")),
    (batch, "key", ("", 7)),
    (FlowNotifier, "inputs", (None,)),
]


@pytest.mark.parametrize(("make", "name", "values"), WRONG)
def test_a_wrong_argument_is_an_error_of_the_dag_file(make, name, values):
    for value in values:
        with pytest.raises(ValueError, match=name):
            make(**{name: value})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("send_retry_timeout", (timedelta(0), 7 * DAY)),
        ("completion_timeout", (timedelta.resolution, 365 * DAY)),
        ("heartbeat_timeout", (timedelta.resolution, 365 * DAY)),
        ("claim_timeout", (timedelta.resolution, DAY)),
    ],
)
def test_a_duration_is_a_timedelta_or_seconds(name, values):
    for value in values:
        for given in (value, value.total_seconds()):
            assert getattr(trigger(**{name: given}), name) == value


NOTHING = (None, "", "  ", "None", " None\n")

# What MySQL takes for another name, or cannot store in a key, and what no log shows on one line.
NAMES = (
    *("", " ", None, 7, "\udc80", "a\n", "a\0b", "a\u2028b", "x" * 251),
    *("ada ", "ada\u00a0", "ada\u3000", "\U0001f600", "a\U00010000b", "\U0010ffff"),
)

# What makes it, the argument, and values that are errors once templates are rendered: before
# anything is recorded or sent.
RENDERED: list[tuple[Callable[..., Any], str, tuple[object, ...]]] = [
    *((make, "flow_id", (*NOTHING, "\udc80", 7.5)) for make in OPERATORS),
    *((make, "workflow_automation_conn_id", (None, "", " ", "None")) for make in OPERATORS),
    (trigger, "inputs", (None, {"a": {1}})),
    (upload, "run_id", (*NOTHING, 7.5, {}, *({"run_id": value} for value in NOTHING))),
    (upload, "files", (None, {"a.csv"})),
    (batch, "batch", (None, [{"a": 1}, {"a": {1}}], "/tmp/a\0b")),
    (
        batch,
        "output_path",
        ("", 7, "/nowhere/a", "/tmp", "/etc/hosts/x", "nowhere://a/b", os.devnull),
    ),
    (Once, "name", NAMES),
    (Once, "on_unknown_start", ("retry",)),
    (Once, "send_retry_timeout", (-1,)),
    (Once, "inputs", (None,)),
    (Once, "workflow_automation_conn_id", (None,)),
]


@pytest.mark.parametrize(("make", "name", "values"), RENDERED)
def test_a_wrong_value_is_an_error_before_anything_is_sent(
    service, store, context, log, make, name, values
):
    for value in values:
        # As Airflow renders a template.
        operator = make(**({name: "{{ params.flow }}"} if name == "flow_id" else {}))
        setattr(operator, name, value)
        with pytest.raises((InvalidRequestError, FileUnavailableError)) as caught:
            operator.execute(context(store, task_id=operator.task_id))
        # A path may name a file later.
        assert isinstance(caught.value, AirflowFailException | FileUnavailableError)
        assert caught.value.message.startswith(name)
        assert caught.value.consequence == NOTHING_SENT
    assert (store.entries, service.journal.requests()) == ({}, [])
    assert MAYBE_STARTED.lower() not in log().lower()


@pytest.mark.parametrize(
    "name", ["ada", " ada", "x" * 250, "Łódź \u3000\uffff", "a b", "[1]", "None"]
)
def test_any_other_name_is_one(service, store, context, name):
    def start(try_number):
        return Once(name=name).execute(context(store, task_id="task", try_number=try_number))

    assert start(1) == start(2)
    assert len(service.runs) == 1


def inputs() -> Iterator[object]:
    yield from (
        {"a": {1}},
        {"a": float("nan")},
        {1: "a"},
        {"a": "\ud800"},
        {"\ud800": 1},
        {"a": LOOP},
    )


def files(folder: Path) -> Iterator[object]:
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    for name in ("missing", "folder", "pipe", "*.xml", "folder/../{{ ds }}"):
        yield f"{folder}/{name}"
    yield from (f"file://{folder}/missing", f"file://{folder}/folder", f"file://{folder}/f*")
    yield from ("~/data", "", [], None, 7, [b"a.csv"], b"a.csv")
    yield from ("$HOME/x", "{a,b}.csv", r"C:\data\x", "a.csv,b.csv", "'a.csv'", "s3:/bucket/a")
    yield from ("file://localhost/x", "file:///a%20b.csv", Asset("s3://a/report#2.csv"))


def batches(folder: Path) -> Iterator[object]:
    path, pair = folder / "batch.jsonl", f'"a": "{SECRET}"'
    for text in (
        f"{{}}\n\n{{{pair}",
        f'{{}}\n["{SECRET}"]',
        f'{{{pair}, "b": NaN}}',
        f'{{{pair}, "b": "\\ud800"}}',
        f"{{}}\n{'[' * 100_000}",
        f"{{{pair}\n{{{pair} x}}\n7",
        f"customer,{SECRET}",
        f"[\n{{{pair}}}\n]",
        f"[{{{pair}}}]",
        f'{{"\ufeff{pair[1:]}}}',
    ):
        path.write_text(text)
        yield str(path)
    for encoding in ("utf-16", "latin-1"):
        path.write_text(f'{{{pair}, "b": "ë"}}', encoding=encoding)
        yield str(path)
    yield from (
        [{"a": SECRET}, [SECRET]],
        [{}, None],
        {},
        7,
        b"batch.jsonl",
        "",
        f"[{{{pair}}}]",
        "{{ ds }}",
    )
    yield from ("~/batch", f"file://{folder}", f"{path}/more", f"{folder}/missing", str(folder))
    yield f"{folder}/*.csv"


def outputs(folder: Path) -> Iterator[str]:
    batch = folder / "batch.jsonl"
    batch.write_text("{}")
    version = "s3://store@bucket/runs.jsonl?versionId=old"
    for path in (batch, f"{folder}/", folder / "pipe", folder / "missing" / "runs", version):
        yield str(path)


def connections() -> Iterator[dict[str, Any]]:
    for host in (
        "",
        "ftp://a",
        "http://a",
        "https://ada:x@a",
        "https://a?b=1",
        "https://[a",
        "https://a:1",
    ):
        yield {"host": host, "port": 2} if host.endswith(":1") else {"host": host}
    for fields in (
        {"extra": [1]},
        {"login": "ada"},
        {"extra": {"typo": 1}},
        {"schema": "http"},
        {"extra": {"timeout": "x", "key_expires_on": "soon", "verify": "perhaps"}},
        {"extra": {"file_format": "b64"}},
        {"extra": {"client_cert": '["a"'}},
        {"extra": {"headers": {"X-API-Key": "a"}}},
        {"extra": {"headers": {"a b": "c"}}},
        {"extra": {"headers": {"Authorization: Bearer secret": "c"}}},
        {"extra": {"proxy": "ftp://proxy"}},
        {"extra": {"busy_statuses": [200]}},
        {"extra": {"callback_base_url": "https://ada:x@airflow.example"}},
    ):
        yield {"host": "service.example", **fields}


def callbacks() -> Iterator[bytes]:
    yield from (
        b"",
        b"null",
        b"[]",
        b"[" * 60_000,
        b"{}",
        b'{"status": 1, "status": 2}',
        b'{"status": NaN}',
    )
    yield from (b'{"status": "success", "a": 1}', b'{"status": "success", "result": 1e999}')
    yield from (
        b'{"status": "started", "run_id": 1.0}',
        b'{"status": "started", "run_id": %s}' % (b"7" * 251),
    )
    unfit: list[Any] = [True, [], {}, "\0", "7" * 251]
    documents: list[dict[str, Any]] = [
        *({"status": value} for value in [1, " ", *unfit]),
        *({"run_id": value} for value in unfit),
        {"run_id": "1", "more": 2},
        *({"result": [wrong]} for wrong in (2**64, -(2**63) - 1, {"a": "\ud800"})),
        *({"result": {name: 1}} for name in ("__classname__", "__id__", "__type", "__var")),
        {"result": json.loads("[" * 52 + "]" * 52)},
    ]
    for document in documents:
        yield json.dumps({"status": "success", **document}).encode()


def body(**options: Any) -> object:
    return upload_bodies(**{"flow_id": "demo-flow", "run_id": "1", "elements": [], **options})


def connect(fields: dict[str, Any]) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_A", json.dumps({"conn_type": "workflow_automation", **fields}))
        return WorkflowAutomationHook("a").get_conn()


def read_batch(batch: Any) -> object:
    return list(BatchSource(batch, None))


def check_output(folder: Path, path: str) -> None:
    OutputFile(path).check(BatchSource(str(folder / "batch.jsonl"), None))


def once(name: Any) -> object:
    task_instance = SimpleNamespace(task_id="task", try_number=1, max_tries=0)
    task = SimpleNamespace(retries=0)
    return Once(name=name).execute({"ti": task_instance, "task": task})


def attempts(folder: Path) -> Iterator[Callable[[], object]]:
    """Yield what is an error."""
    for make, name, values in WRONG:
        yield partial(make, **{name: values[0]})
    checks: list[tuple[Callable[[Any], object], Iterable[Any]]] = [
        (partial(encode, "inputs"), inputs()),
        (lambda value: body(**value), ({"run_id": ""}, {"flow_id": 1.5}, {"run_id": "\ud800"})),
        (lambda element: body(elements=[element]), ("a", 7)),
        (resolve, files(folder)),
        (read_batch, batches(folder)),
        (partial(check_output, folder), outputs(folder)),
        (once, (" ", 7, "a\n", "x" * 251, "ada ", "\U0001f600")),
        (connect, connections()),
        (parse, callbacks()),
    ]
    for check, unfit in checks:
        yield from (partial(check, value) for value in unfit)


def rendered(folder: Path) -> Iterator[str]:
    """Yield all that is said."""
    for number, attempt in enumerate(attempts(folder)):
        try:
            attempt()
        except Exception as error:
            yield f"{type(error).__name__}: {error}".replace(str(folder), "/data")
        else:
            raise AssertionError(f"No error of attempt {number}")


def test_messages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = dict.fromkeys(rendered(tmp_path))
    golden.check("argument_errors.txt", texts)
    assert SECRET not in "".join(texts)
