"""Why a connection failed, or a response ended early, and what to do about it."""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING

import httpcore

from workflow_automation_provider.client.send_progress import (
    TLS_ALERT,
    SendProgress,
    StoppedError,
)

if TYPE_CHECKING:
    from workflow_automation_provider.client.redaction import Redactor

# OpenSSL's codes of what is rejected for its form alone, where VERIFY_X509_STRICT is set: from
# X509_V_ERR_PATHLEN_INVALID_FOR_NON_CA to X509_V_ERR_EXTENSIONS_REQUIRE_VERSION_3.
_ERRORS_OF_FORM = range(80, 94)

# OpenSSL's text, which differs by version: "tlsv13 alert certificate required", "ssl/tls alert bad
# certificate".
_ALERT_OF_CERTIFICATE = re.compile(r"alert (\w+ )?(certificate|unknown ca)")

_TOO_LARGE = "The request may be too large for the service."
_CLIENT_CERT = (
    "Check the connection's client_cert: the service requires a certificate, and got none, or one "
    "that it rejects."
)
_MAYBE_CLIENT_CERT = (
    "If the service requires a certificate, set the connection's client_cert: with TLS 1.2, it "
    "does not say so. Otherwise it supports no version or cipher of TLS that this machine offers."
)
_FORM_OF_CERTIFICATE = (
    "From Python 3.13, a certificate must have the form that RFC 5280 requires. Set the "
    "connection's ca_bundle to the authority's file: the form is then not checked, all else is. "
    "Or have the certificate issued again."
)
_CA_BUNDLE = (
    "Check the connection's CA bundle, and that the base URL has the host name that the "
    "certificate is for."
)
USE_HTTPS = "Check the connection's base URL: it must begin with https:// if the service uses TLS."
"""What to do if it seems that a request in plain http came to a port for https."""
_NO_TLS = (
    "Check the connection's base URL: it must begin with http:// if the service does not use TLS."
)


def describe(error: Exception, redactor: Redactor) -> str:
    """Return what happened, without secrets."""
    if isinstance(error, StoppedError):
        return "the task was ended"
    if isinstance(error, httpcore.TimeoutException):
        return "it took longer than the connection's timeout"

    # h11 quotes an invalid header in its errors, and the service may have put the key into one.
    text = redactor.text(str(error)).strip().removesuffix(".")
    if _is_of_network(error):
        return text or "the connection failed"

    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


def hint_for(error: Exception, progress: SendProgress, url: str, via: str) -> str:
    """
    Return what to do about a request without a response, empty if there is nothing to do.

    :param url: that of the request
    :param via: the proxy that was used, empty if there was none
    """
    if progress.begun or isinstance(error, StoppedError):
        return _hint_for_begun(error, progress, url)
    if progress.head.startswith(TLS_ALERT):
        return USE_HTTPS
    if is_refusal_of_client(error):
        return _CLIENT_CERT
    if _rejects_form(error):
        return _FORM_OF_CERTIFICATE

    text = str(error)
    if "ALERT_HANDSHAKE_FAILURE" in text:
        return _MAYBE_CLIENT_CERT
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return _CA_BUNDLE
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text:
        return _NO_TLS

    if via:
        return (
            "Check that the service is up, the proxy, and the connection's base URL. "
            "If the service is reached without a proxy, set the connection's proxy to none."
        )

    return "Check that the service is up, and the connection's base URL."


def _hint_for_begun(error: Exception, progress: SendProgress, url: str) -> str:
    """Return what to do about a request of which a part was sent, or all."""
    if not _is_of_network(error):
        return ""

    hints = []
    if not progress.whole:
        hints.append(_TOO_LARGE)

    has_hung_up = not progress.head and not isinstance(error, httpcore.TimeoutException)
    if has_hung_up and url.startswith("http:"):
        hints.append(USE_HTTPS)

    return " ".join(hints)


def _is_of_network(error: Exception) -> bool:
    return type(error).__module__.startswith("httpcore")


def _rejects_form(error: Exception) -> bool:
    """Return whether the service's certificate was rejected for its form, as from Python 3.13."""
    cause = _tls_error(error)
    return isinstance(cause, ssl.SSLCertVerificationError) and cause.verify_code in _ERRORS_OF_FORM


def is_refusal_of_client(error: Exception) -> bool:
    """Return whether the service ended TLS because of the client's certificate, or without one."""
    cause = _tls_error(error)
    return cause is not None and bool(_ALERT_OF_CERTIFICATE.search(str(cause)))


def _tls_error(error: Exception) -> ssl.SSLError | None:
    """Return the error that httpcore wraps. Its pool removes the cause, but not the context."""
    wrapped = error.__context__
    return wrapped if isinstance(wrapped, ssl.SSLError) else None
