"""
What each call of a run costs the metadata database: its statements, each with its reason.

Ten thousand runs with a heartbeat a minute make 1,300 of them a second: one more needs a reason.
"""

from __future__ import annotations

import re

import pytest

LOOK = [
    ("SELECT task_instance", "the token has the id of the task instance that made it"),
    ("SELECT task_state_store", "the start that gave it out: a stranger gets no further"),
]
LOCK = [
    ("BEGIN", "SQLite has one lock for writing; others bound here how long they wait"),
    ("SELECT dag_run", "locked first, as Airflow does; a DAG run that has ended suspends nothing"),
    ("SELECT task_instance", "its state decides, and may not change meanwhile"),
    ("SELECT task_state_store", "the start, locked: its task revokes the token by writing it"),
    ("SELECT task_state_store", "the entries by now, in a statement that has waited for no lock"),
]
CHANGE = [("UPDATE task_state_store", "an entry that is there")]
MAKE = [*CHANGE, ("INSERT task_state_store", "the first of its kind")]
WAKE = [("UPDATE task_instance", "its timeout is lowered, which resumes it")]

HEARTBEAT = {"status": "running", "run_id": "7"}


@pytest.fixture
def statements(dag):
    """Return the statements so far, each as a word and its table; SQLite's, as of the tests."""
    from airflow import settings
    from sqlalchemy import event

    seen = []

    def note(_connection, _cursor, statement, *_):
        table = re.search(r"(?:FROM|UPDATE|INTO) (\w+)", statement)
        word = statement.split()[0]
        seen.append(f"{word} {table[1]}" if table else word)

    engine = settings.get_engine()
    event.listen(engine, "before_cursor_execute", note)
    yield seen
    event.remove(engine, "before_cursor_execute", note)


@pytest.mark.parametrize(
    ("before", "report", "writes"),
    [
        ([], {"status": "started", "run_id": "7"}, MAKE),
        ([], HEARTBEAT, [*MAKE, *MAKE]),  # it claims, and has a message
        ([HEARTBEAT], {**HEARTBEAT, "message": "Half"}, CHANGE),
        ([HEARTBEAT], {"status": "success", "run_id": "7"}, [*CHANGE, *WAKE]),
        ([], {"status": "failed"}, [*MAKE, *WAKE]),
        ([], {"status": "unknown"}, MAKE),  # a call that is refused leaves a trace
    ],
)
def test_a_call_looks_once_before_the_locks_and_once_after(
    waiting, http, statements, before, report, writes
):
    url = waiting().url
    for earlier in before:
        http.post(url, json=earlier)
    statements.clear()
    http.post(url, json=report)
    assert statements == [statement for statement, _ in (*LOOK, *LOCK, *writes)]


def test_a_stranger_gets_one_look(waiting, http, statements):
    url = waiting().url
    statements.clear()
    assert http.post(f"{url[:-1]}{'A' if url[-1] != 'A' else 'B'}", json={}).status_code == 404
    assert statements == [statement for statement, _ in LOOK]
