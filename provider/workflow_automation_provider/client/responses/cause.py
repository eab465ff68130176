"""Why a connection failed, or a response ended early, and what to do about it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httpcore

from workflow_automation_provider.client.send_progress import SendProgress, StoppedError

if TYPE_CHECKING:
    from workflow_automation_provider.client.redaction import Redactor

# OpenSSL's text, which differs by version: "tlsv13 alert certificate required", "ssl/tls alert bad
# certificate".
_ALERT_OF_CERTIFICATE = re.compile(r"alert (\w+ )?(certificate|unknown ca)")

_TOO_LARGE = "The request may be too large for the service."
_CLIENT_CERT = (
    "Check the connection's client_cert: the service rejects the certificate, or requires one. "
    "Or it supports no version or cipher of TLS that this machine offers, which it may not say."
)
_CA_BUNDLE = (
    "Check the connection's CA bundle, and that the base URL has the host name that the "
    "certificate is for. Python 3.13 also requires the form of RFC 5280, but not of certificates "
    "that ca_bundle trusts."
)
_NO_TLS = (
    "Check the connection's base URL: it must begin with http:// if the service does not use TLS."
)

# What to do about what OpenSSL says.
_HINTS = (
    (_ALERT_OF_CERTIFICATE, _CLIENT_CERT),
    (re.compile("ALERT_HANDSHAKE_FAILURE"), _CLIENT_CERT),
    (re.compile("CERTIFICATE_VERIFY_FAILED"), _CA_BUNDLE),
    (re.compile("WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE"), _NO_TLS),
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


def hint_for(error: Exception, progress: SendProgress) -> str:
    """Return what to do about a request without a response, empty if there is nothing to do."""
    if progress.begun or isinstance(error, StoppedError):
        is_cut_off = _is_of_network(error) and not progress.whole
        return _TOO_LARGE if is_cut_off else ""

    for words, hint in _HINTS:
        if words.search(str(error)):
            return hint

    return "Check that the service is up, and the connection's base URL and proxy."


def _is_of_network(error: Exception) -> bool:
    return type(error).__module__.startswith("httpcore")


def is_refusal_of_client(error: httpcore.ReadError) -> bool:
    """Return whether the service ended TLS because of the client's certificate, or without one."""
    return _ALERT_OF_CERTIFICATE.search(str(error)) is not None
