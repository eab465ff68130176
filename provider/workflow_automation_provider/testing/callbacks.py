"""
Callbacks that a test can script: what a flow does as its last step, where a task waits for it.

``callbacks.add(…)`` queues a callback; docs/testing.md has its options. A run takes the first in
the queue that matches it; without one, it never calls back. With the fixture
``workflow_automation_callback_base_url``, it then says that it failed, and the test fails.

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

_TOKEN = re.compile(r"([?&]token=)[^&#\s\"'<>]+")
_SECRET = re.compile(
    r"([?&](?:token|X-Amz-Signature|X-Amz-Security-Token)=)[^&#\s\"'<>]+", re.IGNORECASE
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

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # how pydantic is told

    status: Literal["success", "failed"]
    result: _Result
    message: str | None
    body: _Json
    delay: Seconds
    token: str | None


class Word(TypedDict, total=False):
    """What a run says on its way, and how long after the previous call."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # how pydantic is told

    progress: _Json
    message: _Json
    delay: Seconds


@dataclass(frozen=True, repr=False)
class Callback:
    """
    What a run sends to the URL in its inputs; docs/testing.md has a table of the options.

    :raises ValueError: if a value is invalid
    """

    status: Literal["success", "failed"] | None = "success"
    result: _Result = None
    message: str | None = None
    delay: Seconds = 0.0
    then: Sequence[FurtherCall] = ()
    started: Seconds | None = None
    claims: Count = 1
    running: Sequence[Word] = ()
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
        return f"Callback({', '.join(f'{name}={value!r}' for name, value in self.shown().items())})"

    def shown(self) -> dict[str, Any]:
        """Return the options that are set, without tokens."""
        shown = {
            option.name: getattr(self, option.name)
            for option in fields(self)
            if option.name == "status" or getattr(self, option.name) != option.default
        }
        if callable(self.result):
            shown["result"] = "(a function)"
        if self.token is not None:
            shown["token"] = WITHHELD
        if self.then:
            shown["then"] = [
                call | ({"token": WITHHELD} if "token" in call else {}) for call in self.then
            ]
        return shown

    def first_steps(self, run: Run, run_link: str) -> list[dict[str, Any]]:
        """Return the calls of one run that claim, in order; none if the flow has no such step."""
        if self.started is None:
            return []
        named = {"run_id": run.run_id, "run_link": run_link} if self.names_run else {}
        first = {"body": {"status": "started", **named}, "delay": self.started, "token": self.token}
        return [first, *[{**first, "delay": 0}] * (self.claims - 1)]

    def words(self, run: Run) -> list[dict[str, Any]]:
        """Return the calls of one run that say how far it is, in order."""
        words = [{"status": "running", **word, **self._named(run)} for word in self.running]
        return [
            {"delay": word.pop("delay", 0), "body": word, "token": self.token} for word in words
        ]

    def ends(self) -> list[dict[str, Any]]:
        """Return the calls of one run that say how it ended, in order."""
        if self.status is None:
            return []
        names = ("status", "result", "message", "body", "delay", "token")
        first = {name: getattr(self, name) for name in names}
        # A further call with an answer of its own does not repeat the body of the first.
        bodies = [{} if call.keys() <= {"delay", "token"} else {"body": None} for call in self.then]
        return [
            first,
            *({**first, **body, **call} for body, call in zip(bodies, self.then, strict=True)),
        ]

    def _named(self, run: Run) -> dict[str, Any]:
        return {"run_id": run.run_id} if self.started is not None and self.names_run else {}

    def body_of(self, call: dict[str, Any], run: Run) -> Any:
        """
        Return what a run sends.

        :return: a string, to be sent as it is, or any other JSON value
        :raises Exception: if ``result`` is a function that raises it
        """
        if call["body"] is not None:
            return call["body"]
        result = call["result"](run) if callable(call["result"]) else call["result"]
        answer = {
            "status": call["status"],
            "result": result,
            "message": call["message"],
            **self._named(run),
        }
        return {name: value for name, value in answer.items() if value is not None}

    def url_in(self, inputs: Any) -> str | None:
        """
        Return the URL that the inputs of a run hold for this callback.

        ``None`` if they hold none.
        """
        return url_of(inputs, self.input)

    def matches(self, flow_id: str, inputs: dict[str, Any]) -> bool:
        """Return whether a run calls back like this."""
        return (
            (self.flow_id is None or self.flow_id == flow_id)
            and (self.inputs is None or includes(inputs, self.inputs))
            and self.url_in(inputs) is not None
        )


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
        """
        Return the callback in the form of ``/_control/callbacks``.

        Without the options that are not set.
        """
        shown = {**self.callback.shown(), "times": self.callback.times}
        return {**shown, "remaining": self.remaining, "applied": self.applied}


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


def url_of(inputs: Any, name: str) -> str | None:
    """Return the URL in an input of a run, ``None`` if it holds none."""
    url = inputs.get(name) if isinstance(inputs, dict) else None
    return url if isinstance(url, str) and (is_url(url) or is_file(url)) else None


def is_file(url: str) -> bool:
    """Return whether a URL is that of a mailbox in a local folder."""
    return url.startswith("file:///")


def is_presigned(url: str) -> bool:
    """Return whether a URL is that of a mailbox in an object store."""
    return "X-Amz-Signature=" in url


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
