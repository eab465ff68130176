"""Log the progress of a long upload."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["Progress", "mebibytes"]

_INTERVAL = 15.0
_MIB = 1024 * 1024


def mebibytes(size: float) -> str:
    """Format a number of bytes in MiB, or in bytes below 0.1 MiB."""
    return f"{size / _MIB:,.1f} MiB" if size >= _MIB / 10 else f"{size:.0f} bytes"


class Progress:
    """
    Log the progress of an upload every 15 seconds, so not at all for a short one.

    :param total: number of bytes to send
    """

    def __init__(self, total: int, log: Any) -> None:
        self._total = total
        self._log = log
        self._sent = 0
        self._began = self._logged = time.monotonic()

    def __call__(self, size: int) -> None:
        """Add bytes that were sent."""
        self._sent += size
        now = time.monotonic()
        if now - self._logged < _INTERVAL or self._sent >= self._total:
            return
        self._logged = now
        rate = self._sent / (now - self._began)
        self._log.info(
            "Uploaded %s of %s (%d %%), %s/s, about %d s left.",
            mebibytes(self._sent),
            mebibytes(self._total),
            100 * self._sent // self._total,
            mebibytes(rate),
            (self._total - self._sent) / rate,
        )
