"""Sending the callbacks of runs, in the background, as a generic HTTP step of a flow does."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import ssl
import threading
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from workflow_automation_provider.testing._server.bodies import LONG_STRING, summarize
from workflow_automation_provider.testing.callbacks import WITHHELD, Callback, withhold_tokens
from workflow_automation_provider.testing.journal import SentCallback, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from workflow_automation_provider.testing._server.journal_writer import JournalWriter
    from workflow_automation_provider.testing._server.state import State
    from workflow_automation_provider.testing.callbacks import Callbacks
    from workflow_automation_provider.testing.journal import Run

__all__ = ["CallbackSender"]

_T = TypeVar("_T")

_TIMEOUT = 30.0
_MAX_WAIT = 60.0
_MAX_RESPONSE = 64 * 1024
_RETRIED = {408, 429, *range(500, 600)} - {501}
# httpx would load the default certificates for None, which takes longer than a call.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class CallbackSender:
    """
    Send the callbacks of runs.

    Its calls are tasks of the event loop that the service runs in; they end with it.

    :param callbacks: what the runs send
    """

    def __init__(self, callbacks: Callbacks, state: State, journal: JournalWriter) -> None:
        self._callbacks = callbacks
        self._state = state
        self._journal = journal
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, run: Run, inputs: dict[str, Any]) -> None:
        """
        Begin to call back for a run, if one is scripted.

        :param inputs: as they were received; those of ``run`` have no tokens
        """
        callback = self._callbacks.take(run.flow_id, inputs) or self._missing(run, inputs)
        if callback is None:
            return
        task = asyncio.get_running_loop().create_task(self._play(callback, run, inputs))
        # The loop itself keeps only a weak reference.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _missing(self, run: Run, inputs: dict[str, Any]) -> Callback | None:
        """Return what a run says that no callback matches, ``None`` if no test waits for it."""
        for name in inputs:
            failure = Callback("failed", input=name)
            if self._callbacks.endpoint and (failure.url_in(inputs) or "").startswith(
                self._callbacks.endpoint
            ):
                # Without the URL: what names a token reaches no log of Airflow.
                others = {other: value for other, value in run.inputs.items() if other != name}
                scripted = [callback.as_json() for callback in self._callbacks.all()]
                message = (
                    f"no callback matches run {run.run_id} of flow {run.flow_id} with the inputs "
                    f"{others!s:.1000}. Scripted are {scripted!s:.1000}. "
                    "For a run that never calls back: callbacks.add(None)"
                )
                self._callbacks.missing.append(message)
                return replace(failure, message=message)
        return None

    async def _play(self, callback: Callback, run: Run, inputs: dict[str, Any]) -> None:
        for call in callback.first_steps(run, self._state.run_link(run.run_id)):
            if await self._send(call, run, inputs) != 200 and callback.obeys:
                return
        if callback.started is not None:
            self._journal.write(Work(run.run_id, run.flow_id, run.inputs, _now()))
        for call in callback.words(run):
            if await self._send(call, run, inputs) in (404, 409) and callback.obeys:
                return
        for call in callback.calls:
            await self._send(call, run, inputs)

    async def _send(self, call: Callback, run: Run, inputs: dict[str, Any]) -> int | None:
        urls = [replace(call, token=None).url_in(inputs), call.url_in(inputs)]
        own, url = (url or "" for url in urls)  # never empty: else the run would not match
        tls = self._tls if url.startswith("https:") else _NO_TLS
        sending = _Sending(call, run, url, tls, secrets=[*_tokens(own), *_tokens(url)])
        try:
            await sending.send()
        except asyncio.CancelledError:
            sending.error = "the service was stopped"
            raise
        finally:
            record = sending.record()
            self._journal.write(record)
            self._state.callbacks.append(record)
        return sending.status

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        # Here and below, not at the top: only a service with callbacks needs it.
        import httpx

        return httpx.create_ssl_context()


class _Sending:
    """
    One call: its attempts, and their outcome.

    :param secrets: what the record must not show
    """

    def __init__(
        self,
        call: Callback,
        run: Run,
        url: str,
        tls: ssl.SSLContext,
        secrets: Sequence[str],
    ) -> None:
        self._call = call
        self._run = run
        self._url = url
        self._tls = tls
        self._secrets = secrets
        self.body: Any = None
        self.attempts = 0
        self.status: int | None = None
        self.response = ""
        self.error: str | None = None

    async def send(self) -> None:
        """Send the call until it is accepted or given up."""
        await asyncio.sleep(self._call.delay)
        try:
            self.body = await _in_thread(lambda: self._call.body_of(self._run))
            content = _encode(self.body)
        except Exception as error:
            self.error = f"result: {type(error).__name__}: {error}"
            return
        wait = self._call.wait
        while True:
            self.attempts += 1
            retry_after = await self._attempt(content)
            if retry_after is None or self.attempts == self._call.attempts:
                return
            await asyncio.sleep(min(max(wait, retry_after), _MAX_WAIT))
            wait *= 2

    async def _attempt(self, content: bytes) -> float | None:
        """Send the call once; return ``None`` if that settles it, otherwise the seconds to wait at least."""
        import httpx

        self.status, self.response, self.error = None, "", None
        try:
            async with asyncio.timeout(_TIMEOUT):
                return await self._exchange(content)
        except Exception as error:
            # Without its text, which may quote the URL.
            self.error = type(error).__name__
            return 0.0 if isinstance(error, httpx.TransportError | TimeoutError) else None

    async def _exchange(self, content: bytes) -> float | None:
        import httpx

        headers = {"Content-Type": "application/json", "User-Agent": "workflow-automation-local-service"}
        timeout = httpx.Timeout(_TIMEOUT).as_dict()
        request = httpx.Request(
            "POST", self._url, headers=headers, content=content, extensions={"timeout": timeout}
        )
        # Not a client, which logs each URL, and the token with it.
        async with httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False) as transport:
            response = await transport.handle_async_request(request)
            self.status = response.status_code
            body = b""
            async for part in response.aiter_bytes():
                body += part
                if len(body) > _MAX_RESPONSE:
                    break
            self.response = self._safe(body.decode("utf-8", errors="replace"))[:LONG_STRING]
            await response.aclose()
        if self.status not in _RETRIED:
            return None
        seconds = response.headers.get("retry-after", "")
        return float(seconds) if seconds.isascii() and seconds.isdecimal() else 0.0

    def _safe(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, WITHHELD)
        return text

    def record(self) -> SentCallback:
        """Return the outcome of the call."""
        return SentCallback(
            run_id=self._run.run_id,
            flow_id=self._run.flow_id,
            url=withhold_tokens(self._url),
            body=summarize(withhold_tokens(self.body)),
            status=self.status,
            response=self.response,
            error=self.error,
            attempts=self.attempts,
            at=_now(),
        )


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _tokens(url: str) -> list[str]:
    return parse_qs(urlsplit(url).query).get("token", [])


def _encode(body: Any) -> bytes:
    # Lone surrogates are valid in JSON escapes, not in UTF-8.
    text = body if isinstance(body, str) else json.dumps(body)
    return text.encode("utf-8", errors="surrogatepass")


async def _in_thread(function: Callable[[], _T]) -> _T:
    """Call a test's function in a thread of its own: it may wait for as long as it likes."""
    result: concurrent.futures.Future[_T] = concurrent.futures.Future()
    result.set_running_or_notify_cancel()

    def call() -> None:
        try:
            value = function()
        except BaseException as error:
            result.set_exception(error)
        else:
            result.set_result(value)

    threading.Thread(target=call, name="workflow-automation-callback", daemon=True).start()
    return await asyncio.wrap_future(result)
