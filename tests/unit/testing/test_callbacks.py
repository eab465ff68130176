"""What the local service sends to the URL in a run's inputs, and what it shows of it."""

from __future__ import annotations

import contextlib
import http.server
import json
import logging
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.execution.callback import MAX_BODY, Ended, read
from workflow_automation_provider.testing import Callback, Callbacks, Journal, LocalService
from workflow_automation_provider.testing.callbacks import withhold_tokens
from workflow_automation_provider.testing.control_client import ControlClient

from .conftest import wait_for

TOKEN = "hush-Zm9vYmFy_-1"


class Receiver:
    """Whoever waits for a callback: keeps what arrives, and responds as a test says."""

    def __init__(self):
        self.received: list[tuple[str, Any, bytes]] = []
        self.responses: deque[tuple[int, dict[str, str], bytes] | Callable[[], object] | None] = deque()
        self.times: list[float] = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                receiver.times.append(time.monotonic())
                receiver.received.append((self.path, self.headers, body))
                response = receiver.responses.popleft() if receiver.responses else (200, {}, b"{}")
                if response is None or callable(response):
                    if response:
                        response()  # for as long as it says nothing
                    self.close_connection = True
                    return
                status, headers, content = response
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST  # noqa: N815

            def log_message(self, *arguments):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/workflow-automation/callback?token={TOKEN}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def bodies(self):
        return [json.loads(body) for _, _, body in self.received]

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.stop()


def sent(service, count=1):
    """Return what the journal has of the calls, once there are as many."""
    wait_for(lambda: len(service.journal.callbacks()) >= count)
    return service.journal.callbacks()


@pytest.fixture
def run(service, call, receiver):
    """Start a run that calls back as scripted; return what the journal has of its calls, once there are as many."""

    def start(count=1, *, inputs=None, **scripted):
        service.callbacks.add(**scripted)
        call.by_path({"callback_url": receiver.url, **(inputs or {})})
        return sent(service, count)

    return start


# What is sent -------------------------------------------------------------------------------------------


def test_a_run_calls_back_as_a_flow_would(service, call, receiver):
    service.callbacks.add(result={"rows": 3}, message="Done")
    started = call.by_key({"callback_url": receiver.url, "day": "2026-01-31"}).json()
    (callback,) = sent(service)

    ((path, headers, body),) = receiver.received
    assert path == f"/workflow-automation/callback?token={TOKEN}"
    assert headers["Content-Type"] == "application/json"
    assert read(body) == Ended("success", {"rows": 3}, "Done")
    assert callback.run_id == started["run_id"]
    assert callback.flow_id == "demo-flow"
    assert callback.body == {"status": "success", "result": {"rows": 3}, "message": "Done"}
    assert (callback.status, callback.response, callback.error, callback.attempts) == (200, "{}", None, 1)


def test_a_run_that_failed(run, receiver):
    run(status="failed", message="No rows")
    ((_, _, body),) = receiver.received
    assert read(body) == Ended("failed", None, "No rows")
    assert json.loads(body) == {"status": "failed", "message": "No rows"}


def test_result_from_the_run(run, receiver):
    run(result=lambda run: {"run": run.run_id, "day": run.inputs["day"]}, inputs={"day": "monday"})
    assert receiver.bodies == [{"status": "success", "result": {"run": "1001", "day": "monday"}}]


def test_result_that_raises_is_in_the_journal(run, receiver):
    (callback,) = run(result=lambda run: run.inputs["nothing"])
    assert (callback.error, callback.attempts) == ("result: KeyError: 'nothing'", 0)
    assert receiver.received == []


def test_no_run_calls_back_by_default(service, call, receiver):
    call.by_path({"callback_url": receiver.url})
    service.callbacks.add(None, flow_id="silent-flow")
    service.callbacks.add(times=1)
    call.by_path({"callback_url": receiver.url}, flow_id="silent-flow")
    call.by_path({"callback_url": receiver.url}, flow_id="other-flow")
    assert [callback.run_id for callback in sent(service)] == ["1003"]
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    "inputs",
    [{}, {"callback_url": None}, {"callback_url": "ftp://127.0.0.1/"}, {"callback_url": "http://["}],
    ids=["none", "null", "ftp", "no URL"],
)
def test_a_run_without_a_url_takes_no_callback(service, call, receiver, inputs):
    scripted = service.callbacks.add(times=1)
    assert call.by_path(inputs).status_code == 201
    assert scripted.remaining == 1


def test_the_name_of_the_input(run, receiver):
    run(input="tell", inputs={"tell": receiver.url, "callback_url": "http://127.0.0.1:1/"})
    assert len(receiver.received) == 1


def test_each_run_has_the_first_callback_that_matches(service, call, receiver):
    service.callbacks.add(result="first", times=1)
    service.callbacks.add(result="ada", inputs={"customer": {"name": "Ada"}})
    service.callbacks.add(result="others")
    for name in ("Ada", "Ada", "Grace"):
        call.by_path({"callback_url": receiver.url, "customer": {"name": name, "id": 1}})
    sent(service, 3)
    assert sorted(body["result"] for body in receiver.bodies) == ["ada", "first", "others"]
    assert [scripted.applied for scripted in service.callbacks.all()] == [1, 1, 1]


def test_delay(run, receiver):
    started = time.monotonic()
    run(delay=0.3)
    assert receiver.times[0] - started >= 0.3


def test_twice(run, receiver):
    receiver.responses.extend([(200, {}, b"{}"), (200, {}, b"{}"), (409, {}, b'{"detail": "answered"}')])
    callbacks = run(4, result=1, then=[{}, {"result": 2, "delay": 0.05}, {"status": "failed"}])
    assert [body["result"] for body in receiver.bodies] == [1, 1, 2, 1]
    assert [body["status"] for body in receiver.bodies] == ["success"] * 3 + ["failed"]
    assert [callback.status for callback in callbacks] == [200, 200, 409, 200]
    assert callbacks[2].response == '{"detail": "answered"}'
    assert receiver.times[2] - receiver.times[1] >= 0.05


@pytest.mark.parametrize(
    ("body", "arrives"),
    [("<html>", b"<html>"), ([1], b"[1]"), ("\ud800", b"\xed\xa0\x80"), (False, b"false")],
)
def test_any_body(run, receiver, body, arrives):
    wrong, right = run(2, body=body, then=[{"result": "right"}])
    assert receiver.received[0][2] == arrives
    assert wrong.body == body
    assert right.body == {"status": "success", "result": "right"}


def test_a_body_that_is_too_large_is_summarized(run, receiver):
    (callback,) = run(result="x" * MAX_BODY)
    assert len(receiver.received[0][2]) > MAX_BODY
    assert callback.body["result"]["long_string"]["length"] == MAX_BODY


# Retries ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_it_is_sent_again_where_that_can_help(run, receiver, status):
    receiver.responses.extend([(status, {}, b""), None])
    (callback,) = run(wait=0.01)
    assert (callback.attempts, callback.status, callback.error) == (3, 200, None)
    assert len({body for _, _, body in receiver.received}) == 1


def test_it_waits_longer_each_time_and_as_the_response_says(run, receiver):
    receiver.responses.extend([(503, {}, b""), (503, {}, b""), (503, {"Retry-After": "1"}, b"")])
    run(wait=0.1)
    first, second, third = (b - a for a, b in zip(receiver.times, receiver.times[1:], strict=False))
    assert 0.1 <= first < second
    assert second >= 0.2
    assert third >= 1


def test_it_is_given_up(run, receiver):
    receiver.responses.extend([(500, {}, b"broken")] * 3)
    (callback,) = run(attempts=2, wait=0)
    assert (callback.attempts, callback.status, callback.response) == (2, 500, "broken")
    assert len(receiver.received) == 2


@pytest.mark.parametrize("status", [400, 404, 409, 413, 501, 302])
def test_what_cannot_help_is_not_sent_again(run, receiver, status):
    receiver.responses.append((status, {"Location": receiver.url}, b""))
    (callback,) = run(wait=0)
    assert (callback.attempts, callback.status) == (1, status)
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    ("base", "attempts", "error"),
    [("http://127.0.0.1:1", 2, "ConnectError"), ("http://a\tb", 1, "InvalidURL")],
)
def test_nobody_is_there(run, base, attempts, error):
    """A URL that no client can use is tried once."""
    (callback,) = run(attempts=2, wait=0, inputs={"callback_url": f"{base}/?token={TOKEN}"})
    assert (callback.attempts, callback.status, callback.error) == (attempts, None, error)


def test_over_tls(run, serve, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "authority.pem"))
    other, _ = serve(certfile=str(certificate / "cert.pem"), keyfile=str(certificate / "key.pem"))
    (callback,) = run(attempts=1, inputs={"callback_url": f"{other.url}/api/flows/f/trigger"})
    assert (callback.status, callback.error) == (400, None)


def test_stopping_ends_what_is_still_to_be_sent(service, call, receiver):
    service.callbacks.add(delay=60, times=1)
    service.callbacks.add(wait=60)
    receiver.responses.append((500, {}, b""))
    for _ in range(2):
        call.by_path({"callback_url": receiver.url})
    wait_for(lambda: receiver.received)
    began = time.monotonic()
    service.stop()
    assert time.monotonic() - began < 30
    found = {callback.run_id: (callback.attempts, callback.error) for callback in service.journal.callbacks()}
    assert found == {"1001": (0, "the service was stopped"), "1002": (1, "the service was stopped")}


def test_stopping_ends_a_call_that_hangs(service, call):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        service.callbacks.add()
        call.by_path({"callback_url": f"http://127.0.0.1:{silent.getsockname()[1]}/"})
        silent.settimeout(10)
        with contextlib.closing(silent.accept()[0]):
            began = time.monotonic()
            service.stop()
            assert time.monotonic() - began < 30
    (callback,) = service.journal.callbacks()
    assert (callback.attempts, callback.status, callback.error) == (1, None, "the service was stopped")


def test_a_run_behind_a_fault_calls_back(service, run):
    service.faults.add("status_after")
    assert run()[0].status == 200
    assert service.journal.requests()[0].status == 500


# The token ----------------------------------------------------------------------------------------------


def test_the_token_is_nowhere(service, call, http, receiver, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG, logger="")
    # As another server in the process may have set it.
    monkeypatch.setattr(logging.getLogger("uvicorn.access"), "propagate", True)
    service.callbacks.add(
        result=lambda run: run.inputs, token="foreign-1", then=[{"token": "foreign-2"}], attempts=1
    )
    receiver.responses.append((400, {}, f"token={TOKEN} foreign-1".encode()))
    call.by_path({"callback_url": receiver.url, "nested": [{"again": f"see {receiver.url}&x=1"}]})
    callbacks = sent(service, 2)

    assert [path.partition("token=")[2] for path, _, _ in receiver.received] == ["foreign-1", "foreign-2"]
    shown = (
        service.journal.path.read_text(),
        http.get("/").text,
        http.get("/runs/1001").text,
        http.get("/_control/journal").text,
        http.get("/_control/callbacks").text,
        repr(service.callbacks.all()),
        repr(callbacks),
        caplog.text,
    )
    for text in shown:
        assert TOKEN not in text
        assert "foreign" not in text
    assert callbacks[0].url == receiver.url.replace(TOKEN, "(withheld)")
    (run,) = service.runs
    assert run.inputs["callback_url"] == receiver.url.replace(TOKEN, "(withheld)")
    assert run.inputs["nested"] == [{"again": f"see {receiver.url}&x=1".replace(TOKEN, "(withheld)")}]


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


# Scripting ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"status": "done"}, "status is 'done';"),
        ({"message": 5}, "message is 5;"),
        ({"token": 5}, "token is int;"),
        ({"delay": -1}, "delay is -1;"),
        ({"wait": float("inf")}, "wait is inf;"),
        ({"attempts": 0}, "attempts is 0;"),
        ({"times": True}, "times is True;"),
        ({"flow_id": 5}, "flow_id is 5;"),
        ({"inputs": "x"}, "inputs is 'x';"),
        ({"input": ""}, "input is '';"),
        ({"result": {1j}}, "result is {1j}; expected a JSON value"),
        ({"body": object}, "body is <class 'object'>; expected a JSON value"),
        ({"then": {"result": 1}}, "then is {'result': 1};"),
        ({"then": ["x"]}, "then[0] is 'x';"),
        ({"then": [{"times": 1}]}, "then[0].times is 1;"),
        ({"then": [{"status": None}]}, "then[0].status is None;"),
        ({"then": [{"delay": "x"}]}, "then[0].delay is 'x';"),
        ({"then": [{"token": 5}]}, "then[0].token is int;"),
        ({"status": None, "then": [{}]}, "then needs a status"),
        ({"reslt": 1}, "option 'reslt'"),
        ({"started": -1}, "started is -1;"),
        ({"started": True}, "started is True;"),
        ({"claims": 0}, "claims is 0;"),
        ({"obeys": 1}, "obeys is 1;"),
        ({"names_run": None}, "names_run is None;"),
        ({"running": {}}, "running is {};"),
        ({"running": [1]}, "running[0] is 1;"),
        ({"running": [{"status": 1}]}, "running[0].status is 1;"),
        ({"running": [{"delay": -1}]}, "running[0].delay is -1;"),
        ({"running": [{"message": {1j}}]}, "running[0].message is {1j}; expected a JSON value"),
    ],
)
def test_bad_options(options, message):
    callbacks = Callbacks()
    with pytest.raises(ValueError, match=re.escape(message)):
        callbacks.add(**options)
    assert callbacks.all() == []


def test_repr_has_what_was_given():
    assert repr(Callback(result=1, times=2)) == "Callback(status='success', result=1, times=2)"


def test_over_http(service, call, receiver):
    with ControlClient(service.url) as control:
        added = control.add_callback(result=[1], delay=0, times=2, inputs={"day": "x"}, token="hush")
        assert added == {
            "status": "success",
            "result": [1],
            "token": "(withheld)",
            "inputs": {"day": "x"},
            "times": 2,
            "remaining": 2,
            "applied": 0,
        }
        call.by_path({"callback_url": receiver.url, "day": "x"})
        sent(service)
        (listed,) = control.callbacks()
        assert (listed["remaining"], listed["applied"]) == (1, 1)
        (callback,) = control.journal()["callbacks"]
        assert callback["status"] == 200
        assert callback["body"] == {"status": "success", "result": [1]}
        with pytest.raises(ValueError, match="option 'kind'"):
            control.add_callback(kind="busy")
        control.clear_callbacks()
        assert control.callbacks() == []


@pytest.mark.parametrize("body", [b"[]", b"{"])
def test_over_http_only_objects(http, body):
    response = http.post("/_control/callbacks", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert http.post("/_control/callbacks", content=b"{}").status_code == 415


def test_the_page_of_a_run_shows_its_callbacks_also_after_a_restart(service, http, call, run, receiver):
    receiver.responses.append((409, {}, b"<script>"))
    before = run(result="<b>")
    call.by_path()
    service.stop()
    service.start()
    assert Journal(service.journal.path).callbacks() == before
    page = http.get("/runs/1001").text
    assert "token=(withheld)" in page
    assert "409 &lt;script&gt; (1 attempt)" in page
    assert "&lt;b&gt;" in page
    assert "Callbacks" not in http.get("/runs/1002").text


def test_what_is_scripted_survives_a_restart(receiver, tmp_path):
    service = LocalService(journal=tmp_path / "journal")
    service.callbacks.add(result=1)
    with service:
        pass
    assert service.callbacks.all()[0].remaining is None


# A flow that claims -------------------------------------------------------------------------------------


def test_first_step_words_and_end(service, call, receiver):
    words = [{"progress": 0.5, "message": "Half"}, {"delay": 0.01}]
    service.callbacks.add(result=3, started=0.01, running=words)
    started = call.by_path({"callback_url": receiver.url, "day": "monday"}).json()
    sent(service, 4)
    named = {"run_id": started["run_id"]}
    assert receiver.bodies == [
        {"status": "started", **started},
        {"status": "running", "progress": 0.5, "message": "Half", **named},
        {"status": "running", **named},
        {"status": "success", "result": 3, **named},
    ]
    for _, _, body in receiver.received:
        read(body)
    (work,) = service.journal.worked()
    (run,) = service.runs
    assert (work.run_id, work.flow_id, work.inputs) == (run.run_id, run.flow_id, run.inputs)
    assert TOKEN not in service.journal.path.read_text()


def test_late_first_step_that_does_not_name_its_run(run, receiver):
    begun = time.monotonic()
    run(2, started=0.3, names_run=False)
    assert receiver.times[0] - begun >= 0.3
    assert receiver.bodies == [{"status": "started"}, {"status": "success"}]


@pytest.mark.parametrize(
    ("statuses", "calls", "works"),
    [
        ([404], 1, False),
        ([409], 1, False),
        ([200, 404], 2, False),
        ([503, 503], 2, False),
        ([None, 503], 2, False),
        ([503, 200, 200], 5, True),
        ([200, 200, 404], 3, True),
        ([200, 200, 409], 3, True),
        ([200, 200, 503, 503], 5, True),
    ],
)
def test_flow_that_obeys(service, call, receiver, statuses, calls, works):
    service.callbacks.add(started=0, claims=2, running=[{}], attempts=2, wait=0.01)
    receiver.responses.extend(status and (status, {}, b"{}") for status in statuses)
    call.by_path({"callback_url": receiver.url})
    wait_for(lambda: len(receiver.received) >= calls)
    service.stop()
    assert len(receiver.received) == calls
    assert len(service.journal.worked()) == works


def test_flow_that_does_not_obey(service, run, receiver):
    receiver.responses.extend([(409, {}, b"{}")] * 2)
    callbacks = run(3, started=0, running=[{}], obeys=False)
    assert [callback.status for callback in callbacks] == [409, 409, 200]
    assert len(service.journal.worked()) == 1


def test_flow_that_claims_and_never_ends(service, call, receiver):
    service.callbacks.add(None, started=0)
    call.by_path({"callback_url": receiver.url})
    wait_for(service.journal.worked)
    assert receiver.bodies[0]["status"] == "started"


def test_request_that_a_proxy_sends_twice(service, call, receiver):
    service.callbacks.add(None, started=0)
    service.faults.add("twice")
    receiver.responses.extend([(200, {}, b"{}"), (409, {}, b"{}")])
    started = call.by_path({"callback_url": receiver.url}).json()
    sent(service, 2)
    first, second = service.runs
    assert (started["run_id"], first.inputs) == (second.run_id, second.inputs)
    assert {body["run_id"] for body in receiver.bodies} == {first.run_id, second.run_id}
    assert len(service.journal.worked()) == 1
