"""
Faults a test can script, one request at a time.

``faults.add(kind, …)`` queues a fault; a request is struck by the first one in the queue that matches it and is
not used up. Every fault takes these options, which narrow down the requests it matches:

=============  ==========================================================================================
``operation``  only ``"trigger_by_path"``, ``"trigger_by_key"`` or ``"upload"``
``flow_id``    only this flow, named by the path, the key or (if there is no good key) the upload's body
``inputs``     only inputs that include these (nested objects likewise); for an upload, the run's inputs
``times``      how many requests it strikes: 1 by default, ``None`` for all
=============  ==========================================================================================

*Accepted* says whether a struck request takes effect: a run is started or files are taken, and the journal has
it before anything is answered. An accepting fault (*yes*) only matches a request that would be accepted, so a
request refused with 400 does not use it up.

================  ========  ==============================================================================
Kind              Accepted  What happens (options with their defaults)
================  ========  ==============================================================================
``refuse``        no        answers ``status`` (400), ``body``, ``headers``
``busy``          no        answers ``status`` (429), and ``retry_after`` (none) as ``Retry-After``
``redirect``      no        answers ``status`` (307) with ``location`` (required)
``drop_before``   no        closes the connection without a reply
``reset_before``  no        resets the connection (RST)
``hang_before``   no        nothing for ``seconds`` (30), then closes
``delay``         normal    nothing for ``seconds`` (1), then goes on as if nothing had been, even if the
                            client has left
``drop_after``    yes       closes the connection without a reply
``reset_after``   yes       resets the connection (RST)
``hang_after``    yes       nothing for ``seconds`` (30), then closes without a reply
``status_after``  yes       answers ``status`` (500), ``body``, ``headers``
``reply``         yes       answers ``status`` (the usual), ``body`` (the usual), ``headers``
``drip``          yes       the usual reply, its body byte by byte over ``seconds`` (2)
``truncate``      yes       announces the whole body, sends half of it, closes
``empty``         yes       answers ``status`` (the usual) with no body
``garbage``       yes       answers ``status`` (the usual) with a body that is not JSON, or ``body``
``endless``       yes       answers ``status`` (the usual) with a chunked body that never ends; closes after
                            ``limit`` bytes (50 MB)
``echo_key``      see here  answers ``status`` (400) with a body and a header ``X-Echo`` that both contain
                            the received key raw, URL-encoded and in base64; accepted if ``status`` is below
                            300
``stale``         normal    the usual reply; the *next* request on that connection is closed unread, as
                            happens to a pooled connection that went stale; the client sees an end of
                            file, or a reset if it is still sending
================  ========  ==============================================================================

``body`` may be a string, sent as it is, or any JSON value. ``headers`` is a mapping of strings, and may replace
``Content-Type``. The usual status is 201 for the triggers and 200 for an upload.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from workflow_automation_provider.testing.journal import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workflow_automation_provider.testing.journal import Operation

__all__ = ["KINDS", "Fault", "Faults", "Kind", "ScriptedFault", "Target", "includes"]


class Kind(NamedTuple):
    """
    What a kind of fault does to a request.

    :param accepts: whether the request takes effect, ``None`` if as usual.
    :param replies: whether there is a reply.
    :param options: the options it takes, with their defaults.
    """

    accepts: bool | None
    replies: bool
    options: Mapping[str, Any]


_REPLY: Mapping[str, Any] = {"body": None, "headers": {}}

KINDS: Mapping[str, Kind] = {
    "refuse": Kind(False, True, {"status": 400, **_REPLY}),
    "busy": Kind(False, True, {"status": 429, "retry_after": None, **_REPLY}),
    "redirect": Kind(False, True, {"status": 307, "location": None, **_REPLY}),
    "drop_before": Kind(False, False, {}),
    "reset_before": Kind(False, False, {}),
    "hang_before": Kind(False, False, {"seconds": 30.0}),
    "delay": Kind(None, True, {"seconds": 1.0}),
    "drop_after": Kind(True, False, {}),
    "reset_after": Kind(True, False, {}),
    "hang_after": Kind(True, False, {"seconds": 30.0}),
    "status_after": Kind(True, True, {"status": 500, **_REPLY}),
    "reply": Kind(True, True, {"status": None, **_REPLY}),
    "drip": Kind(True, True, {"seconds": 2.0}),
    "truncate": Kind(True, True, {}),
    "empty": Kind(True, True, {"status": None}),
    "garbage": Kind(True, True, {"status": None, "body": "<html>not JSON"}),
    "endless": Kind(True, True, {"status": None, "limit": 50_000_000}),
    "echo_key": Kind(None, True, {"status": 400}),
    "stale": Kind(None, True, {}),
}
"""What each kind of fault does, by its name."""

_NARROWING = {"kind", "operation", "flow_id", "inputs", "times"}


@dataclass(frozen=True)
class Fault:
    """
    One fault, as described by the table of this module.

    :param kind: the kind.
    :param operation: strike only this operation.
    :param flow_id: strike only this flow.
    :param inputs: strike only inputs that include these.
    :param times: how many requests to strike, ``None`` for all.
    :param status: the status to answer.
    :param body: the body to answer.
    :param headers: the headers to answer.
    :param location: where to redirect to.
    :param retry_after: the ``Retry-After`` to answer, seconds or a date.
    :param seconds: how long to wait.
    :param limit: how many bytes to send.
    :raises ValueError: if the kind is unknown, or does not take an option that was given.
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
    retry_after: str | None = None
    seconds: float | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"No fault is called {self.kind!r}; there are {', '.join(KINDS)}")
        options = KINDS[self.kind].options
        for option in fields(self):
            given = getattr(self, option.name)
            if option.name in _NARROWING or given in (None, {}):
                continue
            if option.name not in options:
                raise ValueError(f"The fault {self.kind} takes no {option.name}")
        for name, default in options.items():
            if getattr(self, name) is None and default is not None:
                object.__setattr__(self, name, default)
        self._check_values()

    def _check_values(self) -> None:
        if self.operation is not None and self.operation not in OPERATIONS:
            raise ValueError(f"No operation is called {self.operation!r}; there are {', '.join(OPERATIONS)}")
        if self.times is not None and (not isinstance(self.times, int) or self.times < 1):
            raise ValueError("times must be 1 or more, or None for always")
        if self.inputs is not None and not isinstance(self.inputs, dict):
            raise ValueError("inputs must be an object")
        # Below 200 is no final reply.
        if self.status is not None and (not isinstance(self.status, int) or not 200 <= self.status <= 599):
            raise ValueError("status must be a number from 200 to 599")
        if self.kind == "redirect" and not self.location:
            raise ValueError("The fault redirect needs a location")
        if self.seconds is not None and (not isinstance(self.seconds, int | float) or self.seconds < 0):
            raise ValueError("seconds must be a number, 0 or more")
        if not isinstance(self.headers, dict):
            raise ValueError("headers must be an object")
        for text in (*self.headers, *self.headers.values(), self.location or "", self.retry_after or ""):
            if not isinstance(text, str) or not text.isascii() or not (text == "" or text.isprintable()):
                raise ValueError("A header must be printable ASCII text")

    @property
    def accepts(self) -> bool | None:
        """Whether a struck request takes effect, ``None`` if as usual."""
        if self.kind == "echo_key":
            return self.status is not None and self.status < 300
        return KINDS[self.kind].accepts

    @property
    def replies(self) -> bool:
        """Whether a struck request gets a reply."""
        return KINDS[self.kind].replies

    def matches(self, target: Target) -> bool:
        """
        Tell whether a request is one to strike.

        :param target: what is known of the request.
        """
        return (
            (self.operation is None or self.operation == target.operation)
            and (self.flow_id is None or self.flow_id == target.flow_id)
            and (self.inputs is None or includes(target.inputs, self.inputs))
            and (target.acceptable or not self.accepts)
        )


class Target(NamedTuple):
    """
    What faults are matched against.

    :param operation: the operation.
    :param flow_id: the flow, as far as known.
    :param inputs: the inputs, as far as known.
    :param acceptable: whether the request would be accepted.
    """

    operation: Operation
    flow_id: str | None
    inputs: Any
    acceptable: bool


@dataclass
class ScriptedFault:
    """
    A fault in the queue.

    :param fault: the fault.
    :param remaining: how many more requests it strikes, ``None`` for all.
    :param struck: how many requests it has struck.
    """

    fault: Fault
    remaining: int | None
    struck: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the fault as ``/_control/faults`` shows it, without the options that are not set."""
        shown = {name: value for name, value in asdict(self.fault).items() if value not in (None, {})}
        return {**shown, "times": self.fault.times, "remaining": self.remaining, "struck": self.struck}


class Faults:
    """The queue of faults of a service; any thread may use it."""

    def __init__(self) -> None:
        self._queue: list[ScriptedFault] = []
        self._lock = threading.Lock()

    def add(self, kind: str, **options: Any) -> ScriptedFault:
        """
        Queue a fault.

        :param kind: the kind.
        :param options: the other fields of :class:`Fault`.
        :raises ValueError: if there is no such kind or option.
        """
        try:
            fault = Fault(kind, **options)
        except TypeError as error:
            raise ValueError(f"The fault {kind} cannot take these options: {error}") from error
        scripted = ScriptedFault(fault, fault.times)
        with self._lock:
            self._queue.append(scripted)
        return scripted

    def all(self) -> list[ScriptedFault]:
        """Return all the faults since the last clearing, the used up ones too."""
        with self._lock:
            return list(self._queue)

    def clear(self) -> None:
        """Forget all the faults."""
        with self._lock:
            self._queue.clear()

    def take(self, target: Target) -> Fault | None:
        """
        Return the fault that strikes a request, and count it.

        :param target: what is known of the request.
        """
        with self._lock:
            for scripted in self._queue:
                if scripted.remaining != 0 and scripted.fault.matches(target):
                    scripted.struck += 1
                    if scripted.remaining is not None:
                        scripted.remaining -= 1
                    return scripted.fault
        return None


def includes(actual: Any, wanted: Any) -> bool:
    """
    Tell whether a JSON value includes another: objects by their fields, all else by equality.

    :param actual: the value.
    :param wanted: what it must include.
    """
    if isinstance(wanted, dict):
        return isinstance(actual, dict) and all(
            name in actual and includes(actual[name], value) for name, value in wanted.items()
        )
    return bool(actual == wanted)
