"""When to send a request again: the header ``Retry-After``."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from workflow_automation_provider.client.checks import MAX_TIMEOUT

if TYPE_CHECKING:
    from workflow_automation_provider.client.protocol import Response

_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")


def retry_after_of(response: Response) -> float | None:
    """
    Return how long a response asks to wait, by seconds or an HTTP date.

    :return: seconds, from 0 to a week, since a longer wait is a fault rather than advice; None if
        there is no header, or it is invalid
    """
    value = response.headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(value):
        wait = float(value)
    else:
        try:
            when = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None

        when = when.replace(tzinfo=when.tzinfo or UTC)
        wait = (when - datetime.now(UTC)).total_seconds()

    return min(max(wait, 0.0), MAX_TIMEOUT)
