"""
What a test gives a service: its keys.

And what faults and callbacks share: the checks of their options, matching, and the queue.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Protocol, TypeVar, get_type_hints
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

Text = Annotated[str, Field(min_length=1)]
"""A name."""

Count = Annotated[int, Field(ge=1)]
"""How many, or how often."""

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A time to wait, in seconds."""

# Cached, because making these takes longer than checking a value.
_hints = functools.cache(functools.partial(get_type_hints, include_extras=True))


@functools.cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(strict=True))


def check_types(owner: Any, values: Mapping[str, Any], secret: Collection[str] = ()) -> None:
    """
    Check values against the annotations of a class or a function.

    :param owner: the class or the function
    :param values: the values, by the name of the field or the parameter
    :param secret: names of values of which errors show only the type
    :raises ValueError: if a value does not fit, naming it
    """
    for name, hint in _hints(owner).items():
        if name not in values:
            continue

        try:
            _adapter(hint).validate_python(values[name])
        except ValidationError as error:
            raise _error_of(name, error, secret) from None


def _error_of(name: str, error: ValidationError, secret: Collection[str]) -> ValueError:
    """Return the first of pydantic's errors in the words of this package."""
    found = error.errors(include_url=False)[0]
    path = name
    for part in found["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"

    shown = repr(found["input"])
    # The option of an object may be a secret as well.
    is_secret = not {name, *found["loc"]}.isdisjoint(secret)
    if is_secret:
        shown = type(found["input"]).__name__

    mend = found["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    return ValueError(f"{path} is {shown}; {mend}")


def check_names(what: str, given: Iterable[str], known: Collection[str]) -> None:
    """
    Check that options exist.

    :param what: what has the options
    :raises ValueError: if an option is unknown, naming it and those that there are
    """
    for name in given:
        if name not in known:
            raise ValueError(f"{what} has no option {name!r}; expected one of {', '.join(known)}")


DEMO_FLOW_ID = "demo-flow"
"""The flow of the demo key."""


@dataclass(frozen=True)
class Key:
    """
    An API key, created for one flow.

    :param value: what a client sends in ``X-API-Key``; appears neither in ``repr()`` nor in the
        journal
    :param flow_id: the flow that the key belongs to
    :param name: must differ among the keys of one flow, because the journal counts the runs of a
        key by flow and name
    :param max_runs: the number of runs that the key may start, ``None`` for any number
    :raises ValueError: if a field is invalid
    """

    value: Text = field(repr=False)
    flow_id: Text
    name: Text = "key"
    max_runs: Annotated[int, Field(ge=0)] | None = None

    def __post_init__(self) -> None:
        check_types(Key, vars(self), secret={"value"})


DEMO_KEY = Key("demo-key", DEMO_FLOW_ID, name="demo")
"""The default key of a service."""


def is_url(text: str) -> bool:
    """Return whether a text is an HTTP URL with a host."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def includes(actual: Any, wanted: Any) -> bool:
    """
    Return whether a JSON value includes another.

    Objects are compared by their fields, other values by equality.
    """
    if not isinstance(wanted, dict):
        return bool(actual == wanted)
    if not isinstance(actual, dict):
        return False
    return all(name in actual and includes(actual[name], value) for name, value in wanted.items())


class Scripted(Protocol):
    """
    A fault or a callback in the queue.

    :ivar remaining: the number of requests or runs that it still applies to, ``None`` for all
    """

    remaining: int | None


ScriptedT = TypeVar("ScriptedT", bound=Scripted)
"""A fault or a callback in the queue."""


class Queue(Generic[ScriptedT]):
    """What is scripted, in order; any thread may add to it and remove it."""

    def __init__(self) -> None:
        self._queue: list[ScriptedT] = []

    def all(self) -> list[ScriptedT]:
        """Return all since the last :meth:`clear`, including what is used up."""
        return [*self._queue]

    def clear(self) -> None:
        """Remove all; runs that were started before still call back."""
        self._queue.clear()

    def _first(self, matches: Callable[[ScriptedT], bool]) -> ScriptedT | None:
        """
        Return the first that is not used up and matches, and count it.

        For the thread that serves.
        """
        for scripted in self.all():
            if scripted.remaining == 0 or not matches(scripted):
                continue
            if scripted.remaining is not None:
                scripted.remaining -= 1
            return scripted

        return None
