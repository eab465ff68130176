"""What an error says of a rejected argument, connection, file or callback: each once, in golden/argument_errors.txt."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from workflow_automation_provider.client.json_values import encode
from workflow_automation_provider.client.upload_body import measure, upload_body
from workflow_automation_provider.decorators.flows import trigger_flow_task
from workflow_automation_provider.execution.batch.source import BatchSource
from workflow_automation_provider.execution.callback import read
from workflow_automation_provider.hooks.file_sources import resolve
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import TriggerFlowOperator, UploadFilesOperator

GOLDEN = Path(__file__).parent / "golden" / "argument_errors.txt"
"""Renewed by ``python -m tests.unit.test_argument_errors``: read the difference before it is committed."""

HOUR = timedelta(hours=1)
WAITS = {"wait_for_completion": True}
LOOP: list[object] = []
LOOP.append(LOOP)


def operators() -> Iterator[tuple[Callable[..., Any], dict[str, Any]]]:
    """Yield the arguments that are errors of the DAG file."""
    wrong: dict[str, Any]
    for wrong in (
        {"on_unknown_start": "retry"},
        {"flow_id": None},
        {"inputs": None},
        {"request_timeout": 0},
        {"send_retry_timeout": -1},
        {"ask_timeout": HOUR},
        {"on_unknown_start": "ask", "notifiers": ["ops@example.org"]},
        {"completion_timeout": timedelta(0), **WAITS},
        {"callback_input": "", **WAITS},
        {"wait_for_completion": 1},
    ):
        yield TriggerFlowOperator, wrong
    for wrong in (
        {"run_id": None},
        {"files": None},
        {"flow_id": None},
        {"on_unknown_upload": "start_again"},
        {"files_per_request": 0},
        {"file_format": "b64"},
        {"file_format": {"a": "b64"}},
        {"file_format": 5},
    ):
        yield UploadFilesOperator, {"run_id": "1", "files": "a", **wrong}
    for wrong in (
        {"batch": None},
        {"on_rejected": "ignore"},
        {"max_concurrency": 0},
        {"window_size": 0},
        {"max_starts_per_second": 0},
    ):
        yield TriggerFlowBatchOperator, {"batch": [], **wrong}


def inputs() -> Iterator[object]:
    yield from ({"a": {1}}, {"a": float("nan")}, {1: "a"}, {"a": "\ud800"}, {"\ud800": 1}, {"a": LOOP})


def files(folder: Path) -> Iterator[object]:
    (folder / "folder").mkdir()
    (folder / "link").symlink_to("folder")
    (folder / "dangling").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    for name in ("missing", "folder", "link", "dangling", "pipe", "*.xml", "folder/../{{ ds }}"):
        yield f"{folder}/{name}"
    yield from (f"file://{folder}/missing", f"file://{folder}/folder", f"file://{folder}/f*")
    yield from ("~/data", "", [], None, 7, [b"a.csv"])


def batches(folder: Path) -> Iterator[object]:
    path = folder / "batch.jsonl"
    for text in ('{}\n{"a"', "[]", '{"a": 1, "a": 2}', '{"a": NaN}'):
        path.write_text(text)
        yield str(path)
    yield from ([{}, None], {}, 7, "", '[{"a": 1}]', "{{ ds }}", "~/batch", f"{folder}/missing", str(folder))


def connections() -> Iterator[dict[str, Any]]:
    for host in ("", "ftp://a", "http://a", "https://ada:x@a", "https://a?b=1", "https://[a", "https://a:1"):
        yield {"host": host, "port": 2} if host.endswith(":1") else {"host": host}
    for fields in (
        {"extra": [1]},
        {"extra": {"typo": 1}},
        {"login": "ada"},
        {"schema": "http"},
        {"password": "k" * 16, "extra": {"flow_id": "k" * 16}},
        {"extra": {"timeout": "x", "key_expires_on": "soon", "verify": "perhaps"}},
        {"extra": {"file_format": "b64"}},
        {"extra": {"headers": {"X-API-Key": "a"}}},
        {"extra": {"headers": {"a b": "c"}}},
        {"extra": {"proxy": "ftp://proxy"}},
        {"extra": {"busy_statuses": [200]}},
        {"extra": {"callback_base_url": "http://airflow.example"}},
    ):
        yield {"host": "service.example", **fields}


def callbacks() -> Iterator[bytes]:
    yield from (b"", b"null", b"[]", b"[" * 60_000, b"{}", b'{"status": 1, "status": 2}', b'{"status": NaN}')
    yield b'{"status": "success", "a": 1e999}'
    unfit: list[Any] = [True, [], {}, " ", "\0"]
    documents: list[dict[str, Any]] = [
        *({"status": value} for value in [1, *unfit]),
        *({"run_id": value} for value in unfit),
        *({"status": "started", "run_link": value} for value in (1, "\0")),
        {"status": "started", "progress": 0},
        {"status": "running", "result": 0},
        {"status": "running", "message": 1},
        *({"status": "running", "progress": number} for number in (True, "0.5", 1.01, -1)),
        {"message": ["a"]},
        {"message": "\0"},
        {"run_id": "1", "more": 2},
        *({"result": wrong} for wrong in (2**64, {"a": "\ud800"}, {"__type": 1}, [0] * 100_000)),
        {"result": json.loads("[" * 52 + "]" * 52)},
    ]
    for document in documents:
        yield json.dumps({"status": "success", **document}).encode()


def upload(**options: Any) -> object:
    return upload_body(**{"flow_id": "demo-flow", "run_id": "1", "files": [], **options})


def connect(fields: dict[str, Any]) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_A", json.dumps({"conn_type": "workflow_automation", **fields}))
        return WorkflowAutomationHook("a").get_conn()


def read_batch(batch: Any) -> object:
    return list(BatchSource(batch, None))


async def asynchronous() -> None:
    pass


def attempts(folder: Path) -> Iterator[Callable[[], object]]:
    """Yield what is an error."""
    for operator, arguments in operators():
        yield partial(operator, task_id="task", **arguments)
    decorator: Any = trigger_flow_task
    yield lambda: decorator(asynchronous)()
    yield lambda: decorator(inputs={})(print)()
    checks: list[tuple[Callable[[Any], object], Iterable[Any]]] = [
        (partial(encode, "inputs"), inputs()),
        (lambda value: upload(**value), ({"run_id": ""}, {"flow_id": 1.5}, {"run_id": "\ud800"})),
        (lambda element: measure([element]), ("a", 7)),
        (resolve, files(folder)),
        (read_batch, batches(folder)),
        (connect, connections()),
        (read, callbacks()),
    ]
    for check, values in checks:
        yield from (partial(check, value) for value in values)


def rendered(folder: Path) -> str:
    """Return all that is said."""
    texts = []
    for attempt in attempts(folder):
        try:
            attempt()
        except Exception as error:
            texts.append(f"{type(error).__name__}: {error}")
        else:
            raise AssertionError(f"No error after {texts[-1]}")
    return "\n\n".join(texts).replace(str(folder), "/data") + "\n"


def test_words(tmp_path):
    assert rendered(tmp_path) == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        GOLDEN.write_text(rendered(Path(folder)), encoding="utf-8")
