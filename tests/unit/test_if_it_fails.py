"""docs/if-it-fails.md has every message that the package can say, and no other."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import airflow
import httpx
import pytest
from packaging.version import Version

import workflow_automation_provider
from messages import Message, Said, find_messages, find_quotes
from workflow_automation_provider.assets import sanitize_uri
from workflow_automation_provider.decorators.flows import trigger_flow_task
from workflow_automation_provider.exceptions import Accepted, InvalidRequestError, WorkflowAutomationError
from workflow_automation_provider.execution.callback import PATH, TOKEN_LENGTH
from workflow_automation_provider.execution.start import trigger_flow_once
from workflow_automation_provider.hooks.connection import ConnectionExtra
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook
from workflow_automation_provider.notifications.flows import FlowNotifier
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import UploadFilesOperator
from workflow_automation_provider.testing.context import StateStore, has_state_store, make_context

from .starts import trigger

# What only those see who test DAGs; the labels of the connection form.
_ELSEWHERE = ("testing/", "get_provider_info.py")

# Strings of the package that nobody gets to see as a message.
_NOT_MESSAGES = {
    # names and types
    "Mapping[str, Any]",
    "DYNAMIC (set during execution)",
    "Workflow Automation",
    "Workflow Automation callbacks",
    "The flow's callback",
    "trigger by path",
    "trigger by key",
    "not given",
    # replaced by a message of the provider
    "timed out",
    "expected a date such as 2027-01-31",
    "Value error, ",
    # for who calls a private function wrongly
    "A host has at least one address",
    "The request's body is asynchronous.",
    "The response's body is asynchronous.",
    "Files are read in the order that was told",
    # SQL
    "BEGIN IMMEDIATE",
    "SET LOCAL lock_timeout = '\0ms'",
}

# Code of the page with more than one word that is neither a message nor Airflow's.
_NOT_QUOTES = {
    "async def",
    "airflow connections test",
    "pip install 'airflow-provider-workflow-automation[amazon]'",
}

_AIRFLOWS = "Airflow's message"

_PACKAGE = Path(workflow_automation_provider.__file__).parent
_PAGE = Path(__file__).parents[2] / "docs/if-it-fails.md"
_QUOTES = find_quotes(_PAGE.read_text(encoding="utf-8"))

# What the first table of the page says of a message: whether the service started a run.
_EXISTS = {"no": Accepted.NO, "look": Accepted.MAYBE, "yes": Accepted.YES}

_ANSWERS = {
    "No run was started.": Accepted.NO,
    "A run may have been started.": Accepted.MAYBE,
    "A run was started, but its run_id is unknown.": Accepted.YES,
}

# Under which headings the page has the first line of an error, by what the error says of the run.
_SECTIONS = {
    "No run was started.": {
        "The service rejected the request",
        "The service is busy or cannot be reached",
    },
    "A run may have been started.": {"A run may have been started"},
}
_ALL_SECTIONS = {heading for headings in _SECTIONS.values() for heading in headings}

# Without their types, to be used wrongly.
_NOTHING: Any = None
_decorate: Any = trigger_flow_task

_LOOP: list[Any] = []
_LOOP.append(_LOOP)
_DEEP: Any = 0
for _ in range(200):
    _DEEP = [_DEEP]

_WRONG_EXTRAS: list[dict[str, Any]] = [
    {"flowid": 1},
    {"nonsense": 1},
    {"flow_id": []},
    {"timeout": "soon"},
    {"timeout": True},
    {"key_expires_on": "soon"},
    {"key_expires_on": "2020-01-31"},
    {"verify": "perhaps"},
    {"allow_http": []},
    {"ca_bundle": {}},
    {"ca_bundle": "/not/there"},
    {"client_cert": "/not/there"},
    {"client_cert": 5.5},
    {"client_cert": "["},
    {"proxy": []},
    {"proxy": "nonsense://"},
    {"headers": "a"},
    {"headers": {"a b": "c"}},
    {"headers": {"X-API-Key": "c"}},
    {"headers": {"X-Team": "ä"}},
    {"file_format": "nonsense"},
    {"file_format": {"a": "nonsense"}},
    {"callback_base_url": "http://airflow.example"},
    {"callback_base_url": "https://me@airflow.example"},
]


def upload(**arguments):
    options = {"run_id": "1001", "files": "a", "send_retry_timeout": 0}
    return UploadFilesOperator(task_id="upload", **{**options, **arguments})


def batch(**arguments):
    return TriggerFlowBatchOperator(task_id="batch", send_retry_timeout=0, **{"batch": [{}], **arguments})


def _plain() -> dict[str, Any]:
    return {}


async def _asynchronous() -> dict[str, Any]:
    return {}


def _messages() -> list[Message]:
    return [message for message in find_messages(_PACKAGE) if not message.place.startswith(_ELSEWHERE)]


def _unmatched(lines: Sequence[str]) -> list[str]:
    """Return the lines that no quote of the page stands for: with a word of its own, not only values."""
    quotes = [quote for quote in _QUOTES if quote.has_words]
    return [line for line in lines if not any(quote.pattern.fullmatch(line) for quote in quotes)]


def _verdict(lines: Sequence[str]) -> Accepted | None:
    """Return what the first table says whether a run exists: of the rows that match, the lowest counts."""
    table = _PAGE.read_text(encoding="utf-8").partition("| Message | A run exists | You may |\n")[2]
    found = None
    for row in table.partition("\n\n")[0].splitlines()[1:]:
        messages, exists, _ = row.strip("| ").split(" | ")
        quotes = [quote for quote in _QUOTES if f"`{quote.text}`" in messages]
        assert quotes
        if any(quote.pattern.search(line) for quote in quotes for line in lines):
            found = _EXISTS.get(exists.partition(",")[0])
    return found


def _sections(line: str) -> set[str]:
    """Return the headings under which the page quotes a line."""
    page = _PAGE.read_text(encoding="utf-8").splitlines()
    return {
        next(text[3:] for text in reversed(page[: quote.line]) if text.startswith("## "))
        for quote in _QUOTES
        if quote.has_words and quote.column == "Message" and quote.pattern.fullmatch(line)
    }


class TestSource:
    """The page and the strings of the source, each compared with the other."""

    def test_each_message_is_on_the_page(self):
        missing = [
            str(message)
            for message in _messages()
            if message.is_distinct
            and message.text not in _NOT_MESSAGES
            and not any(message.is_part_of(quote.text) for quote in _QUOTES)
        ]
        assert not missing, "docs/if-it-fails.md says nothing about these messages"

    def test_each_quote_is_a_message(self):
        said = Said(_messages())
        unknown = [
            str(quote)
            for quote in _QUOTES
            if quote.column in ("Message", "text")
            or (quote.column != _AIRFLOWS and re.search("[a-z]+ [a-z]+", quote.text))
            if quote.text not in _NOT_QUOTES and not said(quote.text)
        ]
        assert not unknown, "docs/if-it-fails.md quotes what no code says"

    def test_what_is_left_out_is_still_there(self):
        """So that the lists above shrink with the code."""
        assert {message.text for message in _messages()} >= _NOT_MESSAGES
        assert {quote.text for quote in _QUOTES} >= _NOT_QUOTES

    def test_other_words_are_noticed(self):
        """In more than nine of ten cases: some of the words of a quote are values."""
        said = Said(_messages())
        changed = [
            quote.text[: word.start()] + "purple" + quote.text[word.end() :]
            for quote in _QUOTES
            if quote.column in ("Message", "text")
            for word in re.finditer(r"(?<= )[a-z]{3,}(?=[ .:,])", quote.text)
        ]
        some = changed[::25]
        assert len(some) > 100
        assert sum(map(said, some)) < len(some) / 10


class TestProvoked:
    """What the code says when it fails: real HTTP over loopback, operators in a context without a database."""

    @pytest.fixture
    def fails(self, service):
        """Execute a task that fails, and return the lines of its error."""

        def execute(task, context=None, error=WorkflowAutomationError):
            with pytest.raises(error) as raised:
                task().execute(context or make_context(task()))
            lines = str(raised.value).splitlines()
            assert lines
            assert _unmatched(lines) == []
            return lines

        return execute

    @pytest.mark.parametrize(("flow_id", "retries"), [(None, 0), ("demo-flow", 3)])
    @pytest.mark.parametrize(
        ("fault", "options", "answer"),
        [
            *(
                ("reject", {"status": status, "body": "Not today"}, "No run was started.")
                for status in (400, 401, 402, 403, 404, 405, 407, 409, 410, 413, 422)
            ),
            ("reject", {"status": 429}, "No run was started."),
            ("busy", {}, "No run was started."),
            ("busy", {"status": 503, "retry_after": 7}, "No run was started."),
            *(
                ("redirect", {"status": s, "location": "http://there/x y"}, "No run was started.")
                for s in (301, 307)
            ),
            ("redirect", {"status": 302, "location": "/login"}, "A run may have been started."),
            *(
                ("status_after", {"status": s}, "A run may have been started.")
                for s in (500, 502, 503, 504, 599)
            ),
            ("drop_after", {}, "A run may have been started."),
            ("reset_after", {}, "A run may have been started."),
            ("hang_after", {"seconds": 1}, "A run may have been started."),
            ("truncate", {}, "A run was started, but its run_id is unknown."),
            ("empty", {}, "A run was started, but its run_id is unknown."),
            ("garbage", {}, "A run was started, but its run_id is unknown."),
            ("endless", {}, "A run was started, but its run_id is unknown."),
            ("drip", {"seconds": 2}, "A run was started, but its run_id is unknown."),
            ("response", {"body": "[" * 100_000}, "A run was started, but its run_id is unknown."),
        ],
    )
    def test_a_start(self, service, fails, flow_id, retries, fault, options, answer):
        service.faults.add(fault, **options)
        flow = {} if flow_id is None else {"flow_id": flow_id}
        lines = fails(lambda: trigger(request_timeout=0.3, retries=retries, **flow))
        assert answer in lines
        assert _verdict(lines) is _ANSWERS[answer]
        if expected := _SECTIONS.get(answer):
            assert _sections(lines[0]) & expected
            assert not _sections(lines[0]) & _ALL_SECTIONS - expected

    def test_a_start_that_is_tried_again(self, service, fails):
        service.faults.add("busy", times=None)
        lines = fails(lambda: trigger(send_retry_timeout=3, retries=1))
        assert any(line.startswith("Tried ") for line in lines)

    def test_a_service_that_is_not_there(self, fails, monkeypatch):
        address = '{"conn_type": "workflow_automation", "host": "http://127.0.0.1:9", "password": "key"}'
        monkeypatch.setenv("AIRFLOW_CONN_NOT_THERE", address)
        lines = fails(lambda: trigger(workflow_automation_conn_id="not_there"))
        assert lines[1] == "No run was started."

    @pytest.mark.parametrize("policy", ["ours", "a user's"])
    def test_who_decides_on_a_retry(self, service, fails, policy):
        policies = pytest.importorskip("airflow.sdk.definitions.retry_policy")
        service.faults.add("busy")
        users = {} if policy == "ours" else {"retry_policy": policies.ExceptionRetryPolicy(rules=[])}
        fails(lambda: trigger(retries=2, **users))

    @pytest.mark.parametrize("on_unknown_start", ["fail", "start_again"])
    def test_a_later_try(self, service, store, context, fails, on_unknown_start):
        def task():
            return trigger(on_unknown_start=on_unknown_start, retries=3)

        service.faults.add("drop_after")
        fails(task, context(store))
        service.faults.add("reject")
        lines = fails(task, context(store, try_number=2))
        assert _verdict(lines) is Accepted.MAYBE

    @pytest.mark.parametrize("entry", [{"run": "1001"}, {"run_id": ""}, 1.5])
    def test_a_wrong_entry(self, service, store, context, fails, entry):
        store.entries["workflow_automation_run"] = entry
        lines = fails(trigger, context(store, try_number=2))
        assert "Correct the entry, or delete it." in lines
        assert _verdict(lines) is Accepted.NO

    @pytest.mark.parametrize("fault", [None, "drop_after"])
    def test_a_wrong_entry_where_a_run_is_known(self, service, store, context, fails, fault):
        if fault:
            service.faults.add(fault)
            fails(trigger, context(store))
        else:
            trigger().execute(context(store))
        store.entries["workflow_automation_run"] = ""
        lines = fails(trigger, context(store, try_number=2, max_tries=4))
        assert _verdict(lines) is (Accepted.MAYBE if fault else Accepted.YES)

    def test_a_name_with_other_inputs(self, service, store, context, fails):
        trigger_flow_once("ada", context=context(store, task_id="customers"))
        now = context(store, task_id="customers", try_number=2)
        with pytest.raises(InvalidRequestError) as raised:
            trigger_flow_once("ada", inputs={"a": 1}, context=now)
        lines = str(raised.value).splitlines()
        assert _unmatched(lines) == []
        assert _verdict(lines) is Accepted.YES

    @pytest.mark.parametrize(
        "arguments",
        [
            {"flow_id": ""},
            {"flow_id": "{{ a }}"},
            {"flow_id": "\ud800"},
            {"inputs": [1]},
            {"inputs": {"a": {1}}},
            {"inputs": {"a": b"1"}},
            {"inputs": {"a": float("nan")}},
            {"inputs": {"a": Decimal("inf")}},
            {"inputs": {"a": 10**5000}},
            {"inputs": {"a": "\ud800"}},
            {"inputs": {"\ud800": 1}},
            {"inputs": {"a": {1: 2}}},
            {"inputs": {"a": _DEEP}},
            {"workflow_automation_conn_id": "None"},
            {"files": []},
            {"files": {"a"}},
            {"files": "/not/there"},
            {"wait_for_completion": True, "inputs": {"callback_url": 1}},
        ],
    )
    def test_an_argument(self, service, store, context, fails, arguments):
        fails(lambda: trigger(**arguments), context(store))
        assert not service.journal.requests()

    @pytest.mark.parametrize(
        "parse",
        [
            lambda: trigger(inputs=None),
            lambda: trigger(flow_id=None),
            lambda: trigger(on_unknown_start="no"),
            lambda: trigger(wait_for_completion="yes"),
            lambda: trigger(callback_input=""),
            lambda: trigger(completion_timeout=60),
            lambda: trigger(ask_timeout=timedelta(days=900)),
            lambda: trigger(notifiers=[1]),
            lambda: trigger(completion_timeout=timedelta(hours=1)),
            lambda: trigger(ask_timeout=timedelta(hours=1)),
            lambda: trigger(request_timeout=0),
            lambda: trigger(send_retry_timeout=-1),
            lambda: trigger(file_format="name it"),
            lambda: trigger(file_format={}),
            lambda: trigger(file_format={"a": "b"}),
            lambda: upload(run_id=None),
            lambda: upload(files=None),
            lambda: upload(flow_id=None),
            lambda: upload(files_per_request=0),
            lambda: upload(max_file_bytes="1"),
            lambda: upload(read_ahead_bytes=1),
            lambda: upload(content_types=[]),
            lambda: upload(content_types={"*.log": "log"}),
            lambda: upload(on_unknown_upload="no"),
            lambda: batch(batch=None),
            lambda: batch(on_unknown_start="ask"),
            lambda: batch(on_refused="no"),
            lambda: batch(max_concurrency=0),
            lambda: batch(window_size=10**6),
            lambda: batch(max_starts_per_second=0),
            lambda: FlowNotifier(_NOTHING),
            lambda: FlowNotifier({}, timeout=0),
            lambda: _decorate(inputs={})(_plain)(),
            lambda: _decorate()(_asynchronous)(),
            lambda: sanitize_uri(urlsplit("workflow-automation://service.example/api")),
        ],
    )
    def test_a_dag_file(self, parse):
        with pytest.raises((ValueError, TypeError)) as raised:
            parse()
        assert _unmatched(str(raised.value).splitlines()) == []

    @pytest.mark.parametrize(
        "fields",
        [
            {"host": None},
            {"host": "http://service.example/api"},
            {"host": "ftp://service.example"},
            {"host": "https://me:word@service.example"},
            {"host": "https://service.example/?a=1"},
            {"host": "https://service.example/a b"},
            {"host": "https://[::1"},
            {"host": "https://service.example/secret-key", "password": "secret-key"},
            {"host": "https://service.example:1/api", "port": 2},
            {"schema": "https"},
            {"login": "me"},
            {"password": "a key"},
            {"password": None},
            *({"extra": extra} for extra in _WRONG_EXTRAS),
        ],
    )
    def test_a_connection(self, monkeypatch, fields):
        default = {
            "conn_type": "workflow_automation",
            "host": "https://service.example/api",
            "password": "k" * 20,
        }
        monkeypatch.setenv("AIRFLOW_CONN_WRONG", json.dumps({**default, **fields}))
        with pytest.raises(InvalidRequestError) as raised:
            WorkflowAutomationHook("wrong").prepare_trigger({})
        assert _unmatched(str(raised.value).splitlines()) == []

    @pytest.mark.parametrize("extra", ["[]", "{", "7"])
    def test_an_extra_that_is_no_object(self, extra):
        """Some versions of Airflow do not let such a connection get so far."""
        with pytest.raises(InvalidRequestError) as raised:
            ConnectionExtra.read(extra)
        assert _unmatched(str(raised.value).splitlines()) == []

    @pytest.mark.parametrize(
        ("fault", "options"),
        [
            *(("reject", {"status": status}) for status in (400, 401, 404, 413, 422)),
            ("busy", {"retry_after": 7}),
            ("status_after", {"status": 503}),
            ("drop_after", {}),
            ("redirect", {"status": 303, "location": "/there"}),
        ],
    )
    @pytest.mark.parametrize(
        ("on_unknown_upload", "retries"), [("send_again", 0), ("send_again", 3), ("fail", 3)]
    )
    def test_an_upload(self, service, fails, tmp_path, on_unknown_upload, retries, fault, options):
        run_id = trigger().execute(make_context(trigger()))["run_id"]
        (tmp_path / "a").write_text("a")
        service.faults.add(fault, **options)
        fails(
            lambda: upload(
                run_id=run_id, files=f"{tmp_path}/a", on_unknown_upload=on_unknown_upload, retries=retries
            )
        )

    @pytest.mark.parametrize("retries", [0, 3])
    def test_an_upload_of_a_trigger(self, service, fails, tmp_path, retries):
        (tmp_path / "a").write_text("a")
        service.faults.add("reject", operation="upload")
        lines = fails(lambda: trigger(files=f"{tmp_path}/a", retries=retries))
        assert "Run 1001 was started." in lines
        assert _verdict(lines) is Accepted.YES

    @pytest.mark.parametrize(
        "arguments",
        [
            {"run_id": "{'run_id': '1'}"},
            {"run_id": [1, 2]},
            {"run_id": {"response": 1}},
            {"run_id": ""},
            {"files": 7},
            {"files": [7]},
            {"files": [""]},
            {"files": "*/not there/*"},
            {"files": "{{ path }}"},
            {"files": "~/a"},
            {"files": "not there"},
            {"files": "."},
            {"files": "/dev/null"},
            {"files": "nonsense://a/b"},
            {"files": "file:///not/there"},
            {"files": "binary", "file_format": "text"},
            {"files": "binary", "max_file_bytes": 1},
            {"files": "binary", "max_request_bytes": 10},
            {"files": "binary", "file_format": lambda _: 1 / 0},
            {"files": "binary", "file_format": lambda _: None},
            {"files": "binary", "file_format": lambda _: _LOOP},
        ],
    )
    def test_files(self, fails, tmp_path, monkeypatch, arguments):
        monkeypatch.chdir(tmp_path)
        Path("binary").write_bytes(b"\xff" * 10)
        fails(lambda: upload(**arguments))

    @pytest.mark.parametrize(
        ("items", "fault", "options"),
        [
            (7, None, {}),
            ("[1]", None, {}),
            ("None", None, {}),
            ("{{ a }}", None, {}),
            ("~/a", None, {}),
            ("/not/there", None, {}),
            ("nonsense://a", None, {}),
            ([1], None, {}),
            ("twice", None, {}),
            ("garbage", None, {}),
            ([{}], "reject", {"status": 400}),
            ([{}], "reject", {"status": 401}),
            ([{}], "busy", {}),
            ([{}], "drop_after", {}),
            ([{}], "empty", {}),
            ([{}] * 40, "status_after", {"times": None}),
        ],
    )
    @pytest.mark.parametrize("retries", [0, 3])
    def test_a_batch(self, service, fails, tmp_path, monkeypatch, items, fault, options, retries):
        monkeypatch.chdir(tmp_path)
        Path("twice").write_text('{"a": 1, "a": 2}')
        Path("garbage").write_text("{")
        if fault:
            service.faults.add(fault, **options)
        fails(lambda: batch(batch=items, max_concurrency=4, retries=retries))

    @pytest.mark.skipif(not has_state_store(), reason="Before Airflow 3.3, no try knows of another")
    def test_a_batch_that_changed(self, service, fails):
        context = make_context(batch(), store=StateStore())
        service.faults.add("drop_after")
        fails(lambda: batch(batch=[{"a": 1}, {}]), context)
        context["ti"].try_number = 2
        fails(lambda: batch(batch=[{"a": 2}, {}]), context)
        fails(lambda: batch(batch=[]), context)

    @pytest.mark.skipif(not has_state_store(), reason="Before Airflow 3.3, there are no callbacks")
    @pytest.mark.parametrize(
        ("status", "body"),
        [
            (400, "{"),
            (400, "[" * 60_000),
            (400, "[]"),
            (400, "7"),
            (400, "NaN"),
            (400, "1e999"),
            (400, '{"status": "success", "status": "failed"}'),
            (400, "{}"),
            (400, '{"status": "done"}'),
            (400, '{"status": "success", "rows": 1}'),
            (400, '{"status": "success", "message": 1}'),
            (400, '{"status": "success", "result": "\\u0000"}'),
            (400, f'{{"status": "success", "result": {10**30}}}'),
            (400, '{"status": "success", "result": {"__type": 1}}'),
            (400, f'{{"status": "success", "result": {"[" * 60}{"]" * 60}}}'),
            (413, "x" * 100_000),
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_a_callback(self, status, body, monkeypatch):
        from workflow_automation_provider.plugins import callback_endpoint
        from workflow_automation_provider.plugins.callback_endpoint import app

        monkeypatch.setattr(callback_endpoint, "_admit", lambda _: None)

        async def post():
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://airflow.example") as client:
                return await client.post(PATH, params={"token": "x" * TOKEN_LENGTH}, content=body)

        response = asyncio.run(post())
        assert response.status_code == status
        assert _unmatched([response.json()["detail"]]) == []
        page = _PAGE.read_text(encoding="utf-8").splitlines()
        rows = [
            page[quote.line - 1]
            for quote in _QUOTES
            if quote.column == "Message" and quote.pattern.fullmatch(response.json()["detail"])
        ]
        assert any(row.startswith(f"| {status} |") for row in rows), rows

    def test_the_statuses_of_the_callback_endpoint_are_those_that_it_has(self):
        """Those that a request cannot provoke here are compared with the page about waiting."""
        wait = (_PAGE.parent / "wait.md").read_text(encoding="utf-8")
        table = wait.partition("| Response | When | The step should |")[2].partition("\n\n")[0]
        section = _PAGE.read_text(encoding="utf-8").partition("## The callback endpoint")[2]
        both = [set(re.findall(r"^\| (\d{3}) \|", text, re.MULTILINE)) for text in (table, section)]
        assert both[0] == both[1]

    @pytest.mark.parametrize(
        ("fields", "is_good"),
        [({}, True), ({"password": None}, True), ({"host": "http://127.0.0.1:9"}, False)],
    )
    def test_a_test_of_a_connection(self, service, monkeypatch, fields, is_good):
        connection = {"conn_type": "workflow_automation", "host": service.url, "password": "key", **fields}
        monkeypatch.setenv("AIRFLOW_CONN_TESTED", json.dumps(connection))
        found, text = WorkflowAutomationHook("tested").test_connection()
        assert found is is_good
        assert _unmatched(text.splitlines()) == []


@pytest.mark.skipif(Version(version("apache-airflow")) < Version("3.3"), reason="Quoted from newer versions")
def test_airflow_says_what_is_quoted_as_its_own():
    parts = {
        part.strip(" '\"`")
        for quote in _QUOTES
        if quote.column == _AIRFLOWS
        for part in re.split(
            r"\b[A-Z_]{2,}\b|'workflow_automation_provider'|\"workflow_automation\"|…", quote.text
        )
    }
    # Python's
    parts -= {"No module named", "got an unexpected keyword argument"}
    with pytest.raises(TypeError, match="got an unexpected keyword argument"):
        (lambda: None)(flow=1)  # type: ignore[call-arg]
    with pytest.raises(ModuleNotFoundError, match="No module named 'not_there'"):
        __import__("not_there")
    source = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("sdk", "jobs", "models")
        for path in (Path(airflow.__file__).parent / folder).rglob("*.py")
    )
    assert [part for part in sorted(parts) if part not in source] == []
