"""
The outcome of a request: facts, without words. :mod:`~workflow_automation_provider.failures` has the words.

==================== ========== ====================================================================================
Outcome              accepted   When
==================== ========== ====================================================================================
:class:`Started`     ``YES``    a trigger: 2xx with a usable response
:class:`Confirmed`   ``YES``    an upload: 2xx
:class:`Unidentified` ``YES``   a trigger: 2xx, but the response does not identify the run
:class:`Rejected`    ``NO``     4xx but for those below; redirects except 302 and 303
:class:`Busy`        ``NO``     425, 429, and the connection's ``busy_statuses``; of an upload also 408 and 503
:class:`NotSent`     ``NO``     no connection, or the request was not handed over whole
:class:`Unknown`     ``MAYBE``  no response, 408, 5xx, 302 and 303; of an upload also a 2xx with an HTML body
==================== ========== ====================================================================================
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from workflow_automation_provider.exceptions import Accepted

if TYPE_CHECKING:
    from workflow_automation_provider.client.protocol import Request, Run


class Reason(enum.Enum):
    """Why a request has no response, or one that came too early."""

    STOPPED = "stopped"
    """The client was stopped."""
    CERTIFICATE = "certificate"
    """The service's certificate was not accepted."""
    NO_TLS = "no TLS"
    """The service does not speak TLS."""
    UNREACHABLE = "unreachable"
    """No connection could be made."""
    WRITE = "write"
    """The service stopped reading."""
    CONNECTION = "connection"
    """The connection was lost, or the time was up."""
    REPEATED = "repeated"
    """The response was that to an earlier request."""


class Proxy(enum.Enum):
    """Where the proxy that was used comes from."""

    CONNECTION = "connection"
    """The connection's ``proxy``."""
    ENVIRONMENT = "environment"
    """``HTTPS_PROXY`` and the like."""


class Unquoted(enum.Enum):
    """Why the service's own words are not quoted."""

    INCOMPLETE = "incomplete"
    """The response was cut off."""
    NOT_TEXT = "not text"
    """They are neither JSON nor plain text."""
    SECRET = "secret"  # noqa: S105
    """They contain the API key or another secret."""


class Attempts(NamedTuple):
    """
    How often a request was sent.

    :param seconds: how long that took, waits included
    :param limit: how long it was allowed to take, in seconds
    :param limited_by: the argument that the limit comes from
    """

    number: int
    seconds: float
    limit: float
    limited_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a request came to."""

    accepted: ClassVar[Accepted] = Accepted.YES
    """Whether the service acted on the request."""

    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Outcome):
    """A run was started."""

    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed(Outcome):
    """
    Files were accepted.

    :param response: the service's response
    """

    response: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(Outcome):
    """
    A request that did not succeed.

    :param status: HTTP status of the response, None if there was none
    :param quote: the service's own words, shortened; empty if there are none, or why they are not quoted
    :param detail: what happened, as the operating system or the response says it, redacted
    :param location: where a redirect leads to, redacted; empty if it does not say
    :param retry_after: seconds that the service asked to wait, None if it did not
    :param early: whether the response arrived before the request was sent completely
    :param reason: why there is no response, None if there is one
    :param begun: whether a part of the request may have been sent
    :param via: the proxy that was used, None if none was
    :param attempts: how often the request was sent, None if once
    """

    status: int | None = None
    quote: str | Unquoted = ""
    detail: str = ""
    location: str = ""
    retry_after: float | None = None
    early: bool = False
    reason: Reason | None = None
    begun: bool = False
    via: Proxy | None = None
    attempts: Attempts | None = field(default=None, compare=False)


class Unidentified(Failure):
    """A run was started, but its id is unknown."""

    __slots__ = ()


class Rejected(Failure):
    """The service rejected the request; sending it again cannot help."""

    __slots__ = ()
    accepted: ClassVar[Accepted] = Accepted.NO


class Busy(Failure):
    """The service did nothing, and asked to send the request later."""

    __slots__ = ()
    accepted: ClassVar[Accepted] = Accepted.NO


class NotSent(Failure):
    """The service never received the whole request, and so cannot have acted on it."""

    __slots__ = ()
    accepted: ClassVar[Accepted] = Accepted.NO


class Unknown(Failure):
    """The request was sent, but it is unknown whether the service acted on it."""

    __slots__ = ()
    accepted: ClassVar[Accepted] = Accepted.MAYBE


class Check(NamedTuple):
    """
    What a check of the connection came to: a request that starts nothing.

    :param url: the base URL
    :param status: as for :class:`Failure`, and so are the others
    """

    url: str
    status: int | None = None
    location: str = ""
    detail: str = ""
    reason: Reason | None = None
    via: Proxy | None = None

    @property
    def is_passed(self) -> bool:
        """Whether the service can be reached, and works."""
        return self.status is not None and self.status < 500
