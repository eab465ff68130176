"""
Measure uploads against what else one might use: ``make bench-upload``.

Every contender sends the same files to the same local sink, each time in a fresh process, in interleaved rounds.
Timed is the upload alone: what it imports and the opening of its clients are not, a shell pipeline's start is.

The objects are in a stand-in for S3 (moto), behind a proxy that delays each request.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import multiprocessing
import os
import platform
import resource
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

KIB, MIB = 1024, 1024 * 1024
HEAD, TAIL = b'{"flow_id":"flow","run_id":"1","files":[', b"]}"
HEADERS = {"Content-Type": "application/json", "X-API-Key": "key"}

DELAY = 0.02
BUCKET = "bench"
ACCESS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}


class Case(NamedTuple):
    """
    Files to send.

    :param contenders: who sends them; the first is this provider
    """

    title: str
    size: int
    files: int
    rounds: int
    contenders: tuple[str, ...]


CASES = {
    "1g": Case("1 GiB", 1024 * MIB, 1, 3, ("provider", "http_hook", "requests", "curl")),
    "s3-many": Case("1,000 objects of 10 KiB", 10 * KIB, 1000, 5, ("operator_s3", "boto3")),
    "s3-1g": Case("an object of 1 GiB", 1024 * MIB, 1, 3, ("operator_s3", "boto3_curl")),
}


# The sink ---------------------------------------------------------------------------------------------


def serve(listener: socket.socket) -> None:
    """Take requests, one connection after the other, and answer each with a JSON string."""
    buffer = bytearray(MIB)
    while True:
        connection, _ = listener.accept()
        with connection:
            take_request(connection, memoryview(buffer))


def take_request(connection: socket.socket, buffer: memoryview) -> None:
    """Read one body, by its Content-Length or in chunks, keeping nothing of it."""

    def read() -> bytes:
        return bytes(buffer[: connection.recv_into(buffer)])

    head = b""
    while b"\r\n\r\n" not in head:
        if not (piece := read()):
            return
        head += piece
    head, _, rest = head.partition(b"\r\n\r\n")
    head = head.lower()
    if b"expect: 100-continue" in head:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    if b"transfer-encoding: chunked" in head:
        # The end of the stream is the end of the last chunk: no chunk of base64 looks like it.
        while not rest.endswith(b"\r\n0\r\n\r\n"):
            rest = rest[-7:] + read()
    else:
        left = int(head.partition(b"content-length:")[2].split(b"\r\n")[0]) - len(rest)
        while left > 0:
            left -= connection.recv_into(buffer)
    found = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4\r\nConnection: close"
    connection.sendall(found + b'\r\n\r\n"ok"')


@contextlib.contextmanager
def sink() -> Iterator[int]:
    """Run the sink in a process of its own; its port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    process = multiprocessing.get_context("fork").Process(target=serve, args=(listener,), daemon=True)
    process.start()
    port = listener.getsockname()[1]
    listener.close()
    yield port
    process.kill()
    process.join()


# The store --------------------------------------------------------------------------------------------


class Stand(NamedTuple):
    """A stand-in for S3, and the proxy in front of it."""

    port: int
    proxy: subprocess.Popen[str]

    def count(self) -> int:
        """Return the number of requests since the last count, listings not included."""
        if self.proxy.stdin is None or self.proxy.stdout is None:
            raise AssertionError("Both are pipes")
        self.proxy.stdin.write("\n")
        self.proxy.stdin.flush()
        found: int = json.loads(self.proxy.stdout.readline())["objects"]
        return found


def s3(port: int, **config: Any) -> Any:
    """Return a client of boto3."""
    import boto3
    from botocore.config import Config

    return boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", config=Config(**config), **ACCESS)


@contextlib.contextmanager
def store(case: Case) -> Iterator[Stand]:
    """Run the stand-in with the objects of a case, in processes of their own."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()
    moto = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        client = s3(port, max_pool_connections=8)
        for _ in range(200):
            with contextlib.suppress(Exception):
                client.create_bucket(Bucket=BUCKET)
                break
            time.sleep(0.1)
        with ThreadPoolExecutor(8) as threads:

            def put(number: int) -> None:
                client.put_object(Bucket=BUCKET, Key=f"files/{number:04}.bin", Body=os.urandom(case.size))

            [*threads.map(put, range(case.files))]
        program = Path(__file__).parents[1] / "tests" / "support" / "store_proxy.py"
        with subprocess.Popen(
            [sys.executable, str(program), str(port), str(DELAY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as proxy:
            if proxy.stdout is None:
                raise AssertionError("It is a pipe")
            try:
                yield Stand(int(proxy.stdout.readline()), proxy)
            finally:
                proxy.kill()
    finally:
        moto.kill()
        moto.wait()


# The contenders ---------------------------------------------------------------------------------------
# Each imports what it needs and returns what sends the files.


class Given(NamedTuple):
    """
    What a contender is given.

    :param port: of the sink
    :param folder: of the files, or of nothing
    :param store: port of the store, 0 for none
    :param files: how many there are
    """

    port: int
    folder: Path
    store: int
    files: int


Send = Callable[[list[Path]], None]


def connect(given: Given) -> None:
    """Define the connections to the sink and to the store."""
    host = f"http://127.0.0.1:{given.port}/api"
    connection = {"conn_type": "workflow_automation", "host": host, "password": "key"}
    os.environ["AIRFLOW_CONN_BENCH"] = json.dumps(connection)
    extra = {"endpoint_url": f"http://127.0.0.1:{given.store}", "region_name": "us-east-1"}
    aws = {"conn_type": "aws", "login": "testing", "password": "testing", "extra": extra}
    os.environ["AIRFLOW_CONN_BENCH_S3"] = json.dumps(aws)


def this_provider(given: Given) -> Send:
    """Send with this provider's hook."""
    from airflow.providers.common.compat.lineage.hook import get_hook_lineage_collector

    from workflow_automation_provider.hooks import sources  # noqa: F401 - what an upload imports
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

    connect(given)
    hook = WorkflowAutomationHook("bench")
    hook.get_conn()
    get_hook_lineage_collector()  # loads all plugins, as Airflow does before a task begins
    return lambda paths: check(hook.upload_files("1", paths, "flow"))


def operator(given: Given) -> Send:
    """Send the objects below a prefix with this provider's operator, which records what was confirmed."""
    from workflow_automation_provider.execution import upload  # noqa: F401 - what an upload imports
    from workflow_automation_provider.hooks.sources import resolve
    from workflow_automation_provider.operators.flows import UploadFilesOperator
    from workflow_automation_provider.testing.context import make_context

    connect(given)
    files = f"s3://bench_s3@{BUCKET}/files/"
    task = UploadFilesOperator(
        task_id="upload", run_id="1", flow_id="flow", files=files, workflow_automation_conn_id="bench"
    )
    task.hook.get_conn()
    resolve(files)  # opens the client
    return lambda _: check(task.execute(make_context(task))["requests"][0]["response"])


def boto3_threads(given: Given) -> Send:
    """Download the objects with 16 threads of boto3, and send nothing."""
    client = s3(given.store, max_pool_connections=16)

    def get(number: int) -> int:
        body = client.get_object(Bucket=BUCKET, Key=f"files/{number:04}.bin")["Body"]
        return len(body.read())

    def send(_: list[Path]) -> None:
        with ThreadPoolExecutor(16) as threads:
            sizes = {*threads.map(get, range(given.files))}
        if len(sizes) != 1:
            raise SystemExit(f"The objects have {sizes} bytes")

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
    return lambda _: pipe(given.port, "0000.bin", f"{get} | base64 -w0")


def head_of(path: Path) -> bytes:
    """Return what precedes a file's content."""
    name = json.dumps(path.name).encode()
    return b'{"name":%b,"content_type":"application/octet-stream","content":"' % name


def whole_body(paths: list[Path]) -> dict[str, Any]:
    """Return the body of a request, with all files in memory, as one writes it who has small files in mind."""
    files = [
        {**json.loads(head_of(path) + b'"}'), "content": base64.b64encode(path.read_bytes()).decode()}
        for path in paths
    ]
    return {"flow_id": "flow", "run_id": "1", "files": files}


def http_hook(given: Given) -> Send:
    """Send with Airflow's HttpHook."""
    from airflow.providers.http.hooks.http import HttpHook

    os.environ["AIRFLOW_CONN_BENCH"] = f"http://127.0.0.1:{given.port}"
    hook = HttpHook("POST", http_conn_id="bench")
    hook.get_conn()

    def send(paths: list[Path]) -> None:
        check(hook.run("/api/public/upload", data=json.dumps(whole_body(paths)), headers=HEADERS).json())

    return send


def with_requests(given: Given) -> Send:
    """Send with requests."""
    import requests

    url = f"http://127.0.0.1:{given.port}/api/public/upload"

    def send(paths: list[Path]) -> None:
        response = requests.post(url, json=whole_body(paths), headers=HEADERS, timeout=600)
        response.raise_for_status()
        check(response.json())

    return send


def curl(given: Given) -> Send:
    """Send a file with ``base64 | curl``: streamed and so chunked, for curl cannot know the length of a pipe."""
    return lambda paths: pipe(given.port, paths[0].name, f"base64 -w0 {shlex.quote(str(paths[0]))}")


def pipe(port: int, name: str, content: str) -> None:
    """
    Send a file.

    :param content: the shell command that writes it in base64
    """
    begin = shlex.quote((HEAD + head_of(Path(name))).decode())
    end = shlex.quote('"}' + TAIL.decode())
    url = f"http://127.0.0.1:{port}/api/public/upload"
    headers = "-H 'X-API-Key: key' -H 'Content-Type: application/json'"
    send = f"curl -sS -X POST -T - {headers} {url}"
    pipeline = f"{{ printf %s {begin}; {content}; printf %s {end}; }} | {send}"
    check(json.loads(subprocess.run(["sh"], input=pipeline.encode(), capture_output=True, check=True).stdout))


def check(response: Any) -> None:
    """Refuse any response but the sink's."""
    if str(response).strip('"') != "ok":
        raise SystemExit(f"The sink answered {response!r}")


CONTENDERS: dict[str, tuple[str, Callable[[Given], Send]]] = {
    "provider": ("this provider's hook", this_provider),
    "operator_s3": ("this provider's operator", operator),
    "http_hook": ("`HttpHook`, `json.dumps` and base64", http_hook),
    "requests": ("`requests`, `json=` and base64", with_requests),
    "curl": ("`base64 \\| curl -T -`", curl),
    "boto3": ("boto3, 16 threads, download alone", boto3_threads),
    "boto3_curl": ("`boto3 \\| base64 \\| curl -T -`", boto3_curl),
}


def peak(who: str) -> int:
    """Return the highest resident memory so far in bytes, of this process or of the largest child."""
    if "curl" in who:
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * KIB
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * KIB


def contend(who: str, given: Given) -> None:
    """Send the files once and print the seconds it took and the bytes of memory above the baseline."""
    paths = sorted(given.folder.iterdir())
    send = CONTENDERS[who][1](given)
    if "curl" in who:
        subprocess.run(["curl", "--version"], capture_output=True, check=True)
    baseline = peak(who)
    begun = time.perf_counter()
    send(paths)
    seconds = time.perf_counter() - begun
    print(json.dumps([seconds, peak(who) - baseline]))


# Rounds -----------------------------------------------------------------------------------------------


class Result(NamedTuple):
    """
    One upload.

    :param memory: bytes above the baseline
    :param requests: how many there were to the store, listings not included
    """

    seconds: float
    memory: int
    requests: int


Results = dict[str, list[Result]]


def measure(case: Case, port: int, rounds: int, scratch: Path) -> Results:
    """Let every contender send the files of a case, in turns."""
    folder = scratch / str(case.size)
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        stand = stack.enter_context(store(case)) if case.contenders[0] == "operator_s3" else None
        if stand is None:
            with (folder / "file.bin").open("wb") as stream:
                for start in range(0, case.size, MIB):
                    stream.write(os.urandom(min(MIB, case.size - start)))
        results = take_turns(case, Given(port, folder, stand.port if stand else 0, case.files), stand, rounds)
    shutil.rmtree(folder)
    return results


def take_turns(case: Case, given: Given, stand: Stand | None, rounds: int) -> Results:
    """Let every contender send once in each round."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    environment["AIRFLOW_HOME"] = str(given.folder.parent / "airflow")
    environment["NO_PROXY"] = environment["no_proxy"] = "127.0.0.1"
    results: Results = {who: [] for who in case.contenders}
    for number in range(rounds):
        # Each begins a round in its turn: what runs first finds another machine than what runs last.
        first = number % len(case.contenders)
        for who in case.contenders[first:] + case.contenders[:first]:
            arguments = [who, str(given.port), str(given.folder), str(given.store), str(given.files)]
            if stand:
                stand.count()
            done = subprocess.run(
                [sys.executable, __file__, "--contend", *arguments],
                env=environment,
                stdout=subprocess.PIPE,
                check=True,
            )
            seconds, memory = json.loads(done.stdout.splitlines()[-1])
            results[who].append(Result(seconds, memory, stand.count() if stand else 0))
        load = ", ".join(f"{who} {found[-1].seconds:.2f} s" for who, found in results.items())
        print(f"{case.title}: round {number + 1} of {rounds}: {load}", file=sys.stderr)
    return results


def table(measured: dict[str, Results]) -> Iterator[str]:
    """Write the results as Markdown: times as ratios of medians, memory as the median peak."""
    yield "| files | method | time relative to this provider | requests per object | peak memory above baseline |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for key, results in measured.items():
        case = CASES[key]
        first = case.contenders[0]
        for who, found in results.items():
            memory = statistics.median(one.memory for one in found) / MIB
            time, mine = (statistics.median(one.seconds for one in results[name]) for name in (who, first))
            each = statistics.median(one.requests for one in found) / case.files
            requests = f"{each:.3f}" if each else ""
            yield f"| {case.title} | {CONTENDERS[who][0]} | {time / mine:.2f} | {requests} | {memory:,.1f} MiB |"


def main() -> None:
    """Run all the cases, or those that are named."""
    parser = argparse.ArgumentParser(description="Measure uploads against what else one might use.")
    parser.add_argument("cases", nargs="*", help=f"some of {', '.join(CASES)}; all by default")
    parser.add_argument("--rounds", type=int, help="in place of each case's own number")
    parser.add_argument("--objects", type=int, default=1000, help="for s3-many")
    parser.add_argument("--mib", type=int, default=1024, help="of the one file or object")
    parser.add_argument("--contend", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contend:
        who, port, folder, store_port, files = arguments.contend
        contend(who, Given(int(port), Path(folder), int(store_port), int(files)))
        return
    if unknown := {*arguments.cases} - {*CASES}:
        parser.error(f"{', '.join(unknown)}: expected some of {', '.join(CASES)}")
    many, size = arguments.objects, f"{arguments.mib / 1024:g} GiB"
    CASES["s3-many"] = CASES["s3-many"]._replace(files=many, title=f"{many:,} objects of 10 KiB")
    for key, title in (("1g", size), ("s3-1g", f"an object of {size}")):
        CASES[key] = CASES[key]._replace(size=arguments.mib * MIB, title=title)
    measured: dict[str, Results] = {}
    with tempfile.TemporaryDirectory() as scratch, sink() as port:
        for key in arguments.cases or CASES:
            measured[key] = measure(CASES[key], port, arguments.rounds or CASES[key].rounds, Path(scratch))
    print("\n".join(table(measured)), end="\n\n")
    load = os.getloadavg()[2]
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load average {load:.1f}; "
        "medians of interleaved rounds."
    )


if __name__ == "__main__":
    main()
