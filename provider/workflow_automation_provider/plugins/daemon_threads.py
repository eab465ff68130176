"""Threads for an event loop that nothing waits for when the process ends, and a bound on what they are given."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from workflow_automation_provider.plugins.metadata_session import UnavailableError

MAX_PENDING = 64
"""How many calls may be waiting for a thread or be executed by one."""

_TIMEOUT = 10.0

_T = TypeVar("_T")


class OverloadedError(UnavailableError):
    """Too much is pending, or takes too long."""


class DaemonThreads:
    """
    A few daemon threads.

    Python waits for the threads of an executor before it ends, and with them for a database that does not respond.

    :param number: of the threads
    """

    def __init__(self, number: int, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._room = threading.BoundedSemaphore(MAX_PENDING)
        for index in range(number):
            threading.Thread(target=self._work, name=f"{name}-{index}", daemon=True).start()

    async def run(self, function: Callable[[], _T]) -> _T:
        """
        Call a function in a thread, and return its result.

        :raises OverloadedError: if too many calls are pending, or the function does not return in time
        """
        if not self._room.acquire(blocking=False):
            raise OverloadedError("Too many callbacks are pending.")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        self._calls.put(lambda: self._call(function, loop, future))
        try:
            async with asyncio.timeout(_TIMEOUT):
                return await future
        except TimeoutError:
            raise OverloadedError(f"No result after {_TIMEOUT:.0f} seconds.") from None

    def _work(self) -> None:
        while True:
            self._calls.get()()

    def _call(
        self, function: Callable[[], _T], loop: asyncio.AbstractEventLoop, future: asyncio.Future[_T]
    ) -> None:
        settle: Callable[[Any], None]
        value: Any
        try:
            if future.cancelled():
                return
            settle, value = future.set_result, function()
        except BaseException as error:
            settle, value = future.set_exception, error
        finally:
            self._room.release()
        # The loop may have ended meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if future.done() else settle(value))
