"""
The table of docs/evaluate.md.

What this provider, HttpOperator and a hook written by hand do in the same case.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from airflow.configuration import conf

from airflow_launcher.processes import wait_for
from case import Case
from sentences import MAYBE_STARTED
from workflow_automation_provider.testing import Key, LocalService

if TYPE_CHECKING:
    from deployment import Deployment

PAGE = Path(__file__).parents[2] / "docs" / "evaluate.md"
KEY = Key("s3cr3t/Key+42", "demo-flow")
FORMS = (KEY.value, quote(KEY.value, safe=""), base64.b64encode(KEY.value.encode()).decode())
WAYS = ("provider", "claim", "http", "by_hand")
ITEMS = 2_000
# The rows of the table: what happens to the first request, or to all.
FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "The service responds": ("delay", {"seconds": 0}),
    "A run is started, the response is lost": ("drop_after", {}),
    "A run is started, a gateway responds with 503": (
        "status_after",
        {"status": 503, "headers": {"Retry-After": "1"}},
    ),
    "`kill -9` of the task during the request": ("delay", {"seconds": 20}),
    "401 for each request": ("reject", {"status": 401, "times": None}),
    "429 with `Retry-After: 5`, no run is started": ("busy", {"retry_after": 5}),
    "503, no run is started": ("reject", {"status": 503}),
    "The service's response contains the API key": ("echo_key", {}),
    f"{ITEMS:,} items, one response is lost": ("drop_after", {}),
}
*_, ECHO, BATCH = FAULTS
CELLS = {
    name.strip(): [cell.strip() for cell in cells.split("|")]
    for name, cells in re.findall(r"^\| ([^|]+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
}


@pytest.fixture(scope="module")
def compared(
    deployment: Deployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalService]:
    """A service of its own, for it gets many runs, and the connections to it."""
    journal = tmp_path_factory.mktemp("compared") / "journal.jsonl"
    with LocalService(keys=[KEY], journal=journal) as service:
        # The first step of every flow, where it is given a URL.
        service.callbacks.add(None, started=0.2)
        deployment.api.add_connection("compared", service.airflow_connection())
        http = {"conn_type": "http", "host": service.url, "extra": {"X-API-Key": KEY.value}}
        deployment.api.add_connection("compared_http", http)
        yield service


def play(case: Case, name: str) -> str:
    """Run a task to its end, and say what came of it, as the table does."""
    if name == ECHO:
        return echoed(case)
    kind, options = FAULTS[name]
    items = ITEMS if name == BATCH else 1
    of_item = {"item": ITEMS // 2} if name == BATCH else {}
    fault = case.fault(kind, inputs={"case": case.run_id, **of_item}, **options)
    case.api.trigger(case.dag_id, case.run_id, {"items": ITEMS})
    if is_killed := name.startswith("`kill -9`"):
        wait_for("the request", lambda: fault.struck)
        case.kill("task")
    case.api.finished(
        case.dag_id, case.run_id, 540
    )  # a loop sends 3,001 requests, one after the other
    if is_killed:
        # The service works on: it starts the run of the first request last.
        wait_for(
            "the run", lambda: len(case.runs) > (case.dag_id in ("compare_http", "compare_by_hand"))
        )
    found, log = case.runs, case.log
    if case.state == "upstream_failed":
        assert "unmappable_return_value_length" in case.api.log(
            case.dag_id, case.run_id, "bodies", 1
        )
        return f"no run; maps at most {conf.getint('core', 'max_map_length'):,} items"
    runs = text_of_runs(len(found))
    if len(found) > items:
        runs = f"**{runs}**"
    tries = len(case.api.tries(case.dag_id, case.run_id, "trigger"))
    if case.state == "success" and tries == 1:
        return f"{runs}; succeeds"
    if case.state == "success":
        return f"{runs}; succeeds on try {tries}"

    fails = f"{runs}; fails on try {tries}"
    if f"batch[{ITEMS // 2}]  unknown" in log:
        return f"{fails}, names the item"
    if MAYBE_STARTED in log:
        return f"{fails}, says what to check"
    return fails


def text_of_runs(number: int) -> str:
    """Return a number of runs in words."""
    if number == 0:
        return "no run"
    if number == 1:
        return "1 run"
    return f"{number:,} runs"


def echoed(case: Case) -> str:
    """
    Have the service echo the key as it accepts a request, and as it rejects one.

    Say where the key is shown.
    """
    rejected = Case(case.deployment, case.service, case.dag_id, f"{case.run_id}-rejected")
    for one, status in ((case, 201), (rejected, 400)):
        one.fault("echo_key", status=status)
        one.begin()
        one.api.finished(one.dag_id, one.run_id)
    result = json.dumps(case.api.xcom(case.dag_id, case.run_id, "trigger"))
    texts = {"log": case.log + rejected.log, "XCom": result}
    shown = [where for where, text in texts.items() if any(form in text for form in FORMS)]
    return f"**in the {' and in the '.join(shown)}**" if shown else "nowhere"


Cells = dict[tuple[str, str], "Future[str]"]


@pytest.fixture(scope="module")
def cells(deployment: Deployment, compared: LocalService) -> Iterator[Cells]:
    with ThreadPoolExecutor(16) as pool:
        found: Cells = {}
        for (number, name), way in product(enumerate(FAULTS), WAYS):
            dag_id = f"compare_{way}_batch" if name == BATCH else f"compare_{way}"
            if dag_id != "compare_claim_batch":
                case = Case(deployment, compared, dag_id, f"compared-{number}-{way}")
                found[name, way] = pool.submit(play, case, name)
        yield found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FAULTS)
def test_a_cell(cells: Cells, name: str, way: str) -> None:
    found = cells[name, way].result() if (name, way) in cells else "for single runs only"
    assert found == CELLS[name][WAYS.index(way)]
