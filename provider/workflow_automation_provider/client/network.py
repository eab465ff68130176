"""The way to the service: the connection's proxy and certificates, or those of the environment."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from workflow_automation_provider.client.setting_kinds import DIRECT, proxy_url
from workflow_automation_provider.client.urls import is_loopback
from workflow_automation_provider.exceptions import InvalidRequestError

if TYPE_CHECKING:
    from workflow_automation_provider.client.settings import Settings

_PROXY_EXAMPLE = "http://proxy.example:3128"

_PROXY_SCHEMES = ("http", "socks5", "socks5h")

CA_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""The variables that name certificates to trust: the first that is set counts."""

# How OpenSSL finds a certificate in a folder: by the hash of its subject, and a number.
_HASHED_NAME = re.compile(r"[0-9a-f]{8}\.[0-9]+")


# Proxies ------------------------------------------------------------------------------------------


class Proxy(NamedTuple):
    """
    The proxy between the client and the service.

    :param url: its URL, which may contain a password
    :param origin: where it is set, for errors
    """

    url: str
    origin: str


def choose_proxy(written: str | None, base_url: str) -> Proxy | None:
    """
    Return the proxy for the service.

    :param written: the proxy of the connection, None for those of the environment
    :param base_url: URL of the service
    :return: None for a direct connection
    :raises InvalidRequestError: if the proxy cannot be used, naming where it is set
    """
    proxy = _proxy_of_connection(written) if written else _proxy_of_environment(base_url)
    if proxy is not None:
        _check_proxy(proxy)
    return proxy


def unusable_proxy(proxy: Proxy) -> InvalidRequestError:
    """Return the error for a URL that is not valid, without it: it may contain a password."""
    return InvalidRequestError(
        f"The URL of {proxy.origin} is not usable: expected one such as {_PROXY_EXAMPLE}, "
        "without a path (socks5:// requires the package httpx[socks])."
    )


def _proxy_of_connection(written: str) -> Proxy | None:
    url = proxy_url(written)
    if url == DIRECT:
        return None
    return Proxy(url, "the connection's proxy")


def _proxy_of_environment(base_url: str) -> Proxy | None:
    """Return the environment's proxy for a URL; for this machine, there never is one."""
    parts = urlsplit(base_url)
    proxies = getproxies()
    kind = parts.scheme if proxies.get(parts.scheme) else "all"
    url = proxies.get(kind)
    if not url or url.strip().lower() == DIRECT or _is_direct(parts, proxies.get("no", "")):
        return None
    return Proxy(proxy_url(url), f"the proxy from the environment ({kind.upper()}_PROXY)")


def _is_direct(service: SplitResult, no_proxy: str) -> bool:
    """
    Return whether the environment excludes a service from its proxies.

    :param no_proxy: the variable NO_PROXY, which may have networks, as in requests and curl, and
        names such as ``*.example``; urllib knows ``.example`` alone
    """
    host = service.hostname or ""
    starred = [name.strip().lower() for name in no_proxy.split(",") if name.strip()[:2] == "*."]
    ends = tuple(name[1:] for name in starred)
    return (
        is_loopback(host)
        or bool(proxy_bypass(host))
        or bool(proxy_bypass(service.netloc))
        or host.endswith(ends)
        or service.netloc.lower().endswith(ends)
        or _is_in_networks(host, no_proxy)
    )


def _is_in_networks(host: str, no_proxy: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False

    for entry in no_proxy.split(","):
        # An address is a network of one.
        network = entry.strip().replace("[", "").replace("]", "")
        with contextlib.suppress(ValueError):
            if address in ipaddress.ip_network(network, strict=False):
                return True

    return False


def _check_proxy(proxy: Proxy) -> None:
    try:
        parts = urlsplit(proxy.url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise unusable_proxy(proxy) from None

    if parts.scheme == "https":
        raise InvalidRequestError(
            f"The URL of {proxy.origin} begins with https://, and TLS to a proxy is not supported: "
            f"most proxies speak http, also for a service with https, so write {_PROXY_EXAMPLE}."
        )

    has_path = parts.path not in ("", "/") or parts.query or parts.fragment
    has_blank = any(char.isspace() for char in proxy.url)
    if parts.scheme not in _PROXY_SCHEMES or not host or has_path or has_blank:
        raise unusable_proxy(proxy)


# Certificates -------------------------------------------------------------------------------------


def tls_context(settings: Settings, base_url: str) -> ssl.SSLContext:
    """
    Make the TLS context.

    :raises InvalidRequestError: if certificates cannot be used, naming the field or variable and
        never quoting its value
    """
    context = _context_that_trusts(settings, base_url)
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.client_cert:
        _load_client_certificate(context, settings.client_cert)

    return context


def _context_that_trusts(settings: Settings, base_url: str) -> ssl.SSLContext:
    if settings.ca_bundle:
        context = _context_of("ca_bundle", settings.ca_bundle)
        # Set by Python 3.13, it rejects in-house authorities whose form is not that of RFC 5280,
        # such as those without an Authority Key Identifier. Signatures, dates, names and purposes
        # are verified without it as well, and whoever fills in the field trusts just these
        # authorities.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context

    if not (settings.verify and base_url.startswith("https:")):
        # Loading certificates takes longer than a request. An empty context, because httpcore would
        # load them for None.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    for variable in CA_VARIABLES:
        path = os.environ.get(variable)
        if path:
            return _context_of(f"The environment variable {variable}", path)

    return httpx.create_ssl_context(trust_env=False)


def _context_of(name: str, path: str) -> ssl.SSLContext:
    """
    Make a context that trusts the certificates of a file, or of folders.

    :param name: of the field or variable, for errors
    :param path: of a file or folder; or of several folders, as in a ``PATH``
    """
    try:
        folders = [Path(part) for part in path.split(os.pathsep) if Path(part).is_dir()]
        if not folders:
            return ssl.create_default_context(cafile=path)

        has_certificates = any(map(_has_certificates, folders))
    except (OSError, ValueError) as error:
        raise InvalidRequestError(
            f"{name} cannot be read as PEM certificates ({_why(error)}): "
            "expected a file or directory of them."
        ) from None

    if not has_certificates:
        raise InvalidRequestError(
            f"{name} is a directory in which OpenSSL finds no certificate: "
            "run `openssl rehash` on it, or name a file."
        )

    return ssl.create_default_context(capath=path)


def _has_certificates(folder: Path) -> bool:
    return any(_HASHED_NAME.fullmatch(file.name) for file in folder.iterdir())


def _load_client_certificate(context: ssl.SSLContext, client_cert: str | tuple[str, str]) -> None:
    if isinstance(client_cert, str):
        certificate, key = client_cert, None
    else:
        certificate, key = client_cert

    try:
        # Without the password callback, OpenSSL would prompt for one on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise InvalidRequestError(
            f"client_cert cannot be read as a PEM certificate with its unencrypted key "
            f"({_why(error)}): expected one file with both, or a pair of files."
        ) from None


def _why(error: Exception) -> str:
    # The operating system's message never quotes the value, which may be a whole pasted key.
    return getattr(error, "strerror", None) or type(error).__name__
