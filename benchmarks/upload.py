"""
Measure uploads against what else one might use: ``make bench-upload``.

Every contender sends the same files to the same local sink, each time in a fresh process, in interleaved rounds.
Timed is the upload alone: what it imports and the opening of its client are not, a shell pipeline's start is.
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
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

KIB, MIB = 1024, 1024 * 1024
HEAD, TAIL = b'{"flow_id":"flow","run_id":"1","files":[', b"]}"
CHUNK = 192 * KIB


class Case(NamedTuple):
    """Files to send."""

    title: str
    size: int
    files: int
    rounds: int


CASES = {
    "1m": Case("1 MiB", MIB, 1, 9),
    "64m": Case("64 MiB", 64 * MIB, 1, 7),
    "1g": Case("1 GiB", 1024 * MIB, 1, 3),
    "many": Case("1,000 of 10 KiB", 10 * KIB, 1000, 9),
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
    head = b""
    while b"\r\n\r\n" not in head:
        count = connection.recv_into(buffer)
        if not count:
            return
        head += bytes(buffer[:count])
    head, _, rest = head.partition(b"\r\n\r\n")
    head = head.lower()
    if b"expect: 100-continue" in head:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    if b"transfer-encoding: chunked" in head:
        # The end of the stream is the end of the last chunk: no chunk of base64 looks like it.
        last = rest[-7:]
        while not last.endswith(b"\r\n0\r\n\r\n"):
            count = connection.recv_into(buffer)
            if not count:
                return
            last = (last + bytes(buffer[max(0, count - 7) : count]))[-7:]
    else:
        left = int(head.partition(b"content-length:")[2].split(b"\r\n")[0]) - len(rest)
        while left > 0:
            count = connection.recv_into(buffer)
            if not count:
                return
            left -= count
    connection.sendall(
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4\r\nConnection: close\r\n\r\n"ok"'
    )


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


# The contenders ---------------------------------------------------------------------------------------
# Each imports what it needs and returns what sends the files.

Send = Callable[[list[Path]], None]


def this_provider(port: int) -> Send:
    """Send with this provider's hook."""
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

    connection = {
        "conn_type": "workflow_automation",
        "host": f"http://127.0.0.1:{port}/api",
        "password": "key",
    }
    os.environ["AIRFLOW_CONN_BENCH"] = json.dumps(connection)
    hook = WorkflowAutomationHook("bench")
    hook.get_conn()
    return lambda paths: check(hook.upload_files("1", paths, "flow"))


def http_hook(port: int) -> Send:
    """Send with Airflow's HttpHook, as users do today: the whole body in memory."""
    from airflow.providers.http.hooks.http import HttpHook

    os.environ["AIRFLOW_CONN_BENCH"] = f"http://127.0.0.1:{port}"
    hook = HttpHook("POST", http_conn_id="bench")
    hook.get_conn()

    def send(paths: list[Path]) -> None:
        files = [
            {
                "name": path.name,
                "content_type": "application/octet-stream",
                "content": base64.b64encode(path.read_bytes()).decode(),
            }
            for path in paths
        ]
        body = json.dumps({"flow_id": "flow", "run_id": "1", "files": files})
        headers = {"Content-Type": "application/json", "X-API-Key": "key"}
        check(hook.run("/api/public/upload", data=body, headers=headers).json())

    return send


def bare_httpx(port: int) -> Send:
    """Send with httpx alone: a generator of base64, its length computed beforehand, nothing checked."""
    import httpx

    client = httpx.Client(timeout=60)

    def element(path: Path) -> bytes:
        return (
            b'{"name":%b,"content_type":"application/octet-stream","content":"'
            % json.dumps(path.name).encode()
        )

    def body(paths: list[Path]) -> Iterator[bytes]:
        yield HEAD
        for number, path in enumerate(paths):
            before = (b"," if number else b"") + element(path)
            with path.open("rb") as stream:
                while chunk := stream.read(CHUNK):
                    yield before + base64.b64encode(chunk) if before else base64.b64encode(chunk)
                    before = b""
            yield b'"}'
        yield TAIL

    def send(paths: list[Path]) -> None:
        length = len(HEAD) + len(TAIL) + len(paths) - 1
        length += sum(len(element(path)) + (path.stat().st_size + 2) // 3 * 4 + 2 for path in paths)
        headers = {"Content-Type": "application/json", "Content-Length": str(length), "X-API-Key": "key"}
        url = f"http://127.0.0.1:{port}/api/public/upload"
        check(client.post(url, content=body(paths), headers=headers).json())

    return send


def curl(port: int) -> Send:
    """Send with ``base64 | curl``: streamed and so chunked, for curl cannot know the length of a pipe."""

    def send(paths: list[Path]) -> None:
        script = [f"printf %s {shlex.quote(HEAD.decode())}"]
        comma = ""
        for path in paths:
            element = f'{comma}{{"name":"{path.name}","content_type":"application/octet-stream","content":"'
            script += [
                f"printf %s {shlex.quote(element)}",
                f"base64 -w0 {shlex.quote(str(path))}",
                "printf '\"}'",
            ]
            comma = ","
        script.append(f"printf %s {shlex.quote(TAIL.decode())}")
        url = f"http://127.0.0.1:{port}/api/public/upload"
        pipeline = (
            "{ " + "; ".join(script) + f"; }} | curl -sS -X POST -T - -H 'X-API-Key: key' "
            f"-H 'Content-Type: application/json' {url}"
        )
        check(
            json.loads(
                subprocess.run(["sh"], input=pipeline.encode(), capture_output=True, check=True).stdout
            )
        )

    return send


def check(response: Any) -> None:
    """Refuse any response but the sink's."""
    if str(response).strip('"') != "ok":
        raise SystemExit(f"The sink answered {response!r}")


CONTENDERS: dict[str, tuple[str, Callable[[int], Send]]] = {
    "provider": ("this provider's hook", this_provider),
    "http_hook": ("`HttpHook`, `json.dumps` and base64", http_hook),
    "httpx": ("bare httpx, streaming", bare_httpx),
    "curl": ("`base64 \\| curl -T -`", curl),
}


def peak(who: str) -> int:
    """Return the highest resident memory so far in bytes, of this process or of the largest child."""
    if who == "curl":
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * KIB
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * KIB


def contend(who: str, port: int, folder: Path) -> None:
    """Send the files once and print the seconds it took and the bytes of memory above the baseline."""
    paths = sorted(folder.iterdir())
    send = CONTENDERS[who][1](port)
    if who == "curl":
        subprocess.run(["curl", "--version"], capture_output=True, check=True)
    baseline = peak(who)
    begun = time.perf_counter()
    send(paths)
    seconds = time.perf_counter() - begun
    print(json.dumps([seconds, peak(who) - baseline]))


# Rounds -----------------------------------------------------------------------------------------------

Results = dict[str, list[tuple[float, int]]]


def measure(case: Case, port: int, rounds: int, scratch: Path) -> Results:
    """Let every contender send the files of a case, in turns."""
    folder = scratch / str(case.size)
    folder.mkdir()
    for number in range(case.files):
        with (folder / f"{number:04}.bin").open("wb") as stream:
            for start in range(0, case.size, MIB):
                stream.write(os.urandom(min(MIB, case.size - start)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    environment["AIRFLOW_HOME"] = str(scratch / "airflow")
    environment["NO_PROXY"] = environment["no_proxy"] = "127.0.0.1"
    results: Results = {who: [] for who in CONTENDERS}
    for number in range(rounds):
        # Each begins a round in its turn: what runs first finds another machine than what runs last.
        order = [*CONTENDERS][number % len(CONTENDERS) :] + [*CONTENDERS][: number % len(CONTENDERS)]
        for who in order:
            done = subprocess.run(
                [sys.executable, __file__, "--contend", who, str(port), str(folder)],
                env=environment,
                stdout=subprocess.PIPE,
                check=True,
            )
            seconds, memory = json.loads(done.stdout.splitlines()[-1])
            results[who].append((seconds, memory))
        print(f"{case.title}: round {number + 1} of {rounds}", file=sys.stderr)
    for path in folder.iterdir():
        path.unlink()
    return results


def table(measured: dict[str, Results]) -> Iterator[str]:
    """Write the results as Markdown: times as ratios of medians, memory as the median peak."""
    yield "| files | method | time relative to this provider | to `base64 \\| curl` | to bare httpx | peak memory above baseline |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for key, results in measured.items():
        times = {who: statistics.median(seconds for seconds, _ in found) for who, found in results.items()}
        for who, (title, _) in CONTENDERS.items():
            memory = statistics.median(memory for _, memory in results[who]) / MIB
            ratios = " | ".join(f"{times[who] / times[to]:.2f}" for to in ("provider", "curl", "httpx"))
            yield f"| {CASES[key].title} | {title} | {ratios} | {memory:,.1f} MiB |"


def misses(measured: dict[str, Results]) -> Iterator[str]:
    """Say which targets were missed."""

    def ratio(key: str, to: str) -> float:
        mine, other = (statistics.median(s for s, _ in measured[key][who]) for who in ("provider", to))
        return mine / other

    if "1g" in measured:
        memory = max(memory for _, memory in measured["1g"]["provider"]) / MIB
        if memory > 16:
            yield f"1 GiB takes {memory:.1f} MiB above the baseline, more than 16."
        if (found := ratio("1g", "curl")) > 1.15:
            yield f"1 GiB takes {found:.2f} times the wall time of base64 | curl, more than 1.15."
    if "many" in measured and (found := ratio("many", "httpx")) > 1.3:
        yield f"1,000 small files take {found:.2f} times the wall time of bare httpx, more than 1.3."


def main() -> None:
    """Run all the cases, or those that are named."""
    parser = argparse.ArgumentParser(description="Measure uploads against what else one might use.")
    parser.add_argument("cases", nargs="*", help=f"some of {', '.join(CASES)}; all by default")
    parser.add_argument("--rounds", type=int, help="in place of each case's own number")
    parser.add_argument("--contend", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contend:
        who, port, folder = arguments.contend
        contend(who, int(port), Path(folder))
        return
    measured: dict[str, Results] = {}
    with tempfile.TemporaryDirectory() as scratch, sink() as port:
        for key in arguments.cases or CASES:
            measured[key] = measure(CASES[key], port, arguments.rounds or CASES[key].rounds, Path(scratch))
    print("\n".join(table(measured)))
    print(f"\nPython {platform.python_version()}, {os.cpu_count()} cores; medians of interleaved rounds.")
    missed = [*misses(measured)]
    for line in missed:
        print(f"Missed: {line}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
