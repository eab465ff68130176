"""The thin shell that sends: one HTTP client, shared safely between threads, that never sends twice."""

from __future__ import annotations

import contextlib
import dataclasses
import ssl
from collections.abc import Callable, Iterable, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import httpcore
import httpx

from workflow_automation_provider.client import protocol, replies
from workflow_automation_provider.client.deadline import Exchange, ExchangeTransport, StoppedError
from workflow_automation_provider.client.errors import (
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    WorkflowAutomationError,
)
from workflow_automation_provider.client.files import (
    DEFAULT_FILE_FORMAT,
    Element,
    FileFormat,
    check_file_format,
)
from workflow_automation_provider.client.redaction import Redactor, guard_wire_logs
from workflow_automation_provider.client.transport import (
    DEFAULT_TIMEOUT,
    checked_headers,
    checked_key,
    checked_timeout,
    environment_proxy,
    is_secret_header,
    proxy_secrets,
    tls_context,
)
from workflow_automation_provider.client.upload_body import UploadBody, upload_body

__all__ = ["FlowClient"]

_Result = TypeVar("_Result")

# A reply is two short fields; far past this it is a fault, and reading on would only fill the memory.
_REPLY_CAP = 1024 * 1024


class FlowClient:
    """
    A client of the workflow automation service.

    Each request gets a connection of its own: on one that was kept alive, the service may be hanging up
    just when a request is sent, and nobody could tell whether a run was started.

    :param base_url: address of the service, see :func:`~.protocol.parse_base_url`
    :param api_key: the key of one workflow; None where only triggering by path is needed
    :param timeout: seconds that connecting, each send, and the whole response may take
    :param verify: check the service's certificate
    :param ca_bundle: file or folder of PEM certificates to trust instead of the usual ones
    :param client_cert: PEM file with certificate and key, or a pair of files
    :param proxy: URL of a proxy; None uses those of the environment, but never for loopback
    :param headers: extra headers for every request
    :param allow_http: accept plain http to another machine
    :param file_format: how a file is written in an upload, see :mod:`~.files`
    :raises InvalidRequestError: if an argument is wrong, naming it
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        verify: bool = True,
        ca_bundle: str | None = None,
        client_cert: str | tuple[str, str] | None = None,
        proxy: str | None = None,
        headers: Mapping[str, str] | None = None,
        allow_http: bool = False,
        file_format: FileFormat = DEFAULT_FILE_FORMAT,
    ) -> None:
        # A plain flag: it is set from signal handlers, where a lock could never be had.
        self._stopped = False
        self.base_url = protocol.parse_base_url(base_url, allow_http=allow_http)
        self._api_key = checked_key(api_key)
        if self._api_key and len(self._api_key) >= 8 and self._api_key in self.base_url:
            raise InvalidRequestError(
                "The base URL has the API key in it, and would show it in logs: the key belongs into its own field alone."
            )
        self.file_format = check_file_format(file_format)
        headers = checked_headers(headers or {})
        tls = tls_context(verify=verify, ca_bundle=ca_bundle, client_cert=client_cert)
        self._seconds = checked_timeout(timeout)
        self._by_proxy = " by way of the connection's proxy" if proxy else ""
        if not proxy and not protocol.is_loopback(_host(self.base_url)):
            # Where nobody named a proxy, that of the environment applies, but this machine is never beyond one.
            proxy = environment_proxy(self.base_url)
            if proxy:
                self._by_proxy = " by way of the environment's proxy (HTTPS_PROXY and the like)"
        self._redactor = Redactor(
            [
                *(value for name, value in headers.items() if is_secret_header(name)),
                *proxy_secrets(proxy),
            ],
            key=self._api_key or "",
        )
        guard_wire_logs(self._redactor)
        self._http = httpx.Client(
            transport=self._transport(tls, proxy),
            headers={
                "User-Agent": "airflow-provider-workflow-automation",
                "Accept": "application/json",
                **headers,
            },
            timeout=self._seconds,
            follow_redirects=False,
            # No request knows of another one: cookies that the service sets are not kept.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            trust_env=False,
            event_hooks={"response": [_put_location_aside]},
        )

    def _transport(self, tls: ssl.SSLContext, proxy: str | None) -> ExchangeTransport:
        try:
            urlsplit(proxy or "")  # which is stricter: httpx takes some broken ones for host names
            return ExchangeTransport(tls, httpx.Proxy(proxy) if proxy else None)
        except (httpx.InvalidURL, ValueError, RuntimeError):
            # Not the error's own words: they quote the URL, and it may hold a password.
            whose = "A proxy of the environment (HTTPS_PROXY, HTTP_PROXY or ALL_PROXY)"
            if "connection" in self._by_proxy:
                whose = "proxy"
            raise InvalidRequestError(
                f"{whose} is not a URL that can be used: give one such as http://proxy.example:3128 "
                "(socks5:// needs the package httpx[socks])."
            ) from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def stop(self) -> None:
        """
        Send nothing from now on, also not for a call that is under way; safe in a signal handler.

        A request that was not yet handed over whole fails with :class:`NotSentError`. One that was goes on
        waiting for its response, so that the run can be told of.
        """
        self._stopped = True

    def trigger_flow(
        self, inputs: Mapping[str, Any], flow_id: str | None = None, *, timeout: float | None = None
    ) -> protocol.Run:
        """
        Start a run: by path with a ``flow_id`` (section 4.1), by key without (section 4.2). Sends once.

        :param inputs: input names and JSON values, see :func:`~.json_values.encode`
        :param flow_id: the flow to start; None lets the API key identify it
        :param timeout: seconds, in place of the client's own
        :return: the run that was started
        :raises WorkflowAutomationError: see :mod:`~.errors`; its ``accepted`` tells whether a run was started
        """
        return self.send_trigger(self.prepare_trigger(inputs, flow_id), timeout=timeout)

    def prepare_trigger(self, inputs: Mapping[str, Any], flow_id: str | None = None) -> protocol.Request:
        """
        Make the request that starts a run and check all of it; nothing is sent.

        :param inputs: input names and JSON values, see :func:`~.json_values.encode`
        :param flow_id: the flow to start; None lets the API key identify it
        :return: the request, without the API key, for :meth:`send_trigger`
        :raises InvalidRequestError: if an argument cannot be sent, or the API key is missing
        """
        request = protocol.trigger_request(self.base_url, inputs, flow_id)
        self._check(request.operation, request.title, request.url)
        return request

    def send_trigger(
        self,
        request: protocol.Request,
        *,
        timeout: float | None = None,
        handing_over: Callable[[], None] | None = None,
    ) -> protocol.Run:
        """
        Send a request of :meth:`prepare_trigger`, once.

        :param request: the request
        :param timeout: seconds, in place of the client's own
        :param handing_over: called before its last byte is handed over: up to then no run can have been started,
            whatever interrupts the call
        :return: the run that was started
        :raises WorkflowAutomationError: see :mod:`~.errors`; its ``accepted`` tells whether a run was started
        """
        reply = self._post(
            request.operation, request.title, request.url, request.content, timeout, handing_over
        )
        return _read_safely(
            reply, lambda it: replies.read_trigger_reply(it, request.operation, request.title, self._redactor)
        )

    def upload_files(
        self,
        run_id: str,
        files: Iterable[Element],
        flow_id: str,
        *,
        file_format: FileFormat | None = None,
        timeout: float | None = None,
        progress: Callable[[int], Callable[[int], None]] | None = None,
    ) -> str:
        """
        Upload files for a run (section 4.3), in one request. Sends once.

        :param run_id: the run that the files belong to
        :param files: files, or mappings that are sent as they stand
        :param flow_id: the flow that the run belongs to
        :param file_format: in place of the client's own
        :param timeout: seconds, in place of the client's own
        :param progress: called with the bytes that will be sent, returns what is called with those that were
        :return: what the service answered
        :raises WorkflowAutomationError: see :mod:`~.errors`; its ``accepted`` tells whether the files were taken
        """
        file_format = self.file_format if file_format is None else check_file_format(file_format)
        body = upload_body(flow_id, run_id, files, file_format)
        if progress is not None:
            body = body.watched(progress(body.content_length))
        url = protocol.upload_url(self.base_url)
        title = f"POST {url}"
        reply = self._post(protocol.Operation.UPLOAD, title, url, body, timeout)
        return _read_safely(reply, lambda it: replies.read_upload_reply(it, title, self._redactor))

    def check(self) -> str:
        """
        Reach the service with a request that cannot start anything and does not show the key.

        :return: what answered, in words
        :raises NotSentError: if the service cannot be reached or does not answer
        """
        title = f"HEAD {self.base_url}"
        exchange = Exchange(self._seconds, 0, lambda: self._stopped)
        try:
            response = self._http.head(self.base_url, extensions={"exchange": exchange})
        except StoppedError:
            raise NotSentError(f"{title} was not sent: the task was ended.") from None
        except Exception as error:
            raise NotSentError(
                f"{title} got no answer{self._by_proxy}: {self._describe(error)}.{_hint(error, by_proxy=bool(self._by_proxy))}"
            ) from None
        if 300 <= response.status_code < 400:
            location = self._redactor.text(response.extensions.get("location", "another address"))
            return f"{title} is redirected to {location!a}: that may be the right base URL, redirects are never followed"
        if response.status_code >= 500:
            raise NotSentError(
                f"{title} was answered with {response.status_code}: the service is not working."
            )
        return f"{title} was answered with {response.status_code}"

    def _check(self, operation: protocol.Operation, title: str, url: str) -> None:
        """Raise what is wrong with a request before it is sent."""
        if operation.takes_key and self._api_key is None:
            raise InvalidRequestError(
                f"{title} needs the API key, and there is none: put it into the connection's API key field."
            )
        try:
            httpx.URL(url)
        except httpx.InvalidURL as error:
            raise InvalidRequestError(
                f"The flow_id makes no valid address: {error}. Nothing was sent."
            ) from None

    def _post(
        self,
        operation: protocol.Operation,
        title: str,
        url: str,
        content: bytes | UploadBody,
        timeout: float | None,
        handing_over: Callable[[], None] | None = None,
    ) -> protocol.Reply:
        self._check(operation, title, url)
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if operation.takes_key and self._api_key is not None:
            headers[protocol.API_KEY_HEADER] = self._api_key
        if isinstance(content, UploadBody):
            headers["Content-Length"] = str(content.content_length)
        length = content.content_length if isinstance(content, UploadBody) else len(content)
        seconds = self._seconds if timeout is None else checked_timeout(timeout)
        exchange = Exchange(seconds, length, lambda: self._stopped, handing_over)
        request = self._http.build_request(
            "POST", url, headers=headers, content=content, timeout=seconds, extensions={"exchange": exchange}
        )
        try:
            response = self._http.send(request, stream=True)
        except WorkflowAutomationError:
            raise  # from the body: it says itself what happened
        except Exception as error:
            raise self._failure(error, exchange, operation, title) from None
        try:
            return self._read(response, exchange)
        finally:
            with contextlib.suppress(Exception):  # what was answered is known
                response.close()

    def _failure(
        self, error: Exception, exchange: Exchange, operation: protocol.Operation, title: str
    ) -> WorkflowAutomationError:
        """Return the error for a request without a response, by whether the service can have acted on it."""
        broken_off = "broken off before its end" if exchange.begun else f"not sent{self._by_proxy}"
        if isinstance(error, StoppedError):
            return NotSentError(f"{title} was {broken_off}: the task was ended. {operation.nothing_done}")
        if exchange.whole:
            return OutcomeUnknownError(
                f"{title} was sent and not answered: {self._describe(error)}. {operation.maybe_done}"
            )
        what = self._describe(exchange.write_error or error)
        hint = "" if exchange.begun else _hint(error, by_proxy=bool(self._by_proxy))
        if exchange.write_error:
            hint = " The request may be too large for the service."
        return NotSentError(f"{title} was {broken_off}: {what}. {operation.nothing_done}{hint}")

    def _read(self, response: httpx.Response, exchange: Exchange) -> protocol.Reply:
        """Read the reply up to the cap; a fault on the way makes it incomplete, for its status is known."""
        body = bytearray()
        incomplete = ""
        try:
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > _REPLY_CAP:
                    incomplete = f"it is longer than {_REPLY_CAP // 1024} KiB"
                    break
        except httpcore.ReadTimeout:
            incomplete = f"it was still coming after {exchange.seconds:g} s"
        except Exception as error:
            incomplete = f"it was cut off after {len(body)} bytes: {self._describe(error)}"
        headers = {name.lower(): value for name, value in response.headers.items()}
        if "location" in response.extensions:
            headers["location"] = response.extensions["location"]
        return protocol.Reply(
            response.status_code, headers, bytes(body[:_REPLY_CAP]), incomplete, early=not exchange.whole
        )

    def _describe(self, error: Exception) -> str:
        # h11 repeats an offending header in its errors, and a server may have put the key into one.
        text = self._redactor.text(str(error)).strip().rstrip(".")
        return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _read_safely(reply: protocol.Reply, read: Callable[[protocol.Reply], _Result]) -> _Result:
    """Read a reply; where that fails in an unforeseen way, its status alone still says what happened."""
    try:
        return read(reply)
    except WorkflowAutomationError:
        raise
    except Exception as error:
        headers = {name: value for name, value in reply.headers.items() if name == "retry-after"}
        why = f"it could not be read ({type(error).__name__})"
        return read(dataclasses.replace(reply, headers=headers, body=b"", incomplete=why))


def _host(base_url: str) -> str:
    try:
        return httpx.URL(base_url).host
    except httpx.InvalidURL:
        raise InvalidRequestError(
            "The base URL is not a valid address: write it as https://host[:port]/api."
        ) from None


def _hint(error: Exception, *, by_proxy: bool) -> str:
    """Tell what to check where the service was not reached."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return " Check the connection's CA bundle, and that the base URL has the host that the certificate is for."
    if "WRONG_VERSION_NUMBER" in str(error) or "RECORD_LAYER_FAILURE" in str(error):
        return " Check the connection's base URL: begin it with http:// if the service speaks no TLS there."
    return f" Check {'the proxy, and ' if by_proxy else ''}the connection's base URL."


def _put_location_aside(response: httpx.Response) -> None:
    # Even where redirects are not followed, httpx reads the address, and fails on a malformed one: the
    # status, which says that nothing was started, would be lost.
    if "location" in response.headers:
        response.extensions["location"] = response.headers.pop("location")
