"""The HTTP client: safe to share between threads, and never sends a request twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

import httpx

from workflow_automation_provider.client import protocol
from workflow_automation_provider.client.network import choose_proxy, tls_context
from workflow_automation_provider.client.redaction import Redactor, has_enough_letters
from workflow_automation_provider.client.responses import results
from workflow_automation_provider.client.responses.cause import hint_for
from workflow_automation_provider.client.responses.no_response import (
    error_without_response,
    what_came,
)
from workflow_automation_provider.client.send_progress import SendProgress
from workflow_automation_provider.client.settings import Settings
from workflow_automation_provider.client.transport import Transport
from workflow_automation_provider.client.urls import parse_base_url
from workflow_automation_provider.exceptions import (
    InvalidRequestError,
    NotSentError,
    WorkflowAutomationError,
)

_HEADERS = {
    "User-Agent": "airflow-provider-workflow-automation",
    "Accept": "application/json",
    "Accept-Encoding": "identity",
}

_Result = TypeVar("_Result")


class FlowClient:
    """
    A client for the workflow automation service.

    Each request has its own connection: the service may close one that was kept alive just when a
    request is sent, and it would be unknown whether a run was started.

    :param base_url: URL of the service, see :func:`~.urls.parse_base_url`
    :param api_key: the key of one workflow; None if only triggering by path is needed
    :param options: fields of :class:`~.settings.Settings`. No proxy means those from the
        environment, but never for loopback
    :raises InvalidRequestError: if an argument is wrong, naming it
    """

    def __init__(self, base_url: str, *, api_key: str | None = None, **options: Any) -> None:
        # A plain flag, because signal handlers set it: acquiring a lock there could deadlock.
        self._stopped = False

        settings = Settings(**options)
        self.base_url = parse_base_url(base_url, allow_http=settings.allow_http)
        self._api_key = _checked_key(api_key)
        proxy = choose_proxy(settings.proxy, self.base_url)
        self._via = f" via {proxy.origin}" if proxy else ""
        self._settings = dataclasses.replace(settings, proxy=proxy.url if proxy else None)
        self.redactor = Redactor(self._settings.secrets(), key=self._api_key or "")
        """Finds the secrets of the connection and of its requests, in errors, logs and results."""

        if self.redactor.has_key(self.base_url):
            raise InvalidRequestError(
                "The base URL contains the API key, and would reveal it in logs: put the key only "
                "in the API key field (password)."
            )

        protocol.check_no_operation(self.base_url)
        transport = Transport(tls_context(settings, self.base_url), proxy)
        self._http = httpx.Client(transport=transport, headers=_HEADERS, trust_env=False)
        self._http.headers.update(settings.headers)

    def stop(self) -> None:
        """
        Stop sending, for good and also in calls that are in progress; safe in a signal handler.

        A request that has not been sent completely fails with :class:`NotSentError`. One that has
        keeps waiting for its response, so that the run can be recorded.
        """
        self._stopped = True

    def trigger(
        self, request: protocol.Request, *, before_last_byte: Callable[[], None] | None = None
    ) -> protocol.Run:
        """
        Start a run: send the request of a trigger, once.

        :param before_last_byte: called before the last byte is sent: until then no run can have
            been started, whatever interrupts the call
        :return: the run that was started
        :raises WorkflowAutomationError: if the request did not succeed, see
            :data:`~.responses.statuses.ROWS`
        """
        return self._send(request, results.read_run, before_last_byte=before_last_byte)

    def upload(self, request: protocol.Request) -> str:
        """
        Upload files: send the request of an upload, once.

        :return: the service's response
        :raises FileUnavailableError: if a file is missing, or changes while it is sent
        :raises WorkflowAutomationError: if the request did not succeed, see
            :data:`~.responses.statuses.ROWS`
        """
        return self._send(request, results.read_upload)

    def _send(
        self,
        request: protocol.Request,
        read: Callable[..., _Result],
        *,
        before_last_byte: Callable[[], None] | None = None,
    ) -> _Result:
        """
        Send a request, and return what its response says.

        :param read: returns the result of the response, or raises an error
        """
        progress = SendProgress(self._settings.timeout, lambda: self._stopped, before_last_byte)
        headers = self._headers_of(request)
        with closing(request.stream()) as content:
            try:
                response = self._response(
                    progress, "POST", request.url, content=content, headers=headers
                )
                return read(response, request, self.redactor, self._settings.busy_statuses)
            except WorkflowAutomationError:
                raise
            except Exception as error:
                failure = error_without_response(request, error, progress, self.redactor, self._via)

        # Not in the except block: its context would be the other error, whose text is not redacted.
        raise failure

    def _headers_of(self, request: protocol.Request) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Content-Length": str(len(request.content))}
        if request.operation.takes_key and self._api_key is not None:
            headers["X-API-Key"] = self._api_key
        return headers

    def check(self) -> str:
        """
        Check that the service can be reached, with a request that starts nothing.

        It does not contain the API key.

        :return: what it responded
        :raises WorkflowAutomationError: if it did not, or does not work
        """
        title = f"HEAD {self.base_url}"
        progress = SendProgress(self._settings.timeout, lambda: self._stopped)
        try:
            response = self._response(progress, "HEAD", self.base_url)
        except Exception as error:
            came = what_came(error, progress, self.redactor)
            hint = hint_for(error, progress)
            next_step = hint or "Check the connection's base URL."
            failure = NotSentError(f"{title}{self._via} got {came}.", next_step=next_step)
        else:
            return self._checked_response(title, response)

        raise failure  # not above, for the same reason as in _send()

    def _checked_response(self, title: str, response: protocol.Response) -> str:
        # 501 says that the method HEAD is not implemented: the service works.
        if response.status >= 500 and response.status != 501:
            raise NotSentError(
                f"{title} returned {response.status}: the service is not working.",
                status=response.status,
            )

        found = f"{title} returned {response.status}"
        location = self.redactor.text(response.headers.get("location", ""))
        if location:
            found += f", with the location {location!a}: redirects are never followed"
        return found

    def checked_request(self, request: protocol.Request) -> protocol.Request:
        """
        Return a request that can be sent.

        :raises InvalidRequestError: if it cannot, or the API key is missing
        """
        if request.operation.takes_key and self._api_key is None:
            raise InvalidRequestError(
                f"{request.title} needs the API key, and the connection has none.",
                next_step="Put the API key in the connection's API key field (password).",
            )

        if self.redactor.has_key(request.flow_id or ""):
            raise InvalidRequestError(
                "The flow_id contains the API key, and would show it in logs: give the workflow's "
                "identifier."
            )

        try:
            httpx.URL(request.url)
        except httpx.InvalidURL as error:
            raise InvalidRequestError(f"The flow_id does not make a valid URL: {error}.") from None

        return request

    def _response(
        self, progress: SendProgress, method: str, url: str, **message: Any
    ) -> protocol.Response:
        built = self._http.build_request(method, url, extensions={"progress": progress}, **message)
        response: protocol.Response = self._http.send(built).extensions["response"]
        return response


def _checked_key(api_key: str | None) -> str | None:
    """Return the API key without surrounding whitespace, None if there is none."""
    key = (api_key or "").strip()
    if not key:
        return None

    is_sendable = key.isascii() and key.isprintable() and " " not in key
    if not (is_sendable and has_enough_letters(key)):
        # The message must not reveal any part of the key.
        raise InvalidRequestError(
            "The API key has fewer than six letters and digits, which could not be told from other "
            "words in logs, or a character that no header can carry, such as a blank: copy it "
            "again from the trigger section of the workflow's builder page."
        )

    return key
