"""What the endpoint says to a run, whatever it has seen: the table in its docstring, row by row."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product

import pytest

from workflow_automation_provider.execution.callback import Ended, Running, Said, Started
from workflow_automation_provider.execution.ledger import Claim, End, Spoken
from workflow_automation_provider.plugins import decision
from workflow_automation_provider.plugins.decision import Seen, Verdict, decide

THEN, NOW = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
RUN_IDS = None, "7", "8"
SAID: list[Said] = [
    said
    for run_id in RUN_IDS
    for said in (
        Started(run_id, "http://run"),
        Running("half", 0.5, run_id),
        Ended("success", {"rows": 1, "of": 2}, "done", run_id),
        Ended("success", {"rows": True, "of": 2}, "done", run_id),
    )
]
TASKS = "running", "restarting", "awaiting_input", "success", "ended", None


def all_seen():
    """Yield all that there can be of a start; only the last one's run is entered."""
    spoken = [
        Spoken(claim=claim, end=end, stopped=stopped)
        for claim in (None, Claim(THEN), Claim(THEN, "7"))
        for end in (
            None,
            *(End(THEN, "success", run_id, {"rows": 1, "of": 2}, "done") for run_id in RUN_IDS),
        )
        for stopped in (None, THEN)
    ]
    places = [(True, True, entered) for entered in RUN_IDS]
    places += [(True, False, entered) for entered in RUN_IDS] + [(False, False, None)]
    for said, (is_last, is_current, entered), frozen, waits, task in product(
        spoken, places, (False, True), (False, True), TASKS
    ):
        yield Seen(
            spoken=said,
            is_last=is_last,
            is_current=is_current,
            is_frozen=frozen,
            waits=waits,
            entered=entered,
            task=task,
        )


def is_other(said, seen):
    """Another run has claimed or ended, or was entered; who says no run_id may be the one that was entered."""
    named = seen.spoken.run_ids | ({seen.entered} if seen.entered and said.run_id else set())
    return any(run_id != said.run_id for run_id in named)


ROWS = {
    "has ended": lambda said, seen: (
        seen.spoken.end and seen.spoken.end.run_id in (None, said.run_id)
    ),
    "was told to stop": lambda _, seen: seen.spoken.stopped,
    "is not wanted": lambda _, seen: (
        not seen.is_current or seen.task == "ended" or (seen.task == "success" and seen.waits)
    ),
    "is not that which claimed, ended or was entered": is_other,
    "is of a start that is not the last": lambda _, seen: not seen.is_last,
    "has a task that is being restarted": lambda _, seen: seen.task == "restarting",
    "has claimed": lambda _, seen: seen.spoken.claim,
    "has a start that is frozen, and the task decides": lambda _, seen: (
        seen.is_frozen and seen.task not in ("awaiting_input", "success")
    ),
    "none of these": lambda *_: True,
}


def table():
    """Return the rows of the docstring: the condition, and the cell for each of what a run can say."""
    _, _, _, *lines = [
        line for line in str(decision.__doc__).splitlines() if "  " in line or "====" in line
    ]
    rows = [
        [cell.strip() for cell in (line[:50], line[52:73], line[75:96], line[98:])]
        for line in lines[:-1]
    ]
    assert [row[0] for row in rows] == [*ROWS]
    return [
        (ROWS[name], dict(zip((Started, Running, Ended), cells, strict=True)))
        for name, *cells in rows
    ]


def applies(cell, seen):
    words = cell.removesuffix(", while it runs")
    return words and (words == cell or seen.task in ("running", "restarting"))


def recorded(verdict, cell, said, seen):
    """Return what the run has said and was told, after that."""
    spoken, claim = seen.spoken, seen.spoken.claim
    if cell.endswith("recorded") and is_other(said, seen):
        return spoken._replace(refused=(said.run_id,) if said.run_id else ())
    if cell == "STOP, recorded":
        return spoken._replace(stopped=NOW)
    if verdict is Verdict.CLAIM:
        return spoken._replace(claim=Claim(NOW, said.run_id, said.run_link))
    if verdict is Verdict.END:
        return spoken._replace(end=End(NOW, said.status, said.run_id, said.result, said.message))
    if verdict is Verdict.GO_ON and said.run_id:
        return spoken._replace(claim=claim._replace(run_id=said.run_id))
    return spoken


@pytest.mark.parametrize("said", SAID, ids=str)
def test_the_table(said):
    rows = table()
    for seen in all_seen():
        cell = next(
            c[type(said)] for fits, c in rows if fits(said, seen) and applies(c[type(said)], seen)
        )
        name = cell.split(",")[0]
        if cell == "SAME_END, OTHER_END":
            end = seen.spoken.end
            name = (
                "SAME_END"
                if said.result["rows"] is not True and said.run_id == end.run_id
                else "OTHER_END"
            )
        verdict, spoken = decide(said, seen, NOW)
        assert verdict is Verdict[name], seen
        assert spoken == recorded(verdict, cell, said, seen), seen


def test_refused_runs_are_noted_once_and_not_for_ever():
    seen = Seen(spoken=Spoken(claim=Claim(THEN, "7")))
    for number in [*range(100, 130), 100]:
        seen = replace(seen, spoken=decide(Started(str(number)), seen, NOW)[1])
    assert seen.spoken.refused == tuple(str(number) for number in range(100, 120))
