"""Keep the lines of other packages' loggers that would show a secret out of the log."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar

# They log URLs, the headers of responses and errors that quote these: a service may have put the
# key into one, and some of Airflow's executors print logs unmasked.
_HTTP_LOGGERS = (
    "httpx",
    *(f"httpcore.{part}" for part in ("connection", "http11", "proxy", "socks")),
)

_is_quiet = ContextVar("is_quiet", default=False)


def _is_of_others(_: logging.LogRecord) -> bool:
    """Return whether a log record is about what other code than this provider does."""
    return not _is_quiet.get()


for _name in _HTTP_LOGGERS:
    logging.getLogger(_name).addFilter(_is_of_others)


@contextlib.contextmanager
def quiet(*prefixes: str) -> Iterator[None]:
    """
    Keep what the loggers of httpx, and some others, log in this thread out of the log.

    :param prefixes: what the names of the others begin with
    """
    # Each logger gets the filter, once: that of its parent does not apply. Another thread may make
    # loggers meanwhile.
    names = list(logging.root.manager.loggerDict) if prefixes else ()
    for name in names:
        if name.startswith(prefixes):
            logging.getLogger(name).addFilter(_is_of_others)

    outer = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(outer)
