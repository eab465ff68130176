"""Threads that nothing waits for, and the bound on what they are given."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import threading

import pytest

from workflow_automation_provider.plugins import daemon_threads
from workflow_automation_provider.plugins.daemon_threads import MAX_PENDING, DaemonThreads
from workflow_automation_provider.plugins.metadata_session import UnavailableError

HANGING = """
import asyncio, threading
from workflow_automation_provider.plugins.daemon_threads import DaemonThreads

async def main():
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang():
        loop.call_soon_threadsafe(begun.set)
        threading.Event().wait()

    call = asyncio.ensure_future(DaemonThreads(1, "test").run(hang))
    await begun.wait()
    call.cancel()

asyncio.run(main())
print("the end")
"""


def test_results_and_errors():
    async def main():
        threads = DaemonThreads(2, "test")
        numbers = await asyncio.gather(
            *(threads.run(functools.partial(pow, n, 2)) for n in range(MAX_PENDING))
        )
        assert numbers == [n * n for n in range(MAX_PENDING)]
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 / 0)
        assert await threads.run(threading.current_thread) is not threading.current_thread()

    asyncio.run(main())


def test_bound():
    async def main():
        threads, going_on = DaemonThreads(1, "test"), threading.Event()
        calls = [asyncio.ensure_future(threads.run(going_on.wait)) for _ in range(MAX_PENDING)]
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError, match="Too many callbacks"):
            await threads.run(int)
        going_on.set()
        assert await asyncio.gather(*calls) == [True] * MAX_PENDING
        assert await threads.run(int) == 0

    asyncio.run(main())


def test_what_nobody_waits_for_any_more_makes_room():
    async def main():
        threads, going_on = DaemonThreads(1, "test"), threading.Event()
        first = asyncio.ensure_future(threads.run(going_on.wait))
        others = [asyncio.ensure_future(threads.run(pytest.fail)) for _ in range(MAX_PENDING - 1)]
        await asyncio.sleep(0)
        for call in others:
            call.cancel()
        going_on.set()
        assert await first
        assert await threads.run(int) == 0

    asyncio.run(main())


def test_no_result(monkeypatch):
    monkeypatch.setattr(daemon_threads, "_TIMEOUT", 0.05)
    going_on = threading.Event()
    with pytest.raises(UnavailableError, match="No result after 0 seconds"):
        asyncio.run(DaemonThreads(1, "test").run(going_on.wait))
    going_on.set()


def test_the_process_ends_while_a_thread_hangs():
    done = subprocess.run(
        [sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "the end\n"
