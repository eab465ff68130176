"""Checks of single arguments."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.wording import kind_of

MAX_DAYS = 7
MAX_TIMEOUT = MAX_DAYS * 24 * 3600
"""In seconds: longer than any sensible timeout, and short enough for the clock functions."""


def duration(
    name: str,
    value: object,
    *,
    days: int,
    zero: bool = False,
    kind: type[Exception] = ValueError,
) -> timedelta:
    """
    Return the duration that an argument gives: a timedelta, or a number of seconds.

    :param name: what the argument is called in errors
    :param days: how long it may be
    :param zero: whether it may be 0
    :param kind: the class of the error that is raised if it is neither, too short or too long
    """
    given = value
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):  # of NaN and of what no timedelta can hold
            given = timedelta(seconds=value)

    shortest = timedelta() if zero else timedelta.resolution
    if isinstance(given, timedelta) and shortest <= given <= timedelta(days=days):
        return given

    least = "0 or more" if zero else "more than 0"
    raise kind(
        f"{name} is {value!r}: expected a timedelta, or a number of seconds, of {least} and at "
        f"most timedelta(days={days})."
    )


def check_choice(
    name: str, value: object, *choices: str, kind: type[Exception] = ValueError
) -> None:
    """
    Raise an error unless an argument is one of two or more choices.

    :param kind: the class of the error
    """
    if value not in choices:
        *others, last = map(repr, choices)
        raise kind(f"{name} {value!r} is not supported; expected {', '.join(others)} or {last}.")


def is_positive_integer(value: object) -> bool:
    """Return whether a value is a whole number of 1 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def identifier(name: str, value: object) -> str:
    """
    Validate a ``flow_id`` or ``run_id``: text, or a whole number, which becomes text.

    :raises InvalidRequestError: if it is empty or of another type; also for a float, which may have
        lost digits
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise InvalidRequestError(f"{name} is {kind_of(value)}: expected text.")
    if not value.strip():
        raise InvalidRequestError(
            f"{name} is empty: expected the identifier as the service shows it."
        )

    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{name} is not valid Unicode text: fix its decoding.") from None

    return value
