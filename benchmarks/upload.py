"""
Measure uploads against what else one might use: ``make bench-upload``.

Every contender sends the same files to the same local service, each time in a fresh process, in
interleaved rounds. Timed is the upload alone: what it imports and the opening of its clients are
not, a shell pipeline's start is.

The objects are in a stand-in for S3 (moto), behind a proxy that delays each request.
"""

from __future__ import annotations

import base64
import json
import multiprocessing
import os
import random
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from common import MIB, pick, report, say
from quick_service import quick_service

if TYPE_CHECKING:
    from store_proxy import StoreProxy

KIB = 1024
GIB = pick(1024, 8) * MIB
MANY, ROUNDS = pick((1000, 3), (50, 1))
DELAY, BUCKET = 0.02, "bench"
ACCESS = {
    "aws_access_key_id": "testing",
    "aws_secret_access_key": "testing",
    "region_name": "us-east-1",
}
HEADERS = {"Content-Type": "application/json", "X-API-Key": "bench-key"}
BODY = {
    "flow_id": "flow",
    "run_id": "1",
    "files": [{"name": "file", "content_type": "application/octet-stream", "content": ""}],
}


class Given(NamedTuple):
    """
    What a contender is given.

    :param url: where to send to
    :param path: of the file, unless objects are sent
    :param store: port of the store, 0 for none
    """

    url: str
    path: Path
    store: int


# The contenders -----------------------------------------------------------------------------------
# Each imports what it needs, and returns what sends the files and returns the response.

Send = Callable[[], Any]


def this_provider(given: Given) -> Send:
    """Send with this provider's hook."""
    from airflow.providers.common.compat.lineage.hook import get_hook_lineage_collector

    from workflow_automation_provider.hooks.files import sources  # noqa: F401 - what an upload imports
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

    hook = WorkflowAutomationHook("bench")
    hook.get_conn()
    get_hook_lineage_collector()  # loads all plugins, as Airflow does before a task begins
    return lambda: hook.upload_files("1", [given.path], "flow")


def operator(_: Given) -> Send:
    """
    Send the objects below a prefix with this provider's operator.

    It records what was confirmed.
    """
    from workflow_automation_provider.execution import upload  # noqa: F401 - what an upload imports
    from workflow_automation_provider.hooks.files.sources import resolve
    from workflow_automation_provider.operators.flows import UploadFilesOperator
    from workflow_automation_provider.testing.context import make_context

    files = f"s3://bench_s3@{BUCKET}/files/"
    task = UploadFilesOperator(
        task_id="upload",
        run_id="1",
        flow_id="flow",
        files=files,
        workflow_automation_conn_id="bench",
    )
    task.hook.get_conn()
    resolve(files)  # opens the client
    return lambda: task.execute(make_context(task))


def http_hook(given: Given) -> Send:
    """
    Send with Airflow's HttpHook, with the whole file in memory.

    This is how one writes it for small files.
    """
    from airflow.providers.http.hooks.http import HttpHook

    hook = HttpHook("POST", http_conn_id="bench_http")
    hook.get_conn()

    def send() -> Any:
        content = base64.b64encode(given.path.read_bytes()).decode()
        body = {**BODY, "files": [{**BODY["files"][0], "content": content}]}
        return hook.run("/api/public/upload", data=json.dumps(body), headers=HEADERS).json()

    return send


def boto3_threads(given: Given) -> Send:
    """Download the objects with 16 threads of boto3, and send nothing."""
    client = s3(given.store, max_pool_connections=16)
    keys = [found["Key"] for found in client.list_objects_v2(Bucket=BUCKET)["Contents"]]

    def get(key: str) -> int:
        return len(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())

    def send() -> str:
        with ThreadPoolExecutor(16) as threads:
            return f"no run_id, but {sum(threads.map(get, keys))} bytes"

    return send


STREAM = f"""
import sys, boto3
client = boto3.client("s3", endpoint_url="http://127.0.0.1:" + sys.argv[1], **{ACCESS!r})
for chunk in client.get_object(Bucket={BUCKET!r}, Key="files/0000.bin")["Body"].iter_chunks(1024 * 1024):
    sys.stdout.buffer.write(chunk)
"""


def boto3_curl(given: Given) -> Send:
    """Send an object with boto3, base64 and curl."""
    get = shlex.join([sys.executable, "-c", STREAM, str(given.store)])
    return pipeline(given, f"{get} | base64 -w0")


def curl(given: Given) -> Send:
    """
    Send a file with ``base64 | curl``.

    Streamed and so chunked, for curl cannot know the length of a pipe.
    """
    return pipeline(given, f"base64 -w0 {shlex.quote(str(given.path))}")


def pipeline(given: Given, content: str) -> Send:
    """
    Send a file with curl.

    :param content: the shell command that writes it in base64
    """
    body = json.dumps(BODY)
    begin, end = (shlex.quote(part) for part in (body[:-4], body[-4:]))
    headers = shlex.join(part for pair in HEADERS.items() for part in ("-H", ": ".join(pair)))
    send = f"curl -sS -X POST -T - -H Expect: {headers} {given.url}/api/public/upload"
    command = ["sh", "-c", f"{{ printf %s {begin}; {content}; printf %s {end}; }} | {send}"]
    subprocess.run(
        ["curl", "--version"], capture_output=True, check=True
    )  # whose memory is the baseline
    return lambda: subprocess.run(command, capture_output=True, check=True, text=True).stdout


class Case(NamedTuple):
    """
    Files to send.

    :param title: what they are
    :param contenders: who sends them; the first is this provider
    :param objects: how many there are in the store; None for a local file
    """

    title: str
    size: int
    contenders: dict[str, Callable[[Given], Send]]
    objects: int | None = None


CASES = [
    Case(
        "1 GiB",
        GIB,
        {
            "this provider's hook": this_provider,
            "`HttpHook`, `json.dumps` and base64": http_hook,
            "`base64 \\| curl -T -`": curl,
        },
    ),
    Case(
        f"{MANY:,} objects of 10 KiB",
        10 * KIB,
        {"this provider's operator": operator, "boto3, 16 threads, download alone": boto3_threads},
        MANY,
    ),
    Case(
        "an object of 1 GiB",
        GIB,
        {"this provider's operator": operator, "`boto3 \\| base64 \\| curl -T -`": boto3_curl},
        1,
    ),
]


def peak(is_pipeline: bool) -> int:
    """
    Return the highest resident memory so far in bytes.

    Of this process or of the largest child.
    """
    if is_pipeline:
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * KIB
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * KIB


def contend(contender: Callable[[Given], Send], given: Given) -> tuple[float, int]:
    """
    Send the files once.

    Return the seconds it took, and the bytes of memory above the baseline.
    """
    is_pipeline = contender in (curl, boto3_curl)
    send = contender(given)
    baseline = peak(is_pipeline)
    begun = time.perf_counter()
    response = send()
    seconds = time.perf_counter() - begun
    if "run_id" not in str(response):
        raise RuntimeError(f"The service responded {response!r}")
    return seconds, peak(is_pipeline) - baseline


# The store ----------------------------------------------------------------------------------------


def s3(port: int, **config: Any) -> Any:
    """Return a client of boto3."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3", endpoint_url=f"http://127.0.0.1:{port}", config=Config(**config), **ACCESS
    )


@contextmanager
def store(home: Path, size: int, objects: int) -> Iterator[StoreProxy]:
    """Run the stand-in, in a process of its own, with some objects."""
    from airflow_launcher.processes import Program, free_port
    from store_proxy import StoreProxy

    port = free_port()
    moto = Program("moto", [sys.executable, "-m", "moto.server", "-p", str(port)], home, os.environ)
    moto.start()
    try:
        client = s3(port, max_pool_connections=8, retries={"max_attempts": 9})  # while it starts
        client.create_bucket(Bucket=BUCKET)

        def put(number: int) -> None:
            client.put_object(Bucket=BUCKET, Key=f"files/{number:04}.bin", Body=os.urandom(size))

        with ThreadPoolExecutor(8) as threads:
            [*threads.map(put, range(objects))]
        with StoreProxy(port, delay=DELAY).running() as proxy:
            yield proxy
    finally:
        moto.kill()


# Rounds -------------------------------------------------------------------------------------------


class Result(NamedTuple):
    """
    One upload.

    :param memory: bytes above the baseline
    :param requests: how many there were to the store, listings not included
    """

    seconds: float
    memory: int
    requests: int


def take_turns(case: Case, given: Given, proxy: StoreProxy | None) -> dict[str, list[Result]]:
    """Let every contender send the files of a case once in each round, in a fresh process."""
    from airflow_launcher.airflow import airflow_environment

    extra = {"endpoint_url": f"http://127.0.0.1:{given.store}", "region_name": "us-east-1"}
    connections = {
        "bench": {
            "conn_type": "workflow_automation",
            "host": f"{given.url}/api",
            "password": "bench-key",
        },
        "bench_http": {"conn_type": "http", "host": given.url},
        "bench_s3": {"conn_type": "aws", "login": "testing", "password": "testing", "extra": extra},
    }
    environment = airflow_environment(given.path.parent / "airflow", {}, connections)
    os.environ.clear()
    os.environ.update(environment)
    results: dict[str, list[Result]] = {who: [] for who in case.contenders}
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for _ in range(ROUNDS):
            # What runs first finds another machine than what runs last.
            for who in random.sample([*results], len(results)):
                if proxy:
                    proxy.seen.clear()
                seconds, memory = pool.apply(contend, (case.contenders[who], given))
                requests = (
                    sum("list-type" not in seen.target for seen in proxy.seen) if proxy else 0
                )
                results[who].append(Result(seconds, memory, requests))
                say(f"{case.title}: {who}: {seconds:.2f} s")
    return results


def measure(case: Case) -> dict[str, list[Result]]:
    """Measure a case."""
    from airflow_launcher.airflow import temporary_home

    with temporary_home("bench") as home, quick_service() as url:
        path = home / "file"
        if case.objects:
            with store(home, case.size, case.objects) as proxy:
                return take_turns(case, Given(url, path, proxy.port), proxy)
        path.write_bytes(os.urandom(case.size))
        return take_turns(case, Given(url, path, 0), None)


def rows() -> Iterator[list[str]]:
    """Measure, and write the results: times as ratios of medians, memory as the median peak."""
    for case in CASES:
        mine = None
        for who, found in measure(case).items():
            seconds, memory, requests = map(statistics.median, zip(*found, strict=True))
            mine = mine or seconds
            each = f"{requests / case.objects:.3f}" if case.objects else ""
            yield [case.title, who, f"{seconds / mine:.2f}", each, f"{memory / MIB:,.1f} MiB"]


if __name__ == "__main__":
    heads = ["files", "method", "time relative to this provider", "requests per object"]
    report([*heads, "peak memory above baseline"], rows(), texts=2)
