"""
Faults that a test can script, one request at a time.

``faults.add(kind, …)`` queues a fault. It strikes the first request that it matches; where several faults
match, the first in the queue does. Every fault accepts these options, which narrow down the requests it
matches:

=============  ============  ==================================================================================
Option         Default       Matches
=============  ============  ==================================================================================
``operation``  all           ``"trigger_by_path"``, ``"trigger_by_key"`` or ``"upload"``
``flow_id``    all           this flow: of the path, the key or (without a valid key) the upload's body
``inputs``     all           inputs that include these (also nested); for an upload, the run's inputs
``times``      1             the number of requests to strike, ``None`` for all
=============  ============  ==================================================================================

*Accepted* is whether a struck request takes effect: whether a run is started or files are accepted, and
written to the journal before the service responds. An accepting fault (*yes*) only matches a request that
would be accepted, so a request that is rejected with 400 does not use it up.

================  ========  ==============================================================================
Kind              Accepted  Effect (options with their defaults)
================  ========  ==============================================================================
``reject``        no        responds with ``status`` (400), ``body``, ``headers``
``busy``          no        responds with ``status`` (429), ``retry_after`` (none) as ``Retry-After``, ``body``,
                            ``headers``
``redirect``      no        responds with ``status`` (307), ``location`` (required), ``body``, ``headers``
``drop_before``   no        closes the connection without a response
``reset_before``  no        resets the connection (RST)
``hang_before``   no        waits for ``seconds`` (30), then closes the connection
``delay``         normal    waits for ``seconds`` (1), then continues as usual, even if the client has left
``drop_after``    yes       closes the connection without a response
``reset_after``   yes       resets the connection (RST)
``hang_after``    yes       waits for ``seconds`` (30), then closes the connection without a response
``status_after``  yes       responds with ``status`` (500), ``body``, ``headers``
``response``      yes       responds with ``status``, ``body`` (as without a fault), ``headers``
``drip``          yes       sends the usual response, its body byte by byte over ``seconds`` (2)
``truncate``      yes       announces the whole body, sends half of it, then closes the connection
``empty``         yes       responds with ``status`` (the usual) and no body
``garbage``       yes       responds with ``status`` (the usual) and a body that is not JSON, or ``body``
``endless``       yes       responds with ``status`` (the usual) and a chunked body without end; closes the
                            connection after ``limit`` bytes (50 MB)
``echo_key``      see here  responds with ``status`` (400), and a body and header ``X-Echo`` that both contain
                            the received key as it is, URL-encoded and in base64; accepted if ``status`` is
                            below 300
``twice``         yes       starts a second run with the same inputs, as where a proxy sends the request again, and
                            responds with it; a key with one run left starts both
``stale``         normal    sends the usual response; the *next* request on that connection is closed unread, as on a
                            pooled connection that became stale
================  ========  ==============================================================================

``body`` is a string, sent as it is, or any JSON value. ``headers`` is a mapping of strings, and may replace
``Content-Type``. The usual status is 201 for a trigger and 200 for an upload.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from workflow_automation_provider.testing.journal import OPERATIONS
from workflow_automation_provider.testing.matching import check_matching, check_number, includes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workflow_automation_provider.testing.journal import Operation

__all__ = ["KINDS", "Fault", "Faults", "Kind", "ScriptedFault", "Target"]


class Kind(NamedTuple):
    """
    What a kind of fault does to a request.

    :param accepts: whether the request takes effect, ``None`` if as usual
    :param responds: whether the client gets a response
    :param options: the options of the kind, with their defaults
    """

    accepts: bool | None
    responds: bool
    options: Mapping[str, Any]


_RESPONSE: Mapping[str, Any] = {"body": None, "headers": {}}

KINDS: Mapping[str, Kind] = {
    "reject": Kind(False, True, {"status": 400, **_RESPONSE}),
    "busy": Kind(False, True, {"status": 429, "retry_after": None, **_RESPONSE}),
    "redirect": Kind(False, True, {"status": 307, "location": None, **_RESPONSE}),
    "drop_before": Kind(False, False, {}),
    "reset_before": Kind(False, False, {}),
    "hang_before": Kind(False, False, {"seconds": 30.0}),
    "delay": Kind(None, True, {"seconds": 1.0}),
    "drop_after": Kind(True, False, {}),
    "reset_after": Kind(True, False, {}),
    "hang_after": Kind(True, False, {"seconds": 30.0}),
    "status_after": Kind(True, True, {"status": 500, **_RESPONSE}),
    "response": Kind(True, True, {"status": None, **_RESPONSE}),
    "drip": Kind(True, True, {"seconds": 2.0}),
    "truncate": Kind(True, True, {}),
    "empty": Kind(True, True, {"status": None}),
    "garbage": Kind(True, True, {"status": None, "body": "<html>not JSON"}),
    "endless": Kind(True, True, {"status": None, "limit": 50_000_000}),
    "echo_key": Kind(None, True, {"status": 400}),
    "twice": Kind(True, True, {}),
    "stale": Kind(None, True, {}),
}
"""What each kind of fault does, by its name."""

_NARROWING = ("operation", "flow_id", "inputs", "times")


@dataclass(frozen=True)
class Fault:
    """
    One fault; the table at the top of this module has the kinds and the defaults.

    :param inputs: strike only inputs that include these
    :param times: the number of requests to apply it to, ``None`` for all
    :param body: a string, sent as it is, or any JSON value
    :param location: the ``Location`` of a redirect
    :param retry_after: the ``Retry-After`` header: seconds as a whole number, or any text, such as an HTTP date
    :param seconds: how long to wait, or how long to take for the body
    :param limit: the number of bytes to send
    :raises ValueError: if the kind is unknown, does not support an option that was given, or a value is
        invalid
    """

    kind: str
    operation: Operation | None = None
    flow_id: str | None = None
    inputs: dict[str, Any] | None = None
    times: int | None = 1
    status: int | None = None
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    location: str | None = None
    retry_after: str | int | None = None
    seconds: float | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        _check_kind(self.kind)
        options = KINDS[self.kind].options
        for option in fields(self):
            given = getattr(self, option.name)
            if option.name in ("kind", *_NARROWING) or given in (None, {}):
                continue
            _check_option(self.kind, option.name)
        for name, default in options.items():
            if getattr(self, name) is None and default is not None:
                object.__setattr__(self, name, default)
        self._check_matching()
        self._check_response()

    def _check_matching(self) -> None:
        if self.operation is not None and self.operation not in OPERATIONS:
            raise ValueError(
                f"operation {self.operation!r} is not supported; expected one of {', '.join(OPERATIONS)}"
            )
        check_matching(self.flow_id, self.inputs, self.times)

    def _check_response(self) -> None:
        # A status below 200 is not a final response.
        if self.status is not None:
            check_number("status", self.status, 200, 599)
        if self.kind == "redirect" and not self.location:
            raise ValueError("The fault redirect needs a location, such as 'https://service.example/'")
        if self.seconds is not None:
            check_number("seconds", self.seconds, whole=False)
        if self.limit is not None:
            check_number("limit", self.limit)
        if not isinstance(self.headers, dict):
            raise ValueError(f"headers is {self.headers!r}; expected an object of names and values")
        for name, value in self.headers.items():
            _check_header("A name in headers", name)
            _check_header(f"The header {name}", value)
        if self.location is not None:
            _check_header("location", self.location)
        if isinstance(self.retry_after, str):
            _check_header("retry_after", self.retry_after)
        elif self.retry_after is not None:
            check_number("retry_after", self.retry_after)

    @property
    def accepts(self) -> bool | None:
        """Whether a struck request takes effect, ``None`` if as usual."""
        if self.kind == "echo_key":
            return self.status is not None and self.status < 300
        return KINDS[self.kind].accepts

    @property
    def responds(self) -> bool:
        """Whether a struck request gets a response."""
        return KINDS[self.kind].responds

    def matches(self, target: Target) -> bool:
        """Return whether the fault strikes a request."""
        return (
            (self.operation is None or self.operation == target.operation)
            and (self.flow_id is None or self.flow_id == target.flow_id)
            and (self.inputs is None or includes(target.inputs, self.inputs))
            and (target.acceptable or not self.accepts)
        )


def _check_kind(kind: object) -> None:
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind {kind!r} is not supported; expected one of {', '.join(KINDS)}")


def _check_option(kind: str, name: str) -> None:
    known = (*KINDS[kind].options, *_NARROWING)
    if name not in known:
        raise ValueError(f"The fault {kind} has no option {name!r}; expected one of {', '.join(known)}")


def _check_header(name: str, text: object) -> None:
    if not isinstance(text, str) or not text.isascii() or not (text == "" or text.isprintable()):
        raise ValueError(f"{name} is {text!r}; expected printable ASCII text")


class Target(NamedTuple):
    """
    What faults are matched against.

    :param flow_id: the flow, ``None`` if the request does not identify one
    :param inputs: the inputs, ``None`` if the request has none
    :param acceptable: whether the request would be accepted
    """

    operation: Operation
    flow_id: str | None
    inputs: Any
    acceptable: bool


@dataclass
class ScriptedFault:
    """
    A fault in the queue.

    :param remaining: the number of requests it will still strike, ``None`` for all
    :param struck: the number of requests it has struck
    """

    fault: Fault
    remaining: int | None
    struck: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the fault in the form of ``/_control/faults``, without the options that are not set."""
        shown = {name: value for name, value in asdict(self.fault).items() if value not in (None, {})}
        return {**shown, "times": self.fault.times, "remaining": self.remaining, "struck": self.struck}


class Faults:
    """The faults of a service, in order; safe to use from several threads."""

    def __init__(self) -> None:
        self._queue: list[ScriptedFault] = []
        self._lock = threading.Lock()

    def add(self, kind: str, **options: Any) -> ScriptedFault:
        """
        Queue a fault.

        :param kind: a kind of the table at the top of :mod:`.faults`
        :param options: the other fields of :class:`Fault`
        :raises ValueError: if the kind is unknown, does not support an option, or a value is invalid
        """
        _check_kind(kind)
        known = {option.name for option in fields(Fault)}
        for name in options:
            if name not in known:
                _check_option(kind, name)
        fault = Fault(kind, **options)
        scripted = ScriptedFault(fault, fault.times)
        with self._lock:
            self._queue.append(scripted)
        return scripted

    def all(self) -> list[ScriptedFault]:
        """Return all faults since the last :meth:`clear`, including those that are used up."""
        with self._lock:
            return list(self._queue)

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._queue.clear()

    def take(self, target: Target) -> Fault | None:
        """Return the fault that strikes a request, and count it."""
        with self._lock:
            for scripted in self._queue:
                if scripted.remaining != 0 and scripted.fault.matches(target):
                    scripted.struck += 1
                    if scripted.remaining is not None:
                        scripted.remaining -= 1
                    return scripted.fault
        return None
