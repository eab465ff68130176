"""
Callbacks that a test can script: what a flow does as its last step, where a task waits for it.

``callbacks.add(…)`` queues a callback; its class has the options. A run takes the first in
the queue that matches it; without one, it never calls back. With the fixture
``workflow_automation_callback_base_url``, it then reports that it failed, and the test fails.

With ``started``, a run works once its first step gets 200: :meth:`.Journal.worked` has it. It stops
at a 404, or if all attempts of its first step fail.

A run whose URL is that of a mailbox writes to it in place of a call: by PUT to an object store, or
to a file.

Whoever has the URL can report the result in the flow's place, so the value of a query parameter
``token``, and the signature of a mailbox's URL, is withheld wherever the service shows a URL: in
the journal, on its pages, in a ``repr()``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator, ConfigDict
from typing_extensions import TypedDict

from workflow_automation_provider.testing.scripted import (
    Count,
    Queue,
    Seconds,
    Text,
    check_names,
    check_types,
    includes,
    is_url,
)

if TYPE_CHECKING:
    from workflow_automation_provider.testing.journal import Run

WITHHELD = "(withheld)"
"""What is shown instead of a token."""

CONDITIONS = {
    "X-Amz-Signature": {"If-None-Match": "*"},
    "X-Goog-Signature": {"x-goog-if-generation-match": "0"},
    "sig": {"x-ms-blob-type": "BlockBlob"},
}
"""The headers that a store demands, by the parameter of its URLs that has the signature."""

_TOKEN = re.compile(r"([?&]token=)[^&#\s\"'<>]+")
_SECRET = re.compile(
    rf"([?&](?:token|X-Amz-Security-Token|{'|'.join(CONDITIONS)})=)[^&#\s\"'<>]+", re.IGNORECASE
)


def _json(value: Any) -> Any:
    try:
        json.dumps(value)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"expected a JSON value: {error}") from None
    return value


def _result(value: Any) -> Any:
    return value if callable(value) else _json(value)


_Json = Annotated[Any, AfterValidator(_json)]
_Result = Annotated[Any, AfterValidator(_result)]


class FurtherCall(TypedDict, total=False):
    """A further call of the same run; what it leaves out is as in the first."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # of pydantic

    status: Literal["success", "failed"]
    result: _Result
    message: str | None
    body: _Json
    delay: Seconds
    token: str | None


class ProgressCall(TypedDict, total=False):
    """A call by which a run reports its progress, and how long after the previous call."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # of pydantic

    progress: _Json
    message: _Json
    delay: Seconds


@dataclass(frozen=True, repr=False)
class Callback:
    """
    What a run sends to the URL in its inputs.

    :param status: ``"success"`` or ``"failed"``; None for a run that never calls back
    :param result: any JSON value, or a function that is called with the :class:`Run` and returns
        one
    :param message: text
    :param delay: seconds from the start of the run to the call; with ``started``, from the call
        before
    :param then: further calls of the same run, one after the other: objects with ``status``,
        ``result``, ``message``, ``delay``, ``body`` or ``token``. What an object leaves out is as
        in the first call
    :param started: seconds from the start of the run to its first step; None for a flow without
        one. A mailbox takes the end alone
    :param claims: how often the first step calls, even after 200
    :param running: objects with ``progress``, ``message`` or ``delay``, one for each call in
        between
    :param obeys: False for a flow that works on, whatever its calls get
    :param names_run: with ``started``: whether its calls say the ``run_id``, and the first the
        ``run_link``
    :param body: the body instead of status, result and message: a string, sent as it is, or any
        JSON value
    :param token: a value for the URL's query parameter ``token`` instead of its own
    :param attempts: how often to send it: again without a response, and on 408, 429 and 5xx but 501
    :param wait: seconds before the second attempt, doubled for each one after it; longer where the
        response has a ``Retry-After`` in seconds
    :param input: the name of the input that holds the URL; a run matches only if it is an http(s)
        URL, or the ``file://`` URL of a mailbox
    :param flow_id: matches this flow, by default all
    :param inputs: matches inputs that include these (also nested), by default all
    :param times: the number of runs it applies to, by default all
    :raises ValueError: if a value is invalid
    """

    status: Literal["success", "failed"] | None = "success"
    result: _Result = None
    message: str | None = None
    delay: Seconds = 0.0
    then: Sequence[FurtherCall] = ()
    started: Seconds | None = None
    claims: Count = 1
    running: Sequence[ProgressCall] = ()
    obeys: bool = True
    names_run: bool = True
    body: _Json = None
    token: str | None = None
    attempts: Count = 4
    wait: Seconds = 1.0
    input: Text = "callback_url"
    flow_id: str | None = None
    inputs: dict[str, Any] | None = None
    times: Count | None = None

    def __post_init__(self) -> None:
        check_types(Callback, vars(self), secret={"token"})
        if self.status is None and self.then:
            raise ValueError("then needs a status: without one, the run never calls back")

    def __repr__(self) -> str:
        options = [f"{name}={value!r}" for name, value in self.shown().items()]
        return f"Callback({', '.join(options)})"

    def shown(self) -> dict[str, Any]:
        """Return the options that are set, without tokens."""
        shown = {}
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name == "status" or value != option.default:
                shown[option.name] = value

        if callable(self.result):
            shown["result"] = "(a function)"
        if self.token is not None:
            shown["token"] = WITHHELD
        if self.then:
            shown["then"] = [_without_token(call) for call in self.then]

        return shown

    def first_steps(self, run: Run, run_link: str) -> list[dict[str, Any]]:
        """Return the calls of one run that claim, in order; none if the flow has no such step."""
        if self.started is None:
            return []
        body = {"status": "started"}
        if self.names_run:
            body |= {"run_id": run.run_id, "run_link": run_link}

        first = {"body": body, "delay": self.started, "token": self.token}
        again = {**first, "delay": 0}
        return [first] + [again] * (self.claims - 1)

    def progress_calls(self, run: Run) -> list[dict[str, Any]]:
        """Return the calls of one run that report its progress, in order."""
        calls = []
        for call in self.running:
            body = {"status": "running", **call, **self._named(run)}
            delay = body.pop("delay", 0)
            calls.append({"delay": delay, "body": body, "token": self.token})
        return calls

    def ends(self) -> list[dict[str, Any]]:
        """Return the calls of one run that report its end, in order."""
        if self.status is None:
            return []

        names = ("status", "result", "message", "body", "delay", "token")
        first = {name: getattr(self, name) for name in names}
        calls = [first]
        for further in self.then:
            call = first | further
            # One that reports something of its own does not repeat the body of the first.
            repeats_report = further.keys() <= {"delay", "token"}
            if not repeats_report:
                call["body"] = further.get("body")
            calls.append(call)

        return calls

    def _named(self, run: Run) -> dict[str, Any]:
        if self.started is None or not self.names_run:
            return {}
        return {"run_id": run.run_id}

    def body_of(self, call: dict[str, Any], run: Run) -> Any:
        """
        Return what a run sends.

        :return: a string, to be sent as it is, or any other JSON value
        :raises Exception: if ``result`` is a function that raises it
        """
        if call["body"] is not None:
            return call["body"]

        result = call["result"]
        if callable(result):
            result = result(run)

        report = {"status": call["status"], "result": result, "message": call["message"]}
        report |= self._named(run)
        return {name: value for name, value in report.items() if value is not None}

    def url_in(self, inputs: Any) -> str | None:
        """Return the URL in the inputs of a run that this callback is sent to; else ``None``."""
        return url_of(inputs, self.input)

    def matches(self, flow_id: str, inputs: dict[str, Any]) -> bool:
        """Return whether a run calls back like this."""
        if self.flow_id not in (None, flow_id):
            return False
        if self.inputs is not None and not includes(inputs, self.inputs):
            return False
        return self.url_in(inputs) is not None


@dataclass
class ScriptedCallback:
    """
    A callback in the queue.

    :param remaining: the number of runs it will still apply to, ``None`` for all
    :param applied: the number of runs it has applied to
    """

    callback: Callback
    remaining: int | None
    applied: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the callback as ``/_control/callbacks`` does, without options that are not set."""
        shown = self.callback.shown()
        shown["times"] = self.callback.times
        shown["remaining"] = self.remaining
        shown["applied"] = self.applied
        return shown


class Callbacks(Queue[ScriptedCallback]):
    """The callbacks of a service, in order; any thread may add to them and remove them."""

    def __init__(self) -> None:
        super().__init__()
        # Set by the fixture that serves this endpoint, where a run that never calls back would keep
        # a test waiting.
        self.endpoint: str | None = None
        self.missing: list[str] = []

    def add(
        self,
        status: Literal["success", "failed"] | None = "success",
        result: Any | Callable[[Run], Any] = None,
        message: str | None = None,
        **options: Any,
    ) -> ScriptedCallback:
        """
        Queue a callback.

        :param status: ``None`` for a run that never calls back
        :param result: any JSON value, or a function that is called with the run and returns one
        :param options: the other fields of :class:`Callback`
        :raises ValueError: if an option is unknown or a value is invalid
        """
        check_names("A callback", options, [option.name for option in fields(Callback)])
        callback = Callback(status, result, message, **options)
        scripted = ScriptedCallback(callback, callback.times)
        self._queue.append(scripted)
        return scripted

    def take(self, flow_id: str, inputs: dict[str, Any]) -> Callback | None:
        """Return the callback of a new run, and count it; for the thread that serves."""
        scripted = self._first(lambda scripted: scripted.callback.matches(flow_id, inputs))
        if scripted is None:
            return None
        scripted.applied += 1
        return scripted.callback


def _without_token(call: FurtherCall) -> FurtherCall:
    if "token" not in call:
        return call
    return {**call, "token": WITHHELD}


def url_of(inputs: Any, name: str) -> str | None:
    """Return the URL in an input of a run, ``None`` if there is none."""
    if not isinstance(inputs, dict):
        return None
    url = inputs.get(name)
    if not isinstance(url, str) or not (is_url(url) or is_file(url)):
        return None
    return url


def is_file(url: str) -> bool:
    """Return whether a URL is that of a mailbox in a local folder."""
    return url.startswith("file:///")


def headers_of(url: str) -> dict[str, str] | None:
    """Return the headers that a store demands with its URL, None if the URL is not of a store."""
    query = parse_qs(urlsplit(url).query)
    return next((headers for name, headers in CONDITIONS.items() if name in query), None)


def with_token(url: str, token: str) -> str:
    """Return a URL with this value of its query parameter ``token``."""
    return _TOKEN.sub(lambda match: f"{match[1]}{token}", url)


def withhold_tokens(value: Any) -> Any:
    """Return a JSON value without the tokens and the signatures in its URLs."""
    if isinstance(value, str):
        return _SECRET.sub(lambda match: f"{match[1]}{WITHHELD}", value)
    if isinstance(value, list):
        return [withhold_tokens(element) for element in value]
    if isinstance(value, dict):
        return {withhold_tokens(name): withhold_tokens(element) for name, element in value.items()}
    return value
