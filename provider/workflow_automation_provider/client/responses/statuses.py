"""
What each status of a response means, such as 409: the table :data:`ROWS`.

The first row that fits decides. The interface shows only 201 and 400: the rest is what HTTP, and
the gateways in front of services, mean by a status.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal, NamedTuple

import httpx

from workflow_automation_provider.client.protocol import Operation, Request, Response, Run
from workflow_automation_provider.client.responses.body import (
    QUOTE_LIMIT,
    is_web_page,
    may_name_a_run,
    quote,
)
from workflow_automation_provider.client.responses.retry_after import retry_after_of
from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    Code,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
    WorkflowAutomationError,
)

if TYPE_CHECKING:
    from workflow_automation_provider.client.redaction import Redactor

Trait = Literal["run", "may name a run", "early", "page", "Retry-After", "declared"]
"""
What a row may require of a response:

- ``run``: it says which run was started
- ``may name a run``: it cannot be used, but may name a run
- ``early``: it came before all of the request was sent
- ``page``: it is a web page
- ``Retry-After``: it has a valid header of this name
- ``declared``: its status is one of the connection's ``busy_statuses``
"""


class Row(NamedTuple):
    """
    What a response means.

    :param statuses: ``4xx`` for all from 400 to 499, ``any`` for all
    :param operations: ``path`` and ``key`` for triggers, ``upload``; empty for all
    :param traits: what else must be true of the response
    :param outcome: the exception, None for success
    :param code: None for that of the exception, or of an upload of unknown outcome
    :param hint: what to do about it, in addition to what the code means
    """

    statuses: str
    operations: str
    traits: tuple[Trait, ...]
    outcome: type[WorkflowAutomationError] | None
    code: Code | None = None
    hint: str = ""

    def fits(self, status: int, operation: Operation, traits: Collection[Trait]) -> bool:
        """
        Return whether this row is for a response.

        :param traits: what is true of the response
        """
        names = {str(status), f"{status // 100}xx", "any"}
        has_status = not names.isdisjoint(self.statuses.split())
        has_operation = not self.operations or operation.value in self.operations.split()
        return has_status and has_operation and all(trait in traits for trait in self.traits)


_TRIGGER = "path key"
_NOT_THE_SERVICE = "Check the connection's base URL, and any gateway in front of the service."
_WRONG_PAGE = (
    "If there is none, it is a login page, or a page at a wrong base URL: correct the connection's "
    "base URL, or have the gateway let the requests through."
)
_PAGE_OF_A_GATEWAY = (
    f"{_NOT_THE_SERVICE} If the page is the service's own, check the API key and what was sent."
)
_COMPARE_INPUTS = "Compare the inputs with those that the workflow defines."
_COMPARE_FORMAT = "Check that file_format is what the service expects."
_CHECK_URL_AND_FLOW = "Check the connection's base URL and the flow_id."
_ANOTHER_RUN = "Sending the request again would start another run."

_MOVED = (
    "It redirects to {location}: the result, a login page, or the service's new URL. "
    "If it is the new URL, correct the connection's base URL. Redirects are never followed."
)
_CHECK_RUN_AND_KEY = (
    "Check that the run belongs to the flow, and that the API key belongs to this flow and has not "
    "expired."
)
_CHECK_URL_RUN_AND_KEY = f"Check the connection's base URL. {_CHECK_RUN_AND_KEY}"

_GATEWAY = (
    "A gateway may have returned this after it had forwarded the request. "
    "If the service, and every gateway in front of it, returns {status} only before it does "
    "anything, add {status} to the connection's busy_statuses."
)

_NO_KEY_BY_PATH = (
    "A trigger with a flow_id does not send the API key: to send it, leave flow_id out."
)
_CHECK_KEY = "Check the API key: it must be this workflow's, not expired, and have runs left."
_SHORTER = "Shorten the inputs: for example, pass the URL of a file instead of its content."
_SMALLER = (
    "Send fewer or smaller files in one request: see files_per_request and max_request_bytes of "
    "UploadFilesOperator."
)

# Gateways return 408 and 503 also for a request that they had forwarded. So these count as busy
# only where not all of the request was sent, and for an upload, which may be sent twice. 302 and
# 303 may follow a POST that was carried out.
# fmt: off
ROWS: tuple[Row, ...] = (
    Row("2xx", _TRIGGER, ("run",), None),
    Row("2xx", _TRIGGER, ("early", "may name a run"), UnidentifiedError, hint=_ANOTHER_RUN),
    Row("2xx", "", ("early",), NotSentError, hint=_NOT_THE_SERVICE),
    Row("2xx", _TRIGGER, ("page",), UnidentifiedError, hint=_WRONG_PAGE),
    Row("2xx", _TRIGGER, (), UnidentifiedError, hint=_ANOTHER_RUN),
    Row("2xx", "upload", ("page",), OutcomeUnknownError, hint=_WRONG_PAGE),
    Row("2xx", "upload", (), None),
    Row("any", "", ("declared",), BusyError),
    Row("425 429", "", (), BusyError),
    Row("408", "upload", (), BusyError),
    Row("408", "", ("early",), BusyError),
    Row("503", "upload", ("Retry-After",), BusyError),
    Row("503", "", ("early", "Retry-After"), BusyError),
    Row("302 303", "", ("early",), NotSentError, hint=_MOVED),
    Row("302 303", "", (), OutcomeUnknownError, hint=_MOVED),
    Row("3xx", "", (), RejectedError, Code.REDIRECTED, _MOVED),
    Row("400 401 402 403 422", "", ("page",), RejectedError, hint=_PAGE_OF_A_GATEWAY),
    Row("400 422", _TRIGGER, (), RejectedError, hint=_COMPARE_INPUTS),
    Row("400 422", "upload", (), RejectedError, hint=_COMPARE_FORMAT),
    Row("401 402 403", "path", (), RejectedError, Code.KEY_REJECTED, _NO_KEY_BY_PATH),
    Row("401 402 403", "key", (), RejectedError, Code.KEY_REJECTED, _CHECK_KEY),
    Row("401 402 403", "upload", (), RejectedError, Code.KEY_REJECTED, _CHECK_RUN_AND_KEY),
    Row("404", "upload", (), RejectedError, Code.NOT_FOUND, _CHECK_URL_RUN_AND_KEY),
    Row("404 405", "path", (), RejectedError, Code.NOT_FOUND, _CHECK_URL_AND_FLOW),
    Row("404 405", "", (), RejectedError, Code.NOT_FOUND, "Check the connection's base URL."),
    Row("407", "", (), RejectedError, hint="Check the connection's proxy."),
    Row("413", _TRIGGER, (), RejectedError, Code.TOO_LARGE, _SHORTER),
    Row("413", "upload", (), RejectedError, Code.TOO_LARGE, _SMALLER),
    Row("408", _TRIGGER, (), OutcomeUnknownError, hint=_GATEWAY),
    Row("4xx", "", (), RejectedError),
    Row("any", "", ("early",), NotSentError),
    Row("503", "", (), OutcomeUnknownError, hint=_GATEWAY),
    Row("any", "", (), OutcomeUnknownError),
)
# fmt: on
"""
What each response means: the first row that fits.

docs/if-it-fails.md has the statuses of each code.
"""

_MESSAGES: dict[type[WorkflowAutomationError], str] = {
    UnidentifiedError: "{title} returned {status}, but the response cannot be used: {why}.",
    RejectedError: "{title} was rejected: {status}.",
    BusyError: "{title} was rejected as busy: {status}{asked}.",
    NotSentError: "{title} returned {status} before all of it was sent, and was then aborted.",
    OutcomeUnknownError: "{title} returned {status}.",
}


def row_of(
    response: Response,
    request: Request,
    run: Run | None = None,
    busy_statuses: Collection[int] = (),
) -> Row:
    """
    Return the row of a response.

    :param run: the run, if the response says which one was started
    :param busy_statuses: with which the service rejects a request before it has done anything
    """
    is_true: dict[Trait, bool] = {
        "run": run is not None,
        "may name a run": may_name_a_run(response),
        "early": response.early,
        "page": is_web_page(response),
        "Retry-After": retry_after_of(response) is not None,
        "declared": response.status in busy_statuses,
    }
    traits = [trait for trait, has_it in is_true.items() if has_it]
    return next(row for row in ROWS if row.fits(response.status, request.operation, traits))


def error_of(
    row: Row, response: Response, request: Request, redactor: Redactor, why: str = ""
) -> WorkflowAutomationError:
    """
    Return the exception of a row.

    :param why: why the response does not say which run was started
    """
    kind = row.outcome or UnidentifiedError
    wait = retry_after_of(response)
    phrase = httpx.codes.get_reason_phrase(response.status)
    message = _MESSAGES[kind].format(
        title=request.title,
        status=f"{response.status} {phrase}".rstrip(),
        asked="" if wait is None else f", with a Retry-After of {wait:g} s",
        why=why,
    )
    consequence = ""
    if kind.accepted is Accepted.NO:
        consequence = nothing_done(request)
    elif kind is UnidentifiedError and "page" in row.traits:
        consequence = Code.START_UNKNOWN.consequence

    return kind(
        message,
        consequence=consequence,
        next_step=_next_step(row, response, redactor),
        code=row.code or code_of(kind, request),
        status=response.status,
        quote=quote(response, redactor),
        retry_after=wait,
        flow_id=request.flow_id,
    )


def _next_step(row: Row, response: Response, redactor: Redactor) -> str:
    location = redactor.text(response.headers.get("location", ""))
    shown = ascii(location[:QUOTE_LIMIT] or "another URL")
    if location and row.outcome is UnidentifiedError:
        return f"Its header Location is {shown}, perhaps of the run. {row.hint}"
    return row.hint.format(status=response.status, location=shown)


def code_of(kind: type[WorkflowAutomationError], request: Request) -> Code | None:
    """Return the code of an exception, None for that of its class."""
    is_unknown_upload = kind is OutcomeUnknownError and request.operation is Operation.UPLOAD
    return Code.UPLOAD_UNKNOWN if is_unknown_upload else None


def nothing_done(request: Request) -> str:
    """Return the consequence of an upload that was not accepted, empty for a trigger."""
    if request.operation is Operation.UPLOAD:
        return "The files of this request were not accepted."
    return ""
