"""Keep the lines of other packages' loggers that would show a secret out of the log."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from contextvars import ContextVar

HTTP_LOGGERS = (
    "httpx",
    *(f"httpcore.{part}" for part in ("connection", "http11", "proxy", "socks")),
)
"""
The loggers of httpx.

They log URLs, the headers of responses and errors that quote these: a service may have put the key
into one, and some of Airflow's executors print logs unmasked.
"""

_is_quiet = ContextVar("is_quiet", default=False)


def _is_of_others(_: logging.LogRecord) -> bool:
    """Return whether a log record is about what other code than this provider does."""
    return not _is_quiet.get()


@contextlib.contextmanager
def quiet(names: Iterable[str]) -> Iterator[None]:
    """
    Keep what these loggers log in this thread out of the log.

    :param names: of each logger: a filter on a parent does not apply to its children
    """
    for name in names:
        logging.getLogger(name).addFilter(_is_of_others)  # again has no effect

    outer = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(outer)
