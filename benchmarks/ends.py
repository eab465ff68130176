"""
Collecting the ends of a batch's runs from S3, beside 16 threads of boto3 that read them.

The store only responds: every object has the same end. Each contender has a process of its own, and
the batch has two, for its task is suspended between the starts and the ends.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import httpx

from common import say
from quick_service import quick_service

LATENCY = 0.02
QUIET = {"LOGGING__LOGGING_LEVEL": "ERROR"}
THREADS = 16
PAGE = 1_000
FOLDER = "s3://bench_s3@bench/callbacks"


class Given(NamedTuple):
    """
    What a contender is given.

    :param items: how many there are
    :param size: of an end, in bytes
    :param home: a folder to write to
    """

    items: int
    size: int
    home: Path


# The store ----------------------------------------------------------------------------------------


class _Store(asyncio.Protocol):
    """
    A connection to the store.

    :param end: what each object has
    :param number: how many there are in any folder, once the runs have ended
    """

    have_ended = False

    def __init__(self, end: bytes, number: int) -> None:
        self._end, self._number = end, number
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Respond to a request once its head is complete; a body is one byte."""
        self._received += data
        head, found, _ = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        self._received = b""
        method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        asyncio.get_running_loop().call_later(LATENCY, self._respond, method, target)

    def _respond(self, method: str, target: str) -> None:
        status, body = "200 OK", b""
        if method == "PUT":
            status = "412 Precondition Failed"  # the probe is there already
        elif method == "POST":
            type(self).have_ended = True
        elif "list-type=2" in target:
            body = self._page(parse_qs(urlsplit(target).query))
        elif method == "GET":
            body = self._end
        self._transport.write(
            f"HTTP/1.1 {status}\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )

    def _page(self, query: dict[str, list[str]]) -> bytes:
        prefix = query["prefix"][0]
        first = int(query.get("continuation-token", ["0"])[0])
        last = min(first + PAGE, self._number) if self.have_ended else 0
        more = "<IsTruncated>false</IsTruncated>"
        if 0 < last < self._number:
            more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{last}</NextContinuationToken>"
        keys = "".join(
            f"<Contents><Key>{prefix}{n}.json</Key></Contents>" for n in range(first, last)
        )
        return f"<ListBucketResult>{more}{keys}</ListBucketResult>".encode()


def _serve(listener: socket.socket, end: bytes, number: int) -> None:
    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Store(end, number), sock=listener, backlog=512)
        await server.serve_forever()

    asyncio.run(serve())


@contextmanager
def _store(given: Given) -> Iterator[str]:
    """Run the store in a process of its own, and give its URL."""
    rows = [{"name": f"Ada {n}", "total": n * 1.5} for n in range(given.size // 38)]
    end = json.dumps({"status": "success", "run_id": "7", "result": rows}).encode()
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        port = listener.getsockname()[1]
        process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(listener, end, given.items), daemon=True
        )
        process.start()
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.join()


# The contenders -----------------------------------------------------------------------------------


class Result(NamedTuple):
    """
    What collecting took.

    :param cpu: in seconds
    :param peak: memory in MiB
    """

    seconds: float
    cpu: float
    peak: float


def _timed(work: Callable[[], Any]) -> Result:
    began, cpu_began = time.perf_counter(), time.process_time()
    work()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    status = Path("/proc/self/status").read_text()
    return Result(seconds, cpu, int(status.partition("VmHWM:")[2].split()[0]) / 1024)


def _batch(given: Given, entries: dict[str, str] | None = None) -> tuple[Any, Any, Any]:
    """Return a task, its context and its store."""
    from airflow.providers.common.compat.lineage.hook import get_hook_lineage_collector

    from state_store import StateStore
    from workflow_automation_provider.execution.batch import ends
    from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
    from workflow_automation_provider.testing.context import make_context

    get_hook_lineage_collector()  # loads all plugins, as Airflow does before a task begins
    ends.is_supervised = lambda: True  # so that it is suspended
    path = given.home / "items.jsonl"
    path.write_text("".join(f'{{"customer": "Ada", "n": {n}}}\n' for n in range(given.items)))
    task = TriggerFlowBatchOperator(
        task_id="batch",
        batch=str(path),
        output_path=str(given.home / "ends.jsonl"),
        workflow_automation_conn_id="bench",
        wait_for_completion=True,
        retries=3,
    )
    context: Any = make_context(task)
    store = StateStore()
    store.entries.update(entries or {})
    context["task_state_store"] = store
    return task, context, store


def _start(given: Given) -> tuple[dict[str, str], dict[str, Any]]:
    """Start the runs; return the entries, and what the task is resumed with."""
    from airflow.providers.common.compat.sdk import TaskDeferred

    task, context, store = _batch(given)
    try:
        task.execute(context)
    except TaskDeferred as deferred:
        return store.entries, deferred.kwargs
    raise RuntimeError("The task was not suspended")


def collect(given: Given, entries: dict[str, str], kwargs: dict[str, Any]) -> Result:
    """Collect the ends as the task does."""
    task, context, _ = _batch(given, entries)
    found = _timed(lambda: task.execute_complete(context, **kwargs))
    with (given.home / "ends.jsonl").open("rb") as lines:
        assert sum(b'"status": "success"' in line for line in lines) == given.items
    return found


def empty(given: Given) -> Result:
    """Execute a batch without items."""
    task, context, _ = _batch(given._replace(items=0))
    return _timed(lambda: task.execute(context))


def boto3_threads(given: Given, url: str) -> Result:
    """Read the ends with 16 threads of boto3, and write them to a file."""
    import boto3
    from botocore.config import Config

    config = Config(max_pool_connections=THREADS)
    access = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", config=config, **access)

    def read(key: str) -> Any:
        return json.loads(client.get_object(Bucket="bench", Key=key)["Body"].read())

    def work() -> None:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket="bench", Prefix="ends/")
        keys = [found["Key"] for page in pages for found in page["Contents"]]
        with ThreadPoolExecutor(THREADS) as threads, (given.home / "boto3.jsonl").open("w") as out:
            out.writelines(json.dumps(end) + "\n" for end in threads.map(read, keys))

    return _timed(work)


# Rounds -------------------------------------------------------------------------------------------


def measure(given: Given, rounds: int) -> dict[str, list[Result]]:
    """Let each contender collect the ends once in each round, in a process of its own."""
    from airflow_launcher.airflow import airflow_environment

    found: dict[str, list[Result]] = {"batch": [], "boto3": [], "empty": []}
    before = dict(os.environ)
    with quick_service() as service, _store(given) as url:
        extra = {"endpoint_url": url, "region_name": "us-east-1"}
        connections = {
            "bench": {
                "conn_type": "workflow_automation",
                "host": f"{service}/api",
                "password": "a-key-of-the-benchmark",
                "extra": {"callback_base_url": FOLDER},
            },
            "bench_s3": {
                "conn_type": "aws", "login": "testing", "password": "testing", "extra": extra,
            },
        }  # fmt: skip
        os.environ.update(airflow_environment(given.home / "airflow", QUIET, connections))
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            entries, kwargs = pool.apply(_start, (given,))
            httpx.post(url)  # the runs have ended
            for _ in range(rounds):
                found["batch"].append(pool.apply(collect, (given, entries, kwargs)))
                found["boto3"].append(pool.apply(boto3_threads, (given, url)))
                say(f"{given.items} ends of {given.size}: {found}")
            found["empty"].append(pool.apply(empty, (given,)))
    os.environ.clear()
    os.environ.update(before)
    return found
