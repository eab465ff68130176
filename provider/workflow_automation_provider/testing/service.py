"""The servers to start from a test or a script: the local service, and the callback endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ipaddress
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, InstanceOf

from workflow_automation_provider.testing.callbacks import Callbacks
from workflow_automation_provider.testing.faults import Faults
from workflow_automation_provider.testing.journal import Journal
from workflow_automation_provider.testing.scripted import DEMO_KEY, Key, Text, check_types, is_url

if TYPE_CHECKING:
    from typing import Self

    from starlette.types import ASGIApp

    from workflow_automation_provider.testing._server.server import BackgroundServer
    from workflow_automation_provider.testing.journal import Run, Upload

_INSTALL = (
    "The local service needs the testing extra: "
    "pip install 'airflow-provider-workflow-automation[testing]'"
)

_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - only compared


def _url(value: str) -> str:
    if not is_url(value):
        raise ValueError("expected a URL, such as 'http://service.example:8070'")
    return value


class _Server:
    """Serves an application in a thread of its own between start and stop; a context manager."""

    def __init__(self, host: str, port: int, *certificate: str | os.PathLike[str] | None) -> None:
        self.host = host
        self.port = port
        self._certificate = certificate
        self._running: BackgroundServer | None = None
        self._undo = contextlib.ExitStack()

    @property
    def url(self) -> str:
        """The address, without a path; it has a port once it was started."""
        scheme = "https" if any(self._certificate) else "http"
        # Clients cannot connect to the unspecified address on every system.
        host = _LOOPBACK_OF.get(self.host, self.host)
        if ":" in host:
            host = f"[{host}]"
        return f"{scheme}://{host}:{self.port}"

    def start(self) -> None:
        """
        Start serving; once this returns, requests are served.

        :raises OSError: if the port is in use
        :raises JournalError: if the journal's file is not a journal, or another service is writing
            it
        :raises RuntimeError: if it is running already
        :raises ModuleNotFoundError: without the extra ``testing``
        """
        if self._running is not None:
            raise RuntimeError("It is running already: stop it before starting it again")

        try:
            from workflow_automation_provider.testing._server.server import BackgroundServer, listen
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(_INSTALL, name=error.name) from error

        with contextlib.ExitStack() as undo:
            sock = undo.enter_context(listen(self.host, self.port))
            self.port = sock.getsockname()[1]
            stopping = asyncio.Event()
            app = self._make_app(stopping, undo)
            server = BackgroundServer(app, sock, stopping, *self._certificate)
            server.start()
            self._undo = undo.pop_all()

        self._running = server

    def _make_app(self, stopping: asyncio.Event, undo: contextlib.ExitStack) -> ASGIApp:
        """
        Return what is served.

        :param stopping: is set when the server stops
        :param undo: closes what it is given after that
        """
        raise NotImplementedError

    def stop(self) -> None:
        """
        Stop serving, without waiting for requests that hang; does nothing if it is not running.

        Callbacks that are still to be sent are given up.
        """
        server = self._running
        if server is None:
            return
        self._running = None
        with self._undo:
            server.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class LocalService(_Server):
    """
    A service that speaks the interface, on a local address; a context manager.

    Started again after a stop, it listens on the same port and continues the same journal.

    :param keys: the API keys that it accepts
    :param journal: the journal's file; by default a temporary one
    :param host: the address to listen on
    :param port: 0 for any free port
    :param certfile: a certificate, to serve HTTPS
    :param keyfile: the certificate's private key, unless it is in ``certfile``
    :param public_url: the base of the run links, where clients reach the service by another URL
        than :attr:`url`. Requests for its host are accepted, besides those for loopback and
        ``host``; with a ``host`` of ``0.0.0.0`` or ``::``, so are those for any IP address
    :param flows: the flows that can be started by path, besides those of the keys; by default any.
        The response to another flow is 404
    :raises ValueError: if an argument is invalid, or if two keys have the same value, or the same
        flow and name
    """

    def __init__(
        self,
        keys: Sequence[InstanceOf[Key]] = (DEMO_KEY,),
        journal: str | os.PathLike[str] | None = None,
        host: Text = "127.0.0.1",
        port: Annotated[int, Field(ge=0, le=65535)] = 0,
        *,
        certfile: str | os.PathLike[str] | None = None,
        keyfile: str | os.PathLike[str] | None = None,
        public_url: Annotated[str, AfterValidator(_url)] | None = None,
        flows: Sequence[Text] | None = None,
    ) -> None:
        # What is wrong among the keys may be the value of one.
        check_types(LocalService.__init__, locals(), secret={"keys"})
        if len({key.value for key in keys}) < len(keys):
            raise ValueError("Two keys have the same value: use a different value for each key")
        if len({(key.flow_id, key.name) for key in keys}) < len(keys):
            raise ValueError(
                "Two keys of one flow have the same name: use a different name for each"
            )

        if keyfile is not None and certfile is None:
            raise ValueError("keyfile needs a certfile: pass the certificate as well")

        super().__init__(host, port, certfile, keyfile)
        self.keys = tuple(keys)
        self.flows = None if flows is None else frozenset(flows)
        self._public_url = public_url
        self.faults = Faults()
        self.callbacks = Callbacks()
        if journal is None:
            directory = tempfile.mkdtemp(prefix="workflow-automation-")
            weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
            journal = Path(directory) / "journal.jsonl"

        self.journal = Journal(journal)

    @property
    def base_url(self) -> str:
        """The base URL of the operations."""
        return f"{self.url}/api"

    @property
    def runs(self) -> list[Run]:
        """The runs that were started, oldest first."""
        return self.journal.runs()

    @property
    def uploads(self) -> list[Upload]:
        """The uploads that were accepted, oldest first."""
        return self.journal.uploads()

    def airflow_connection(
        self, key: Key | None = None, extra: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """
        Return an Airflow connection to this service, in the form of ``AIRFLOW_CONN_…`` as JSON.

        :param key: one of its ``keys``, by default the first
        :param extra: further extras of the connection, such as ``{"timeout": 5}``; they override
            those set here
        :raises ValueError: if the service does not have the key
        """
        if key is None:
            key = next(iter(self.keys), None)
        elif key not in self.keys:
            raise ValueError(
                f"The service does not accept {key!r}: pass one of the keys of the service, as a "
                "Key"
            )

        connection: dict[str, Any] = {"conn_type": "workflow_automation", "host": self.base_url}
        extras: dict[str, Any] = {}
        if key is not None:
            connection["password"] = key.value
            extras["flow_id"] = key.flow_id

        url = urlsplit(self.url)
        if url.scheme == "http" and not _is_loopback(url.hostname or ""):
            extras["allow_http"] = True

        connection["extra"] = extras | dict(extra or {})
        return connection

    def _make_app(self, stopping: asyncio.Event, undo: contextlib.ExitStack) -> ASGIApp:
        from workflow_automation_provider.testing._server.api import Api
        from workflow_automation_provider.testing._server.app import Guard, make_app
        from workflow_automation_provider.testing._server.callback_sender import CallbackSender
        from workflow_automation_provider.testing._server.state import State

        url = (self._public_url or self.url).rstrip("/")
        state = State(self.keys, url, self.journal, self.flows)
        undo.callback(state.close)
        api = Api(state, self.faults, CallbackSender(self.callbacks, state), stopping)
        guard = Guard(self.host, self._public_url)
        return make_app(api, self.faults, self.callbacks, self.journal, guard)


class CallbackEndpoint(_Server):
    """
    The endpoint that flows call back to, on a local address; a context manager.

    It is the one that Airflow's API server mounts, and writes to the metadata database of this
    process. Its :attr:`url` is the base URL for the connection's ``callback_base_url``.

    :param host: the address to listen on
    :param port: 0 for any free port
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__(host, port)

    def _make_app(self, stopping: asyncio.Event, undo: contextlib.ExitStack) -> ASGIApp:
        # By its name: it is not part of the local service, and imports Airflow.
        app: ASGIApp = importlib.import_module(
            "workflow_automation_provider.plugins.callback_endpoint"
        ).app
        return app


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
