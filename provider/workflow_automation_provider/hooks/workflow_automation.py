"""The hook: an Airflow connection of type ``workflow_automation``, ready to send."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from airflow.providers.common.compat.sdk import BaseHook

from workflow_automation_provider.client.config import checked_timeout
from workflow_automation_provider.client.protocol import NO_INPUTS
from workflow_automation_provider.exceptions import InvalidRequestError, WorkflowAutomationError
from workflow_automation_provider.get_provider_info import CONNECTION_FIELDS, FIELD_BEHAVIOUR
from workflow_automation_provider.hooks.connection import ConnectionExtra, client_for

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Connection
    from airflow.sdk.log import mask_secret

    from workflow_automation_provider.client.files import Element, FileFormat
    from workflow_automation_provider.client.flow_client import FlowClient
    from workflow_automation_provider.client.protocol import Request, Run
    from workflow_automation_provider.hooks.file_sources import FileSource
else:
    try:
        from airflow.sdk.log import mask_secret
    except ImportError:  # Airflow 2
        from airflow.utils.log.secrets_masker import mask_secret

__all__ = ["WorkflowAutomationHook"]

_WARN_BEFORE_EXPIRY = timedelta(days=14)


class WorkflowAutomationHook(BaseHook):
    """
    Start runs of the workflow automation service and upload files for them.

    Use it as a context manager, or call :meth:`close` when done. Nothing is sent twice by it: what a
    failure means is on the error's ``accepted``.

    :param workflow_automation_conn_id: connection with the base URL and the API key
    :param request_timeout: seconds that connecting, each send, and the whole response may take, in place of
        the connection's ``timeout``
    """

    conn_name_attr = "workflow_automation_conn_id"
    default_conn_name = "workflow_automation_default"
    conn_type = "workflow_automation"
    hook_name = "Workflow Automation"

    def __init__(
        self, workflow_automation_conn_id: str = default_conn_name, *, request_timeout: float | None = None
    ) -> None:
        super().__init__()
        self.workflow_automation_conn_id = workflow_automation_conn_id
        self.request_timeout = request_timeout
        self._client: FlowClient | None = None
        self._stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the HTTP client; a later call opens a new one."""
        if self._client is not None:
            self._client.close()
            self._client = None

    @functools.cached_property
    def connection(self) -> Connection:
        """
        The Airflow connection.

        :raises InvalidRequestError: if its id is None, or was rendered from a template without a value
        """
        conn_id = self.workflow_automation_conn_id
        if not isinstance(conn_id, str) or conn_id.strip() in ("", "None"):
            raise InvalidRequestError(
                f"workflow_automation_conn_id is {conn_id!r}: give the id of a connection."
            )
        # Typed as Any on some versions of Airflow.
        connection: Connection = self.get_connection(conn_id)
        return connection

    @functools.cached_property
    def extra(self) -> ConnectionExtra:
        """
        The connection's extra, checked.

        :raises InvalidRequestError: if it is wrong, naming the field
        """
        with self._locating():
            extra = ConnectionExtra.read(self.connection.extra)
        # Only what is secret: every other value would be starred out wherever it occurs in a log.
        for secret in extra.secrets():
            mask_secret(secret)
        return extra

    def get_conn(self) -> FlowClient:
        """
        Return the client, the same one until :meth:`close`.

        :raises InvalidRequestError: if the connection is wrong, naming the field
        """
        if self._client is None:
            with self._locating():
                self._client = client_for(self.connection, self.extra)
        if self._stopped:
            self._client.stop()
        return self._client

    def stop(self) -> None:
        """
        Send nothing from now on, for good; safe in a signal handler.

        A request that was not yet handed over whole fails with :class:`NotSentError`. One that was goes on
        waiting for its response.
        """
        self._stopped = True
        if (client := self._client) is not None:
            client.stop()

    def trigger_flow(self, inputs: Mapping[str, Any] = NO_INPUTS, flow_id: str | None = None) -> Run:
        """
        Start a run: by path with a ``flow_id`` (section 4.1), by the connection's key without (section 4.2).

        Each call starts a run. In a ``@task``, whose every try calls it again, use
        :func:`~workflow_automation_provider.execution.start.trigger_flow_once`.

        :param inputs: input names, as the flow defines them, and JSON values; dates, decimals, UUIDs and
            paths become text
        :param flow_id: the flow to start
        :return: the run, with ``run_id`` and ``run_link``
        :raises InvalidRequestError: before anything is sent, naming the value that is wrong
        :raises WorkflowAutomationError: any other outcome, see :mod:`workflow_automation_provider.exceptions`
        """
        return self.send_trigger(self.prepare_trigger(inputs, flow_id))

    def prepare_trigger(self, inputs: Mapping[str, Any] = NO_INPUTS, flow_id: str | None = None) -> Request:
        """
        Make the request that starts a run and check all of it, also the connection; nothing is sent.

        :param inputs: as :meth:`trigger_flow` takes them
        :param flow_id: the flow to start; None lets the connection's key identify it
        :return: the request, without the API key, for :meth:`send_trigger`
        :raises InvalidRequestError: naming the value or the field that is wrong
        """
        with self._locating(flow_id):
            self._check_timeout()
            request = self.get_conn().prepare_trigger(inputs, flow_id)
            if request.operation.takes_key:
                self._check_key_expiry()
        return request

    def send_trigger(self, request: Request, *, handing_over: Callable[[], None] | None = None) -> Run:
        """
        Send a request of :meth:`prepare_trigger`, once.

        :param handing_over: called before its last byte is handed over: up to then no run can have been started
        :return: the run, with ``run_id`` and ``run_link``, and the ``flow_id`` where it is known
        :raises WorkflowAutomationError: see :mod:`workflow_automation_provider.exceptions`
        """
        flow_id = self.flow_of(request)
        with self._locating(flow_id):
            run = self.get_conn().send_trigger(
                request, timeout=self.request_timeout, handing_over=handing_over
            )
        return dataclasses.replace(run, flow_id=flow_id)

    def upload_files(
        self,
        run_id: str,
        files: FileSource | Iterable[FileSource],
        flow_id: str | None = None,
        *,
        file_format: FileFormat | None = None,
        content_types: Mapping[str, str] | None = None,
    ) -> str:
        """
        Upload files for a run, in one request (section 4.3), as a stream.

        :param run_id: the run that the files belong to
        :param files: local paths and globs, URLs that Airflow's object storage reads, ``ObjectStoragePath`` objects,
            assets, and mappings that are sent as they stand
        :param flow_id: the flow of the run, by default the connection's
        :param file_format: how a file is written, in place of the connection's
        :param content_types: media types by name pattern, in place of those that the name's ending tells
        :return: the service's response
        :raises InvalidRequestError: before anything is sent, naming the file or value that is wrong
        :raises FileUnavailableError: if a file is missing, or changes while it is sent
        :raises WorkflowAutomationError: any other outcome, see :mod:`workflow_automation_provider.exceptions`
        """
        # Not at the top: only uploads need it, and object storage is slow to load.
        from workflow_automation_provider.hooks.file_sources import resolve

        with self._locating(flow_id):
            elements = resolve(files, content_types=content_types)
        (request,) = self.prepare_uploads(run_id, elements, flow_id, file_format=file_format)
        return self.send_upload(request)

    def prepare_uploads(
        self,
        run_id: str,
        files: Sequence[Element],
        flow_id: str | None = None,
        *,
        file_format: FileFormat | None = None,
        files_per_request: int | None = None,
        max_request_bytes: int | None = None,
    ) -> list[Request]:
        """
        Make the requests that upload files and check all of them, also the connection; nothing is sent.

        :param run_id: the run that the files belong to
        :param files: as :func:`~workflow_automation_provider.hooks.file_sources.resolve` returns them
        :param flow_id: the flow of the run, by default the connection's
        :param file_format: how a file is written, in place of the connection's
        :param files_per_request: the most files in one request, None for any number
        :param max_request_bytes: the most bytes in the body of one request, None for any number
        :return: the requests, without the API key, for :meth:`send_upload`
        :raises InvalidRequestError: naming the file or value that is wrong
        """
        with self._locating(flow_id):
            self._check_timeout()
            requests = self.get_conn().prepare_uploads(
                run_id,
                files,
                self.flow_of_upload(flow_id),
                file_format=file_format,
                files_per_request=files_per_request,
                max_request_bytes=max_request_bytes,
            )
            self._check_key_expiry()
        return requests

    def send_upload(self, request: Request) -> str:
        """
        Send a request of :meth:`prepare_uploads`, once, and log how far it is.

        :return: the service's response
        :raises FileUnavailableError: if a file is missing, or changes while it is sent
        :raises WorkflowAutomationError: see :mod:`workflow_automation_provider.exceptions`
        """
        # Not at the top: only uploads need it.
        from workflow_automation_provider.hooks.upload_progress import Progress

        with self._locating(request.flow_id):
            return self.get_conn().send_upload(
                request, timeout=self.request_timeout, progress=lambda total: Progress(total, self.log)
            )

    def flow_of(self, request: Request) -> str | None:
        """Return the flow of a request: the one it names, or the connection's, None where neither is known."""
        return request.flow_id or self.extra.flow_id

    def flow_of_upload(self, flow_id: str | None) -> str:
        """
        Return the flow that an upload is for: the one given, or the connection's.

        :raises InvalidRequestError: if there is neither
        """
        flow_id = self.extra.flow_id if flow_id is None else flow_id
        if flow_id is None:
            raise InvalidRequestError(
                "An upload needs a flow_id: pass flow_id, or set the connection's Flow ID."
            )
        return flow_id

    def test_connection(self) -> tuple[bool, str]:
        """
        Check the settings and reach the service, without starting a run and without sending the key.

        :return: whether it succeeded, and what was found
        """
        try:
            found = self.get_conn().check()
            self._check_key_expiry()
        except WorkflowAutomationError as error:
            return False, str(error)
        except Exception as error:
            return False, f"{type(error).__name__}: the connection cannot be read."
        reached = f"The service can be reached ({found}; this verifies the host, not the path)."
        if not self.connection.password:
            return True, f"{reached} There is no API key: only triggering with a flow_id will work."
        return True, f"{reached} The API key cannot be checked without starting a run, so it was not sent."

    def locate(self, error: WorkflowAutomationError, flow_id: str | None = None) -> None:
        """
        Say in an error which connection and flow it is about.

        :param flow_id: the flow, by default the connection's
        """
        # Not by self.extra: it may be what is wrong.
        extra: ConnectionExtra | None = self.__dict__.get("extra")
        error.locate(self.workflow_automation_conn_id, flow_id or (extra and extra.flow_id))

    @contextmanager
    def _locating(self, flow_id: str | None = None) -> Iterator[None]:
        """Say in each error which connection and flow it is about."""
        try:
            yield
        except WorkflowAutomationError as error:
            self.locate(error, flow_id)
            raise

    def _check_timeout(self) -> None:
        if self.request_timeout is not None:
            checked_timeout(self.request_timeout, "request_timeout")

    def _check_key_expiry(self) -> None:
        expires_on = self.extra.key_expires_on
        if expires_on is None:
            return
        today = datetime.now(UTC).date()
        if today > expires_on:
            raise InvalidRequestError(
                f"The API key expired on {expires_on} (the connection's key_expires_on).",
                next_step="Create a new key in the workflow's trigger section, and set it and its date in the connection.",
            )
        if today >= expires_on - _WARN_BEFORE_EXPIRY:
            self.log.warning(
                "The API key of connection %r expires on %s: create a new one before then.",
                self.workflow_automation_conn_id,
                expires_on,
            )

    # Airflow 3.2+ draws the form from the provider info; older versions call these.

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """Return the form's fields for Airflow before 3.2."""
        from flask_appbuilder.fieldwidgets import BS3TextFieldWidget
        from flask_babel import lazy_gettext
        from wtforms import BooleanField, StringField

        return {
            name: BooleanField(
                lazy_gettext(field["label"]),
                default=field["schema"].get("default"),
                description=field["description"],
            )
            if "boolean" in field["schema"]["type"]
            else StringField(
                lazy_gettext(field["label"]), widget=BS3TextFieldWidget(), description=field["description"]
            )
            for name, field in CONNECTION_FIELDS.items()
        }

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return labels and placeholders for Airflow before 3.2."""
        return {name.replace("-", "_"): value for name, value in FIELD_BEHAVIOUR.items()}
