"""
The endpoint that a flow calls, as an ASGI application for Airflow's API server.

Nobody logs in to it: the token of the URL is all that counts. It lets a run claim the task's start, ask whether it
is still wanted, say how far it is, and say how it ended, and nothing else. In this order, so that nobody learns more
than that, and strangers cost little:

======  ====================================================================================================
Status  When
======  ====================================================================================================
404     the path is another
405     the method is not POST, as that of a link that a scanner or a preview follows
404     there is no token, or what cannot be one
501     this Airflow cannot take callbacks
404     no task has given out this token
413     the body is larger than ``MAX_BODY``: it is read no further
408     the body is not complete after 10 seconds
400     the body is not what a flow may say
404     the run is not wanted: the task has ended, or was cleared; the run should stop
409     another run works, or this one has not claimed the start; the run should stop
409     the task has another end: the response says when it came
200     the run should go on, and what it says is stored, also if it says it again
503     the task is deciding, the database is locked or cannot be reached, or too much is pending: call again
======  ====================================================================================================

The body is read, off the database, once the token is known, and parsed off the event loop: whoever has no token
costs two queries by primary key. No transaction is open while a slow client sends. The response to a token that
was never given out is the same as to one that no longer counts.

Neither the token nor the body is ever logged, and what is stored of a body does not contain the token.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from anyio import CapacityLimiter, to_thread
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from workflow_automation_provider.execution.callback import (
    MAX_BODY,
    PATH,
    Ended,
    is_token,
    read,
    without_token,
)
from workflow_automation_provider.plugins import metadata
from workflow_automation_provider.plugins.decision import Verdict
from workflow_automation_provider.plugins.metadata import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Receive, Scope, Send

_logger = logging.getLogger(__name__)

# Of the body, and of each look into the database.
_TIMEOUT = 10.0

# Few, so that callbacks do not use up the API server's connections to the database. A thread takes and releases its own,
# also where nobody waits for it any more.
_CONNECTIONS = threading.BoundedSemaphore(4)

MAX_PENDING = 64
"""How many callbacks may be waiting for the database."""

_pending = 0

_T = TypeVar("_T")


class _OverloadedError(Exception):
    """Too much is pending, or takes too long: without a line in the log, which strangers could fill."""


class _Response(NamedTuple):
    status: int
    detail: str
    headers: Mapping[str, str] | None = None
    code: str = ""


_NOT_FOUND = _Response(404, "No task wants this run: stop.")
_UNAVAILABLE = _Response(503, "Airflow cannot respond now: call again.", {"retry-after": "5"})
_RESPONSES = {
    Verdict.STOP: _NOT_FOUND,
    Verdict.CLAIM: _Response(200, "The run has the task: go on."),
    Verdict.GO_ON: _Response(200, "The run has the task: go on."),
    Verdict.CLAIM_FIRST: _Response(
        409, "This run has not claimed the task: send the status 'started' first.", code="claim_first"
    ),
    Verdict.OTHER_RUN: _Response(409, "Another run has the task: stop.", code="other_run"),
    Verdict.END: _Response(200, "The answer is stored."),
    Verdict.SAME_END: _Response(200, "The answer is stored."),
    Verdict.WAIT: _Response(503, "The task is deciding: call again.", {"retry-after": "5"}),
}


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve the endpoint."""
    if scope["type"] == "lifespan":
        await _live(receive, send)
    elif scope["type"] == "websocket":
        await send({"type": "websocket.close"})
    else:
        await _serve(scope, receive, send)


async def _live(receive: Receive, send: Send) -> None:
    for event in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{event}.complete"})


async def _serve(scope: Scope, receive: Receive, send: Send) -> None:
    try:
        found = await _respond(Request(scope, receive))
    except ClientDisconnect:
        return
    except HTTPException as rejected:
        found = _Response(rejected.status_code, rejected.detail, rejected.headers)
    except _OverloadedError:
        found = _UNAVAILABLE
    except UnavailableError as error:
        _logger.warning("A callback could not be handled: %s", error)
        found = _UNAVAILABLE
    except Exception as error:
        _log(error)
        found = _UNAVAILABLE
    content = {"detail": found.detail, **({"code": found.code} if found.code else {})}
    headers = {"cache-control": "no-store", **(found.headers or {})}
    await JSONResponse(content, found.status, headers)(scope, receive, send)


async def _respond(request: Request) -> _Response:
    if not _is_ours(request.scope):
        return _NOT_FOUND
    if request.method != "POST":
        return _Response(405, "Only POST is supported.", {"allow": "POST"})
    token = _token(request.scope)
    if token is None:
        return _NOT_FOUND
    if response := await _in_thread(partial(_admit, token)):
        return response
    return await _in_thread(partial(_settle, token, await _body(request)))


async def _in_thread(function: Callable[[], _T]) -> _T:
    """
    Call a function off the event loop.

    :raises _OverloadedError: if too much is pending, or it does not return in time
    """
    global _pending

    def call() -> _T:
        if not _CONNECTIONS.acquire(timeout=_TIMEOUT):
            raise _OverloadedError
        try:
            return function()
        finally:
            _CONNECTIONS.release()

    if _pending >= MAX_PENDING:
        raise _OverloadedError
    _pending += 1
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await to_thread.run_sync(call, abandon_on_cancel=True, limiter=CapacityLimiter(1))
    except TimeoutError:
        raise _OverloadedError from None
    finally:
        _pending -= 1


def _admit(token: str) -> _Response | None:
    """Return the response to whoever has no token that counts, None to others."""
    if reason := metadata.missing():
        return _Response(501, reason)
    return None if metadata.is_known(token) else _NOT_FOUND


def _settle(token: str, body: bytes) -> _Response:
    try:
        said = without_token(read(body), token)
    except ValueError as error:
        return _Response(400, str(error))
    verdict, end = metadata.respond(token, said)
    if verdict is Verdict.OTHER_END and isinstance(said, Ended) and end:
        other = " with another result, message or run_id" if end.status == said.status else ""
        at = end.at.isoformat(timespec="seconds")
        return _Response(
            409, f"The task has the answer {end.status!r} from {at}; this one is {said.status!r}{other}."
        )
    return _RESPONSES[verdict]


def _is_ours(scope: Scope) -> bool:
    # Whether the path includes that of the mount depends on the server's framework.
    path, root = scope["path"], scope.get("root_path", "")
    whole: str = path if path.startswith(root) else root + path
    return whole.endswith(PATH)


def _token(scope: Scope) -> str | None:
    try:
        query = parse_qsl(scope["query_string"].decode("ascii"), keep_blank_values=True, max_num_fields=20)
    except ValueError:
        return None
    tokens = [value for name, value in query if name == "token"]
    return tokens[0] if len(tokens) == 1 and is_token(tokens[0]) else None


async def _body(request: Request) -> bytes:
    too_large = HTTPException(413, f"The body is larger than {MAX_BODY} bytes.")
    length = request.headers.get("content-length", "")
    # Of more digits than Python reads, too.
    if length.isdecimal() and (len(length) > 20 or int(length) > MAX_BODY):
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(_TIMEOUT):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY:
                    raise too_large
    except TimeoutError:
        words = f"The body was not complete after {_TIMEOUT:.0f} seconds."
        raise HTTPException(408, words, {"connection": "close"}) from None
    return bytes(body)


def _log(error: Exception) -> None:
    """Log where an error happened, but not its words, which may contain what was to be stored."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    _logger.error("A callback could not be handled: %s at\n%s", type(error).__name__, frames)
