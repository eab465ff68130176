"""The hook: an Airflow connection of type ``workflow_automation``, ready to send."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from airflow.providers.common.compat.sdk import BaseHook

from workflow_automation_provider.client.errors import InvalidRequestError, WorkflowAutomationError
from workflow_automation_provider.client.transport import checked_timeout
from workflow_automation_provider.get_provider_info import CONNECTION_FIELDS, FIELD_BEHAVIOUR
from workflow_automation_provider.hooks.progress import Progress
from workflow_automation_provider.hooks.settings import ConnectionExtra, client_for
from workflow_automation_provider.hooks.sources import FileSource, resolve

if TYPE_CHECKING:
    from airflow.sdk.log import mask_secret

    from workflow_automation_provider.client.files import FileFormat
    from workflow_automation_provider.client.protocol import Request, Run
    from workflow_automation_provider.client.sending import FlowClient
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
    def connection(self) -> Any:
        """
        The Airflow connection.

        :raises InvalidRequestError: if its id is none, or was rendered from a template without a value
        """
        conn_id = self.workflow_automation_conn_id
        if not isinstance(conn_id, str) or conn_id.strip() in ("", "None"):
            raise InvalidRequestError(
                f"workflow_automation_conn_id is {conn_id!r}: give the id of a connection. Nothing was sent."
            )
        return self.get_connection(conn_id)

    @functools.cached_property
    def extra(self) -> ConnectionExtra:
        """The connection's extra, checked."""
        extra = ConnectionExtra.read(self.connection.conn_id, self.connection.extra)
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

    def trigger_flow(self, inputs: Mapping[str, Any], flow_id: str | None = None) -> Run:
        """
        Start a run: by path with a ``flow_id`` (section 4.1), by the connection's key without (section 4.2).

        :param inputs: input names, as the flow defines them, and JSON values; dates, decimals, UUIDs and
            paths become text
        :param flow_id: the flow to start
        :return: the run that was started, with ``run_id`` and ``run_link``
        :raises InvalidRequestError: before anything is sent, naming the value that is wrong
        :raises WorkflowAutomationError: any other outcome, see :mod:`workflow_automation_provider.client.errors`
        """
        return self.send_trigger(self.prepare_trigger(inputs, flow_id))

    def prepare_trigger(self, inputs: Mapping[str, Any], flow_id: str | None = None) -> Request:
        """
        Make the request that starts a run and check all of it, also the connection; nothing is sent.

        :param inputs: as :meth:`trigger_flow` takes them
        :param flow_id: the flow to start; None lets the connection's key identify it
        :return: the request, without the API key, for :meth:`send_trigger`
        :raises InvalidRequestError: naming the value or the field that is wrong
        """
        if self.request_timeout is not None:
            checked_timeout(self.request_timeout)
        request = self.get_conn().prepare_trigger(inputs, flow_id)
        if request.operation.takes_key:
            self._check_key_expiry()
        return request

    def send_trigger(self, request: Request, *, handing_over: Callable[[], None] | None = None) -> Run:
        """
        Send a request of :meth:`prepare_trigger`, once.

        :param request: the request
        :param handing_over: called before its last byte is handed over: up to then no run can have been started
        :return: the run that was started, with ``run_id`` and ``run_link``
        :raises WorkflowAutomationError: see :mod:`workflow_automation_provider.client.errors`
        """
        return self.get_conn().send_trigger(request, timeout=self.request_timeout, handing_over=handing_over)

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
        :return: what the service answered
        :raises InvalidRequestError: before anything is sent, naming the file or value that is wrong
        :raises FileUnavailableError: if a file is missing, or changes while it is sent
        :raises WorkflowAutomationError: any other outcome, see :mod:`workflow_automation_provider.client.errors`
        """
        self._check_key_expiry()
        return self.get_conn().upload_files(
            run_id,
            resolve(files, content_types=content_types),
            self.flow_of_upload(flow_id),
            file_format=file_format,
            timeout=self.request_timeout,
            progress=lambda total: Progress(total, self.log),
        )

    def flow_of_upload(self, flow_id: str | None) -> str:
        """
        Return the flow that an upload is for: the one given, or the connection's.

        :raises InvalidRequestError: if there is neither
        """
        flow_id = self.extra.flow_id if flow_id is None else flow_id
        if flow_id is None:
            raise InvalidRequestError(
                f"flow_id is not given, and connection {self.workflow_automation_conn_id!r} has none: "
                "an upload needs it, set one of them. Nothing was sent."
            )
        return flow_id

    def test_connection(self) -> tuple[bool, str]:
        """
        Check the settings and reach the service, without starting a run and without sending the key.

        :return: whether it went well, and what was found, in words
        """
        try:
            found = self.get_conn().check()
            self._check_key_expiry()
        except WorkflowAutomationError as error:
            return False, str(error)
        except Exception as error:
            return False, f"{type(error).__name__}: the connection cannot be read."
        reached = f"The service can be reached ({found}; only the host tells by that, the path does not)."
        if not self.connection.password:
            return True, f"{reached} There is no API key: only triggering with a flow_id will work."
        return True, f"{reached} The API key cannot be checked without starting a run, so it was not sent."

    def _check_key_expiry(self) -> None:
        expires_on = self.extra.key_expires_on
        if expires_on is None:
            return
        today = datetime.now(UTC).date()
        if today > expires_on:
            raise InvalidRequestError(
                f"The API key of connection {self.workflow_automation_conn_id!r} expired on {expires_on} "
                "(its extra key_expires_on): make a new key in the workflow's trigger section, and put it and "
                "its date into the connection. Nothing was sent."
            )
        if today >= expires_on - _WARN_BEFORE_EXPIRY:
            self.log.warning(
                "The API key of connection %r expires on %s: make a new one before then.",
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
