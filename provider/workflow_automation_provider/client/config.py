"""What a client is made with: the API key, headers, TLS and proxies, each validated before use."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from workflow_automation_provider.exceptions import InvalidRequestError

if TYPE_CHECKING:
    from workflow_automation_provider.client.settings import Settings

# Set by the client itself: any other value would break the framing, change the meaning or expose the key.
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


def checked_key(api_key: str | None) -> str | None:
    """
    Return the API key without surrounding whitespace, None if there is none.

    :raises InvalidRequestError: if it cannot be sent in a header
    """
    key = (api_key or "").strip()
    if not key:
        return None
    if not (key.isascii() and key.isprintable()) or " " in key:
        # The message must not reveal any part of the key.
        raise InvalidRequestError(
            "The API key contains whitespace, a control character or a non-ASCII character, which a header cannot "
            "carry: copy it again from the trigger section of the workflow's builder page."
        )
    return key


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """
    Return the extra headers.

    :raises InvalidRequestError: if one is not a valid header, or is set by the client itself
    """
    for name, value in headers.items():
        if not name or not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
            raise InvalidRequestError(
                "headers: a name has a character other than letters, digits, hyphens and underscores in it."
            )
        if name.lower() in _RESERVED_HEADERS:
            raise InvalidRequestError(f"headers: {name} is set by the provider: leave it out.")
        if not isinstance(value, str) or not (
            value.isascii() and value.isprintable() and value == value.strip()
        ):
            raise InvalidRequestError(
                f"headers: the value of {name} must be printable ASCII text, without leading or trailing whitespace."
            )
    return dict(headers)


def _why(error: Exception) -> str:
    # The operating system's message never quotes the value, which may be a whole pasted key.
    return getattr(error, "strerror", None) or type(error).__name__


def tls_context(settings: Settings, base_url: str) -> ssl.SSLContext:
    """
    Make the TLS context. The default certificates are loaded only if the service or the proxy is reached over TLS.

    :raises InvalidRequestError: if a file cannot be used, naming the argument and never quoting its value
    """
    ca_bundle, client_cert = settings.ca_bundle, settings.client_cert
    if ca_bundle:
        is_directory = Path(ca_bundle).is_dir()
        try:
            context = ssl.create_default_context(
                cafile=None if is_directory else ca_bundle, capath=ca_bundle if is_directory else None
            )
        except (OSError, ValueError) as error:
            raise InvalidRequestError(
                f"ca_bundle cannot be read as PEM certificates ({_why(error)}): expected a file or directory of them."
            ) from None
    elif any(url.lower().startswith("https:") for url in (base_url, settings.proxy or "")):
        context = httpx.create_ssl_context(trust_env=True)
    else:
        # Loading the default certificates takes longer than a request. An empty context, because httpcore
        # would load them for None.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if client_cert:
        certificate, key = (client_cert, None) if isinstance(client_cert, str) else client_cert
        try:
            # Without the password callback, OpenSSL would prompt for one on the terminal.
            context.load_cert_chain(certificate, key, password=lambda: "")
        except (OSError, ValueError) as error:
            raise InvalidRequestError(
                f"client_cert cannot be read as a PEM certificate with its unencrypted key "
                f"({_why(error)}): expected one file with both, or a pair of files."
            ) from None
    return context


def environment_proxy(url: str) -> str | None:
    """Return the URL of the environment's proxy for an address, None if it has none."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.hostname or "") or proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
