"""Keep the lines of other packages' loggers that would show a secret out of the log."""

from __future__ import annotations

import contextlib
import functools
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


@functools.lru_cache
def _mute(prefixes: tuple[str, ...], _number: int) -> None:
    """
    Give each logger whose name begins with one of these the filter: a parent's does not apply.

    :param _number: of all loggers, of which there are only ever more: they are looked through again
        when there is a new one
    """
    # Another thread may make loggers meanwhile.
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(prefixes):
            logging.getLogger(name).addFilter(_is_of_others)


@contextlib.contextmanager
def quiet(*prefixes: str) -> Iterator[None]:
    """
    Keep what the loggers of httpx, and some others, log in this thread out of the log.

    :param prefixes: what the names of the others begin with
    """
    _mute(prefixes, len(logging.root.manager.loggerDict))
    outer = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(outer)
