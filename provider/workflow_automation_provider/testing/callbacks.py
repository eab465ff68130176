"""
Callbacks that a test can script: what a flow does as its last step, where a task waits for it.

``callbacks.add(…)`` queues a callback. A run whose inputs hold a URL then sends ``POST`` to that URL:

.. code-block:: json

    {"status": "success", "result": {"rows": 3}, "message": "…"}

With ``started``, the flow has a first step that claims the start of the task, before it does anything; with
``running``, it says how far it is before its end:

.. code-block:: json

    {"status": "started", "run_id": "1001", "run_link": "http://…"}
    {"status": "running", "progress": 0.5, "message": "…", "run_id": "1001"}

A run whose first step gets 200 works: :meth:`.Journal.worked` has it. One that gets 404 or 409, or nothing else for
all its attempts, stops there, and one that gets 404 or 409 later stops then.

The first callback in the queue that matches a run is that run's; a run that none matches never calls back. With the
fixture ``workflow_automation_callback_base_url``, it says that it failed, and so does the test.

==============  ================  ============================================================================
Option          Default           Meaning
==============  ================  ============================================================================
``status``      ``"success"``     ``"success"`` or ``"failed"``; ``None`` for a run that never calls back
``result``      none              any JSON value, or a function that is called with the :class:`~.journal.Run`
                                  and returns one
``message``     none              text
``started``     none              seconds from the start of the run to its first step; none for a flow without one
``claims``      1                 how often the first step calls, even after 200
``running``     none              a list of objects with ``progress``, ``message`` or ``delay``, one for each word
``obeys``       yes               ``False`` for a flow that works on, whatever its calls get
``names_run``   yes               with ``started``: whether its calls say the ``run_id``, and the first the ``run_link``
``delay``       0                 seconds from the start of the run to the call; with ``started``, from the call before
``then``        none              further calls of the same run, one after the other: a list of objects with
                                  ``status``, ``result``, ``message``, ``delay``, ``body`` or ``token``. What an
                                  object leaves out is as in the first call
``body``        none              the body instead of the three above: a string, sent as it is, or any JSON value
``token``       none              a value for the URL's query parameter ``token`` instead of its own
``attempts``    4                 how often to send it: again without a response, and on 408, 429 and 5xx but 501
``wait``        1                 seconds before the second attempt, doubled for each one after it; longer where
                                  the response has a ``Retry-After`` in seconds
``input``       ``callback_url``  the name of the input that holds the URL; a run matches only if it is an http(s)
                                  URL
``flow_id``     all               matches this flow
``inputs``      all               matches inputs that include these (also nested)
``times``       all               the number of runs it applies to
==============  ================  ============================================================================

Whoever has the URL can report the result in the flow's place, so the value of a query parameter ``token`` is withheld wherever the
service shows a URL: in the journal, on its pages, in a ``repr()``.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from workflow_automation_provider.testing.matching import check_matching, check_number, includes

if TYPE_CHECKING:
    from workflow_automation_provider.testing.journal import Run

__all__ = ["WITHHELD", "Callback", "Callbacks", "ScriptedCallback", "withhold_tokens"]

WITHHELD = "(withheld)"
"""What is shown instead of a token."""

_STATUSES = ("success", "failed")
_ANSWER = ("status", "result", "message", "body")
_OF_EACH_CALL = (*_ANSWER, "delay", "token")
_OF_EACH_WORD = ("progress", "message", "delay")
_TOKEN = re.compile(r"([?&]token=)[^&#\s\"'<>]+")


@dataclass(frozen=True, repr=False)
class Callback:
    """
    What a run sends to the URL in its inputs; the table at the top of this module has the options.

    :raises ValueError: if a value is invalid
    """

    status: Literal["success", "failed"] | None = "success"
    result: Any = None
    message: str | None = None
    delay: float = 0.0
    then: Sequence[dict[str, Any]] = ()
    started: float | None = None
    claims: int = 1
    running: Sequence[dict[str, Any]] = ()
    obeys: bool = True
    names_run: bool = True
    body: Any = None
    token: str | None = None
    attempts: int = 4
    wait: float = 1.0
    input: str = "callback_url"
    flow_id: str | None = None
    inputs: dict[str, Any] | None = None
    times: int | None = None

    def __post_init__(self) -> None:
        if self.status is not None and self.status not in _STATUSES:
            raise ValueError(f"status {self.status!r} is not supported; expected 'success', 'failed' or None")
        _check_text("message", self.message)
        _check_text("token", self.token)
        if not (isinstance(self.input, str) and self.input):
            raise ValueError(f"input is {self.input!r}; expected the name of an input")
        _check_json("body", self.body)
        if not callable(self.result):
            _check_json("result", self.result)
        for name in ("delay", "wait"):
            check_number(name, getattr(self, name), whole=False)
        for name in ("attempts", "claims"):
            check_number(name, getattr(self, name), 1)
        check_matching(self.flow_id, self.inputs, self.times)
        self._check_first_steps()
        self._check_then()

    def _check_first_steps(self) -> None:
        for name in ("obeys", "names_run"):
            if not isinstance(value := getattr(self, name), bool):
                raise ValueError(f"{name} is {value!r}; expected True or False")
        if self.started is not None:
            check_number("started", self.started, whole=False)
        _check_list("running", self.running, "word", _OF_EACH_WORD)
        for number, word in enumerate(self.running):
            check_number(f"delay of running[{number}]", word.get("delay", 0), whole=False)
            _check_json(f"running[{number}]", word)

    def _check_then(self) -> None:
        _check_list("then", self.then, "further call", _OF_EACH_CALL)
        for number, options in enumerate(self.then):
            if options.get("status", self.status) is None:
                raise ValueError(f"then[{number}] needs a status, 'success' or 'failed'")
        if self.then:
            # The values are validated as each call is made.
            _ = self.calls

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
                {name: WITHHELD if name == "token" else value for name, value in options.items()}
                for options in self.then
            ]
        return shown

    def first_steps(self, run: Run, run_link: str) -> list[Callback]:
        """Return the calls of one run that claim, in order; none if the flow has no such step."""
        if self.started is None:
            return []
        named = {"run_id": run.run_id, "run_link": run_link} if self.names_run else {}
        call = replace(self, then=(), body={"status": "started", **named}, delay=self.started)
        return [call, *[replace(call, delay=0)] * (self.claims - 1)]

    def words(self, run: Run) -> list[Callback]:
        """Return the calls of one run that say how far it is, in order."""
        named = {"run_id": run.run_id} if self._names else {}
        return [
            replace(
                self,
                then=(),
                body={
                    "status": "running",
                    **{name: value for name, value in word.items() if name != "delay"},
                    **named,
                },
                delay=word.get("delay", 0),
            )
            for word in self.running
        ]

    @property
    def _names(self) -> bool:
        return self.started is not None and self.names_run

    @property
    def calls(self) -> list[Callback]:
        """The calls of one run that say how it ended, in order, each without those that follow it."""
        if self.status is None:
            return []
        first = replace(self, then=())
        # An answer replaces the body that the first call has instead of one.
        without_body = replace(first, body=None)
        return [
            first,
            *(
                replace(without_body if options.keys() & {*_ANSWER} else first, **options)
                for options in self.then
            ),
        ]

    def url_in(self, inputs: Any) -> str | None:
        """Return the URL that the inputs of a run hold for this callback, ``None`` if they hold none."""
        url = inputs.get(self.input) if isinstance(inputs, dict) else None
        if not isinstance(url, str):
            return None
        try:
            parts = urlsplit(url)
        except ValueError:
            return None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return None
        return url if self.token is None else _TOKEN.sub(lambda match: f"{match[1]}{self.token}", url)

    def body_of(self, run: Run) -> Any:
        """
        Return what a run sends.

        :return: a string, to be sent as it is, or any other JSON value
        :raises Exception: if ``result`` is a function that raises it
        """
        if self.body is not None:
            return self.body
        result = self.result(run) if callable(self.result) else self.result
        run_id = run.run_id if self._names else None
        answer = {"status": self.status, "result": result, "message": self.message, "run_id": run_id}
        return {name: value for name, value in answer.items() if value is not None}

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
        """Return the callback in the form of ``/_control/callbacks``, without the options that are not set."""
        shown = {**self.callback.shown(), "times": self.callback.times}
        return {**shown, "remaining": self.remaining, "applied": self.applied}


class Callbacks:
    """The callbacks of a service, in order; safe to use from several threads."""

    def __init__(self) -> None:
        self._queue: list[ScriptedCallback] = []
        self._lock = threading.Lock()
        # Set by the fixture that serves this endpoint, where a run that never calls back would keep a test waiting.
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
        :param options: the other options of the table at the top of :mod:`.callbacks`
        :raises ValueError: if an option is unknown or a value is invalid
        """
        known = [option.name for option in fields(Callback)]
        for name in options:
            if name not in known:
                raise ValueError(f"A callback has no option {name!r}; expected one of {', '.join(known)}")
        callback = Callback(status, result, message, **options)
        scripted = ScriptedCallback(callback, callback.times)
        with self._lock:
            self._queue.append(scripted)
        return scripted

    def all(self) -> list[ScriptedCallback]:
        """Return all callbacks since the last :meth:`clear`, including those that are used up."""
        with self._lock:
            return list(self._queue)

    def clear(self) -> None:
        """Remove all callbacks; runs that were started before still call back."""
        with self._lock:
            self._queue.clear()

    def take(self, flow_id: str, inputs: dict[str, Any]) -> Callback | None:
        """Return the callback of a new run, and count it."""
        with self._lock:
            for scripted in self._queue:
                if scripted.remaining != 0 and scripted.callback.matches(flow_id, inputs):
                    scripted.applied += 1
                    if scripted.remaining is not None:
                        scripted.remaining -= 1
                    return scripted.callback
        return None


def withhold_tokens(value: Any) -> Any:
    """Return a JSON value without the values of query parameters named ``token``."""
    if isinstance(value, str):
        return _TOKEN.sub(rf"\1{WITHHELD}", value)
    if isinstance(value, list):
        return [withhold_tokens(element) for element in value]
    if isinstance(value, dict):
        return {withhold_tokens(name): withhold_tokens(element) for name, element in value.items()}
    return value


def _check_list(name: str, value: object, what: str, known: Sequence[str]) -> None:
    if isinstance(value, str | dict) or not isinstance(value, Sequence):
        raise ValueError(f"{name} is {value!r}; expected a list of objects, one for each {what}")
    for number, options in enumerate(value):
        if not isinstance(options, dict):
            raise ValueError(f"{name}[{number}] is {options!r}; expected an object of options")
        for option in options:
            if option not in known:
                raise ValueError(
                    f"{name}[{number}] has the option {option!r}, which is not supported; "
                    f"expected one of {', '.join(known)}"
                )


def _check_text(name: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is {type(value).__name__}; expected text")


def _check_json(name: str, value: object) -> None:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not a JSON value: {error}") from None
