"""When to send a request again: the header ``Retry-After``, as servers send it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from workflow_automation_provider.client.checks import MAX_TIMEOUT

if TYPE_CHECKING:
    from workflow_automation_provider.client.protocol import Response

_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")


def retry_after_of(response: Response) -> float | None:
    """Return the seconds that a response asks to wait, None if it does not."""
    headers = response.headers
    return retry_after(headers.get("retry-after", ""), headers.get("date", ""))


def retry_after(value: str, date: str = "") -> float | None:
    """
    Read a ``Retry-After`` header.

    Of two headers, such as a gateway's and the service's, the longer counts.

    :param value: the header as received, seconds or an HTTP date; empty if there was none
    :param date: the response's ``Date``, by the same clock as a date in ``value``; without a valid
        one, our own clock counts
    :return: seconds to wait; None if there is no header, it is invalid, or it asks for more than a
        week, which is a fault rather than advice
    """
    texts = [text.strip() for text in value.split(",")]
    if all(_NUMBER.fullmatch(text) for text in texts):
        wait = max(float(text) for text in texts)
    else:
        when = _time_of(value)
        if when is None:
            return None

        now = _time_of(date) or datetime.now(UTC)
        wait = (when - now).total_seconds()

    return max(wait, 0.0) if wait <= MAX_TIMEOUT else None


def _time_of(text: str) -> datetime | None:
    """Parse an HTTP date, which is UTC if it names no zone; None if it is none."""
    try:
        when = parsedate_to_datetime(text.strip())
    except (ValueError, OverflowError):
        return None

    return when if when.tzinfo else when.replace(tzinfo=UTC)
