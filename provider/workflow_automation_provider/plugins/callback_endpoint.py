"""
The endpoint that a flow calls, as an ASGI application for Airflow's API server.

It needs no login: the token in the URL is all that counts. With it, a run can claim the task's
start, ask whether it is still wanted, say how far it is and how it ended, and nothing else. Checks
are in this order, so that nobody learns more, and strangers cost little:

======  ==========================================================================================
Status  When
======  ==========================================================================================
404     the path is not that of the endpoint
405     the method is not POST: scanners and previews follow a link by GET
404     there is no token, or it is malformed
404     no task has given out this token
413     the body is larger than ``MAX_BODY``: it is read no further
408     the body is not complete after 10 seconds
400     the body is not what a flow may say
404     the run is not wanted: the task has ended, was cleared, or has another run; it should stop
409     the run has reported another end
200     the run should go on, or its end is stored; a repeat gets the same
503     the task is deciding, the database is locked or gone, or too much is pending: call again
======  ==========================================================================================

The body is read once the token is known, and parsed off the event loop: a caller without a token
costs two queries by primary key. No transaction is open while a slow client sends. A token that was
never given out gets the same response as one that no longer counts.

A call that is refused for what is in its body leaves its time and why in the record, so that
people find out.

Neither the token nor the body is ever logged, and what is stored of a body does not contain the
token.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from workflow_automation_provider.client.redaction import CALLBACK_PATH
from workflow_automation_provider.execution.record.callback import (
    MAX_BODY,
    is_token,
    parse,
    without_token,
)
from workflow_automation_provider.execution.record.callback_decision import Verdict
from workflow_automation_provider.plugins import callback_store
from workflow_automation_provider.plugins.callback_store import UnavailableError

_logger = logging.getLogger(__name__)

# Seconds for the body, and for each look into the database.
_TIMEOUT = 10.0

# Few, so that callbacks do not use up the API server's connections to the database. A thread takes
# one and releases it by itself, even if nobody waits for the thread any more.
_CONNECTIONS = threading.BoundedSemaphore(4)

# How many callbacks may be waiting for the database.
_PENDING = threading.BoundedSemaphore(64)

_T = TypeVar("_T")

_RESPONSES = {
    Verdict.STOP: (404, "No task wants this run, or it lacks the run_id of its first step: stop."),
    Verdict.GO_ON: (200, "The run has the task: go on."),
    Verdict.END: (200, "The end is stored."),
    Verdict.OTHER_END: (409, "The run has reported another end, which is in the tab Flow run."),
    Verdict.WAIT: (503, "The task is deciding: call again."),
}


async def _callback(request: Request) -> Response:
    try:
        token = _token(request)
        issued = await _in_thread(callback_store.find, token) if token else None
        if issued is None:
            return _response(*_RESPONSES[Verdict.STOP])

        return await _in_thread(_handle, token, issued, await _body(request))
    except HTTPException:
        raise
    except TimeoutError:
        pass  # without a line in the log, which strangers could fill
    except UnavailableError as error:
        _logger.warning("A callback could not be handled: %s", error)
    except Exception as error:
        # Where it happened, but not its text, which may contain the body.
        frames = "".join(traceback.format_tb(error.__traceback__))
        _logger.error("A callback could not be handled: %s at\n%s", type(error).__name__, frames)

    return _response(503, "Airflow cannot respond now: call again.")


def _token(request: Request) -> str:
    """Return the token of a request, empty unless it has just one."""
    tokens = request.query_params.getlist("token")
    return tokens[0] if len(tokens) == 1 and is_token(tokens[0]) else ""


async def _rejected(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    if error.status_code == 404:
        return _response(*_RESPONSES[Verdict.STOP])
    return _response(error.status_code, error.detail, headers=error.headers)


# A proxy may strip what precedes the mount's path, or add it.
app = Starlette(
    routes=[
        Route(path, _callback, methods=["POST"])
        for path in (CALLBACK_PATH, f"/{CALLBACK_PATH.rpartition('/')[2]}")
    ],
    exception_handlers={HTTPException: _rejected},
)
"""The application, which Airflow mounts."""
app.router.redirect_slashes = False


def _response(status: int, detail: str, *, headers: Mapping[str, str] | None = None) -> Response:
    all_headers = {"cache-control": "no-store", **(headers or {})}
    if status == 503:
        all_headers["retry-after"] = "5"
    return JSONResponse({"detail": detail}, status, all_headers)


async def _in_thread(function: Callable[..., _T], *args: Any) -> _T:
    """
    Call a function off the event loop.

    :raises TimeoutError: if too much is pending, or it does not return in time
    """

    def call() -> _T:
        if not _CONNECTIONS.acquire(timeout=_TIMEOUT):
            raise TimeoutError
        try:
            return function(*args)
        finally:
            _CONNECTIONS.release()

    if not _PENDING.acquire(blocking=False):
        raise TimeoutError

    try:
        async with asyncio.timeout(_TIMEOUT):
            return await to_thread.run_sync(
                call, abandon_on_cancel=True, limiter=CapacityLimiter(1)
            )
    finally:
        _PENDING.release()


def _handle(token: str, issued: callback_store.IssuedToken, body: bytes) -> Response:
    if len(body) > MAX_BODY:
        return _refused(issued, 413, f"The body is larger than {MAX_BODY} bytes.")
    try:
        report = without_token(parse(body), token)
    except ValueError as error:
        return _refused(issued, 400, str(error))

    verdict = callback_store.respond(issued, report)
    return _response(*_RESPONSES[verdict])


def _refused(issued: callback_store.IssuedToken, status: int, why: str) -> Response:
    """Store why a call is refused; if it cannot be stored, the response still says it."""
    try:
        callback_store.note_refusal(issued, f"{status}: {why}")
    except UnavailableError as error:
        _logger.warning("A refused callback could not be noted: %s", error)

    return _response(status, why)


async def _body(request: Request) -> bytes:
    """
    Return the body of a request; of one that is too large, the beginning.

    :raises HTTPException: if it is not complete in time
    """
    body = bytearray()
    try:
        async with asyncio.timeout(_TIMEOUT):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY:
                    break
    except (TimeoutError, ClientDisconnect):
        reason = f"The body was not complete after {_TIMEOUT:.0f} seconds."
        raise HTTPException(408, reason, {"connection": "close"}) from None

    return bytes(body)
