"""What the local service sends to the URL in a run's inputs, and what it shows of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import re
import socket
import time
from collections import deque
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response

from workflow_automation_provider.execution.record.callback import Ended, parse
from workflow_automation_provider.testing import Callback, Callbacks, Journal, LocalService
from workflow_automation_provider.testing._server import callback_sender
from workflow_automation_provider.testing._server.responses import Exchange
from workflow_automation_provider.testing._server.server import BackgroundServer, listen
from workflow_automation_provider.testing.callbacks import WITHHELD, withhold_tokens
from workflow_automation_provider.testing.control_client import ControlClient

from .conftest import JSON, wait_for

TOKEN = "hush-Zm9vYmFy_-1"


class Receiver:
    """Whoever waits for a callback: keeps what arrives, and responds as a test says."""

    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}/workflow-automation/callback?token={TOKEN}"
        self.received: list[tuple[str, Any, bytes]] = []
        self.times: list[float] = []
        self.responses: deque[Response | int | float | None] = deque()
        """A float is how many seconds to say nothing; None closes the connection at once."""

    @property
    def bodies(self):
        return [json.loads(body) for _, _, body in self.received]

    async def respond(self, scope, receive, send):
        request = Request(scope, receive)
        self.received.append(
            (f"{request.url.path}?{request.url.query}", request.headers, await request.body())
        )
        self.times.append(time.monotonic())
        response = self.responses.popleft() if self.responses else 200
        exchange = Exchange(scope, receive, send, asyncio.Event())
        if response is None or isinstance(response, float):
            await exchange.hang(response or 0)
        else:
            await exchange.respond(
                Response("{}", response) if isinstance(response, int) else response
            )


@pytest.fixture
def receiver():
    sock = listen("127.0.0.1", 0)
    receiver = Receiver(sock.getsockname()[1])
    server = BackgroundServer(receiver.respond, sock, asyncio.Event())
    server.start()
    yield receiver
    server.stop()


def sent(service, count=1):
    """Return what the journal has of the calls, once there are as many."""
    wait_for(lambda: len(service.journal.callbacks()) >= count)
    return service.journal.callbacks()


@pytest.fixture
def run(service, call, receiver):
    """
    Start a run that calls back as scripted.

    Return what the journal has of its calls, once there are as many.
    """

    def start(count=1, *, inputs=None, **scripted):
        service.callbacks.add(**scripted)
        call.by_path({"callback_url": receiver.url, **(inputs or {})})
        return sent(service, count)

    return start


# What is sent -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scripted", "end"),
    [
        ({"status": "failed", "message": "No rows"}, Ended("failed", None, "No rows")),
        ({"result": lambda run: [run.run_id, run.inputs["day"]]}, Ended("success", ["1001", "x"])),
    ],
    ids=["failed", "function"],
)
def test_a_run_calls_back_as_a_flow_would(run, receiver, scripted, end):
    (callback,) = run(**scripted, inputs={"day": "x"})
    ((path, headers, body),) = receiver.received
    assert path == f"/workflow-automation/callback?token={TOKEN}"
    assert headers["Content-Type"] == "application/json"
    assert (callback.run_id, callback.flow_id) == ("1001", "demo-flow")
    assert (callback.status, callback.response, callback.error, callback.attempts) == (
        200,
        "{}",
        None,
        1,
    )
    assert parse(body) == end
    assert callback.body == json.loads(body)


def test_result_that_raises_is_in_the_journal(run, receiver):
    (callback,) = run(result=lambda run: run.inputs["nothing"])
    assert (callback.error, callback.attempts) == ("result: KeyError: 'nothing'", 0)
    assert receiver.received == []


def test_no_run_calls_back_by_default(service, call, receiver):
    call.by_path({"callback_url": receiver.url})
    service.callbacks.add(None, flow_id="silent-flow")
    scripted = service.callbacks.add(times=1)
    for url in (None, "ftp://127.0.0.1/", "http://["):
        assert call.by_path({"callback_url": url}).status_code == 201
    call.by_path({"callback_url": receiver.url}, flow_id="silent-flow")
    assert scripted.remaining == 1
    for _ in range(2):
        call.by_path({"callback_url": receiver.url})
    assert [callback.run_id for callback in sent(service)] == ["1006"]
    assert len(receiver.received) == 1


PATH = "/api/flows/demo-flow/trigger"
ANY_TEXT = st.text(st.characters())
ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | ANY_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner),
    max_leaves=5,
)


@pytest.mark.parametrize("is_scripted", [False, True])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(inputs=st.dictionaries(ANY_TEXT, ANY_JSON), name=ANY_TEXT)
@example(inputs={"": 1}, name="a")  # as of the index of a data frame
@example(inputs={"\ud800": "\ud800"}, name="")
@example(inputs={"\ud800\udc00": None}, name="")
def test_any_inputs_start_a_run(service, http, receiver, is_scripted, inputs, name):
    """Whatever their names and values: also if one is the URL that a test waits at."""
    service.callbacks.clear()
    service.callbacks.endpoint = receiver.url
    if is_scripted:
        service.callbacks.add(flow_id="demo-flow")
    before = len(service.runs)
    for given_inputs in (inputs, {**inputs, name: receiver.url}):
        body = json.dumps({"inputs": given_inputs})
        assert http.post(PATH, content=body, headers=JSON).status_code == 201
    assert len(service.runs) == before + 2
    # JSON makes one character of two halves.
    assert service.runs[before].inputs == withhold_tokens(json.loads(json.dumps(inputs)))
    if not is_scripted:
        assert f"run {service.runs[-1].run_id} " in service.callbacks.missing[-1]


def test_each_run_has_the_first_callback_that_matches(service, call, receiver):
    service.callbacks.add(result="first", times=1)
    service.callbacks.add(result="ada", inputs={"customer": {"name": "Ada"}})
    service.callbacks.add(result="others", input="tell")
    service.stop()
    service.start()  # what is scripted stays
    for name in ("Ada", "Ada", "Grace"):
        url = "tell" if name == "Grace" else "callback_url"
        call.by_path({url: receiver.url, "customer": {"name": name, "id": 1}})
    sent(service, 3)
    assert sorted(body["result"] for body in receiver.bodies) == ["ada", "first", "others"]
    assert [scripted.applied for scripted in service.callbacks.all()] == [1, 1, 1]


def test_further_calls(run, receiver):
    receiver.responses.extend([200, 200, Response('{"detail": "answered"}', 409)])
    callbacks = run(4, result=1, then=[{}, {"result": 2, "delay": 0.05}, {"status": "failed"}])
    assert [(body["status"], body["result"]) for body in receiver.bodies] == [
        *[("success", 1), ("success", 1), ("success", 2)],
        ("failed", 1),
    ]
    assert [callback.status for callback in callbacks] == [200, 200, 409, 200]
    assert callbacks[2].response == '{"detail": "answered"}'
    assert receiver.times[2] - receiver.times[1] >= 0.05


@pytest.mark.parametrize(
    ("body", "arrives"),
    [("<html>", b"<html>"), ([1], b"[1]"), ("\ud800", b"\xed\xa0\x80"), (False, b"false")],
)
def test_any_body(run, receiver, body, arrives):
    wrong, again, right = run(3, body=body, then=[{"delay": 0}, {"result": "right"}])
    assert [call[2] for call in receiver.received[:2]] == [arrives] * 2
    assert (wrong.body, again.body, right.body) == (
        body,
        body,
        {"status": "success", "result": "right"},
    )


# Retries ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("responses", "attempts", "status"),
    [
        *(([status, None], 3, 200) for status in (500, 429, 408)),
        ([503] * 4, 4, 503),
        *(([status], 1, status) for status in (400, 409, 501)),
        ([Response("", 302, {"Location": "/"})], 1, 302),
    ],
)
def test_it_is_sent_again_where_that_can_help(run, receiver, responses, attempts, status):
    receiver.responses.extend(responses)
    (callback,) = run(wait=0.01)
    assert (callback.attempts, callback.status, callback.error) == (attempts, status, None)
    assert len(receiver.received) == attempts
    assert len({body for _, _, body in receiver.received}) == 1


def test_it_waits_longer_each_time_and_as_the_response_asks(run, receiver):
    receiver.responses.extend([503, 503, Response("", 503, {"Retry-After": "1"})])
    run(wait=0.1)
    waits = [b - a for a, b in itertools.pairwise(receiver.times)]
    assert all(wait >= least for wait, least in zip(waits, (0.1, 0.2, 1), strict=True))


@pytest.mark.parametrize(
    ("base", "attempts", "error"),
    [("http://127.0.0.1:1", 2, "ConnectError"), ("http://a\tb", 1, "InvalidURL")],
)
def test_nobody_is_there(run, base, attempts, error):
    """A URL that no client can use is tried once."""
    (callback,) = run(attempts=2, wait=0, inputs={"callback_url": f"{base}/?token={TOKEN}"})
    assert (callback.attempts, callback.status, callback.error) == (attempts, None, error)


def test_over_tls(run, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.ca_bundle))
    with LocalService(certfile=certificate.certfile) as other:
        (callback,) = run(attempts=1, inputs={"callback_url": f"{other.url}/api/flows/f/trigger"})
    assert (callback.status, callback.error) == (400, None)


def test_stopping_ends_what_is_still_to_be_sent(service, call, receiver):
    """What waits, what is to be sent again, and what hangs."""
    service.callbacks.add(delay=60, times=1)
    service.callbacks.add(wait=60)
    receiver.responses.append(500)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        silent.settimeout(10)
        for url in (receiver.url, receiver.url, f"http://127.0.0.1:{silent.getsockname()[1]}/"):
            call.by_path({"callback_url": url})
        wait_for(lambda: receiver.received)
        with contextlib.closing(silent.accept()[0]):
            began = time.monotonic()
            service.stop()
            assert time.monotonic() - began < 30
    stopped = "the service was stopped"
    found = {
        callback.run_id: (callback.attempts, callback.error)
        for callback in service.journal.callbacks()
    }
    assert found == {"1001": (0, stopped), "1002": (1, stopped), "1003": (1, stopped)}


# The token ----------------------------------------------------------------------------------------


def test_the_token_is_nowhere(service, call, http, receiver, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG, logger="")
    # As another server in the process may have set it.
    monkeypatch.setattr(logging.getLogger("uvicorn.access"), "propagate", True)
    service.callbacks.add(
        result=lambda run: run.inputs, token="foreign-1", then=[{"token": "foreign-2"}], attempts=1
    )
    receiver.responses.append(Response(f"token={TOKEN} foreign-1", 400))
    call.by_path({"callback_url": receiver.url, "nested": [{"again": f"see {receiver.url}&x=1"}]})
    callbacks = sent(service, 2)

    assert [path.partition("token=")[2] for path, _, _ in receiver.received] == [
        "foreign-1",
        "foreign-2",
    ]
    paths = ("/", "/runs/1001", "/_control/journal", "/_control/callbacks")
    shown = [service.journal.path.read_text(), *(http.get(path).text for path in paths)]
    shown += [repr(service.callbacks.all()), repr(callbacks), caplog.text]
    assert not [text for text in shown if TOKEN in text or "foreign" in text]
    assert callbacks[0].url == receiver.url.replace(TOKEN, "(withheld)")
    (run,) = service.runs
    assert run.inputs["callback_url"] == receiver.url.replace(TOKEN, "(withheld)")
    assert run.inputs["nested"] == [
        {"again": f"see {receiver.url}&x=1".replace(TOKEN, "(withheld)")}
    ]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_what_has_no_token_stays_as_it_is(value):
    if "token=" not in repr(value):
        assert withhold_tokens(value) == value


@given(st.from_regex(r"[A-Za-z0-9_-]{8,43}", fullmatch=True), st.sampled_from("?&"), st.text())
def test_a_token_is_withheld_wherever_it_is(token, sign, around):
    text = f"{around}{sign}token={token} {around}"
    withheld = withhold_tokens({"a": [text]})["a"][0]
    assert f"token={token}" not in withheld.removesuffix(around)
    assert f"{sign}token=(withheld)" in withheld


# Scripting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"status": "done"}, "status is 'done';"),
        ({"token": 5}, "token is int;"),
        *(({"wait": value}, f"wait is {value};") for value in (-1, float("inf"), True)),
        ({"attempts": 0}, "attempts is 0;"),
        ({"input": ""}, "input is '';"),
        ({"result": {1j}}, "result is {1j}; expected a JSON value"),
        ({"then": {"result": 1}}, "then is {'result': 1};"),
        ({"then": [{"token": 5}]}, "then[0].token is int;"),
        ({"status": None, "then": [{}]}, "then needs a status"),
        ({"reslt": 1}, "option 'reslt'"),
        ({"running": [{"status": 1}]}, "running[0].status is 1;"),
        ({"running": [{"message": {1j}}]}, "running[0].message is {1j}; expected a JSON value"),
    ],
)
def test_bad_options(options, message):
    callbacks = Callbacks()
    with pytest.raises(ValueError, match=re.escape(message)):
        callbacks.add(**options)
    assert callbacks.all() == []


def test_over_http(service, call, receiver):
    with ControlClient(service.url) as control:
        control.add_callback(result=[1], delay=0, times=2, inputs={"day": "x"}, token="hush")
        call.by_path({"callback_url": receiver.url, "day": "x"})
        sent(service)
        options = {"result": [1], "token": "(withheld)", "inputs": {"day": "x"}, "times": 2}
        assert control.callbacks() == [
            {"status": "success", **options, "remaining": 1, "applied": 1}
        ]
        (callback,) = control.journal()["callbacks"]
        assert (callback["status"], callback["body"]) == (200, {"status": "success", "result": [1]})
        with pytest.raises(ValueError, match="option 'kind'"):
            control.add_callback(kind="busy")
        control.clear_callbacks()
        assert control.callbacks() == []
    assert repr(Callback(result=1, times=2)) == "Callback(status='success', result=1, times=2)"


def test_the_page_of_a_run_shows_its_callbacks_also_after_a_restart(service, http, run, receiver):
    receiver.responses.append(Response("<script>", 409))
    before = run(result="<b>")
    service.stop()
    service.start()
    assert Journal(service.journal.path).callbacks() == before
    page = http.get("/runs/1001").text
    for text in ("token=(withheld)", "409 &lt;script&gt; (1 attempt)", "&lt;b&gt;"):
        assert text in page


# A flow that claims -------------------------------------------------------------------------------


@pytest.mark.parametrize("names_run", [True, False])
def test_first_step_progress_and_end(service, call, receiver, names_run):
    words = [{"progress": 0.5, "message": "Half"}, {"delay": 0.01}]
    begun = time.monotonic()
    service.callbacks.add(result=3, started=0.1, running=words, names_run=names_run)
    started = call.by_path({"callback_url": receiver.url}).json()
    sent(service, 4)
    named = {"run_id": started["run_id"]} if names_run else {}
    assert receiver.times[0] - begun >= 0.1
    assert receiver.bodies == [
        {"status": "started", **(started if names_run else {})},
        {"status": "running", "progress": 0.5, "message": "Half", **named},
        {"status": "running", **named},
        {"status": "success", "result": 3, **named},
    ]
    for _, _, body in receiver.received:
        parse(body)
    ((work,), (run,)) = service.journal.worked(), service.runs
    assert (work.run_id, work.flow_id, work.inputs) == (run.run_id, run.flow_id, run.inputs)


@pytest.mark.parametrize(
    ("obeys", "statuses", "calls", "works"),
    [
        (True, [404], 1, False),
        (True, [None, 503], 2, False),
        (True, [503, 200, 200], 5, True),
        (True, [200, 200, 404], 3, True),
        (True, [200, 200, 503, 503], 5, True),
        (False, [404, 404, 404], 4, True),
    ],
)
def test_flow_that_obeys_and_one_that_does_not(
    service, call, receiver, obeys, statuses, calls, works
):
    """It asks twice, says one word, and ends; each call has two attempts."""
    service.callbacks.add(started=0, claims=2, running=[{}], attempts=2, wait=0.01, obeys=obeys)
    receiver.responses.extend(statuses)
    call.by_path({"callback_url": receiver.url})
    wait_for(lambda: len(receiver.received) >= calls)
    service.stop()
    assert len(receiver.received) == calls
    assert len(service.journal.worked()) == works


def test_a_call_that_gets_no_response_in_time_is_sent_again(service, run, receiver, monkeypatch):
    monkeypatch.setattr(callback_sender, "_TIMEOUT", 0.2)
    receiver.responses.append(30.0)
    (step,) = run(status=None, started=0, wait=0.01)
    assert (step.attempts, step.status, step.error) == (2, 200, None)
    wait_for(service.journal.worked)


def test_request_that_a_proxy_sends_twice(service, call, receiver):
    service.callbacks.add(None, started=0)
    service.faults.add("twice")
    receiver.responses.extend([200, 409])
    started = call.by_path({"callback_url": receiver.url}).json()
    sent(service, 2)
    first, second = service.runs
    assert (started["run_id"], first.inputs) == (second.run_id, second.inputs)
    assert {body["run_id"] for body in receiver.bodies} == {first.run_id, second.run_id}
    assert len(service.journal.worked()) == 1


# Mailboxes ----------------------------------------------------------------------------------------


def test_a_run_writes_its_end_alone_to_a_file_once(service, call, tmp_path):
    path = tmp_path / "mail boxes" / "a.json"
    path.parent.mkdir()
    service.callbacks.add(
        result={"rows": 3}, then=[{"status": "failed"}], started=0, running=[{"progress": 0.5}]
    )
    call.by_path({"callback_url": path.as_uri()})
    first, second = sent(service, 2)
    assert [first.status, second.status] == [200, 412]
    assert first.attempts == second.attempts == 1
    assert parse(path.read_bytes()) == Ended("success", {"rows": 3})
    assert [*path.parent.iterdir()] == [path]


def test_a_file_that_cannot_be_written_is_in_the_journal(service, call, tmp_path):
    service.callbacks.add()
    call.by_path({"callback_url": (tmp_path / "nowhere" / "a.json").as_uri()})
    (callback,) = sent(service)
    assert (callback.status, callback.error) == (None, "FileNotFoundError")


def test_a_run_writes_its_end_to_an_object_store_once(service, call, bucket):
    from workflow_automation_provider.hooks.mailbox import Mailbox, secrets_of

    mailbox = Mailbox(bucket.url("callbacks/a.json"))
    url = mailbox.sign(timedelta(hours=1))
    service.callbacks.add(result={"url": url}, then=[{"status": "failed"}])
    call.by_path({"callback_url": url})
    first, second = sent(service, 2)
    assert [first.status, second.status] == [200, 412]
    written = mailbox.read(9999)
    assert written is not None
    assert parse(written.body) == Ended("success", {"url": url})
    (secret,) = secrets_of(url)
    assert secret not in repr([service.runs, service.journal.callbacks()])
    assert f"X-Amz-Signature={WITHHELD}" in service.runs[0].inputs["callback_url"]
