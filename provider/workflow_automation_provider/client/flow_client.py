"""The HTTP client: safe to share between threads, and never sends a request twice."""

from __future__ import annotations

import contextlib
import hashlib
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Self, cast
from urllib.parse import urlsplit

import httpcore
import httpx

from workflow_automation_provider.client import protocol, responses
from workflow_automation_provider.client.config import (
    DEFAULT_TIMEOUT,
    checked_busy_statuses,
    checked_headers,
    checked_key,
    checked_timeout,
    environment_proxy,
    secrets_in,
    tls_context,
)
from workflow_automation_provider.client.deadline import SendProgress, StoppedError
from workflow_automation_provider.client.files import (
    DEFAULT_FILE_FORMAT,
    Element,
    FileFormat,
    check_file_format,
)
from workflow_automation_provider.client.keep_alive import KeepAliveTransport
from workflow_automation_provider.client.outcome import (
    Check,
    Failure,
    NotSent,
    Outcome,
    Proxy,
    Reason,
    Started,
    Unknown,
)
from workflow_automation_provider.client.redaction import Redactor, guard_wire_logs
from workflow_automation_provider.exceptions import InvalidRequestError, NotSentError, WorkflowAutomationError

# A valid response has two short fields; one longer than this is faulty, and would only fill the memory.
_RESPONSE_LIMIT = 1024 * 1024

_HEADERS = {"User-Agent": "airflow-provider-workflow-automation", "Accept": "application/json"}


class FlowClient:
    """
    A client for the workflow automation service.

    Each request has its own connection: the service may close one that was kept alive just when a request is
    sent, and it would be unknown whether a run was started. :meth:`keep_connections` accepts that, for speed.

    :param base_url: URL of the service, see :func:`~.protocol.parse_base_url`
    :param api_key: the key of one workflow; None if only triggering by path is needed
    :param timeout: seconds that connecting, each send, and the whole response may take
    :param verify: whether to verify the service's certificate
    :param ca_bundle: file or directory of PEM certificates to trust instead of the default ones
    :param client_cert: PEM file with certificate and key, or a pair of files
    :param proxy: URL of a proxy; None uses those from the environment, but never for loopback
    :param headers: extra headers for every request
    :param allow_http: whether to allow plain http to another machine
    :param file_format: the format of the files in an upload, see :mod:`~.files`
    :param busy_statuses: statuses, besides 425 and 429, with which the service rejects a request before it has done
        anything. If it has, a retry starts a second run
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
        busy_statuses: Iterable[int] = (),
    ) -> None:
        # A plain flag, because signal handlers set it: acquiring a lock there could deadlock.
        self._stopped = False
        # Hashes of the runs that were seen, while connections are kept.
        self._seen_runs: set[bytes] | None = None
        self._seen_lock = threading.Lock()
        self.base_url = protocol.parse_base_url(base_url, allow_http=allow_http)
        self._api_key = checked_key(api_key)
        if self._contains_key(self.base_url):
            raise InvalidRequestError(
                "The base URL contains the API key, and would reveal it in logs: put the key only in the API key field (password)."
            )
        self.file_format = check_file_format(file_format)
        self._busy_statuses = checked_busy_statuses(busy_statuses)
        headers = checked_headers(headers or {})
        self._seconds = checked_timeout(timeout)
        proxy = self._choose_proxy(proxy)
        tls = tls_context(
            verify=verify,
            ca_bundle=ca_bundle,
            client_cert=client_cert,
            is_used=any(url.lower().startswith("https:") for url in (self.base_url, proxy or "")),
        )
        self._redactor = Redactor(secrets_in(headers, proxy), key=self._api_key or "")
        guard_wire_logs(self._redactor)
        self._transport = self._make_transport(tls, proxy)
        self._http = httpx.Client(
            transport=self._transport,
            headers={**_HEADERS, **headers},
            timeout=self._seconds,
            follow_redirects=False,
            # Requests are independent of each other, so cookies that the service sets are not kept.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            trust_env=False,
            event_hooks={"response": [_hide_location]},
        )

    def _contains_key(self, text: str) -> bool:
        # A shorter key would be found in other words.
        return self._api_key is not None and len(self._api_key) >= 8 and self._api_key in text

    def _choose_proxy(self, proxy: str | None) -> str | None:
        """Return the explicit proxy, or that of the environment, which never applies to this machine itself."""
        self._via = Proxy.CONNECTION if proxy else None
        if not proxy and not protocol.is_loopback(_host(self.base_url)):
            proxy = environment_proxy(self.base_url)
            self._via = Proxy.ENVIRONMENT if proxy else None
        return proxy

    def _make_transport(self, tls: ssl.SSLContext, proxy: str | None) -> KeepAliveTransport:
        try:
            urlsplit(proxy or "")  # stricter than httpx, which takes some invalid URLs for host names
            return KeepAliveTransport(tls, httpx.Proxy(proxy) if proxy else None)
        except (httpx.InvalidURL, ValueError, RuntimeError):
            # Without the original message, which quotes the URL: it may contain a password.
            name = "The proxy from the environment (HTTPS_PROXY, HTTP_PROXY or ALL_PROXY)"
            if self._via is Proxy.CONNECTION:
                name = "proxy"
            raise InvalidRequestError(
                f"{name} is not a usable URL: expected one such as http://proxy.example:3128 "
                "(socks5:// requires the package httpx[socks])."
            ) from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def stop(self) -> None:
        """
        Stop sending, for good and also in calls that are in progress; safe in a signal handler.

        A request that has not been sent completely fails with :class:`NotSentError`. One that has keeps
        waiting for its response, so that the run can be recorded.
        """
        self._stopped = True

    def redact_also(self, secret: str) -> None:
        """Never show a secret that a request contains, in errors, logs and results."""
        self._redactor.add(secret)

    def redact(self, text: str) -> str:
        """Return ``text`` unchanged, or a note instead if it reveals a secret."""
        return self._redactor.text(text)

    @contextlib.contextmanager
    def keep_connections(self, known_runs: Iterable[str] = ()) -> Iterator[None]:
        """
        Keep connections open for the requests that are sent within this context, from any thread.

        It is faster where many requests follow each other. See :mod:`~.keep_alive` for what it risks. Each run
        must be new: a trigger whose response has a ``run_id`` that was seen before is of unknown outcome.

        :param known_runs: ids of runs that were started before
        """
        self._seen_runs = {_digest(run_id) for run_id in known_runs}
        try:
            with self._transport.keep_alive():
                yield
        finally:
            self._seen_runs = None

    def send(
        self,
        request: protocol.Request,
        *,
        timeout: float | None = None,
        before_last_byte: Callable[[], None] | None = None,
        sent: Callable[[int], None] | None = None,
        begun: Callable[[Element], None] | None = None,
    ) -> Outcome:
        """
        Send a request, once.

        :param timeout: seconds, instead of the client's timeout
        :param before_last_byte: called before the last byte is sent: until then no run can have been started,
            whatever interrupts the call
        :param sent: called with the size of each piece of an upload that was sent
        :param begun: called with each element of an upload before it is read
        :return: started, confirmed, or a failure
        :raises FileUnavailableError: if a file is missing, or changes while it is sent
        """
        content = request.content
        if isinstance(content, protocol.UploadBody):
            with content.opened(lambda: self._stopped, begun, sent) as pieces:
                return self._post(request, pieces, timeout, before_last_byte)
        return self._post(request, content, timeout, before_last_byte)

    def upload_requests(
        self,
        run_id: str,
        files: Iterable[Element],
        flow_id: str,
        file_format: FileFormat | None = None,
        **limits: int | None,
    ) -> list[protocol.Request]:
        """
        Build and validate the requests that upload files and mappings, without the API key.

        :param file_format: the format of each file, by default the client's
        :param limits: those of :func:`~.upload_body.split`
        """
        # Not at the top: only uploads need it.
        from workflow_automation_provider.client.upload_body import measure, split, upload_body

        file_format = self.file_format if file_format is None else check_file_format(file_format)
        try:
            measured = measure(files, file_format, stopped=lambda: self._stopped)
        except StoppedError:
            raise NotSentError("Nothing was sent: the task was ended.") from None
        requests = []
        for group in split(flow_id, run_id, measured, **limits):
            body, elements = upload_body(flow_id, run_id, group), [file.element for file in group]
            requests.append(self.checked(protocol.upload_request(self.base_url, flow_id, body, elements)))
        return requests

    def check(self) -> Check:
        """Check that the service can be reached, with a request that starts nothing, without the API key."""
        progress = SendProgress(self._seconds, 0, lambda: self._stopped)
        try:
            response = self._http.head(self.base_url, extensions={"progress": progress})
        except Exception as error:
            return Check(
                url=self.base_url,
                detail=self._describe(error, progress),
                reason=_reason(error, progress),
                via=self._via,
            )
        location = self._redactor.text(response.extensions.get("location", ""))
        return Check(url=self.base_url, status=response.status_code, location=location, via=self._via)

    def checked(self, request: protocol.Request) -> protocol.Request:
        """
        Return a request that can be sent.

        :raises InvalidRequestError: if it cannot, or the API key is missing
        """
        if request.operation.takes_key and self._api_key is None:
            raise InvalidRequestError(
                f"{request.title} needs the API key, and the connection has none.",
                next_step="Put the API key in the connection's API key field (password).",
            )
        if self._contains_key(request.flow_id or ""):
            raise InvalidRequestError(
                "The flow_id contains the API key, and would show it in logs: give the workflow's identifier."
            )
        try:
            httpx.URL(request.url)
        except httpx.InvalidURL as error:
            raise InvalidRequestError(f"The flow_id does not make a valid URL: {error}.") from None
        return request

    def _post(
        self,
        request: protocol.Request,
        content: bytes | Iterable[bytes],
        timeout: float | None,
        before_last_byte: Callable[[], None] | None,
    ) -> Outcome:
        headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "Content-Length": str(len(request.content)),
        }
        if request.operation.takes_key and self._api_key is not None:
            headers[protocol.API_KEY_HEADER] = self._api_key
        seconds = self._seconds if timeout is None else checked_timeout(timeout)
        progress = SendProgress(seconds, len(request.content), lambda: self._stopped, before_last_byte)
        message = self._http.build_request(
            "POST",
            request.url,
            headers=headers,
            content=content,
            timeout=seconds,
            extensions={"progress": progress},
        )
        try:
            response = self._http.send(message, stream=True)
        except WorkflowAutomationError:
            raise  # of a file
        except Exception as error:
            return self._without_response(error, progress, request)
        try:
            outcome = responses.read(
                self._read(response, progress), request, self._redactor, self._busy_statuses
            )
            if isinstance(outcome, Started) and not self._is_new(outcome.run):
                outcome = Unknown(
                    request=request, reason=Reason.REPEATED, detail=outcome.run.run_id or "", via=self._via
                )
            # Any other response may be that to an earlier request, and that to this one may arrive next.
            progress.may_keep = isinstance(outcome, Started) and outcome.run.run_id is not None
            return outcome
        finally:
            with contextlib.suppress(Exception):  # the response is known
                response.close()

    def _is_new(self, run: protocol.Run) -> bool:
        """Return whether a run was not seen before, while connections are kept."""
        seen = self._seen_runs
        if seen is None or run.run_id is None:
            return True
        digest = _digest(run.run_id)
        with self._seen_lock:
            is_new = digest not in seen
            seen.add(digest)
        return is_new

    def _without_response(
        self, error: Exception, progress: SendProgress, request: protocol.Request
    ) -> Failure:
        """Return the outcome of a request without a response: not sent, or unknown."""
        reason = _reason(error, progress)
        kind = Unknown if progress.whole and reason is not Reason.STOPPED else NotSent
        return kind(
            request=request,
            detail=self._describe(progress.write_error or error, progress),
            reason=reason,
            begun=progress.begun,
            via=self._via,
        )

    def _read(self, response: httpx.Response, progress: SendProgress) -> protocol.Response:
        """Read the response up to the limit; an error makes it incomplete, because its status is known."""
        body = bytearray()
        incomplete = ""
        try:
            # Not iter_raw(), which closes the response, before it is known whether its connection may be used again.
            for chunk in cast("httpx.SyncByteStream", response.stream):
                body += chunk
                if len(body) > _RESPONSE_LIMIT:
                    incomplete = f"it is longer than {_RESPONSE_LIMIT // 1024} KiB"
                    break
        except httpcore.ReadTimeout:
            incomplete = f"it was still arriving after {progress.seconds:g} s"
        except Exception as error:
            incomplete = f"it was cut off after {len(body)} bytes: {self._describe(error, progress)}"
        headers = {name.lower(): value for name, value in response.headers.items()}
        if "location" in response.extensions:
            headers["location"] = response.extensions["location"]
        return protocol.Response(
            response.status_code, headers, bytes(body[:_RESPONSE_LIMIT]), incomplete, early=not progress.whole
        )

    def _describe(self, error: Exception, progress: SendProgress) -> str:
        match error:
            case StoppedError():
                return ""
            case httpcore.ConnectTimeout():
                return f"no connection within {progress.seconds:g} s (the timeout)"
            case httpcore.ReadTimeout():
                return f"no response within {progress.seconds:g} s (the timeout)"
            case httpcore.WriteTimeout():
                return f"no more data could be sent for {progress.seconds:g} s (the timeout)"
        # h11 quotes an invalid header in its errors, and the service may have put the key into one.
        text = self._redactor.text(str(error)).strip().rstrip(".")
        if type(error).__module__.startswith("httpcore"):
            return text or "the connection failed"
        kind = type(error).__name__
        return f"{kind}: {text}" if text else kind


def _digest(run_id: str) -> bytes:
    return hashlib.blake2b(run_id.encode(errors="surrogatepass"), digest_size=8).digest()


def _host(base_url: str) -> str:
    try:
        return httpx.URL(base_url).host
    except httpx.InvalidURL:
        raise InvalidRequestError(
            "The base URL is not a valid URL: expected https://host[:port]/api."
        ) from None


def _reason(error: Exception, progress: SendProgress) -> Reason:
    text = str(error)
    if isinstance(error, StoppedError):
        return Reason.STOPPED
    if progress.write_error:
        return Reason.WRITE
    if progress.begun:
        return Reason.CONNECTION
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return Reason.CERTIFICATE
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text:
        return Reason.NO_TLS
    return Reason.UNREACHABLE


def _hide_location(response: httpx.Response) -> None:
    # httpx parses the Location header even if redirects are not followed, and raises if it is malformed: the
    # status, which says that nothing was started, would be lost.
    if "location" in response.headers:
        response.extensions["location"] = response.headers.pop("location")
