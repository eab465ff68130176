"""Waiting for what takes a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_for(what: str, look: Callable[[], Found | None], seconds: float = 300, pause: float = 0.1) -> Found:
    """
    Look until something is found, and return it.

    :param what: names it in the error
    :param seconds: how long to look
    :param pause: seconds between two looks
    :raises TimeoutError: if it is not found in time
    """
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"Waited {seconds:g} s for {what}")
        time.sleep(pause)
    return found
