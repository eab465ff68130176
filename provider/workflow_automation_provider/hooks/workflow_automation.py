"""The hook for connections of type ``workflow_automation``."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from workflow_automation_provider.client.files import upload_bodies
from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.client.protocol import NO_INPUTS, trigger_request, upload_request
from workflow_automation_provider.client.redaction import CALLBACK_PATH
from workflow_automation_provider.client.rendered_values import check_rendered
from workflow_automation_provider.client.settings import Settings
from workflow_automation_provider.exceptions import InvalidRequestError, WorkflowAutomationError
from workflow_automation_provider.lineage import collect

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from workflow_automation_provider.client.file_format import FileFormat
    from workflow_automation_provider.client.files import Element
    from workflow_automation_provider.client.protocol import Request, Run
    from workflow_automation_provider.hooks.files.sources import FileSource

__all__ = ["WorkflowAutomationHook"]

_WARN_BEFORE_EXPIRY = timedelta(days=14)

# Airflow's CLI prints the result of a connection test with Rich, which takes this for markup and
# leaves it out: the code of an error, for example.
_TAG = re.compile(r"\[([a-z#/@][^\[\]]*)\]")


class WorkflowAutomationHook(BaseHook):
    """
    Start runs of the workflow automation service and upload files for them.

    It never sends a request twice. After a failure, ``accepted`` of the exception is whether the
    service acted on the request.

    :param workflow_automation_conn_id: connection with the base URL and the API key
    """

    conn_name_attr = "workflow_automation_conn_id"
    default_conn_name = "workflow_automation_default"
    conn_type = "workflow_automation"
    hook_name = "Workflow Automation"

    def __init__(self, workflow_automation_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.workflow_automation_conn_id = workflow_automation_conn_id
        self._stopped = False

    @functools.cached_property
    def connection(self) -> Connection:
        """
        The Airflow connection.

        :raises InvalidRequestError: if its id is None or empty, or a template that rendered to None
        """
        check_rendered("workflow_automation_conn_id", self.workflow_automation_conn_id)
        return self.get_connection(self.workflow_automation_conn_id)

    @functools.cached_property
    def extra(self) -> Settings:
        """
        The connection's extra, validated.

        :raises InvalidRequestError: if it is invalid, naming the field
        """
        with self._locating():
            extra = Settings.read(self.connection.extra)

        # Only the secrets: Airflow masks a registered value wherever it occurs in a log.
        for secret in extra.secrets():
            mask_secret(secret)

        return extra

    @functools.cached_property
    def _client(self) -> FlowClient:
        with self._locating():
            client = FlowClient(
                _service_url(self.connection),
                api_key=self.connection.password,
                **vars(self.extra),
            )

        # Only the try that made a token knows it, but the service may return it to any request.
        client.redactor.add_marker(f"{CALLBACK_PATH}?token=")
        return client

    def get_conn(self) -> FlowClient:
        """
        Return the client, which is made once.

        :raises InvalidRequestError: if the connection is invalid, naming the field
        """
        client = self._client
        if self._stopped:
            client.stop()
        return client

    def stop(self) -> None:
        """
        Stop sending, for good; safe in a signal handler.

        A request that was sent still waits for its response.
        """
        self._stopped = True
        if "_client" in self.__dict__:
            self._client.stop()

    def trigger_flow(
        self, inputs: Mapping[str, Any] = NO_INPUTS, flow_id: str | None = None
    ) -> Run:
        """
        Start a run: by path with a ``flow_id``, otherwise by the connection's API key.

        Each call starts a run. In a ``@task``, where every try would start another, use
        :func:`~workflow_automation_provider.taskflow.trigger_flow_once`.

        Follows sections 4.1 and 4.2 of the interface.

        :param inputs: input names, as the flow defines them, and JSON values; dates, decimals,
            UUIDs and paths become text
        :param flow_id: the flow to start; None for the one that the API key identifies
        :return: the run, with ``run_id`` and ``run_link``
        :raises InvalidRequestError: if a value is invalid, naming it, before anything is sent
        :raises WorkflowAutomationError: if the request did not succeed, see
            :mod:`workflow_automation_provider.exceptions`
        """
        with self._locating(flow_id):
            run = self.get_conn().trigger(self.prepare_trigger(inputs, flow_id))

        collect(self, run.flow_id)
        return run

    def prepare_trigger(
        self, inputs: Mapping[str, Any] = NO_INPUTS, flow_id: str | None = None
    ) -> Request:
        """Build and check the request of :meth:`trigger_flow`, without the API key."""
        client = self.get_conn()
        request = trigger_request(client.base_url, inputs, flow_id)
        if isinstance(inputs.get("inputs"), Mapping):
            self.log.warning(
                "An input is named 'inputs', and is an object. Unless the flow has such an input, "
                "pass what is in it as the inputs."
            )

        if not request.flow_id:
            request = dataclasses.replace(request, flow_id=self.extra.flow_id)
        request = client.checked_request(request)

        if request.operation.takes_key:
            self._check_key_expiry()
        return request

    def upload_files(
        self, run_id: str, files: FileSource | Iterable[FileSource], flow_id: str | None = None
    ) -> str:
        """
        Upload files for a run, in one request, as a stream.

        Follows section 4.3 of the interface.

        :param run_id: the run that the files belong to
        :param files: local paths and globs, URLs that Airflow's object storage reads,
            ``ObjectStoragePath`` objects, assets, and mappings that are sent unchanged
        :param flow_id: the flow of the run, by default the connection's
        :return: the service's response
        :raises InvalidRequestError: if a file or value is invalid, naming it, before anything is
            sent
        :raises FileUnavailableError: if a file is missing, or changes while it is sent
        :raises WorkflowAutomationError: if the request did not succeed, see
            :mod:`workflow_automation_provider.exceptions`
        """
        # Imported here, because only uploads need it, and object storage is slow to import.
        from workflow_automation_provider.hooks.files.sources import resolve

        with self._locating(flow_id):
            elements = resolve(files)
            (request,) = self.prepare_uploads(run_id, elements, flow_id)
            response = self.get_conn().upload(request)

        collect(self, request.flow_id, read=elements)
        return response

    def prepare_uploads(
        self,
        run_id: str,
        files: Sequence[Element],
        flow_id: str | None = None,
        *,
        file_format: FileFormat | None = None,
        **limits: int | None,
    ) -> list[Request]:
        """
        Build and check the requests of an upload, without the API key.

        :param limits: those of :func:`~.files.upload_bodies`
        """
        if flow_id is None:
            flow_id = self.extra.flow_id
        if flow_id is None:
            raise InvalidRequestError(
                "An upload needs a flow_id: pass it, or set the connection's Flow ID."
            )

        client = self.get_conn()
        file_format = file_format or self.extra.file_format
        bodies = upload_bodies(flow_id, run_id, files, file_format, **limits)
        self._check_key_expiry()
        return [
            client.checked_request(upload_request(client.base_url, flow_id, body))
            for body in bodies
        ]

    def test_connection(self) -> tuple[bool, str]:
        """
        Validate the settings and reach the service, without starting a run or sending the API key.

        :return: whether the check succeeded, and a message
        """
        try:
            found = self.get_conn().check()
            self._check_key_expiry()
        except WorkflowAutomationError as error:
            return False, _TAG.sub(r"(\1)", str(error))
        except Exception as error:
            return False, f"{type(error).__name__}: the connection cannot be read."

        message = (
            f"Not checked, as it takes a run: the path and the API key. The host responds: {found}."
        )
        if not self.connection.password:
            message += " There is no API key: only triggering with a flow_id will work."
        return True, message

    def located(
        self, error: WorkflowAutomationError, flow_id: object = None
    ) -> WorkflowAutomationError:
        """
        Return an error with the names of the connection and of the flow.

        :param flow_id: the flow if the error has none; None for the connection's
        """
        conn_id = error.conn_id or self.workflow_automation_conn_id
        return error.with_facts(
            conn_id=conn_id if isinstance(conn_id, str) else None,
            flow_id=self._flow_of(error, flow_id),
        )

    def _flow_of(self, error: WorkflowAutomationError, flow_id: object) -> str | None:
        """Return the flow that an error names: not one in which the API key was put by mistake."""
        flow: object = flow_id if error.flow_id is None else error.flow_id
        # Not for an invalid request: the extra may be what is invalid.
        if flow is None and not isinstance(error, InvalidRequestError):
            with suppress(Exception):
                flow = self.extra.flow_id

        # Not looked up: an error may be that of the look-up.
        connection: Connection | None = self.__dict__.get("connection")
        key = (connection.password or "").strip() if connection else ""
        if not isinstance(flow, str) or (key and key in flow):
            return None

        return flow

    @contextmanager
    def _locating(self, flow_id: str | None = None) -> Iterator[None]:
        """Add the connection and the flow to each error."""
        try:
            yield
        except WorkflowAutomationError as error:
            raise self.located(error, flow_id) from error.__cause__

    def _check_key_expiry(self) -> None:
        expires_on = self.extra.key_expires_on
        if expires_on is None:
            return

        today = datetime.now(UTC).date()
        if today > expires_on:
            raise InvalidRequestError(
                f"The API key expired on {expires_on} (the connection's key_expires_on).",
                next_step=(
                    "Create a new key in the workflow's trigger section, "
                    "and set it and its date in the connection."
                ),
            )

        if today >= expires_on - _WARN_BEFORE_EXPIRY:
            self.log.warning(
                "The API key of connection %r expires on %s: create a new one before then.",
                self.workflow_automation_conn_id,
                expires_on,
            )


def _service_url(connection: Connection) -> str:
    """
    Return the base URL of the service.

    The form has it in the field host. A connection as a URI (``…://:KEY@host:8443/api``) has it in
    three fields: host, port and schema.
    """
    address = (connection.host or "").strip()
    path = connection.schema or ""
    if connection.login:  # that of a URI without the colon; Airflow does not mask it
        raise InvalidRequestError(
            "The connection's login is set, but not used: put the API key in the password field "
            "(in a URI after a colon: workflow-automation://:KEY@…)."
        )

    if not address:
        raise InvalidRequestError(
            "The connection's base URL (host) is empty: expected the service's URL, such as "
            "https://service.example/api (a URI begins with workflow-automation://, with a hyphen)."
        )

    if path.lower() in ("http", "https"):
        raise InvalidRequestError(
            f"The schema is {path!r}: begin the base URL (host) with {path.lower()}:// instead."
        )

    scheme, separator, rest = address.rpartition("://")
    host, slash, rest = rest.partition("/")
    if host.count(":") > 1 and "[" not in host:
        host = f"[{host}]"  # an IPv6 address, without its brackets if it was parsed from a URI
    # The client rejects a URL with two ports.
    if connection.port and not host.endswith(f":{connection.port}"):
        host = f"{host}:{connection.port}"

    address = f"{scheme}{separator}{host}{slash}{rest}"
    if not path:
        return address

    return f"{address.rstrip('/')}/{path.lstrip('/')}"
