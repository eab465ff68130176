"""
After all the other tests, and with a service that echoes the key.

Where could somebody read it?
"""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

import httpx
import pytest

from airflow_launcher.processes import wait_for
from services import FLOW_ID, KEY
from workflow_automation_provider.client.redaction import WITHHELD

if TYPE_CHECKING:
    from pathlib import Path

    from services import Service
    from stack import Stack

# How the service answers, and with which statuses it starts a run all the same.
STATUSES = [201, 307, 400, 429, 503]


def forms() -> dict[str, bytes]:
    """
    Return the forms of the key to search for.

    More than the service echoes, fewer than there are.
    """
    raw = KEY.encode()
    found = {
        "as it is": raw,
        "as JSON": json.dumps(KEY)[1:-1].encode(),
        "as JSON in JSON": json.dumps(json.dumps(KEY)[1:-1])[1:-1].encode(),
        "as Python": repr(KEY)[1:-1].encode(),
        "as SQL": KEY.replace("'", "''").encode(),
        "in HTML": escape(KEY).encode(),
        "in hexadecimal": raw.hex().encode(),
        "in a URL": quote(KEY).encode(),
        "in a URL, all of it": quote(KEY, safe="").encode(),
        "in a form": quote_plus(KEY).encode(),
        "in a URL, twice": quote(quote(KEY, safe=""), safe="").encode(),
        # Its most telling part, in case that one of the others is written in yet another way.
        "in part": KEY[:20].encode(),
    }
    for offset, cut in enumerate((0, 2, 3)):
        # In a longer text it stands at one of three offsets; the characters at its edges hold bits
        # of others.
        text = base64.b64encode(b"\0" * offset + raw).rstrip(b"=")[cut:-1]
        found[f"in base64 at {offset}"] = text
        found[f"in base64 for URLs at {offset}"] = text.replace(b"+", b"-").replace(b"/", b"_")
    return found


FORMS = forms()


def hits(what: str, data: bytes) -> list[str]:
    """Tell where the key is in some data."""
    found = []
    for form, needle in FORMS.items():
        for variant in {needle, needle.lower(), needle.upper()}:
            for match in re.finditer(re.escape(variant), data):
                around = data[max(match.start() - 300, 0) : match.end() + 60].decode(
                    errors="replace"
                )
                found.append(f"{what}, {form}, at {match.start()}: …{around}…")
                break
    return found


def files(stack: Stack) -> Iterator[Path]:
    """Return all that was written, but for what is PostgreSQL's own, which its dump shows."""
    for path in sorted(stack.home.rglob("*")):
        if path.is_file() and stack.postgresql.data not in path.parents:
            yield path


def trigger(service: Service) -> httpx.Response:
    headers = {"X-API-Key": KEY}
    return httpx.post(
        f"{service.base_url}/trigger", headers=headers, json={"inputs": {}}, trust_env=False
    )


@pytest.fixture(scope="module")
def echoed(stack: Stack, service: Service) -> list[str]:
    """DAG runs of a service that echoes the key."""
    cases = [f"echo-{status}" for status in STATUSES]
    upload_for = trigger(service).json()["run_id"]
    for options in ({"times": 2}, {"status": 200, "times": 2}, {"status": 500}):
        service.control.add_fault("echo_key", operation="upload", **options)
    for status, case in zip(STATUSES, cases, strict=True):
        service.add_fault("echo_key", case, status=status, operation="trigger_by_key")
        stack.api.trigger("system_echo", case, {"upload_for": upload_for})
    for case in cases:
        stack.api.finished("system_echo", case)
    service.control.clear_faults()
    return cases


def test_search_finds_what_the_service_echoes(service: Service) -> None:
    service.control.add_fault("echo_key", operation="trigger_by_key")
    found = " ".join(hits("response", trigger(service).content))
    assert all(form in found for form in ("as JSON", "in a URL, all of it", "in base64 at 0"))


def test_service_echoed_the_key(stack: Stack, service: Service, echoed: list[str]) -> None:
    """Else there would be nothing to find."""
    struck = [request for request in service.journal.requests() if request.fault == "echo_key"]
    assert len(struck) == 2 * len(echoed) + 1
    log = stack.api.log("system_echo", "echo-400", "trigger", 1)
    assert f"The service said: {WITHHELD}" in log
    assert KEY not in log


def test_loggers_were_at_debug(stack: Stack, echoed: list[str]) -> None:
    logs = "".join(
        path.read_text(errors="replace") for path in (stack.home / "logs").rglob("attempt=*.log")
    )
    assert '"level":"debug"' in logs
    outputs = {
        path.stem: path.read_text(errors="replace")
        for path in (stack.home / "outputs").glob("*.out")
    }
    assert set(outputs) >= {
        "api-server",
        "scheduler",
        "dag-processor",
        "triggerer",
        "worker-1",
        "worker-2",
        "redis",
        "postgresql",
    }
    assert all("debug" in outputs[name].lower() for name in ("scheduler", "worker-1", "worker-2"))


def test_key_is_in_no_file(stack: Stack, echoed: list[str], note: Callable[[str], None]) -> None:
    """
    Logs of tasks and of every part, outputs of every process, statements that PostgreSQL logged.

    Lineage.
    """
    searched, found = [], []
    for path in files(stack):
        with suppress(FileNotFoundError):  # of those that run, one may have removed it since
            data = path.read_bytes()
            searched.append(len(data))
            found += hits(str(path.relative_to(stack.home)), data)
    note(f"searched {len(searched)} files of {sum(searched) / 2**20:.0f} MiB")
    assert not found, "\n".join(found)


def test_key_is_in_no_row(stack: Stack, echoed: list[str], note: Callable[[str], None]) -> None:
    """In the dump the connection's own column is encrypted, so the whole of it can be searched."""
    dump = stack.postgresql.dump().encode()
    note(f"searched a dump of {len(dump) / 2**20:.1f} MiB")
    assert b"INSERT INTO public.connection " in dump
    assert b"INSERT INTO public.task_instance " in dump
    # What XComs hold is JSON bytes in one column, which a dump shows as text or in hexadecimal.
    decoded = re.sub(rb"\\x([0-9a-f]+)", lambda match: bytes.fromhex(match[1].decode()), dump)
    found = hits("dump", dump) + (hits("dump, decoded", decoded) if decoded != dump else [])
    assert not found, "\n".join(found)


def test_key_is_in_no_answer_of_the_api(stack: Stack, echoed: list[str]) -> None:
    """XComs, rendered templates, connections, logs and audit log, as a user sees them."""
    found = []

    def look(path: str) -> Any:
        answer = stack.api.ask("GET", path)
        found.extend(hits(path, json.dumps(answer, ensure_ascii=False).encode()))
        return answer

    for case in echoed:
        for task_id in ("trigger", "upload"):
            base = f"/dags/system_echo/dagRuns/{case}/taskInstances/{task_id}"
            task = look(base)
            assert set(task["rendered_fields"]) >= {"workflow_automation_conn_id"}
            found.extend(hits(base, stack.api.log("system_echo", case, task_id, 1).encode()))
            for entry in look(f"{base}/xcomEntries")["xcom_entries"]:
                look(f"{base}/xcomEntries/{entry['key']}?deserialize=true")
    assert look("/connections")["total_entries"] >= 1
    assert look("/eventLogs?limit=1000")["total_entries"] >= 1
    assert not found, "\n".join(found)


def test_key_is_in_no_lineage_event(stack: Stack, service: Service, echoed: list[str]) -> None:
    """But the flow, and the file of test_kills.py that was uploaded for its run."""
    # Each process adds lines; the file's name may get the time of its making.
    text = wait_for(
        "lineage", lambda: b"".join(path.read_bytes() for path in stack.home.glob("lineage*"))
    )
    assert not hits("lineage", text)
    told: defaultdict[str, set[str]] = defaultdict(set)
    for event in map(json.loads, text.splitlines()):
        told[event["job"]["name"]] |= {
            data["name"] for data in (*event["inputs"], *event["outputs"])
        }
    flow = f"api/flows/{FLOW_ID}"
    assert "system_echo.trigger" in told
    assert flow in told["system_upload.trigger"]
    assert flow in told["system_upload.upload"]
    assert any(name.endswith("/file.bin") for name in told["system_upload.upload"])
