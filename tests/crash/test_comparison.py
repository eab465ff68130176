"""The table of docs/comparison.md: what this provider, HttpOperator and a hook written by hand do in the same case."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from airflow.configuration import conf

from airflow_launcher.waiting import wait_for
from outcomes import Outcome, outcome, run_ids
from said import MAYBE_STARTED
from workflow_automation_provider.testing import Key, LocalService

if TYPE_CHECKING:
    from deployment import Deployment

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "comparison.md"
KEY = Key("s3cr3t/Key+42", "demo-flow")
FORMS = (KEY.value, quote(KEY.value, safe=""), base64.b64encode(KEY.value.encode()).decode())
WAYS = ("provider", "claim", "http", "by_hand")
BATCHES = tuple(way for way in WAYS if way != "claim")
ITEMS = 2_000


@dataclass(frozen=True)
class Case:
    """
    What happens to the first request, or to all.

    :param fault: of the local service
    :param options: of the fault
    :param kills: whether the task is killed while the service works
    """

    fault: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    kills: bool = False


CASES = {
    "The service responds": Case(),
    "A run is started, the response is lost": Case("drop_after"),
    "A run is started, a gateway responds with 503": Case(
        "status_after", {"status": 503, "headers": {"Retry-After": "1"}}
    ),
    "`kill -9` of the task during the request": Case("delay", {"seconds": 20}, kills=True),
    "401 for each request": Case("reject", {"status": 401, "times": None}),
    "429 with `Retry-After: 5`, no run is started": Case("busy", {"retry_after": 5}),
    "503, no run is started": Case("reject", {"status": 503}),
}
ECHOES = {"in the response": 201, "in an error": 400}
KEY_ROW = "The service's response contains the API key"
BATCH_ROW = f"{ITEMS:,} items, one response is lost"
MEMORY_ROW = "Memory for a file of 1 GiB"


def rows() -> dict[str, list[str]]:
    """Return the cells of the page's table, by the first of each row."""
    found = {}
    for line in PAGE.read_text().partition("| | `TriggerFlowOperator`")[2].splitlines()[2:]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found[name] = cells
    return found


@pytest.fixture(scope="module")
def compared(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    """A service of its own, for it gets many runs, and the connections to it."""
    journal = tmp_path_factory.mktemp("compared") / "journal.jsonl"
    with LocalService(keys=[KEY], journal=journal) as service:
        # The first step of every flow, where it is given a URL.
        service.callbacks.add(None, started=0.2)
        deployment.api.add_connection("compared", service.base_url, KEY.value)
        extra = json.dumps({"X-API-Key": KEY.value})
        http = {"connection_id": "compared_http", "conn_type": "http", "host": service.url, "extra": extra}
        deployment.api.ask("POST", "/connections", http)
        yield service


def play(deployment: Deployment, service: LocalService, case: Case, way: str, run_id: str) -> Outcome:
    """Run a task in a case to its end."""
    fault = service.faults.add(case.fault, inputs={"case": run_id}, **case.options) if case.fault else None
    deployment.api.trigger(f"compare_{way}", run_id)
    if fault and case.kills:
        wait_for("the request", lambda: fault.struck)
        (first,) = deployment.gate.tries_of(run_id)
        os.kill(first.pid, signal.SIGKILL)
        outcome(deployment, service, f"compare_{way}", run_id)
        # The service works on: it starts the run of the first request last.
        sent_again = way in ("http", "by_hand")
        wait_for("the run", lambda: len(run_ids(service, run_id)) > sent_again)
    return outcome(deployment, service, f"compare_{way}", run_id)


def play_batch(deployment: Deployment, service: LocalService, way: str, run_id: str) -> Outcome:
    """Start the runs of a batch, in the middle of which a response is lost."""
    service.faults.add("drop_after", inputs={"case": run_id, "item": ITEMS // 2})
    deployment.api.trigger(f"compare_{way}_batch", run_id, {"items": ITEMS})
    # The loop sends 3,001 requests, one after the other.
    deployment.api.finished(f"compare_{way}_batch", run_id, 540)
    return outcome(deployment, service, f"compare_{way}_batch", run_id)


Outcomes = dict[tuple[str, str], "Future[Outcome]"]


@pytest.fixture(scope="module")
def outcomes(
    deployment: Deployment, compared: LocalService, note: Callable[[str], None]
) -> Iterator[Outcomes]:
    cases = {**CASES, **{name: Case("echo_key", {"status": status}) for name, status in ECHOES.items()}}
    with ThreadPoolExecutor(16) as pool:
        outcomes: Outcomes = {}
        for way in WAYS:
            if way in BATCHES:
                outcomes[BATCH_ROW, way] = pool.submit(play_batch, deployment, compared, way, f"batch-{way}")
            for number, (name, case) in enumerate(cases.items()):
                run_id = f"case-{number}-{way}"
                outcomes[name, way] = pool.submit(play, deployment, compared, case, way, run_id)
        yield outcomes
    for (name, way), future in outcomes.items():
        if not future.exception():
            items = ITEMS if name == BATCH_ROW else 1
            note(f"{name:45} {way:9} {words(future.result(), items)}")


def words(found: Outcome, items: int = 1) -> str:
    """Say what came of it, as the table does."""
    runs = f"{len(found.runs):,} run{'s' * (len(found.runs) != 1)}" if found.runs else "no run"
    if len(found.runs) > items:
        runs = f"**{runs}**"
    if found.state == "success":
        return f"{runs}; succeeds" + (f" on try {found.tries}" if found.tries > 1 else "")
    says = ", says what to check" if MAYBE_STARTED in found.log else ""
    if f"batch[{items // 2}]  unknown" in found.log:
        says = ", names the item"
    return f"{runs}; fails on try {found.tries}{says}"


def test_each_row_is_tested() -> None:
    assert [*rows()] == [*CASES, KEY_ROW, BATCH_ROW, MEMORY_ROW]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_a_row(outcomes: Outcomes, name: str, way: str) -> None:
    assert rows()[name][WAYS.index(way)] == words(outcomes[name, way].result())


@pytest.mark.parametrize("way", WAYS)
def test_where_the_key_shows(outcomes: Outcomes, note: Callable[[str], None], way: str) -> None:
    found = [outcomes[name, way].result() for name in ECHOES]
    assert found[0].result
    places = {
        "in the log": "".join(one.log for one in found),
        "in the XCom": json.dumps([one.result for one in found]),
    }
    forms = {place: [form for form in FORMS if form in text] for place, text in places.items()}
    note(f"the key, {way}: {forms}")
    shown = [place for place, found_forms in forms.items() if found_forms]
    assert rows()[KEY_ROW][WAYS.index(way)] == (f"**{' and '.join(shown)}**" if shown else "nowhere")


@pytest.mark.parametrize("way", BATCHES)
def test_the_items(outcomes: Outcomes, deployment: Deployment, way: str) -> None:
    found = outcomes[BATCH_ROW, way].result()
    cell = rows()[BATCH_ROW][WAYS.index(way)]
    if way == "http":
        # Its upstream task fails when it returns as many items.
        assert (found.state, found.runs) == ("upstream_failed", [])
        log = deployment.api.log("compare_http_batch", "batch-http", "bodies", 1)
        limit = conf.getint("core", "max_map_length")
        assert "unmappable_return_value_length" in log, log
        assert cell == f"no run; maps at most {limit:,} items"
    else:
        assert cell == words(found, ITEMS)


def test_the_memory(tmp_path: Path) -> None:
    spec = spec_from_file_location("upload", ROOT / "benchmarks" / "upload.py")
    assert spec
    assert spec.loader
    upload = module_from_spec(spec)
    sys.modules[spec.name] = upload  # its named tuples look for it there
    spec.loader.exec_module(upload)
    size = 64 * upload.MIB
    case = upload.Case("64 MiB", size, 1, 1, ("provider", "http_hook", "requests"))
    with upload.sink() as port:
        found = upload.measure(case, port, 1, tmp_path)
    peaks = {who: results[0].memory for who, results in found.items()}
    mine, _, *others = rows()[MEMORY_ROW]
    # The provider's does not depend on the size of the file.
    assert peaks["provider"] / upload.MIB < float(mine.removeprefix("below ").removesuffix(" MiB"))
    for cell, who in zip(others, case.contenders[1:], strict=True):
        assert cell == f"{peaks[who] / size:.1f} GiB"
