"""The local service, to be used from a test or a script."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from workflow_automation_provider.testing.api import Api
from workflow_automation_provider.testing.app import make_app
from workflow_automation_provider.testing.bodies import PARSE_LIMIT
from workflow_automation_provider.testing.control import Control
from workflow_automation_provider.testing.faults import Faults
from workflow_automation_provider.testing.guard import Guard
from workflow_automation_provider.testing.journal import Journal
from workflow_automation_provider.testing.journal_writer import JournalWriter
from workflow_automation_provider.testing.keys import DEMO_KEY, Key
from workflow_automation_provider.testing.pages import Pages
from workflow_automation_provider.testing.server import BackgroundServer, listen
from workflow_automation_provider.testing.state import RunIdType, State

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Self

    from workflow_automation_provider.testing.journal import Run, Upload

__all__ = ["LocalService"]


class LocalService:
    """
    A service that speaks the interface, on a local address; a context manager.

    Stopped and started again it listens on the same port and goes on with the same journal.

    :param keys: the keys it knows.
    :param flows: the flows it knows, besides those of the keys; ``None`` for any flow.
    :param journal: the journal's file; a temporary one by default.
    :param host: the address to listen on.
    :param port: the port, 0 for any free one.
    :param certfile: the certificate, to serve HTTPS.
    :param keyfile: the certificate's private key, unless it is in ``certfile``.
    :param run_id_type: whether run ids are answered as strings or as numbers.
    :param first_run_id: the id of the first run, however large.
    :param public_url: the address in run links, if clients reach the service by another than it listens on. Its host
        is answered to, besides loopback and ``host``; with a ``host`` of ``0.0.0.0`` or ``::``, so is any IP address.
    :param parse_limit: bodies of more bytes are only counted and hashed.
    :raises ValueError: if two keys have the same value, or the same flow and name.
    """

    def __init__(
        self,
        keys: Iterable[Key] = (DEMO_KEY,),
        flows: Iterable[str] | None = None,
        journal: str | os.PathLike[str] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        certfile: str | None = None,
        keyfile: str | None = None,
        run_id_type: RunIdType = "string",
        first_run_id: int = 1001,
        public_url: str | None = None,
        parse_limit: int = PARSE_LIMIT,
    ) -> None:
        self.keys = tuple(keys)
        _check_keys(self.keys)
        if run_id_type not in get_args(RunIdType):
            raise ValueError(f"run_id_type must be one of {get_args(RunIdType)}")
        self.flows = None if flows is None else tuple(flows)
        self.host = host
        self.port = port
        self.faults = Faults()
        if journal is None:
            folder = tempfile.mkdtemp(prefix="workflow-automation-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            journal = Path(folder) / "journal.jsonl"
        self.journal = Journal(journal)
        self._tls = (certfile, keyfile)
        self._run_id_type: RunIdType = run_id_type
        self._first_run_id = first_run_id
        self._public_url = public_url
        self._parse_limit = parse_limit
        self._running: tuple[BackgroundServer, JournalWriter] | None = None

    @property
    def url(self) -> str:
        """The service's address, without ``/api``; has a port once the service was started."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        # Not an address one can connect to everywhere.
        host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 - only read
        return f"{'https' if self._tls[0] else 'http'}://{host}:{self.port}"

    @property
    def base_url(self) -> str:
        """The base address of the operations."""
        return f"{self.url}/api"

    @property
    def runs(self) -> list[Run]:
        """The runs that were started, oldest first."""
        return self.journal.runs()

    @property
    def uploads(self) -> list[Upload]:
        """The uploads that were taken, oldest first."""
        return self.journal.uploads()

    def start(self) -> None:
        """
        Start serving; when this returns, requests are answered.

        :raises OSError: if the port is taken.
        :raises JournalError: if the journal's file is something else, or another service is writing it.
        """
        if self._running is not None:
            raise RuntimeError("The service is running already")
        sock = listen(self.host, self.port)
        writer = None
        try:
            writer = JournalWriter(self.journal.path)
            self.port = sock.getsockname()[1]
            stopping = asyncio.Event()
            state = self._remembered_state()
            api = Api(state, self.faults, writer, stopping, self._parse_limit)
            app = make_app(
                api,
                Pages(state),
                Control(self.faults, self.journal),
                Guard(self.host, self._public_url),
            )
            server = BackgroundServer(app, sock, stopping, *self._tls)
            server.start()
        except BaseException:
            sock.close()
            if writer is not None:
                writer.close()
            raise
        self._running = (server, writer)

    def stop(self) -> None:
        """Stop serving, at once; does nothing if the service is not running."""
        if self._running is None:
            return
        server, writer = self._running
        self._running = None
        server.stop()
        writer.close()

    def _remembered_state(self) -> State:
        url = (self._public_url or self.url).rstrip("/")
        state = State(self.keys, self.flows, self._run_id_type, self._first_run_id, url)
        for run in self.journal.runs():
            state.add_run(run)
        for upload in self.journal.uploads():
            state.add_upload(upload)
        return state

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _check_keys(keys: tuple[Key, ...]) -> None:
    if len({key.value for key in keys}) < len(keys):
        raise ValueError("Two keys have the same value")
    if len({(key.flow_id, key.name) for key in keys}) < len(keys):
        raise ValueError("Two keys of one flow have the same name")
