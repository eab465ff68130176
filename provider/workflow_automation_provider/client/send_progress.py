"""
How much of one request was sent, and how much time is left for it.

httpx limits the time of each *read*, so a response that trickles in never times out, and it does
not tell how much was sent. So each read is given what is left of the time, and the body is handed
over in several writes, each sent before the next is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import httpcore

# In bytes. A stop takes effect between two writes: smaller ones cost system calls, larger ones
# delay the stop.
_WRITE_SIZE = 256 * 1024

# Seconds to wait for a response after the request was aborted: it counts only if it has arrived by
# then.
_EARLY_RESPONSE = 1.0

# In bytes: longer than the status line of a response, with those of interim (1xx) responses.
_HEAD = 4096


class StoppedError(Exception):
    """The client was stopped before the request was sent completely."""


class SendProgress:
    """
    The progress of one request and its response.

    A request counts as sent once its last byte was handed to the operating system: a server that
    received fewer bytes than ``Content-Length`` announces has no complete JSON document to act on.

    :param seconds: time for connecting (proxy and TLS included), for each send, and for the whole
        response
    :param stopped: returns whether nothing more may be sent
    :param before_last_byte: called before the last byte of the request is handed to the operating
        system
    """

    def __init__(
        self,
        seconds: float,
        stopped: Callable[[], bool],
        before_last_byte: Callable[[], None] | None = None,
    ) -> None:
        self.seconds = seconds
        self.begun = False
        """Whether any of the request's body may have been sent."""
        self.whole = False
        """Whether the last byte of the request may have been sent."""
        self.has_read = False
        """Whether reading has begun since the request was sent: the deadline is the response's."""
        self.head = b""
        """The beginning of the response: its status, where the rest of it is not valid HTTP."""
        self._stopped = stopped
        self._before_last_byte = before_last_byte
        self._deadline = time.monotonic() + seconds

    def check_stop(self) -> None:
        """
        Raise if nothing more may be sent.

        :raises StoppedError: if the client was stopped
        """
        if self._stopped():
            raise StoppedError

    def time_left(self) -> float:
        """
        Return the seconds until the deadline: that of connecting, then that of the response.

        :raises httpcore.TimeoutException: if it has passed
        """
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout
        return left

    def start_response(self) -> None:
        """Start the deadline of the whole response, at the first read after the request."""
        if self.begun and not self.has_read:
            seconds = self.seconds if self.whole else min(self.seconds, _EARLY_RESPONSE)
            self.has_read = True
            self._deadline = time.monotonic() + seconds

    def take_back(self) -> None:
        """Note that the service read nothing of the request: it rejected the client in TLS."""
        self.begun = False
        self.whole = False

    def note_response(self, data: bytes) -> None:
        """Keep the beginning of the response."""
        if self.has_read:
            self.head += data[: _HEAD - len(self.head)]

    def writes(self, content: Iterable[bytes]) -> Iterator[bytes]:
        """
        Yield the body of the request in parts of one size, each to be sent before the next.

        The last byte is a part of its own. Whatever ends its write, also an error in a signal
        handler, it may have been sent.

        :raises StoppedError: if the client was stopped before the last byte
        """
        self.begun = True
        waiting = bytearray()
        for chunk in content:
            waiting += chunk
            while len(waiting) > _WRITE_SIZE:
                self.check_stop()
                yield bytes(waiting[:_WRITE_SIZE])
                del waiting[:_WRITE_SIZE]

        self.check_stop()
        yield bytes(waiting[:-1])

        self.check_stop()
        if self._before_last_byte:
            self._before_last_byte()

        self.whole = True
        yield bytes(waiting[-1:])
