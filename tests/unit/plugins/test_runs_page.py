"""The page Flow runs and the tab Flow run: Airflow's own application, with its login, over a real metadata database."""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.utils.session import create_session
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import delete, event, insert

from waiting_tasks import WaitingTask, make_dag
from workflow_automation_provider.execution.callback import (
    claim_key,
    digest_of,
    end_key,
    receipt_key,
    token_key,
    word_key,
)
from workflow_automation_provider.plugins import runs_metadata, runs_text

LIST = "/workflow-automation/runs/"
TAB = "/workflow-automation/runs/task"


def now() -> datetime:
    """Return the time as of a test: those before it may have taken minutes."""
    return datetime.now(UTC)


PLACEHOLDER = "{MAP_INDEX}"


class Page(HTMLParser):
    """A page as a browser has it: no text of others may have become an element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: dict[str, str] = {}
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag == "tr":
            self.rows.append("")
        if tag == "a":
            self.links[dict(attrs)["href"] or ""] = ""

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if {"style", "script"} & {*self._open}:
            return
        self.text += data
        if "tr" in self._open:
            self.rows[-1] += f"{data}|"
        if "a" in self._open:
            self.links[[*self.links][-1]] += data

    def row(self, task: Task) -> str:
        (found,) = [row for row in self.rows if task.mark in row]
        return found

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]


class Task(WaitingTask):
    """A task instance, with entries as the operator and the endpoint leave them."""

    def __init__(self, dag: Any, *, start: dict[str, Any] | None = None, **values: Any) -> None:
        super().__init__(dag, **{"try_number": 1, "start_date": now(), **values})
        self.digest = digest_of(self.token)
        self.mark = f"conn-{self.run_id}"
        if start is not None:
            self.start(**start)

    def put(self, key: str, value: object) -> None:
        self.enter(key, json.dumps(value))

    def start(self, *, state: str = "started", **more: Any) -> None:
        result = {"run_id": "1001", "run_link": "https://app.test/runs/1001", "flow_id": "orders"}
        value = {
            "state": state,
            "at": iso(-700),
            "sent": iso(-701),
            "result": result if state == "started" else {},
            "conn_id": self.mark,
            "flow_id": "orders",
            **self.attempt,
        }
        self.put("workflow_automation_start", {**value, **more})

    def wait(self, seconds: int = 720, **more: Any) -> None:
        value = {"digest": self.digest, "since": iso(-seconds), **self.attempt, **more}
        self.put("workflow_automation_wait", value)

    @property
    def attempt(self) -> dict[str, Any]:
        return {"try_number": 1, "max_tries": 2, "clear_number": 0}

    @property
    def coordinates(self) -> dict[str, Any]:
        at = {"dag_id": self.ti.dag_id, "run_id": self.run_id, "task_id": self.task_id}
        return {**at, "map_index": PLACEHOLDER if self.map_index < 0 else self.map_index}


def iso(seconds: float) -> str:
    return (now() + timedelta(seconds=seconds)).isoformat(timespec="seconds")


@pytest.fixture(scope="session")
def dag(airflow_home):
    return make_dag(airflow_home)


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

    patch = pytest.MonkeyPatch()
    patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "viewer:viewer")
    patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE", str(airflow_home / "passwords.json"))
    patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "a-secret-of-the-tests-that-is-long-enough-for-sha-512" * 2)
    purge_cached_app()
    yield create_app("core")
    purge_cached_app()
    patch.undo()


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
def listed(viewer):
    def get(**query):
        response = viewer.get(f"{LIST}?{urlencode(query)}")
        assert response.status_code == 200, response.text
        return Page(response.text)

    return get


@pytest.fixture
def tab(viewer):
    def get(task):
        response = viewer.get(f"{TAB}?{urlencode(task.coordinates)}")
        assert response.status_code == 200, response.text
        return Page(response.text)

    return get


@contextmanager
def queries():
    """Collect the statements that are run."""
    from airflow import settings

    found: list[str] = []

    def add(_conn, _cursor, statement, *_):
        found.append(statement)

    event.listen(settings.engine, "before_cursor_execute", add)
    try:
        yield found
    finally:
        event.remove(settings.engine, "before_cursor_execute", add)


class TestWhoSeesWhat:
    @pytest.mark.parametrize(
        "path", [LIST, f"{LIST}?state=doubt", f"{TAB}?dag_id=callbacks&run_id=a%26b&task_id=c"]
    )
    def test_without_a_login_it_is_the_login(self, stranger, dag, path):
        response = stranger.get(path)
        assert response.status_code == 303
        to = urlsplit(response.headers["location"])
        assert to.path == "/api/v2/auth/login"
        (then,) = parse_qs(to.query)["next"]
        assert then == path
        assert stranger.get(response.headers["location"]).status_code == 307

    def test_an_invalid_login(self, stranger, dag):
        stranger.cookies.set("_token", "not.a.token")
        assert stranger.get(LIST).status_code in (303, 403)
        assert stranger.get(LIST, headers={"authorization": "Bearer x.y.z"}).status_code in (303, 403)

    @pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
    def test_nothing_can_be_changed(self, viewer, dag, method):
        assert viewer.request(method, LIST).status_code == 405
        assert viewer.request(method, TAB).status_code == 405

    def test_one_dag_of_two(self, viewer, dag, other_dag, listed, monkeypatch):
        from airflow.api_fastapi.app import get_auth_manager

        mine, others = Task(dag, start={}), Task(other_dag, start={})
        assert all(task.mark in listed().text for task in (mine, others))

        def may(*, method, user, access_entity=None, details=None):
            return details is None or details.id in (None, "callbacks")

        monkeypatch.setattr(get_auth_manager(), "is_authorized_dag", may)
        page = listed()
        assert mine.mark in page.text
        assert others.mark not in page.text
        assert "other" not in page.text
        assert others.mark not in listed(dag="other").text
        assert viewer.get(f"{TAB}?{urlencode(mine.coordinates)}").status_code == 200
        of_others = urlencode(others.coordinates)
        assert viewer.get(f"{TAB}?{of_others}").status_code == 403
        for more in ("dag_id=callbacks", "dag_id=~"):
            for query in (f"{of_others}&{more}", f"{more}&{of_others}"):
                response = viewer.get(f"{TAB}?{query}")
                assert response.status_code in (403, 404)
                assert others.mark not in response.text

    def test_no_permission_at_all(self, viewer, dag, monkeypatch):
        from airflow.api_fastapi.app import get_auth_manager

        monkeypatch.setattr(get_auth_manager(), "is_authorized_dag", lambda **_: False)
        assert viewer.get(LIST).status_code == 403

    def test_what_does_not_exist(self, viewer, dag):
        assert viewer.get(f"{TAB}?dag_id=callbacks&run_id=x&task_id=wait").status_code == 404
        assert viewer.get(f"{TAB}?dag_id=callbacks").status_code == 422
        assert viewer.get(f"{LIST}other").status_code == 404
        # A DAG that is asked for does not stand for all.
        assert viewer.get(f"{LIST}?dag_id=callbacks").status_code == 400
        # The callback endpoint is beside it.
        assert viewer.put("/workflow-automation/callback").status_code == 405

    def test_policy(self, viewer, dag):
        response = viewer.get(LIST)
        policy = dict(
            part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["frame-ancestors"] == "'self'"
        assert not any("unsafe" in value or "http" in value for value in policy.values())
        assert response.headers["cache-control"] == "no-store"
        page = Page(response.text)
        assert not [attrs for _, attrs in page.elements if attrs.get("src") or attrs.get("style")]
        assert not [attrs for _, attrs in page.elements if any(name.startswith("on") for name in attrs)]
        assert {"main", "h1", "form"} <= {tag for tag, _ in page.elements}


class TestStates:
    def test_doubt_and_the_like(self, dag, listed):
        """Of each try of a task, as far as the start is recorded."""
        starting, stopped = {"state": "starting"}, {"at": iso(-5), "stopped": iso(-1)}
        unidentified = {"state": "unidentified", "result": {"message": "It is not JSON."}}
        expected = {
            Task(dag, start=starting, state="running"): "|starting|",
            **{
                Task(dag, start=starting, state=state): "in doubt"
                for state in ("up_for_retry", "scheduled", "queued")
            },
            Task(dag, start=starting, state="running", try_number=2): "in doubt",
            Task(dag, start=unidentified, state="up_for_retry"): "started, but which run?",
            (
                claimed := Task(dag, start={**starting, "token": "d"}, state="running", try_number=2)
            ): "|claimed|",
            (told := Task(dag, start=starting, state="running")): "told to stop",
            (before := Task(dag, start={"token": "b" * 64}, state="running")): "|started|",
        }
        claimed.put(claim_key(2), {"digest": claimed.digest, "run_id": "77", "at": iso(-5)})
        told.put(claim_key(2), {"digest": told.digest, **stopped})
        before.put(claim_key(2), {"digest": "a" * 64, **stopped})  # as the run before it
        page = listed()
        assert [words for task, words in expected.items() if words not in f"|{page.row(task)}"] == []
        assert "|77|" in page.row(claimed)

    def test_what_needs_somebody_is_counted(self, dag, listed):
        task = Task(dag, start={"state": "starting"}, state="up_for_retry")
        Task(dag, start={}, state="running")
        page = listed()
        assert "in doubt" in page.row(task)
        assert "1 of 2" in page.text

    def test_started(self, dag, listed):
        task = Task(dag, start={}, state="running")
        page = listed()
        assert "|started|" in f"|{page.row(task)}"
        assert page.links["https://app.test/runs/1001"] == "1001"
        assert f"|orders|{task.mark}|" in page.row(task)

    def test_waiting(self, dag, listed):
        task = Task(dag, start={}, next_kwargs={"timeout": 86400.0})
        task.wait()
        task.put(word_key(task.digest), {"message": "Half done", "progress": 0.5, "at": iso(-130)})
        page = listed()
        assert page.row(task).startswith("waiting since |12 min|")
        assert "|Half done|50 %| 50 %|2 min|" in page.row(task)
        assert page.row(task).endswith("|23 h|")
        (bar,) = page.all("progress")
        assert bar["value"] == "0.5000"
        assert bar["aria-label"]

    def test_an_end_that_the_task_has_not_read(self, dag, listed):
        task = Task(dag, start={})
        task.wait()
        task.put(receipt_key(task.digest), {"status": "failed", "at": iso(-1), "max_tries": 2})
        task.put(end_key(task.digest), {"status": "failed", "at": iso(-1), "message": "no rows"})
        assert "ended: failed" in listed().row(task).replace("|", "")

    def test_batch(self, dag, listed):
        task = Task(dag, state="running")
        counts = {"total": 400, "started": 280, "rejected": 15, "unknown": 5, "remaining": 100}
        entry = {**task.attempt, "opened": [[0, 9]], "digests": "", "results": {}}
        for number in range(12):
            last = {"counts": counts} if number == 11 else {"counts": {"total": 1}}
            task.put(f"workflow_automation_batch_{number}", {**entry, **last})
        page = listed()
        assert "280 of 400 started, 15 rejected, 5 unknown" in page.text
        (bar,) = page.all("progress")
        assert bar["value"] == "0.7500"

    def test_nothing_is_said_of_what_cannot_be_read(self, dag, listed, monkeypatch):
        """Nor of tasks that are not read."""
        Task(dag, start={}, state="running")
        assert "Nothing is in doubt" in listed().text
        Task(dag, state="running").enter("workflow_automation_start", '"s3://bucket/start"')
        assert "Nothing is in doubt" not in listed().text
        Task(dag, start={}, state="running")
        monkeypatch.setattr(runs_metadata, "MAX_TASKS", 1)
        assert "Nothing is in doubt" not in listed().text

    def test_starts_inside_a_task(self, dag, listed):
        task = Task(dag, state="running")
        for name in ("first", "second"):
            result = {"run_id": f"run of {name}"}
            entry = {"state": "started", "at": iso(-9), "result": result, "conn_id": name, **task.attempt}
            task.put(f"workflow_automation_start/{name}", entry)
        Task(dag, state="running").put("workflow_automation_upload_0", {"count": 1})
        text = listed().text
        assert [words for words in ("run of first", "run of second", "uploading") if words not in text] == []

    def test_from_before_a_clear(self, dag, listed, tab):
        task = Task(dag, start={"max_tries": 0}, state="running")
        assert "1001" not in listed().text
        assert "before it was cleared" in tab(task).text

    def test_what_is_not_live(self, dag, listed):
        for state in ("success", "failed", None, "skipped"):
            Task(dag, start={}, state=state)
        task = Task(dag, state="running")
        task.close()
        task.put("workflow-automation_start", {"state": "started"})
        task.put("somebody_elses", {"state": "started"})
        assert "No flow run" in listed().text

    def test_entries_that_are_kept_elsewhere(self, dag, listed, tab):
        """[workers] state_store_backend: the database has a reference."""
        task = Task(dag, state="running")
        task.enter("workflow_automation_start", '"s3://bucket/start"')
        task.enter("workflow_automation_wait", "s3://bucket/wait")
        assert "unknown" in listed().text
        task.put(word_key(task.digest), {"message": "Said by the endpoint", "at": iso(-1)})
        task.change(state="awaiting_input")
        assert "waiting" in listed().text
        task.close()
        task.reopen()
        assert "Said by the endpoint" in listed().text
        assert "Said by the endpoint" in tab(task).text

    def test_connection_and_flow_of_older_entries(self, dag, listed):
        from airflow.models.renderedtifields import RenderedTaskInstanceFields

        task = Task(dag, start={"conn_id": None, "flow_id": None, "state": "starting"}, state="running")
        fields = {"workflow_automation_conn_id": task.mark, "flow_id": "rendered-flow", "inputs": {}}
        at = {name: getattr(task.ti, name) for name in ("dag_id", "task_id", "run_id", "map_index")}
        if hasattr(RenderedTaskInstanceFields, "task_instance_id"):  # Airflow 3.4+
            at = {"task_instance_id": task.ti.id}
        with create_session() as session:
            session.execute(insert(RenderedTaskInstanceFields).values(**at, rendered_fields=fields))
        task.start(state="starting")
        value = task.read("workflow_automation_start")
        task.put(
            "workflow_automation_start", {k: v for k, v in value.items() if k not in ("conn_id", "flow_id")}
        )
        assert f"|rendered-flow|{task.mark}|" in listed().row(task)


class TestList:
    def test_order_counts_and_filters(self, dag, other_dag, listed):
        old = Task(dag, start={"sent": iso(-900), "flow_id": "a"}, state="running")
        new = Task(dag, start={"sent": iso(-100), "flow_id": "b"}, state="running")
        doubt = Task(other_dag, start={"sent": iso(-9000), "state": "starting"}, state="up_for_retry")
        page = listed()
        assert [task.mark for row in page.rows[1:] for task in (old, new, doubt) if task.mark in row] == [
            doubt.mark, new.mark, old.mark,
        ]  # fmt: skip
        assert page.links["?"] == "all 3"
        assert page.links["?state=doubt"] == "in doubt 1"
        assert page.links["?state=started"] == "started 2"
        for query, expected in (
            ({"flow": "a"}, {old.mark}),
            ({"connection": new.mark}, {new.mark}),
            ({"dag": "other"}, {doubt.mark}),
            ({"state": "started"}, {old.mark, new.mark}),
            ({"state": "started", "flow": "b"}, {new.mark}),
            ({"state": "nonsense"}, set()),
        ):
            rows = "".join(listed(**query).rows)
            assert {task.mark for task in (old, new, doubt) if task.mark in rows} == expected, query
        selects = listed(flow="a", state="started")
        assert [option["value"] for option in selects.all("option") if "selected" in option] == ["a"]
        assert selects.links["?flow=a"] == "all 1"

    def test_pages(self, dag, listed, monkeypatch):
        monkeypatch.setattr("workflow_automation_provider.plugins.runs_view.MAX_ROWS", 2)
        tasks = [Task(dag, start={"sent": iso(-60 * n)}, state="running") for n in range(5)]
        shown = [
            [n for n, task in enumerate(tasks) if task.mark in "".join(listed(page=page).rows)]
            for page in (1, 2, 3, 4)
        ]
        assert shown == [[0, 1], [2, 3], [4], []]
        assert listed(page=2).links.keys() >= {"?page=1", "?page=3"}
        assert listed(page="٣").links.keys() >= {"?page=2"}

    def test_more_than_are_read(self, dag, listed, monkeypatch):
        monkeypatch.setattr(runs_metadata, "MAX_TASKS", 2)
        for _ in range(3):
            Task(dag, start={}, state="running")
        assert len(listed().rows) == 3
        assert "newest live" in listed().text

    def test_the_number_of_queries_does_not_grow(self, dag, viewer):
        def count():
            with queries() as found:
                assert viewer.get(LIST).status_code == 200
            return len(found)

        def add():
            task = Task(dag, start={})
            task.wait()
            Task(dag, state="running").put("workflow_automation_upload_0", {})

        add()
        viewer.get(LIST)
        few = count()
        for _ in range(12):
            add()
        assert count() == few <= 9

    def test_mapped(self, dag, listed, tab):
        task = Task(dag, task_id="mapped", map_index=2, start={}, state="running")
        path = f"/dags/callbacks/runs/{task.run_id}/tasks/mapped/mapped/2/plugin/flow-run"
        assert listed().links[path] == "mapped [2]"
        assert "1001" in tab(task).text

    def test_below_a_path(self, dag):
        from workflow_automation_provider.plugins.runs_page import app

        below = TestClient(app, root_path="/team/workflow-automation/runs", follow_redirects=False)
        to = below.get("/").headers["location"]
        assert to.startswith("/team/api/v2/auth/login?next=%2Fteam%2Fworkflow-auto")

    def test_an_airflow_that_lacks_what_it_needs(self, viewer, dag, monkeypatch):
        monkeypatch.setattr(runs_metadata, "missing", lambda: "It lacks <something>.")
        response = viewer.get(LIST)
        assert response.status_code == 501
        assert "It lacks &lt;something&gt;." in response.text

    def test_nothing_is_missing(self, dag, monkeypatch):
        assert runs_metadata.missing() is None
        monkeypatch.setattr(runs_metadata, "_COLUMNS", (*runs_metadata._COLUMNS, "renamed"))
        assert "renamed" in str(runs_metadata.missing())

    def test_a_database_that_cannot_be_read(self, viewer, dag, monkeypatch):
        from sqlalchemy.exc import OperationalError

        def fail(*_args, **_values):
            raise OperationalError("SELECT secret", {}, Exception("gone"))

        monkeypatch.setattr(runs_metadata, "_read_entries", fail)
        response = viewer.get(LIST)
        assert response.status_code == 503
        assert "SELECT" not in response.text


class TestTab:
    def test_conversation(self, dag, tab):
        begun = now()
        task = Task(dag, start={})
        task.wait(650)
        task.put(claim_key(2), {"digest": task.digest, "run_id": "1001", "at": iso(-690)})
        task.put(word_key(task.digest), {"message": "line 1\nline 2", "progress": 0.25, "at": iso(-60)})
        page = tab(task)
        titles = ["Sent", "Response: started", "Claim", "Waiting for the end", "Last word"]
        places = [page.text.index(title) for title in titles]
        assert places == sorted(places)
        assert "line 1\nline 2" in page.text
        assert "are withheld" in page.text
        times = {datetime.fromisoformat(attrs["datetime"]) for attrs in page.all("time")}
        ages = sorted((now() - at).total_seconds() for at in times)
        longest = (now() - begun).total_seconds() + 1
        assert all(any(0 <= age - since <= longest for age in ages) for since in (60, 650, 690, 701)), ages
        assert "mark the task as success or failed" in page.text
        assert "no callback URL" not in page.text
        assert task.token not in page.text

    def test_a_wait_that_only_a_person_ends(self, dag, tab):
        """The run has no URL: a person entered it, or it was started before the task waited."""
        task = Task(dag, start={"token": None})
        task.close()
        task.wait(digest=None)
        text = tab(task).text
        assert "no callback URL" in text
        assert "mark the task as success or failed" in text

    @pytest.mark.parametrize(
        ("start", "state", "wait", "words"),
        [
            (
                {},
                "success",
                {
                    "answer": {
                        "status": "success",
                        "result": {"rows": 3},
                        "message": "Done",
                        "at": "2026-01-01",
                    }
                },
                ["The run ended: success", '"rows": 3', "The task ended: success"],
            ),
            ({"state": "starting"}, "failed", None, ["key workflow_automation_run,"]),
            ({}, "failed", None, ['value "1001" with the quotes']),
            ({}, "failed", {}, ["Waiting for the end"]),
            (
                {"state": "unidentified", "result": {"message": "It is not JSON."}},
                "failed",
                None,
                ["It is not JSON.", "enter the run_id"],
            ),
        ],
    )
    def test_end(self, dag, tab, start, state, wait, words):
        task = Task(dag, start=start, state=state, end_date=now())
        if wait is not None:
            task.wait(**wait)
        text = tab(task).text
        assert [word for word in words if word not in text] == []
        assert "Waiting since" not in text
        assert ("If none was started" in text) == (start == {"state": "starting"})

    def test_a_task_without_entries(self, dag, tab):
        task = Task(dag, state="running")
        task.close()
        assert "recorded no flow run" in tab(task).text


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</main></body>\"'><svg onload=alert(1)>",
    "\u202egnp.exe\u2066\u200b\x1b[31m\0",
    "\ud800",
    "&lt;b&gt;",
    "x" * 60_000,
]


class TestHostileTexts:
    @pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
    def test_shown_as_text(self, dag, viewer, text):
        task = Task(dag)
        result = {"run_id": text, "run_link": text, "flow_id": text}
        task.start(result=result, flow_id=text, conn_id=text)
        task.wait()
        task.put(word_key(task.digest), {"message": text, "progress": 0.5, "at": text})
        task.put(claim_key(2), {"digest": task.digest, "run_id": text, "run_link": text, "at": text})
        for url in (LIST, f"{TAB}?{urlencode(task.coordinates)}"):
            response = viewer.get(url)
            assert response.status_code == 200
            page = Page(response.text)
            tags = {tag for tag, _ in page.elements}
            assert not tags & {"img", "svg", "b"}
            assert len(page.all("script")) == 1
            assert not [attrs for _, attrs in page.elements if any(name.startswith("on") for name in attrs)]
            assert not set(page.text) & {*"\u202e\u2066\u200b\x1b\0"}
            assert len(response.text) < 90_000

    @pytest.mark.parametrize(
        "url",
        [
            "javascript:alert(1)",
            "JavaScript://app.test/%0aalert(1)",
            " javascript:alert(1)",
            "java\tscript:alert(1)",
            "data:text/html,<script>alert(1)</script>",
            "//app.test/runs/1",
            "/logout",
            "https:app.test",
            "https://",
            "http://[",
            "https://user@app.test",
            "https:\\\\app.test",
            "https://app.test/\nx",
            "https://app.test/" + "x" * 3000,
            7,
            None,
            {"a": 1},
        ],
    )
    def test_no_link(self, dag, listed, tab, url):
        task = Task(dag, start={"result": {"run_id": "1001", "run_link": url}}, state="running")
        for page in (listed(), tab(task)):
            assert "1001" in page.text
            assert all(link.startswith(("/dags/", "?")) for link in page.links), page.links

    @given(st.text() | st.from_regex(r"https?://[a-z.]+/\S*"))
    def test_every_link_is_one_of_the_web(self, url):
        page = Page(runs_text.web_link(url, "run"))
        assert page.text == "run"
        for link in page.links:
            assert urlsplit(link).scheme in ("http", "https")
            assert link == url

    @given(st.text())
    def test_every_text_is_one(self, text):
        page = Page(runs_text.shown(text))
        assert [tag for tag, _ in page.elements] == ["bdi"]
        assert page.text.isprintable() or "\u00a0" in text or any(c.isspace() for c in page.text)

    @pytest.mark.parametrize(
        "value",
        [
            "[]", "7", "null", "{", '{"state": []}', '{"state": "started", "result": 5, "at": 7, "sent": []}',
            '{"state": "started", "result": {"run_id": {"a": [1]}}}', "[" * 5000,
            '{"since": "yesterday", "state": "starting"}', '{"state": "unidentified", "result": []}',
            '{"digest": 5, "token": {}, "answer": 3, "stopped": 7, "max_tries": 2, "counts": 7}',
            '{"progress": NaN, "message": {}, "at": "9999-12-31T23:59:59-23:59"}', '{"progress": true}',
            '{"progress": 1e999, "since": "0001-01-01T00:00:00+23:59"}',
        ],
    )  # fmt: skip
    def test_entries_that_anybody_may_have_written(self, dag, viewer, value):
        task = Task(dag, next_kwargs={"timeout": 1e300, "pending": {"until": 7}})
        keys = [
            "workflow_automation_start", "workflow_automation_wait", "workflow_automation_batch_0",
            "workflow_automation_batch_٣", "workflow_automation_start/x", claim_key(2), claim_key(7), word_key(task.digest),
            end_key(task.digest), receipt_key(task.digest), token_key("a/b", 2), "workflow_automation_token/",
        ]  # fmt: skip
        for key in keys:
            task.enter(key, value)
        for url in (LIST, f"{TAB}?{urlencode(task.coordinates)}"):
            assert viewer.get(url).status_code == 200
