"""When to send a request again: the header ``Retry-After``, as servers send it."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from workflow_automation_provider.client.checks import MAX_TIMEOUT

if TYPE_CHECKING:
    from workflow_automation_provider.client.protocol import Response

# A number from here on is a time, in seconds or in milliseconds since 1970.
_EPOCH_SECONDS = 1e9
_EPOCH_MILLISECONDS = 1e11

_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")


def retry_after_of(response: Response) -> float | None:
    """Return the seconds that a response asks to wait, None if it does not."""
    headers = response.headers
    return retry_after(headers.get("retry-after", ""), headers.get("date", ""))


def retry_after(value: str, date: str = "") -> float | None:
    """
    Read a ``Retry-After`` header.

    Servers send seconds, also with decimals, or a time: as an HTTP or ISO 8601 date, or as seconds
    or milliseconds since 1970. Of two headers, such as a gateway's and the service's, the longer
    counts.

    :param value: the header as received, empty if there was none
    :param date: the response's ``Date``, by the same clock as a time in ``value``; without a valid
        one, our own clock counts
    :return: seconds to wait, from 0 to a week, since a longer wait is a fault rather than advice;
        None if there is no header, or it is invalid
    """
    now = (_time_of(date) or datetime.now(UTC)).timestamp()
    texts = [text.strip() for text in value.split(",")]

    if all(_NUMBER.fullmatch(text) for text in texts):
        wait = max(_seconds_of(float(text), now) for text in texts)
    else:
        when = _time_of(value)
        if when is None:
            return None

        wait = when.timestamp() - now

    return min(max(wait, 0.0), MAX_TIMEOUT)


def _seconds_of(number: float, now: float) -> float:
    """Return the seconds to wait that a number means."""
    if number < _EPOCH_SECONDS:
        return number
    if number < _EPOCH_MILLISECONDS:
        return number - now
    return number / 1000 - now


def _time_of(text: str) -> datetime | None:
    """
    Parse an HTTP or ISO 8601 date, which is UTC if it names no zone.

    :return: None if it is neither
    """
    text = text.strip()
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        with contextlib.suppress(ValueError, OverflowError):
            when = parse(text)
            if when.tzinfo is None:
                when = when.replace(tzinfo=UTC)
            return when

    return None
