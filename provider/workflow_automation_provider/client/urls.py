"""
URLs: the service's, and those that it returns.

DAG files import this module, and httpx is slow to import: it is imported where it is used.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, quote, urlsplit

from workflow_automation_provider.exceptions import InvalidRequestError

_EXAMPLE = "https://service.example/api"


def parse_base_url(
    text: str, *, allow_http: bool = False, name: str = "The base URL", example: str = _EXAMPLE
) -> str:
    """
    Validate and normalize a base URL.

    :param text: such as ``https://service.example/api``; a missing scheme means https
    :param allow_http: whether to allow plain http to another machine
    :param name: what it is called in errors, which show an ``example``
    :return: the URL without a trailing slash
    :raises InvalidRequestError: if it is empty, is not http(s), contains user info, a query or a
        fragment, or is plain http to a host other than loopback without ``allow_http``
    """
    text = text.strip()
    if "://" not in text:
        text = f"https://{text}"

    parts = _parts_of(text)
    if parts is None:
        # Without the URL, which may contain a password.
        raise InvalidRequestError(
            f"{name} is not usable: expected an http or https URL without a blank, a query (?) or "
            f"a fragment (#), such as {example}."
        )
    if "@" in parts.netloc:
        raise InvalidRequestError(
            f"{name} contains a user name or password: remove it and the @ after it. The API key "
            "has a field of its own, and a gateway's credentials go into the extra headers."
        )

    host = parts.hostname or ""
    if parts.scheme == "http" and not (allow_http or is_loopback(host)):
        raise InvalidRequestError(
            f"{name} is plain http to {host}, where the API key or a callback's token can be read "
            "in transit: use https, or set the connection's extra allow_http to true."
        )

    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _parts_of(text: str) -> SplitResult | None:
    """Return the parts of a URL, None if it is not http(s), or has no host or more than a path."""
    import httpx

    try:
        httpx.URL(text)
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except (ValueError, httpx.InvalidURL):
        return None

    is_web = parts.scheme in ("http", "https") and bool(host)
    is_clean = all(char.isprintable() and not char.isspace() for char in text)
    has_more = any(sign in text for sign in "?#\\")
    return parts if is_web and is_clean and not has_more else None


def origin_of(url: str) -> str:
    """Return the scheme, host and port of a URL, in one form however they are written."""
    import httpx

    parts = httpx.URL(url)
    return f"{parts.scheme}://{parts.netloc.decode('ascii')}"


def is_loopback(host: str) -> bool:
    """Return whether ``host`` (a name or an address, without brackets) is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def path_segment(text: str) -> str:
    """Return a text as one segment of a URL's path."""
    segment = quote(text, safe="")
    if segment.strip("."):
        return segment
    # quote() leaves dots, and a segment of dots alone would be a relative path.
    return segment.replace(".", "%2E")


MAX_LINK = 2000
"""The maximum length of what follows the host of a link, in characters."""

# Without credentials, and without what a browser changes: it leaves out blanks and control
# characters, and takes a backslash for a slash.
_WEB = re.compile(
    r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]+)?"
    rf"([/?#][^\s\x00-\x20\x7f\\]{{0,{MAX_LINK - 1}}})?",
    re.I | re.ASCII,
)


def web_link(link: object) -> str:
    """
    Return a link of the service, without blanks around it, if it is the URL of a web page.

    Otherwise an empty text: a browser runs ``javascript:``.
    """
    text = link.strip() if isinstance(link, str) else ""
    return text if _WEB.fullmatch(text) else ""
