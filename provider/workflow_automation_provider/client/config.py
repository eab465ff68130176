"""What a client is set up with: the key, headers, timeouts, TLS and proxies, each checked before it is used."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from workflow_automation_provider.client.checks import LONGEST_TIMEOUT
from workflow_automation_provider.exceptions import InvalidRequestError

__all__ = [
    "DEFAULT_TIMEOUT",
    "checked_headers",
    "checked_key",
    "checked_timeout",
    "environment_proxy",
    "is_secret_header",
    "proxy_secrets",
    "tls_context",
]

DEFAULT_TIMEOUT = 60.0
"""Seconds that connecting, each send, and the whole response may take."""


# Set by the sender alone: another value would break the framing, the meaning or the key's secrecy.
_RESERVED_HEADERS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-api-key",
    }
)
_SECRET_HEADER_WORDS = ("auth", "cookie", "key", "passw", "secret", "token")


def is_secret_header(name: str) -> bool:
    """Tell by its name whether a header's value is a secret."""
    return any(word in name.lower() for word in _SECRET_HEADER_WORDS)


def proxy_secrets(proxy: str | None) -> list[str]:
    """Return the password in a proxy's URL, as it stands there and decoded."""
    try:
        password = urlsplit(proxy or "").password or ""
    except ValueError:
        return []
    return sorted({password, unquote(password)} - {""})


def checked_key(api_key: str | None) -> str | None:
    """
    Return the key without blanks around it, None where there is none.

    :raises InvalidRequestError: if no header can carry it
    """
    key = (api_key or "").strip()
    if not key:
        return None
    if not (key.isascii() and key.isprintable()) or " " in key:
        # Never the value, nor where in it: only what is wrong with it.
        raise InvalidRequestError(
            "The API key has white space, a control character or a letter outside ASCII in it, which no header "
            "can carry: copy it again from the trigger section of the workflow's builder page."
        )
    return key


def checked_timeout(timeout: float, name: str = "timeout") -> float:
    """
    Return a timeout in seconds.

    :raises InvalidRequestError: if it is not more than 0 and at most a week
    """
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not (number and 0 < timeout <= LONGEST_TIMEOUT):
        raise InvalidRequestError(
            f"{name} is {timeout!r}: give seconds, more than 0 and at most {LONGEST_TIMEOUT} (a week)."
        )
    return float(timeout)


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """
    Return the extra headers.

    :raises InvalidRequestError: if one is no header, or is set by the sender itself
    """
    for name, value in headers.items():
        if not name or not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
            raise InvalidRequestError(
                f"headers: {name!r} is no header name: use letters, digits and hyphens."
            )
        if name.lower() in _RESERVED_HEADERS:
            raise InvalidRequestError(f"headers: {name} is set by the provider itself: leave it out.")
        if not isinstance(value, str) or not (
            value.isascii() and value.isprintable() and value == value.strip()
        ):
            raise InvalidRequestError(
                f"headers: the value of {name} is not printable ASCII text without blanks around it: write it so."
            )
    return dict(headers)


def _why(error: Exception) -> str:
    # The system's words for what went wrong, which never quote the value: it may be a whole pasted key.
    return getattr(error, "strerror", None) or type(error).__name__


def tls_context(
    *, verify: bool, ca_bundle: str | None, client_cert: str | tuple[str, str] | None, is_used: bool
) -> ssl.SSLContext:
    """
    Make the TLS context.

    :param verify: check the service's certificate
    :param ca_bundle: file or folder of PEM certificates to trust instead of the usual ones
    :param client_cert: PEM file with certificate and key, or a pair of files
    :param is_used: whether there is TLS to the service or to a proxy; the usual certificates are loaded only then
    :raises InvalidRequestError: if a file cannot be used, naming the argument and never quoting its value
    """
    if ca_bundle:
        folder = Path(ca_bundle).is_dir()
        try:
            context = ssl.create_default_context(
                cafile=None if folder else ca_bundle, capath=ca_bundle if folder else None
            )
        except (OSError, ValueError) as error:
            raise InvalidRequestError(
                f"ca_bundle cannot be read as PEM certificates ({_why(error)}): give a file or folder of them."
            ) from None
    elif is_used:
        context = httpx.create_ssl_context(trust_env=True)
    else:
        # Loading the usual certificates takes longer than a request. This trusts nobody: httpcore would make a
        # context of its own in place of None.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if client_cert:
        certificate, key = (client_cert, None) if isinstance(client_cert, str) else client_cert
        try:
            # The password callback keeps OpenSSL from asking for one on a terminal that nobody reads.
            context.load_cert_chain(certificate, key, password=lambda: "")
        except (OSError, ValueError) as error:
            raise InvalidRequestError(
                f"client_cert cannot be read as a PEM certificate with its unencrypted key "
                f"({_why(error)}): give one file with both, or a pair of files."
            ) from None
    return context


def environment_proxy(url: str) -> str | None:
    """Return the URL of the proxy that the environment names for an address, None where it names none."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.hostname or "") or proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
