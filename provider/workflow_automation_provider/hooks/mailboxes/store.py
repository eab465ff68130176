"""
What a store must be able to do for mailboxes, and how a run writes to one.

A store raises InvalidRequestError for what stays so, such as a missing bucket. Any other exception
may pass.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from workflow_automation_provider.client.quiet import quiet
from workflow_automation_provider.exceptions import InvalidRequestError

if TYPE_CHECKING:
    from workflow_automation_provider.client.settings import Settings

MAX_CLIENTS = 8
"""How many a store keeps open: each has some 15 MB."""

MAX_CONNECTIONS = 256
"""How many connections a client keeps: as many threads may read the ends of a batch."""

# After that, a connection is read again: in a triggerer, it may change.
_CLIENT_SECONDS = 600

_Client = TypeVar("_Client")

# The clients that are being made: without it, each thread of a batch would make one, all at once.
_opening: dict[Any, Future[Any]] = {}

MAX_LIFETIME = timedelta(days=7)
"""Of a URL with Signature Version 4, which S3 and Google Cloud Storage share."""

SHORTER = (
    "Shorten completion_timeout, or name a connection in callback_base_url that signs for longer, "
    "such as with a key of its own."
)

_SECONDS = 20

_PAUSES = (1.0, 3.0, 0.0)
"""After each attempt to write, while the store is busy."""

_BUSY_STATUSES = (408, 409, 425, 429)
_BUSY_CODE = re.compile("Throttl|Timeout|LimitExceeded|TooManyRequests|IDPCommunicationError")

_CODE = re.compile(r"<Code>(\w{1,64})</Code>")


class Written(NamedTuple):
    """
    What a run has written.

    :param body: one byte more than was asked for, if there are more
    :param at: when, by the store's clock
    """

    body: bytes
    at: datetime


class Store(Protocol):
    """A place for objects, each of which has a key."""

    rights: str
    """What its connection must be allowed to do."""

    def sign(self, key: str, lifetime: timedelta) -> str:
        """
        Return a URL by which an object can be written, if it is not there.

        :param lifetime: how long the URL can be used
        """

    def create(self, key: str) -> bool:
        """
        Write an object by such a URL, as a run does.

        :return: whether it is new; otherwise it is left as it is
        """

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names of a folder's objects, which need not be in order."""

    def read(self, key: str, limit: int) -> Written | None:
        """
        Return an object, None if it is not there.

        :param limit: how many bytes it may have
        """


def client_of(open_client: Callable[..., _Client], *place: object) -> _Client:
    """
    Return the client for a place. One thread makes it, and the others wait for what comes of it.

    :param open_client: makes a client, and keeps it for a period
    :raises Exception: what that raised
    """
    own: Future[_Client] = Future()
    future = _opening.setdefault((open_client, place), own)
    if future is own:
        try:
            own.set_result(open_client(*place, time.monotonic() // _CLIENT_SECONDS))
        except BaseException as error:
            own.set_exception(error)
        finally:
            del _opening[open_client, place]

    client: _Client = future.result()
    return client


def check_lifetime(lifetime: timedelta, at_most: timedelta) -> None:
    """
    Check that a signed URL can be used for long enough.

    :param at_most: how long a URL of the store can be used
    :raises InvalidRequestError: if it cannot
    """
    if lifetime > at_most:
        raise InvalidRequestError(
            f"a URL that its connection signs can be used for {at_most} at most, and this one "
            f"would have to be for {lifetime}.",
            next_step=SHORTER,
        )


@contextlib.contextmanager
def asking(
    module: str, loggers: tuple[str, ...], is_final: Callable[[Exception], bool], *, extra: str
) -> Iterator[None]:
    """
    Ask a store, without the lines at DEBUG that show signatures, tokens and keys.

    :param module: that of the client, which makes its loggers
    :param loggers: what their names begin with
    :param is_final: returns whether an error stays: not one of the network, or of a service that is
        busy
    :param extra: of this package, which has the module
    :raises InvalidRequestError: in place of any other error that stays so
    """
    try:
        importlib.import_module(module)
    except ImportError:
        from workflow_automation_provider.hooks.files.stores import extra_missing

        raise extra_missing("it", extra) from None

    with quiet(*loggers):
        try:
            yield
        except Exception as error:
            if isinstance(error, InvalidRequestError) or not is_final(error):
                raise
            raise InvalidRequestError(f"{type(error).__name__}: {error}") from error


def is_busy(status: int, code: str) -> bool:
    """
    Return whether a store that answers this may answer otherwise later.

    :param code: the store's own
    """
    return status >= 500 or status in _BUSY_STATUSES or bool(_BUSY_CODE.search(code))


def create_by(
    url: str, headers: Mapping[str, str], settings: Settings, *, is_there: int | str
) -> bool:
    """
    Write one byte by a URL, as a run does.

    :param headers: those that a run sends
    :param settings: has the certificates to trust, and the proxy
    :param is_there: the status, or the store's code, for an object that is there
    :return: whether it is new
    """
    import httpx

    from workflow_automation_provider.client.network import choose_proxy, tls_context

    proxy = choose_proxy(settings.proxy, url)
    put = functools.partial(
        httpx.put,
        verify=tls_context(settings, url),
        proxy=proxy.url if proxy else None,
        trust_env=False,
        timeout=_SECONDS,
    )
    for pause in _PAUSES:
        with quiet():
            response = put(url, content=b"\n", headers=headers)

        found = _CODE.search(response.text)
        code = found[1] if found else response.reason_phrase
        if is_there in (response.status_code, code):
            return False
        if response.is_success:
            return True

        failure = f"it answers {response.status_code} {code} to a URL as the run gets one."
        if not is_busy(response.status_code, code):
            raise InvalidRequestError(failure)

        time.sleep(pause)

    raise ConnectionError(failure)
