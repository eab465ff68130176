"""
The page Flow runs and the tab Flow run.

Airflow's own application, with its login, over a real metadata database.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from copy import copy
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.utils.session import create_session
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import delete, event
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import OperationalError

from batch_counts import batch_counts
from entry_keys import ADOPTED
from waiting_tasks import WaitingTask, make_dag
from workflow_automation_provider.client.urls import web_link
from workflow_automation_provider.execution.record.callback import digest_of
from workflow_automation_provider.execution.record.entries import (
    Claim,
    End,
    Outcome,
    RunReports,
    Start,
    entry_of,
    message_key,
    report_key,
    revoked_key,
)
from workflow_automation_provider.plugins import page, queries, rendering
from workflow_automation_provider.plugins.callback_store import json_value

LIST = "/workflow-automation/runs/"
TAB = "/workflow-automation/runs/task"
RUN = {"run_id": "1001", "run_link": "https://app.test/runs/1001"}


def ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


class Html(HTMLParser):
    """A page as a browser has it: no text of others may have become an element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: dict[str, str] = {}
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.rows: list[str] = []
        self.text = ""
        self.alerts: list[str] = []
        self.buttons: list[str] = []
        self._is_alert = False
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "input"):
            self._open.append(tag)
        if tag == "button":
            self.buttons.append("")
        if tag == "p":
            self._is_alert = dict(attrs).get("role") == "alert" and "hidden" not in dict(attrs)
            if self._is_alert:
                self.alerts.append("")
        if tag == "tr":
            self.rows.append("")
        if tag == "a":
            self.links[dict(attrs)["href"]] = ""

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag == "p":
            self._is_alert = False

    def handle_data(self, data: str) -> None:
        if {"style", "script"} & {*self._open}:
            return
        self.text += data
        if self._is_alert:
            self.alerts[-1] += data
        if "button" in self._open:
            self.buttons[-1] += data
        if "tr" in self._open and data.strip():
            self.rows[-1] += f"{data.strip()}|"
        if "a" in self._open:
            self.links[[*self.links][-1]] += data

    def all(self, tag: str) -> list[dict[str, Any]]:
        return [attrs for name, attrs in self.elements if name == tag]


class Task(WaitingTask):
    """A task instance, with entries as the task and the endpoint leave them."""

    def __init__(self, dag: Any, *, starts: bool = True, **values: Any) -> None:
        self._given = starts
        times = {"start_date": ago(900), "end_date": ago(60)}
        super().__init__(dag, **{"state": "running", "try_number": 1, **times, **values})

    def give(self, *, waits: bool = True, **fields: Any) -> str:
        """Of a task that has no start, only the token."""
        self.mark = f"conn-{self.run_id}"
        known = {"conn_id": self.mark, "flow_id": "orders", "at": ago(700)}
        url = super().give(waits=waits, **{**known, **fields})
        if not self._given:
            for key in [*self.rows.entries]:
                self.rows.store(None, "delete", key)
        return url

    def put(self, key: str, value: object) -> None:
        self.enter(key, json.dumps(value))

    def outcome(self, status: Any = "started", **fields: Any) -> Task:
        run = RUN if status == "started" else None
        entry = entry_of(Outcome(**{"status": status, "at": ago(690), "run": run, **fields}))
        self.put(f"workflow_automation_outcome/1/{self._starts - 1}", entry)
        return self

    def speak(self, **fields: Any) -> Task:
        self.put(report_key(digest_of(self.token)), entry_of(RunReports(**fields)))
        return self

    def say(self, message: str, progress: float = 0.5, seconds: float = 130) -> Task:
        entry = {"message": message, "progress": progress, "at": ago(seconds).isoformat()}
        self.put(message_key(digest_of(self.token)), entry)
        return self

    def suspend(self, seconds: float = 86400, silence: float | None = None) -> Task:
        """Wait for the end of the last start."""
        self.start = replace(self.start, completion_timeout=seconds, heartbeat_timeout=silence)
        self._write(self.start)
        self.change(state="awaiting_input")
        return self

    @property
    def query(self) -> str:
        at = {"dag_id": self.ti.dag_id, "run_id": self.run_id, "task_id": self.task_id}
        return urlencode(
            {**at, "map_index": "{MAP_INDEX}" if self.rows.map_index < 0 else self.rows.map_index}
        )


@pytest.fixture(scope="session")
def other_dag(airflow_home):
    return make_dag(airflow_home, "other")


@pytest.fixture(autouse=True)
def no_others(dag):
    """Live tasks of other tests would be listed as well."""
    from airflow.models.dagrun import DagRun

    with create_session() as session:
        session.execute(delete(DagRun))


@pytest.fixture(scope="session")
def api_server(airflow_home):
    """Airflow's own API server, without its execution API."""
    from airflow.api_fastapi.app import create_app, purge_cached_app

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "viewer:viewer")
        passwords = str(airflow_home / "passwords.json")
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE", passwords)
        patch.setenv(
            "AIRFLOW__API_AUTH__JWT_SECRET", "a-secret-of-the-tests-that-is-long-enough" * 4
        )
        purge_cached_app()
        yield create_app("core")
        purge_cached_app()


@pytest.fixture
def stranger(api_server):
    return TestClient(api_server, follow_redirects=False)


@pytest.fixture
def viewer(stranger):
    """Somebody who may read everything, and change nothing."""
    from airflow.api_fastapi.app import get_auth_manager

    user = SimpleAuthManagerUser(username="viewer", role="viewer")
    stranger.cookies.set("_token", get_auth_manager().generate_jwt(user))
    return stranger


@pytest.fixture
def opened(viewer):
    """Open a page."""

    def get(url):
        response = viewer.get(url)
        assert response.status_code == 200, response.text
        return Html(response.text)

    return get


@pytest.fixture
def listed(opened):
    return lambda **query: opened(f"{LIST}?{urlencode(query)}")


@pytest.fixture
def row(listed):
    def get(task):
        (found,) = [row for row in listed().rows if task.mark in row]
        return found

    return get


@pytest.fixture
def tab(opened):
    return lambda task: opened(f"{TAB}?{task.query}")


class TestWhoSeesWhat:
    @pytest.mark.parametrize("path", [LIST, f"{TAB}?dag_id=callbacks&run_id=a%26b&task_id=c"])
    def test_without_a_login_it_is_the_login(self, stranger, dag, path):
        response = stranger.get(path)
        assert response.status_code == 303
        to = urlsplit(response.headers["location"])
        assert to.path == "/api/v2/auth/login"
        assert parse_qs(to.query)["next"] == [path]

    def test_nothing_can_be_changed(self, viewer, dag):
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert [viewer.request(method, path).status_code for path in (LIST, TAB)] == [405, 405]

    def test_one_dag_of_two(self, viewer, dag, other_dag, listed, monkeypatch):
        from airflow.api_fastapi.app import get_auth_manager

        mine, others = Task(dag), Task(other_dag)
        assert all(task.mark in listed().text for task in (mine, others))

        def may(*, method, user, access_entity=None, details=None):
            return details is None or details.id in (None, "callbacks")

        monkeypatch.setattr(get_auth_manager(), "is_authorized_dag", may)
        found = listed()
        assert mine.mark in found.text
        assert "other" not in found.text
        assert others.mark not in listed(q="other").text
        assert viewer.get(f"{TAB}?{mine.query}").status_code == 200
        assert viewer.get(f"{TAB}?{others.query}").status_code == 403
        for more in ("dag_id=callbacks", "dag_id=~"):
            for query in (f"{others.query}&{more}", f"{more}&{others.query}"):
                response = viewer.get(f"{TAB}?{query}")
                assert response.status_code in (403, 404)
                assert others.mark not in response.text
        monkeypatch.setattr(get_auth_manager(), "is_authorized_dag", lambda **_: False)
        assert viewer.get(LIST).status_code == 403

    def test_what_does_not_exist(self, viewer, dag):
        paths = (
            f"{TAB}?dag_id=callbacks&run_id=x&task_id=wait",
            f"{TAB}?dag_id=callbacks",
            f"{LIST}other",
        )
        assert [viewer.get(path).status_code for path in paths] == [404, 404, 404]
        # A DAG that is asked for does not stand for all.
        assert viewer.get(f"{LIST}?dag_id=callbacks").status_code == 400
        # The callback endpoint is beside it.
        assert viewer.put("/workflow-automation/callback").status_code == 405

    def test_policy(self, viewer, dag):
        response = viewer.get(LIST)
        parts = response.headers["content-security-policy"].split(";")
        policy = dict(part.strip().split(" ", 1) for part in parts)
        assert (policy["default-src"], policy["frame-ancestors"]) == ("'none'", "'self'")
        assert not any("unsafe" in value or "http" in value for value in policy.values())
        assert response.headers["cache-control"] == "no-store"
        elements = Html(response.text).elements
        assert not [attrs for _, attrs in elements if {"src", "style"} & attrs.keys()]
        assert not [attrs for _, attrs in elements if any(name.startswith("on") for name in attrs)]

    def test_database_that_cannot_be_read(self, viewer, dag, monkeypatch):
        def fail():
            raise OperationalError("SELECT", {}, Exception("gone"))

        monkeypatch.setattr(queries, "create_session", fail)
        response = viewer.get(LIST)
        assert response.status_code == 503
        assert "try again" in response.text
        assert "SELECT" not in response.text


def test_postgresql_looks_up_the_entries_of_each_task():
    """It takes an EXISTS for a join, and may then begin with all entries: half a minute."""
    query = queries._tasks_query([queries.HAS_OURS])
    text = str(query.compile(dialect=postgresql.dialect()))
    assert "FROM task_state_store" in text
    # Airflow 3.4 has one of its own, of another table.
    assert not re.search(r"EXISTS \(SELECT [^()]*FROM task_state_store", text)


class TestStates:
    @pytest.mark.parametrize(
        ("words", "values", "outcome", "reports"),
        [
            ("starting", {}, None, None),
            ("in doubt", {"state": "up_for_retry"}, None, None),
            ("in doubt", {}, "unidentified", None),
            ("started", {}, "started", None),
            ("claimed", {"try_number": 2}, None, {"claim": Claim(ago(5), "1001")}),
            ("waiting", {"state": "awaiting_input"}, "started", {"claim": Claim(ago(5))}),
            (
                "ended",
                {"state": "awaiting_input"},
                "started",
                {"end": End(ago(5), "failed", "1001")},
            ),
            ("stopped", {}, "started", {"claim": Claim(ago(9)), "stopped": ago(5)}),
            ("not started", {"state": "up_for_retry"}, "not started", None),
            ("in doubt", {"state": "up_for_retry"}, "started", "closed"),
        ],
    )
    def test_the_words(self, dag, row, tab, words, values, outcome, reports):
        """They are those of the ledger: a run whose start was closed can no longer go on."""
        task = Task(dag, **values)
        if outcome:
            task.outcome(outcome)
        if reports == "closed":
            task.revoke()
        elif reports:
            task.speak(**reports)
        if values.get("state") == "awaiting_input":
            task.suspend()
        assert row(task).startswith(f"{words}|")
        assert "null" not in row(task)
        assert words in tab(task).text
        assert ("1001" in row(task)) == (outcome == "started" or "claim" in words)

    def test_an_end_that_came_after_the_task_had_failed_in_doubt(self, dag, row):
        """Its token was revoked, and the outcome was written late: the task does not have it."""
        task = Task(dag, state="failed").outcome()
        task.revoke()
        task.speak(end=End(ago(5), "success", "1001"))
        assert row(task).startswith("in doubt|")

    def test_waiting(self, dag, row, listed):
        task = Task(dag).outcome().say("Half done").suspend()
        assert "|Half done|50 %|2 minutes ago|in 23 hours|" in row(task)
        found = listed()
        assert found.links["https://app.test/runs/1001"] == "1001"
        (bar,) = found.all("progress")
        assert bar["value"] == "0.5000"
        assert row(task.suspend(600)).startswith("waiting|silent|")
        assert row(task).endswith("|late|")

    def test_batch(self, dag, listed, tab):
        task = Task(dag, starts=False)
        counts = batch_counts(400, started=280, rejected=15, unknown=5)
        entry = {
            "at": ago(5).isoformat(),
            "max_tries": 2,
            "flow_id": "orders",
            "conn_id": "of-the-batch",
        }
        for number in range(12):
            written = {**entry, "counts": counts if number == 11 else {"total": 1}}
            task.put(f"workflow_automation_batch_{number:06}", written)
        counted = "Of 400 items: 280 started, 15 rejected, 5 unknown, 100"
        assert f"{counted} to go." in listed().text
        assert "in doubt|" in listed().rows[1]
        assert "|orders|of-the-batch|" in listed().rows[1]
        assert listed().all("progress")[0]["value"] == "0.7500"
        task.change(state="failed", end_date=ago(1))
        assert "in doubt|" in listed().rows[1]
        assert not listed().all("progress")
        found = tab(task)
        assert f"{counted} not started." in found.text
        assert not found.all("progress")
        assert "A Clear starts all items again" in found.text
        assert "list of runs" in found.text
        assert len(found.all("li")) == 3 + 1

    def test_a_batch_that_waits(self, dag, listed, tab):
        folder = "s3://reports/ends/0a1b"
        task = Task(dag, starts=False)
        entry: dict[str, Any] = {
            "at": ago(5).isoformat(),
            "try_number": 1,
            "max_tries": 2,
            "folder": folder,
            "until": ago(-7200).isoformat(),
            "counts": batch_counts(10_002, started=9_999, rejected=2, unknown=1),
        }
        task.put("workflow_automation_batch_000000", entry)
        assert "in doubt|" in listed().rows[1]
        task.put("workflow_automation_batch_000001", {**entry, "ended": 7200})
        task.change(state="deferred")
        found = listed()
        counted = "2 rejected, 1 unknown, 0 to go. 7200 runs have ended."
        assert found.rows[1].startswith("waiting|")
        assert (counted in found.rows[1], "|in 1 hour|" in found.rows[1]) == (True, True)
        assert found.all("progress")[0]["value"] == "0.7200"
        found = tab(task)
        assert [
            word
            for word in (counted, folder, "Waits until", "once all runs have written their ends")
            if word not in found.text
        ] == []
        task.change(state="running", try_number=2)  # a retry, which looks once more
        assert listed().rows[1].startswith("waiting|")

        counts = {**entry["counts"], "started": 0, "success": 9_990, "failed": 9, "overdue": 1}
        results = {"0": {"status": "rejected", "why": "400"}}
        task.put(
            "workflow_automation_batch_000002", {**entry, "counts": counts, "results": results}
        )
        task.change(state="failed", end_date=ago(1))
        found = tab(task)
        assert "9990 success, 9 failed, 1 overdue, 2 rejected, 1 unknown" in found.text
        # The output file has the items.
        assert (folder in found.text, "Items without" in found.text) == (True, False)
        assert "Waits until" not in found.text

    @pytest.mark.parametrize(
        "later", [{"state": "up_for_retry"}, {"try_number": 2}, {"state": "failed"}]
    )
    def test_what_a_batch_had_in_flight_is_in_doubt_after_a_kill(self, dag, listed, later):
        task = Task(dag, starts=False)
        counts = batch_counts(9, started=2)
        entry = {
            "at": ago(5).isoformat(),
            "try_number": 1,
            "max_tries": 2,
            "counts": counts,
            "in_flight": 4,
        }
        task.put("workflow_automation_batch_000000", entry)
        assert "starting|" in listed().rows[1]
        assert "2 started, 0 rejected, 0 unknown, 7 to go" in listed().text
        assert "Nothing is in doubt" in listed().text
        task.change(**later)
        assert "in doubt|" in listed().rows[1]
        assert "2 started, 0 rejected, 4 unknown, 3" in listed().text

    def test_task_instance_that_was_deleted_and_made_again(self, dag, listed, tab):
        """Its tries begin at 1 again, and its old entries are still there."""
        task = Task(dag, starts=False)
        entry = {"at": ago(900).isoformat(), "max_tries": 2, "conn_id": task.mark}
        for number in (2, 3):
            task.put(f"workflow_automation_start/{number}/0", entry | {"flow_id": f"old-{number}"})
        assert listed().rows == []
        text = tab(task).text
        assert "made again" in text
        assert "A run may have been started" in text
        task.put("workflow_automation_start/1/0", entry | {"flow_id": "new"})
        assert "|new|" in listed().rows[1]
        assert "old" not in listed().text
        assert "A run may have been started" not in tab(task).text
        task.change(try_number=2)
        assert "|old-2|" in listed().rows[1]

    def test_batch_of_a_task_instance_that_was_deleted_and_made_again(self, dag, listed, tab):
        task = Task(dag, starts=False)
        counts = batch_counts(9, started=2, unknown=1)
        entry = {"at": ago(5).isoformat(), "try_number": 2, "max_tries": 2, "counts": counts}
        task.put("workflow_automation_batch_000000", entry)
        assert listed().rows == []
        assert "starts all items again" in tab(task).text
        task.change(try_number=2)
        assert "in doubt|" in listed().rows[1]

    def test_starts_within_a_task(self, dag, listed, tab):
        task = Task(dag, starts=False)
        for name in ("first", "second"):
            entry = {"at": ago(9).isoformat(), "max_tries": 2, "conn_id": name}
            task.put(f"workflow_automation_start/1/0/{name}", entry)
            run = {"run_id": f"run of {name}"}
            outcome = {"status": "started", "at": ago(8).isoformat(), "run": run}
            task.put(f"workflow_automation_outcome/1/0/{name}", outcome)
        for found in (listed(), tab(task)):
            assert "run of first" in found.text
            assert "run of second" in found.text
            assert len([row for row in found.rows if row]) == 1 + 2
        assert "|started|run of first|" in tab(task).rows[1]

    def test_queued_after_a_clear(self, dag, listed):
        for key in ("start/1/0", "batch_000000"):
            Task(dag, starts=False, state="queued", start_date=None).put(
                f"workflow_automation_{key}", {}
            )
        assert len(listed().rows) == 3

    def test_what_is_not_on_the_page(self, dag, listed):
        for state in ("success", "failed", None, "skipped"):
            Task(dag, state=state).outcome()
        Task(dag, state="success")
        # The task knew the run.
        Task(dag, state="failed").speak(claim=Claim(ago(300), "77"))
        Task(dag, state="failed").speak(end=End(ago(300), "failed", "77"))
        task = Task(dag, starts=False)
        task.put("workflow-automation_start/1/0", {"state": "started"})
        Task(dag, state="failed").clear()
        assert listed().rows == []


class TestDoubts:
    @pytest.mark.parametrize("query", [{}, {"q": "nothing"}])
    def test_an_empty_page_says_what_it_lists_and_where_the_rest_is(self, dag, listed, query):
        Task(dag, state="success").outcome()
        found = listed(**query)
        assert found.rows == []
        assert f"{page.DOUBT_FOR.days} days" in found.text
        assert "the tab Flow run" in found.text
        assert "all 0" not in found.text

    def test_failed_tasks_are_counted_and_first(self, dag, listed, row):
        doubts = [Task(dag, state="failed", end_date=ago(60)) for _ in range(2)]
        Task(dag, state="up_for_retry")
        for _ in range(5):
            Task(dag).outcome().suspend()
        Task(dag, state="failed", end_date=ago(8 * 86400))
        found = listed()
        assert found.text.count("Nothing") == 0
        assert "3 in doubt" in found.text
        assert found.links["?state=in+doubt&q="].split() == ["in", "doubt", "3"]
        assert all(any(task.mark in line for task in doubts) for line in found.rows[1:3])
        assert [line.startswith("in doubt|") for line in found.rows[1:]] == [True] * 3 + [False] * 5
        assert len(listed(state="in doubt").rows) == 4

    def test_what_the_run_has_said_since(self, dag, row, tab):
        task = Task(dag, state="failed").speak(
            end=End(ago(1), "success", "77", {"rows": 3}, "Done")
        )
        task.say("half", 0.5, seconds=0)
        assert "in doubt|" in row(task)
        assert "|ended: success. Done|" in row(task)
        assert "50 %" not in row(task)
        text = tab(task).text
        assert "No response" in text
        assert "Run 77 has succeeded" in text
        assert '"rows": 3' in text

    def test_nothing_is_said_of_what_cannot_be_read(self, dag, listed, monkeypatch):
        Task(dag).outcome()
        assert "Nothing is in doubt" in listed().text
        task = Task(dag, starts=False)
        task.enter("workflow_automation_start/1/0", '"s3://bucket/start"')
        for state in ("running", "failed"):
            task.change(state=state)
            found = listed()
            assert "Nothing is in doubt" not in found.text
            assert "unreadable|" in found.rows[1] + found.rows[2]
        task.change(state="success")
        monkeypatch.setattr(queries, "MAX_TASKS", 1)
        Task(dag).outcome()
        assert "Nothing is in doubt" not in listed().text


class TestList:
    def test_the_silent_ones_are_before_the_rest(self, dag, listed):
        tasks = [
            Task(dag).outcome().say("a", seconds=300).suspend(3600, silence=400),
            Task(dag).outcome().suspend(700),
            Task(dag).outcome().say("b", seconds=10).suspend(3600, silence=400),
            Task(dag).outcome().suspend(86400),
        ]
        rows = listed().rows[1:]
        marks = [
            next(number for number, task in enumerate(tasks) if task.mark in row) for row in rows
        ]
        assert marks[:2] == [1, 0]
        assert ["silent" in row for row in rows] == [True, True, False, False]

    def test_rows_can_be_told_apart(self, dag, listed):
        """By what one searches the service's list by, too."""
        tasks = [Task(dag, task_id="mapped", map_index=index) for index in range(2)]
        tasks[0].change(_rendered_map_index="Ada")
        times = [one.get("datetime") for one in listed().all("time")]
        assert tasks[0].start.at.isoformat() in times
        rows = listed().rows[1:]
        assert [sum(task.run_id in row for row in rows) for task in tasks] == [1, 1]
        assert ["|Ada|" in row for row in rows].count(True) == 1
        assert len(listed(q=tasks[1].run_id).rows) == 2

    def test_column_that_no_row_fills(self, dag, listed):
        Task(dag)
        assert listed().rows[0] == "State|Sent|Flow|Task|"
        Task(dag).outcome().say("a").suspend()
        assert listed().rows[0] == "State|Sent|Flow|Run|Task|Last message|Wait|"

    def test_rows_without_a_flow(self, dag, listed, tab):
        task = Task(dag)
        task.give(flow_id="")
        task.outcome(run={"run_link": RUN["run_link"]})
        assert listed().rows[0] == "State|Sent|Connection|Run|Task|"
        for found in (listed(), tab(task)):
            assert "API key" not in found.text
            assert found.links[RUN["run_link"]] == "Open run"
        assert "Run Open" not in " ".join(tab(task).text.split())

    def test_filter_and_search(self, dag, other_dag, listed):
        tasks = {
            "a": Task(dag).outcome(),
            "b": Task(other_dag).outcome().say("Reading <orders>"),
            "c": Task(dag),
        }
        for query, expected in (
            ({}, "abc"), ({"state": "started"}, "ab"), ({"q": "OTHER"}, "b"), ({"q": "reading <"}, "b"),
            ({"q": "1001", "state": "started"}, "ab"), ({"q": "1001", "state": "starting"}, ""), ({"state": "?"}, ""),
        ):  # fmt: skip
            text = "".join(listed(**query).rows)
            assert "".join(name for name, task in tasks.items() if task.mark in text) == expected, (
                query
            )
        assert {"all 1", "started 1"} <= {*listed(q="<orders>").links.values()}
        assert "Nothing is in doubt" in listed(q="x").text

    def test_the_most_pressing(self, dag, listed, monkeypatch):
        monkeypatch.setattr(page, "MAX_ROWS", 2)
        for _ in range(3):
            Task(dag).outcome()
        found = listed()
        assert len(found.rows) == 3
        assert "of 3" in found.text

    def test_the_newest_entries_of_a_task_with_many(self, dag, listed, monkeypatch):
        task = Task(dag, starts=False)
        for number in range(4):
            entry = {"at": ago(9).isoformat(), "max_tries": 2, "conn_id": task.mark}
            task.put(f"workflow_automation_start/1/0/{number}", entry)
        assert listed().text.count(task.mark) == 4
        monkeypatch.setattr(queries, "MAX_ENTRIES", 3)
        found = listed()
        rows = [row for row in found.rows if task.mark in row]
        assert sorted(row.split(task.mark)[1].split("|")[1] for row in rows) == ["1", "2", "3"]
        assert "the 3 newest entries of each" in found.text

    def test_the_number_of_queries_does_not_grow(self, dag, viewer):
        from airflow import settings

        statements: list[str] = []
        found = []
        listener = lambda _conn, _cursor, statement, *_: statements.append(statement)  # noqa: E731
        event.listen(settings.engine, "before_cursor_execute", listener)
        for more in (1, 12):
            for _ in range(more):
                Task(dag).outcome().say("x").suspend()
                Task(dag, starts=False).put("workflow_automation_batch_000000", {})
            for _ in range(2):
                statements.clear()
                assert viewer.get(LIST).status_code == 200
            found.append(len(statements))
        event.remove(settings.engine, "before_cursor_execute", listener)
        assert found[0] == found[1] <= 9

    def test_mapped(self, dag, listed, tab):
        task = Task(dag, task_id="mapped", map_index=2, _rendered_map_index="Ada").outcome()
        path = f"/dags/callbacks/runs/{task.run_id}/tasks/mapped/mapped/2/plugin/flow-run"
        assert listed().links[path] == "mapped [Ada]"
        assert "1001" in tab(task).text

    def test_below_a_path(self, dag):
        below = TestClient(
            page.app, root_path="/team/workflow-automation/runs", follow_redirects=False
        )
        to = below.get("/").headers["location"]
        assert to.startswith("/team/api/v2/auth/login?next=%2Fteam%2Fworkflow-auto")


class TestTab:
    def test_conversation(self, dag, tab):
        task = Task(dag).outcome("not started")
        task.give(at=ago(680))
        task.outcome(at=ago(670)).say("line 1\nline 2", 0.25, 60).suspend()
        task.speak(claim=Claim(ago(650), "1001"), refused=["7"])
        task.put(revoked_key(digest_of(task.token)), {"at": ago(660).isoformat()})
        text = tab(task).text
        text = text[text.index("Try 1") :]
        assert text.count("Sent") == 2
        titles = ["Sent", "nothing was started", "Response: a run was started", '"run_id": "1001"']
        titles += ["Revoked", "Claimed by", "Last message", "line 1\nline 2"]
        places = [text.index(title) for title in titles]
        assert places == sorted(places)
        assert task.token not in text

    @pytest.mark.parametrize(
        ("state", "outcome", "words"),
        [
            ("failed", None, ["A run may have been started when the request was sent"]),
            ("failed", "started", ["Look whether run 1001 still works"]),
            ("failed", "unidentified", ["its run_id is unknown", "It is not JSON."]),
            ("failed", "not started", ["No run was started"]),
            ("success", "started", ["A Clear starts another run"]),
            ("awaiting_input", "started", ["ends once the run calls"]),
            ("up_for_retry", None, ["what its next try does"]),
            ("running", "started", ["goes on by itself"]),
        ],
    )
    def test_what_to_do(self, dag, tab, state, outcome, words):
        task = Task(dag, state=state)
        if outcome:
            task.outcome(outcome, reason="It is not JSON." if outcome == "unidentified" else "")
        found = tab(task)
        assert [word for word in words if word not in found.text] == []

    def test_the_run_that_a_person_gave(self, dag, tab, row):
        task = Task(dag)
        task.write_start(
            run={"run_id": "42"}, token_hash=digest_of(task.token), issuer=(1, 0), conn_id=task.mark
        )
        assert row(task).startswith("started|")
        assert "A person gave the task this run" in tab(task).text

    def test_what_is_left_from_before_a_clear(self, dag, tab):
        task = Task(dag, state="failed").outcome()
        task.clear()
        text = tab(task).text
        assert "since it was last cleared" in text
        assert "Response: a run was started" in text

    @pytest.mark.parametrize(
        ("outcome", "reports", "words"),
        [
            (None, {}, ["in doubt", "A run may have been started"]),
            ("not started", {}, ["not started", "before the task was cleared"]),
            ("started", {}, ["started", "1001", "it is told to stop"]),
            (None, {"claim": Claim(ago(5), "77")}, ["claimed", "77", "it is told to stop"]),
            ("started", {"stopped": ago(5)}, ["stopped", "1001"]),
            (None, {"end": End(ago(5), "success", "77")}, ["ended", "77"]),
        ],
    )
    @pytest.mark.parametrize("state", ["awaiting_input", "running", None])
    def test_what_is_known_of_the_run_of_before_a_clear(
        self, dag, tab, listed, outcome, reports, words, state
    ):
        task = Task(dag, state="failed")
        if outcome:
            task.outcome(outcome)
        if reports:
            task.speak(**reports)
        task.clear()
        task.change(state=state, end_date=ago(60))
        found = tab(task)
        assert [word for word in words if word not in found.text] == []
        badges = [attrs["class"] for attrs in found.all("span") if "class" in attrs]
        assert f"badge {words[0].replace(' ', '-')}" in badges
        assert task.mark not in listed().text

    def test_where_the_run_calls(self, dag, tab):
        url = "https://airflow.example/team/workflow-automation/callback"
        task = Task(dag).outcome()
        assert "The run calls" not in tab(task).text
        task.give(callback_url=f"{url}?token=a-token")
        text = tab(task).text
        assert f"The run calls{url} with a token that is not shown" in text
        assert "a-token" not in text

    def test_where_the_run_writes(self, dag, tab):
        mailbox = "s3://aws_default@reports/callbacks/a.json"
        task = Task(dag)
        task.give(mailbox=f"{mailbox}?X-Amz-Signature=secret")
        task.outcome().change(state="deferred")
        text = tab(task).text
        assert mailbox in text
        assert "once the run has written its end" in text
        assert "secret" not in text

    def test_task_with_many_starts(self, dag, tab, monkeypatch):
        monkeypatch.setattr(page, "MAX_STARTS", 20)
        task = Task(dag, starts=False)
        for number in range(50):
            entry = {"at": ago(900 - number).isoformat(), "max_tries": 2, "conn_id": "many"}
            task.put(f"workflow_automation_start/1/0/name-{number}", entry)
            if number != 3:
                outcome = {"status": "started", "at": ago(9).isoformat(), "run": {"run_id": "7"}}
                task.put(f"workflow_automation_outcome/1/0/name-{number}", outcome)
        task.change(try_number=2)
        text = tab(task).text
        shown = [number for number in range(50) if f"Try 1: name-{number}\n" in text]
        # That in doubt is not left out.
        assert shown == [3, *range(31, 50)]
        assert "30 earlier starts are not shown" in text
        assert "not shown" not in tab(Task(dag)).text.replace("The API key is not shown", "")

    def test_what_a_run_says_reads_as_its_own_words(self, dag, tab):
        message = "\x1b[31mError:\x1b[0m no rows\nin orders"
        task = Task(dag).outcome().speak(end=End(ago(5), "failed", "1001", {"rows": 0}, message))
        text = tab(task).text
        assert "Error: no rows\nin orders" in text
        assert "31m" not in text

    def test_call_that_was_refused(self, dag, tab):
        task = Task(dag).outcome()
        refusal = {"refused_at": ago(5).isoformat(), "refusal": "status is 'Done'"}
        task.put(message_key(digest_of(task.token)), refusal)
        text = tab(task).text
        assert "A call was refused" in text
        assert "status is 'Done'" in text
        assert "Last message" not in text


CONTINUE, AGAIN = "Continue with this run", "Start another run"
MARK, SUCCEEDED, FAILED = (
    "The run did the work: mark as success", "The run succeeded", "The run failed"
)  # fmt: skip


@pytest.fixture
def editor(stranger):
    """Somebody who may change task instances."""
    from airflow.api_fastapi.app import get_auth_manager

    user = SimpleAuthManagerUser(username="user", role="user")
    stranger.cookies.set("_token", get_auth_manager().generate_jwt(user))
    return stranger


@pytest.fixture
def form_tab(editor):
    return lambda task: Html(editor.get(f"{TAB}?{task.query}").text)


def labels(found):
    """Return the buttons by which a person decides."""
    return [text for text in found.buttons if text not in ("Confirm", "Cancel")]


def forgotten(found):
    """Return the keys that each action deletes."""
    (keys,) = [one["data-forgotten"] for one in found.all("details") if "data-forgotten" in one]
    return json.loads(keys)


class TestForms:
    @pytest.mark.parametrize(
        ("state", "outcome", "reports", "expected"),
        [
            ("failed", None, {}, [CONTINUE, "No run was started: start one", MARK]),
            ("failed", "unidentified", {}, [CONTINUE, AGAIN, MARK]),
            ("failed", "started", {}, [CONTINUE, AGAIN, MARK]),
            ("failed", "started", {"claim": Claim(ago(5), "1001")}, [CONTINUE, AGAIN, MARK]),
            ("failed", "started", {"end": End(ago(5), "success", "1001")}, [CONTINUE, AGAIN]),
            ("failed", "started", {"end": End(ago(5), "failed", "1001")}, [AGAIN]),
            ("failed", "started", {"stopped": ago(5)}, [AGAIN, MARK]),
            ("failed", "not started", {}, ["Start a run"]),
            ("awaiting_input", "started", {}, [SUCCEEDED, FAILED]),
            ("deferred", "started", {}, [SUCCEEDED, FAILED]),
            ("running", "started", {}, []),
            ("up_for_retry", None, {}, []),
            ("queued", "started", {}, []),
            ("success", "started", {}, []),
        ],
    )
    def test_each_only_where_it_is_true(self, dag, form_tab, state, outcome, reports, expected):
        task = Task(dag, state=state)
        if outcome:
            task.outcome(outcome)
        if reports:
            task.speak(**reports)
        assert labels(form_tab(task)) == expected

    @pytest.mark.parametrize(
        ("outcome", "expected"),
        [
            (None, "Starts a run. That is a second run if there is one already."),
            ("started", "one was started before, and may still be at work."),
        ],
    )
    def test_what_becomes_of_the_run_before(self, dag, form_tab, outcome, expected):
        task = Task(dag, state="failed")
        if outcome:
            task.outcome(outcome)
        forms = form_tab(task).all("form")
        (question,) = [form["data-question"] for form in forms if form["data-kind"] == "start"]
        assert question.endswith(expected)

    def test_a_run_that_has_ended_late_is_one_that_was_started(self, dag, form_tab):
        task = Task(dag, state="failed").speak(end=End(ago(5), "success", "1001"))
        assert AGAIN in labels(form_tab(task))

    @pytest.mark.parametrize("entry", ["true", '{"run": "7"}', "[]"])
    def test_an_entry_that_names_no_run_is_deleted_before_another_start(self, dag, form_tab, entry):
        task = Task(dag, state="failed")
        task.enter(ADOPTED, entry)
        assert forgotten(form_tab(task)) == [ADOPTED]

    def test_none_of_a_batch_and_of_what_cannot_be_read(self, dag, form_tab):
        batch, damaged = (Task(dag, starts=number > 0, state="failed") for number in range(2))
        batch.put("workflow_automation_batch_000000", {"at": ago(5).isoformat(), "max_tries": 2})
        damaged.enter("workflow_automation_start/1/0", "{")
        assert [labels(form_tab(task)) for task in (batch, damaged)] == [[], []]

    def test_of_a_batch_that_waits_and_of_one_whose_runs_failed(self, dag, form_tab):
        task = Task(dag, starts=False, state="deferred")
        counts = batch_counts(2, started=2)
        where = {"folder": "s3://reports/ends/0a1b", "until": ago(-60).isoformat()}
        entry = {"at": ago(5).isoformat(), "max_tries": 2, "counts": counts, "ended": 1, **where}
        task.put("workflow_automation_batch_000000", entry)
        found = form_tab(task)
        assert labels(found) == ["The runs succeeded", "The runs failed"]
        assert [where["folder"] in form["data-question"] for form in found.all("form")] == [
            True
        ] * 2
        assert not found.all("textarea")
        assert "open" not in found.all("details")[0]

        task.change(state="failed", end_date=ago(1))
        assert labels(form_tab(task)) == []  # it has no output file
        del entry["ended"]
        ends = {"success": 1, "failed": 1, "overdue": 0, "started": 0}
        task.put("workflow_automation_batch_000001", {**entry, "counts": counts | ends})
        assert labels(form_tab(task)) == ["Go on with these ends: mark as success"]
        task.change(state="success")
        assert labels(form_tab(task)) == []

    def test_next_try_failed_before_it_took_the_run_that_was_given(self, dag, form_tab, editor):
        task = Task(dag, state="failed")
        task.enter(ADOPTED, '"7"')
        task.clear()
        for state in ("queued", "failed"):
            task.change(state=state, end_date=ago(1))
            assert "Run 7 is given to this task" in form_tab(task).text
            assert "in doubt|" in Html(editor.get(LIST).text).rows[1]
        expected = [CONTINUE, "No run was started: start one", MARK, "Take back run 7"]
        assert labels(form_tab(task)) == expected
        task.rows.store(None, "delete", ADOPTED)
        assert labels(form_tab(task)) == expected[:3]

    def test_none_for_those_who_may_not(self, dag, tab):
        found = tab(Task(dag, state="failed"))
        assert labels(found) == []
        assert "takes the right to edit task instances" in found.text
        assert "takes the right" not in tab(Task(dag)).text

    def test_the_run_that_is_known_is_filled_in(self, dag, form_tab):
        inputs = form_tab(Task(dag, state="failed").outcome()).all("input")
        assert [field["value"] for field in inputs] == [RUN["run_id"], RUN["run_link"]]
        inputs = form_tab(Task(dag, state="failed")).all("input")
        assert [field["value"] for field in inputs] == ["", ""]

    def test_each_name_has_a_field(self, dag, form_tab):
        task = Task(dag, starts=False, state="failed")
        for name in ("ada", "grace"):
            entry = {"at": ago(9).isoformat(), "max_tries": 2}
            task.put(f"workflow_automation_start/1/0/{name}", entry)
        outcome = {"status": "started", "at": ago(8).isoformat(), "run": {"run_id": "5"}}
        task.put("workflow_automation_outcome/1/0/ada", outcome)
        found = form_tab(task)
        keys = [field["data-key"] for field in found.all("fieldset")]
        assert keys == [f"{ADOPTED}/ada", f"{ADOPTED}/grace"]
        assert [field["value"] for field in found.all("input")] == ["5", "", "", ""]
        questions = [form.get("data-question", "") for form in found.all("form")]
        assert any("all 2 names again" in question for question in questions)

    @pytest.mark.parametrize("entry", ['"1003"', "1003", '{"run_id": "1003"}'])
    def test_run_that_is_given(self, dag, form_tab, entry):
        task = Task(dag, state="failed")
        task.enter(ADOPTED, entry)
        found = form_tab(task)
        assert "Run 1003 is given to this task: a Clear" in found.text
        assert found.all("input")[0]["value"] == "1003"
        assert forgotten(found) == [ADOPTED]
        task.change(state="queued")
        assert "its next try continues with it" in form_tab(task).text

    def test_a_run_that_a_person_types_is_judged_by_the_ledger(self, dag, viewer):
        task = Task(dag, state="failed")

        def why_not(flow_run, **query):
            asked = urlencode({"flow_run": flow_run, **query}, errors="replace")
            return viewer.get(f"{TAB}/run?{task.query}&{asked}").json()["why_not"]

        assert [why_not("7"), why_not(" 7 ")] == ["", ""]
        assert "quotes" in why_not('"7"')
        assert "no such start" in why_not("7", name="ada")
        task.outcome()
        assert "not that of the last start" in why_not("7")
        assert why_not("1001 ") == ""
        task.speak(claim=Claim(ago(5), "1001"), refused=["7"])
        assert "told to stop" in why_not("7")
        task.speak(stopped=ago(5))
        assert "told to stop" in why_not("1001")

    @pytest.mark.parametrize("path", ["/run", "/others"])
    def test_only_who_may_read_the_dag_may_ask(self, dag, viewer, monkeypatch, path):
        from airflow.api_fastapi.app import get_auth_manager

        task = Task(dag, state="failed")
        url = f"{TAB}{path}?{task.query}"
        assert viewer.get(url).status_code == 200
        monkeypatch.setattr(get_auth_manager(), "get_authorized_dag_ids", lambda **_: {"other"})
        assert viewer.get(url).status_code == 403
        viewer.cookies.clear()
        assert viewer.get(url).status_code == 303

    def test_other_tasks_that_have_a_run_or_may_have_one(self, dag, viewer, monkeypatch):
        task = Task(dag, state="failed")

        def others():
            return viewer.get(f"{TAB}/others?{task.query}").json()

        other = copy(task.rows)
        other._task_id, other.map_index = "mapped", 1
        other.change(state="failed", try_number=1)
        assert others() == []
        start = Start(1, 0, ago(9), other.ti.max_tries)
        other.put("workflow_automation_start/1/0", entry_of(start))
        assert others() == [["mapped", 1]]
        with monkeypatch.context() as patch:  # whatever is left out would be started again
            patch.setattr(queries, "MAX_TASKS", 1)
            assert viewer.get(f"{TAB}/others?{task.query}").status_code == 409
        other.put("workflow_automation_outcome/1/0", entry_of(Outcome("not started", ago(8))))
        assert others() == []

    def test_what_a_person_sees_has_changed(self, dag, form_tab):
        task = Task(dag, state="failed")
        seen = []
        for change in (lambda: None, task.outcome, lambda: task.change(state="queued")):
            change()
            (actions,) = [one for one in form_tab(task).all("div") if one.get("id") == "actions"]
            seen.append(actions["data-seen"])
        assert len({*seen}) == 3

    def test_form_of_another_origin(self, dag, api_server, editor):
        """A form can send no JSON, and Airflow takes nothing else."""
        task = Task(dag, state="failed")
        cookies = dict(editor.cookies)
        editor = TestClient(api_server, raise_server_exceptions=False, cookies=cookies)
        body = '{"dry_run": false, "only_failed": false, "task_ids": ["wait"]}'
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            response = editor.post(
                "/api/v2/dags/callbacks/clearTaskInstances",
                content=body,
                headers={"content-type": kind},
            )
            assert response.status_code in (422, 500)
        # As JSON, it is taken.
        response = editor.post(
            "/api/v2/dags/callbacks/clearTaskInstances",
            content=body.replace("false", "true", 1),
            headers={"content-type": "application/json"},
        )
        assert response.status_code == 200
        assert task.ti.state == "failed"


class TestBatchItems:
    def entry(self, *, opened=(), results=None, max_tries=2, **fields):
        counts = batch_counts(9, started=1, rejected=1, unknown=1)
        return {
            "at": ago(5).isoformat(),
            "max_tries": max_tries,
            "counts": counts,
            "opened": {str(index): "ab" for index in opened},
            "results": results or {},
            **fields,
        }

    def test_those_without_a_run(self, dag, tab):
        task = Task(dag, starts=False, state="failed")
        rejected = {"status": "rejected", "why": "400 <b>Bad</b>"}
        keys = {"0": "Mary", "1": "Ada", "3": "Grace"}
        entries = [
            self.entry(opened=[8], max_tries=1),
            self.entry(opened=range(4), keys=keys),
            self.entry(results={"0": {"status": "started", "run_id": "7"}, "1": rejected}),
            self.entry(results={"2": {"status": "unidentified", "why": "It is empty."}}),
        ]
        entries[-1]["output_path"] = "s3://bucket/results.jsonl"
        for number, entry in enumerate(entries):
            task.put(f"workflow_automation_batch_{number:06}", entry)
        found = tab(task)
        rows = [row for row in found.rows if row][1:]
        assert [row.strip("|") for row in rows] == [
            "1|Ada|rejected|400 <b>Bad</b>",
            "2|unidentified|It is empty.",
            "3|Grace|unknown",
        ]
        assert "s3://bucket/results.jsonl" in found.text
        assert not found.all("b")

    def test_the_first_twenty(self, dag, tab):
        task = Task(dag, starts=False, state="failed")
        results = {str(index): {"status": "rejected", "why": "no"} for index in range(30)}
        task.put("workflow_automation_batch_000000", self.entry(results=results))
        found = tab(task)
        assert len([row for row in found.rows if row]) == 21
        assert "the first 20 of 30" in found.text

    def test_what_is_being_sent_is_not_unknown(self, dag, tab):
        task = Task(dag, starts=False)
        task.put("workflow_automation_batch_000000", self.entry(opened=[1], try_number=1))
        assert "Items without a run" not in tab(task).text


HOSTILE = [
    "<script>alert(1)</script>",
    "</main></body>\"'><svg onload=alert(1)>",
    "\u202egnp.exe\u2066\u200b\x1b[31m\0",
    "\ud800",
    "&lt;b&gt;",
    "{{ now }}{% raw %}",
    "x" * 60_000,
]


class TestHostileTexts:
    @pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
    def test_shown_as_text(self, dag, editor, text):
        task = (
            Task(dag)
            .outcome(run={"run_id": text, "run_link": text, "flow_id": text})
            .say(text)
            .suspend()
        )
        task.give(flow_id=text, conn_id=text)
        task.speak(
            claim=Claim(ago(9), text, text),
            end=End(ago(8), "success", text, text, text),
            refused=[text],
        )
        advised = Task(dag, state="failed").outcome(run={"run_id": text})
        named = Task(dag, starts=False, state="failed")
        name = text[:99].encode(errors="replace").decode()
        named.put(
            f"workflow_automation_start/1/0/{name}", {"at": ago(9).isoformat(), "max_tries": 2}
        )
        waiting = Task(dag).outcome(run={"run_id": text}).suspend()
        query = urlencode({"q": text[:99]}, errors="replace")
        for url in (
            LIST,
            f"{LIST}?{query}",
            *(f"{TAB}?{one.query}" for one in (task, advised, named, waiting)),
        ):
            response = editor.get(url)
            assert response.status_code == 200
            found = Html(response.text)
            assert not {tag for tag, _ in found.elements} & {"img", "svg", "b"}
            assert len(found.all("script")) == 1
            assert not [
                attrs for _, attrs in found.elements if any(name.startswith("on") for name in attrs)
            ]
            assert not set(found.text) & {*"\u202e\u2066\u200b\x1b\0"}
            assert len(response.text) < 60_000

    def test_no_link(self, dag, listed, tab):
        run = {"run_id": "1001", "run_link": "javascript:alert(1)"}
        task = Task(dag).outcome(run=run)
        for found in (listed(), tab(task)):
            assert "1001" in found.text
            assert all(link.startswith(("/dags/", "?")) for link in found.links), found.links

    def test_links_that_are_none_of_the_web(self):
        urls = [
            "JavaScript://app.test/%0aalert(1)", " javascript:alert(1)", "/logout", "java\tscript:alert(1)",
            "http\u017f://app.test/x", "data:text/html,<script>alert(1)</script>", "https://", "https:app.test",
            "http://[", "https://user@app.test", "https:\\\\app.test", "https://app.test/\nx", None,
            "https://app.test/" + "x" * 3000,
        ]  # fmt: skip
        assert [url for url in urls if web_link(url)] == []

    @given(st.text() | st.text().map("https://app.test/{}".format))
    def test_every_link_is_one_of_the_web(self, url):
        assert web_link(url) in ("", url.strip())
        if link := web_link(url):
            parts = urlsplit(link)
            assert parts.scheme in ("http", "https")
            assert (parts.hostname or "ü").isascii()

    @given(st.text())
    def test_every_text_can_be_seen(self, text):
        assert all(c.isprintable() or c.isspace() for c in rendering.visible(text))

    @pytest.mark.parametrize(
        "value",
        [
            "[]", "7", "null", "{", '"s3://bucket"', "[" * 5000, '{"at": 7}', '{"at": "yesterday"}',
            '{"at": "2026-01-01", "max_tries": 2, "run": 5, "token_hash": 5, "issuer": {}, "conn_id": []}',
            '{"at": "0001-01-01T00:00:00+23:59", "max_tries": 2}', '{"status": 7, "at": "2026-01-01", "run": {"run_id": {}}}',
            '{"claim": 7, "end": [], "stopped": 5}', '{"claim": {"at": "2026-01-01", "run_id": 7}, "refused": [7]}',
            '{"at": "2026-01-01T00:00:00Z", "max_tries": 2, "completion_timeout": "x", "heartbeat_timeout": 1e999}',
            '{"at": "2026-01-01T00:00:00Z", "max_tries": 2, "run": {}, "completion_timeout": 1e99, "callback_url": 7}',
            '{"progress": NaN, "message": {}, "at": "9999-12-31T23:59:59-23:59"}', '{"progress": true}',
            '{"counts": {"total": "x", "not_started": -5}, "max_tries": []}', f'{{"counts": {{"total": 1, "not_started": 1{"0" * 400}}}}}', '{"counts": {"total": 5, "not_started": -5}}',
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("state", ["failed", "awaiting_input"])
    def test_entries_that_anybody_may_have_written(self, value, state):
        digest = "d" * 64
        start = entry_of(Start(1, 0, ago(9), 2, token_hash=digest))
        columns = {"max_tries": 2, "map_index": -1, "date": ago(9), "batch": None}
        columns |= dict.fromkeys(("dag_id", "run_id", "task_id"), "x")
        columns |= {"try_number": 1, "state": state}
        row = SimpleNamespace(**{**dict.fromkeys(queries.COLUMNS), **columns})
        names = "start/1/0", "start/\u0663/0", "start/x", "outcome/1/0", "batch", "run"
        keys = [f"workflow_automation_{name}" for name in names]
        for key in (*keys, report_key(digest), message_key(digest), revoked_key(digest)):
            task = queries.Task(row, {keys[0]: start, key: json_value(value)})
            assert page.tab(task, base="", may_change=True).status_code == 200
            runs = task.runs
            rows = sorted(
                (run for run in runs if not run.matches("?")), key=lambda run: run.pressure
            )
            assert (
                rendering.response(
                    title="Flow runs", rows=rows, counts=Counter(), max_rows=200
                ).status_code
                == 200
            )

    def test_entries_that_cannot_be_read(self, dag, viewer):
        suspended, empty = Task(dag).outcome().suspend(), Task(dag, starts=False)
        suspended.write_start(
            completion_timeout="soon", run={"run_id": "7"}, conn_id=suspended.mark
        )
        for key, value in (
            ("start/1/0", "{"),
            ("batch_000003", "[" * 5000),
            ("run", '"s3://bucket"'),
        ):
            empty.enter(f"workflow_automation_{key}", value)
        urls = LIST, f"{TAB}?{suspended.query}", f"{TAB}?{empty.query}"
        for response in map(viewer.get, urls):
            assert response.status_code == 200
            assert "unknown" in response.text
