"""Sending the callbacks of runs, in the background, as a generic HTTP step of a flow does."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ssl
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import httpx

from workflow_automation_provider.testing._server.calls import LONG_STRING, summarize
from workflow_automation_provider.testing._server.responses import encode_body
from workflow_automation_provider.testing._server.state import now
from workflow_automation_provider.testing.callbacks import (
    CONDITIONS,
    WITHHELD,
    Callback,
    headers_of,
    is_file,
    url_of,
    with_token,
    withhold_tokens,
)
from workflow_automation_provider.testing.journal import SentCallback, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from workflow_automation_provider.testing._server.state import State
    from workflow_automation_provider.testing.callbacks import Callbacks
    from workflow_automation_provider.testing.journal import Run

_T = TypeVar("_T")

_TIMEOUT = 30.0
_MAX_WAIT = 60.0
_MAX_RESPONSE = 64 * 1024
_RETRIED = {408, 429, *range(500, 600)} - {501}
# httpx would load the default certificates for None, which takes longer than a call.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_HEADERS = {"Content-Type": "application/json", "User-Agent": "workflow-automation-local-service"}


class CallbackSender:
    """
    Send the callbacks of runs.

    Its calls are tasks of the event loop that the service runs in; they end with it.

    :param callbacks: the callbacks of the runs
    """

    def __init__(self, callbacks: Callbacks, state: State) -> None:
        self._callbacks = callbacks
        self._state = state
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, run: Run, inputs: dict[str, Any]) -> None:
        """
        Begin to call back for a run, if one is scripted.

        :param inputs: as they were received; those of ``run`` have no tokens
        """
        callback = self._callbacks.take(run.flow_id, inputs)
        if callback is not None:
            url = callback.url_in(inputs)
        else:
            callback, url = self._missing(run, inputs)

        if callback is None or url is None:
            return

        is_mailbox = is_file(url) or headers_of(url) is not None
        if is_mailbox:
            # It takes one object, the end.
            callback = replace(callback, started=None, running=())

        task = asyncio.get_running_loop().create_task(self._play(callback, run, url))
        # The loop itself keeps only a weak reference.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _missing(self, run: Run, inputs: dict[str, Any]) -> tuple[Callback | None, str | None]:
        """Return the failure that a run without a callback reports, and where, if a test waits."""
        endpoint = self._callbacks.endpoint
        if not endpoint:
            return None, None
        for name in inputs:
            url = url_of(inputs, name)
            if url and url.startswith(endpoint):
                message = self._describe_missing(run, name)
                self._callbacks.missing.append(message)
                return Callback("failed", message=message), url

        return None, None

    def _describe_missing(self, run: Run, url_input: str) -> str:
        # Without the URL: what names a token reaches no log of Airflow.
        others = {name: value for name, value in run.inputs.items() if name != url_input}
        scripted = [callback.as_json() for callback in self._callbacks.all()]
        text = (
            f"no callback matches run {run.run_id} of flow {run.flow_id} with the inputs "
            f"{others!s:.1000}. Scripted are {scripted!s:.1000}. For a run that never calls back: "
            "callbacks.add(None)"
        )
        # What was received may contain lone surrogates.
        return text.encode(errors="backslashreplace").decode()

    async def _play(self, callback: Callback, run: Run, url: str) -> None:
        for call in callback.first_steps(run, self._state.run_link(run.run_id)):
            if await self._send(callback, call, run, url) != 200 and callback.obeys:
                return

        if callback.started is not None:
            self._state.add(Work(run.run_id, run.flow_id, run.inputs, now()))
        for call in callback.progress_calls(run):
            if await self._send(callback, call, run, url) == 404 and callback.obeys:
                return

        for call in callback.ends():
            await self._send(callback, call, run, url)

    async def _send(
        self, callback: Callback, call: dict[str, Any], run: Run, own: str
    ) -> int | None:
        """Send a call until it is accepted or given up, and journal it; return the last status."""
        url = own if call["token"] is None else with_token(own, call["token"])
        sending = _Sending()
        try:
            await asyncio.sleep(call["delay"])
            sending.body = await _in_thread(lambda: callback.body_of(call, run))
            await _send_until_accepted(url, sending, callback)
        except asyncio.CancelledError:
            sending.last = replace(sending.last, error="the service was stopped")
            raise
        except Exception as error:
            sending.last = _Attempt(error=f"result: {type(error).__name__}: {error}")
        finally:
            query = parse_qs(urlsplit(own).query)
            tokens = [token for name in ("token", *CONDITIONS) for token in query.get(name, [])]
            secrets = [token for token in (*tokens, call["token"]) if token]
            self._record(run, url, sending, secrets=secrets)

        return sending.last.status

    def _record(self, run: Run, url: str, sending: _Sending, secrets: list[str]) -> None:
        """Write a call to the journal, without the tokens in it."""
        response = sending.last.response
        for secret in secrets:
            response = response.replace(secret, WITHHELD)

        self._state.add(
            SentCallback(
                run_id=run.run_id,
                flow_id=run.flow_id,
                url=withhold_tokens(url),
                body=summarize(withhold_tokens(sending.body)),
                status=sending.last.status,
                response=response[:LONG_STRING],
                error=sending.last.error,
                attempts=sending.attempts,
                at=now(),
            )
        )


@dataclass(frozen=True)
class _Attempt:
    """
    The outcome of one attempt to send a call.

    :param wait: the least seconds until the next attempt, ``None`` if none is needed
    """

    status: int | None = None
    response: str = ""
    error: str | None = None
    wait: float | None = None


@dataclass
class _Sending:
    """
    A call while it is sent.

    :param body: what is sent, ``None`` before it is known
    :param attempts: how often it was sent
    """

    body: Any = None
    attempts: int = 0
    last: _Attempt = field(default_factory=_Attempt)


async def _send_until_accepted(url: str, sending: _Sending, callback: Callback) -> None:
    """Send a call until it is accepted or the attempts of its callback are used up."""
    content = encode_body(sending.body)
    wait = callback.wait
    while True:
        sending.attempts += 1
        sending.last = await _attempt(url, content)
        if sending.last.wait is None or sending.attempts == callback.attempts:
            return
        await asyncio.sleep(min(max(wait, sending.last.wait), _MAX_WAIT))
        wait *= 2


async def _attempt(url: str, content: bytes) -> _Attempt:
    """Send a call once, or write it to a mailbox."""
    if is_file(url):
        return await _in_thread(lambda: write_mailbox(url, content))

    method, headers = "POST", _HEADERS
    demanded = headers_of(url)
    if demanded is not None:
        method, headers = "PUT", {**_HEADERS, **demanded}

    timeout = httpx.Timeout(_TIMEOUT).as_dict()
    status = None
    body = b""
    try:
        request = httpx.Request(
            method, url, headers=headers, content=content, extensions={"timeout": timeout}
        )
        # Not a client, which logs each URL, and the token with it.
        tls = httpx.create_ssl_context() if url.startswith("https:") else _NO_TLS
        transport = httpx.AsyncHTTPTransport(verify=tls, trust_env=False)
        async with asyncio.timeout(_TIMEOUT), transport:
            response = await transport.handle_async_request(request)
            status = response.status_code
            async for part in response.aiter_bytes():
                body += part
                if len(body) > _MAX_RESPONSE:
                    break

            await response.aclose()
    except Exception as error:
        # Without its text, which may quote the URL.
        is_lost = isinstance(error, httpx.TransportError | TimeoutError)
        return _Attempt(status=status, error=type(error).__name__, wait=0.0 if is_lost else None)

    wait = None
    if status in _RETRIED:
        seconds = response.headers.get("retry-after", "")
        is_number = seconds.isascii() and seconds.isdecimal()
        wait = float(seconds) if is_number else 0.0

    return _Attempt(status=status, response=body.decode("utf-8", errors="replace"), wait=wait)


def write_mailbox(url: str, content: bytes) -> _Attempt:
    """Write a call to a mailbox in a local folder, whole, as an object store does."""
    path = Path(unquote(urlsplit(url).path))
    whole = path.with_name(f"{path.name}.{threading.get_ident()}")
    try:
        # Nobody reads a part of it, and the first one stays.
        whole.write_bytes(content)
        path.hardlink_to(whole)
    except FileExistsError:
        return _Attempt(status=412)
    except OSError as error:
        return _Attempt(error=type(error).__name__)
    finally:
        whole.unlink(missing_ok=True)

    return _Attempt(status=200)


async def _in_thread(function: Callable[[], _T]) -> _T:
    """Call a test's function in a thread of its own: it may wait for as long as it likes."""
    result: concurrent.futures.Future[_T] = concurrent.futures.Future()
    result.set_running_or_notify_cancel()

    def call() -> None:
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=call, name="workflow-automation-callback", daemon=True).start()
    return await asyncio.wrap_future(result)
