"""What a request returns if it succeeds: the run that was started, or the response to an upload."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from workflow_automation_provider.client.json_values import storable_text, why_not_storable
from workflow_automation_provider.client.protocol import Operation, Request, Response, Run
from workflow_automation_provider.client.redaction import WITHHELD, Redactor
from workflow_automation_provider.client.responses.body import (
    cut_off,
    decompressed,
    json_in,
    own_words,
    parse_json,
)
from workflow_automation_provider.client.responses.statuses import error_of, row_of


def read_run(
    response: Response, request: Request, redactor: Redactor, busy_statuses: Collection[int] = ()
) -> Run:
    """
    Return the run that a trigger started.

    Follows sections 4.1 and 4.2 of the interface.

    :param busy_statuses: with which the service rejects a request before it has done anything
    :raises WorkflowAutomationError: the outcome of the first of :data:`~.statuses.ROWS` that fits
    """
    response = decompressed(response)
    run: Run | None = None
    why = ""
    try:
        run = _run_of(response, request, redactor)
    except ValueError as error:
        why = redactor.text(str(error))

    row = row_of(response, request, run, busy_statuses)
    if run is None or row.outcome is not None:
        raise error_of(row, response, request, redactor, why)

    return run


def read_upload(
    response: Response, request: Request, redactor: Redactor, busy_statuses: Collection[int] = ()
) -> str:
    """
    Return the response to an upload. Follows section 4.3 of the interface.

    Its status says that the files were accepted, so any body is valid, except a web page, such as
    that of a login, whatever media type it has.

    :param busy_statuses: with which the service rejects a request before it has done anything
    :raises WorkflowAutomationError: the outcome of the first of :data:`~.statuses.ROWS` that fits
    """
    response = decompressed(response)
    row = row_of(response, request, busy_statuses=busy_statuses)
    if row.outcome is not None:
        raise error_of(row, response, request, redactor)

    return redactor.text(storable_text(own_words(response, redactor)))


# The run ------------------------------------------------------------------------------------------


def _run_of(response: Response, request: Request, redactor: Redactor) -> Run:
    """
    Return the run that a response says was started.

    :raises ValueError: if it has no usable run_id, and one is required: after a trigger by path;
        and if the response came before all of the request was sent, since then nothing else shows
        that a run was started
    """
    document = _document(response, redactor)
    fields = document if isinstance(document, dict) else {}
    is_required = request.operation is Operation.TRIGGER_BY_PATH or response.early
    run_id: str | None = None
    try:
        run_id = _run_id(fields.get("run_id"), redactor)
    except ValueError:
        if is_required:
            raise

    run_link = _run_link(fields.get("run_link"), redactor)
    rest = _without_identity(document, run_id, run_link)
    text = response.body.decode(errors="replace")
    return Run(run_id, run_link, request.flow_id, _kept(document, rest, text, redactor))


def _document(response: Response, redactor: Redactor) -> Any:
    """
    Return the JSON of a response.

    :raises ValueError: if it has none
    """
    # A body may be whole even if its headers announced more bytes.
    if response.error and not isinstance(json_in(response.body), dict):
        raise ValueError(cut_off(response, response.error, redactor))
    if not response.body.strip():
        raise ValueError("it is empty")

    try:
        return parse_json(response.body)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    except ValueError:
        coding = response.headers.get("content-encoding")
        if coding:
            raise ValueError(f"it is not JSON, and has the Content-Encoding {coding!a}") from None
        raise ValueError("it is not JSON") from None


def _run_id(value: object, redactor: Redactor) -> str:
    """
    Return a run_id as text.

    :raises ValueError: if it is missing, or cannot be used
    """
    if value is None:
        raise ValueError("it has no run_id")

    text = str(value) if type(value) in (str, int) else ""
    if not text.strip() or storable_text(text) != text:
        raise ValueError("its run_id is neither text that a database can store nor a whole number")
    if redactor.has_key(text):
        raise ValueError("its run_id contained the API key")

    return text


def _run_link(value: object, redactor: Redactor) -> str | None:
    """Return a run_link, None if it is missing or contains a secret."""
    if type(value) is not str or redactor.has_secret(value):
        return None
    return storable_text(value) or None


def _without_identity(document: object, run_id: str | None, run_link: str | None) -> object:
    """
    Return a response without the run_id and run_link that are used.

    The service makes them of its own ids, so a part of the key may occur in them by chance.
    """
    if not isinstance(document, dict):
        return document

    rest = dict(document)
    if run_id is not None:
        del rest["run_id"]
    if run_link is not None:
        del rest["run_link"]

    return rest


def _kept(document: object, rest: object, text: str, redactor: Redactor) -> Any:
    """
    Return a response as it is kept, or a note instead if it reveals a secret.

    :param document: the response, parsed
    :param rest: the response without the run_id and run_link that are used
    :param text: the response before it was parsed, which is kept if Airflow cannot store it parsed
    """
    # Of a field that is there twice, the parsed response has the last, at the place of the first.
    has_secret = redactor.has_secret(text) or redactor.has_secret(json.dumps(document))
    if has_secret or redactor.reveals(json.dumps(rest)):
        return WITHHELD

    kept = storable_text(text.strip()) if why_not_storable(document) else document
    return redactor.text(kept) if isinstance(kept, str) else kept
