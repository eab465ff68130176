"""
Faults that a test can script, one request at a time.

The page docs/testing.md has a table of their kinds and options.

A fault *accepts* a request that takes effect: a run is started or files are accepted, and written
to the journal before the service responds. An accepting fault only matches a request that would be
accepted, so a request that is rejected with 400 does not use it up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field, PlainValidator

from workflow_automation_provider.testing.journal import Operation  # noqa: TC001 - of an annotation that is checked
from workflow_automation_provider.testing.scripted import (
    Count,
    Queue,
    Seconds,
    check_names,
    check_types,
    includes,
)


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


def _options_of(kind: Any) -> tuple[str, ...]:
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; expected one of {', '.join(KINDS)}")
    return (*KINDS[kind].options, *_NARROWING)


def _printable(text: str) -> str:
    if not text.isascii() or not (text == "" or text.isprintable()):
        raise ValueError("expected printable ASCII text")
    return text


def _retry_after(value: Any) -> Any:
    if isinstance(value, str):
        return _printable(value)
    if value is not None and (type(value) is not int or value < 0):
        raise ValueError("expected seconds as a whole number, 0 or more, or text such as a date")
    return value


_Header = Annotated[str, AfterValidator(_printable)]


@dataclass(frozen=True)
class Fault:
    """
    One fault; docs/testing.md has a table of the kinds and the defaults.

    :param inputs: strike only inputs that include these
    :param times: the number of requests to apply it to, ``None`` for all
    :param body: a string, sent as it is, or any JSON value
    :param location: the ``Location`` of a redirect
    :param retry_after: the ``Retry-After`` header: seconds as a whole number, or any text, such as
        an HTTP date
    :param seconds: how long to wait, or to take for the body
    :param limit: the number of bytes to send
    :raises ValueError: if the kind is unknown, does not support an option that was given, or a
        value is invalid
    """

    kind: str
    operation: Operation | None = None
    flow_id: str | None = None
    inputs: dict[str, Any] | None = None
    times: Count | None = 1
    # A status below 200 is not a final response.
    status: Annotated[int, Field(ge=200, le=599)] | None = None
    body: Any = None
    headers: dict[_Header, _Header] = field(default_factory=dict)
    location: _Header | None = None
    retry_after: Annotated[str | int | None, PlainValidator(_retry_after)] = None
    seconds: Seconds | None = None
    limit: Annotated[int, Field(ge=0)] | None = None

    def __post_init__(self) -> None:
        known = ("kind", *_options_of(self.kind))
        given = [name for name, value in vars(self).items() if value not in (None, {})]
        check_names(f"The fault {self.kind}", given, known)

        for name, default in KINDS[self.kind].options.items():
            if getattr(self, name) is None and default is not None:
                object.__setattr__(self, name, default)

        check_types(Fault, vars(self))
        if self.kind == "redirect" and not self.location:
            raise ValueError(
                "The fault redirect needs a location, such as 'https://service.example/'"
            )

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
        if self.operation not in (None, target.operation):
            return False
        if self.flow_id not in (None, target.flow_id):
            return False
        if self.inputs is not None and not includes(target.inputs, self.inputs):
            return False
        return target.acceptable or not self.accepts


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
        """Return the fault as ``/_control/faults`` does, without the options that are not set."""
        shown = {
            name: value for name, value in asdict(self.fault).items() if value not in (None, {})
        }
        shown["times"] = self.fault.times
        shown["remaining"] = self.remaining
        shown["struck"] = self.struck
        return shown


class Faults(Queue[ScriptedFault]):
    """The faults of a service, in order; any thread may add to them and remove them."""

    def add(self, kind: str, **options: Any) -> ScriptedFault:
        """
        Queue a fault.

        :param kind: one of :data:`KINDS`
        :param options: the other fields of :class:`Fault`
        :raises ValueError: if the kind is unknown, does not support an option, or a value is
            invalid
        """
        check_names(f"The fault {kind}", options, _options_of(kind))
        fault = Fault(kind, **options)
        scripted = ScriptedFault(fault, fault.times)
        self._queue.append(scripted)
        return scripted

    def take(self, target: Target) -> Fault | None:
        """Return the fault that strikes a request, and count it; for the thread that serves."""
        scripted = self._first(lambda scripted: scripted.fault.matches(target))
        if scripted is None:
            return None
        scripted.struck += 1
        return scripted.fault
