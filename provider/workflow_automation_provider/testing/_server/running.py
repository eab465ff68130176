"""A service between start and stop: its socket, its journal's writer and its server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from workflow_automation_provider.testing._server.api import Api
from workflow_automation_provider.testing._server.app import make_app
from workflow_automation_provider.testing._server.callback_sender import CallbackSender
from workflow_automation_provider.testing._server.control import Control
from workflow_automation_provider.testing._server.guard import Guard
from workflow_automation_provider.testing._server.journal_writer import JournalWriter
from workflow_automation_provider.testing._server.pages import Pages
from workflow_automation_provider.testing._server.server import BackgroundServer, listen
from workflow_automation_provider.testing._server.state import State

if TYPE_CHECKING:
    from workflow_automation_provider.testing._server.settings import Settings
    from workflow_automation_provider.testing.callbacks import Callbacks
    from workflow_automation_provider.testing.faults import Faults
    from workflow_automation_provider.testing.journal import Journal

__all__ = ["RunningService"]


class RunningService:
    """
    Serve until :meth:`stop`; once this is constructed, requests are served.

    :param port: 0 for any free port
    :raises OSError: if the port is in use
    :raises JournalError: if the journal's file is not a journal, or another service is writing it
    """

    def __init__(
        self, settings: Settings, port: int, faults: Faults, callbacks: Callbacks, journal: Journal
    ) -> None:
        sock = listen(settings.host, port)
        writer = None
        try:
            writer = JournalWriter(journal.path)
            self.port: int = sock.getsockname()[1]
            state = _restore_state(settings, self.port, journal)
            stopping = asyncio.Event()
            app = make_app(
                Api(
                    state,
                    faults,
                    CallbackSender(callbacks, state, writer),
                    writer,
                    stopping,
                    settings.parse_limit,
                ),
                Pages(state),
                Control(faults, callbacks, journal),
                Guard(settings.host, settings.public_url),
            )
            server = BackgroundServer(app, sock, stopping, settings.certfile, settings.keyfile)
            server.start()
        except BaseException:
            sock.close()
            if writer is not None:
                writer.close()
            raise
        self._server = server
        self._writer = writer

    def stop(self) -> None:
        """Stop serving, without waiting for requests that hang; end the callbacks that are still to be sent."""
        self._server.stop()
        self._writer.close()


def _restore_state(settings: Settings, port: int, journal: Journal) -> State:
    url = (settings.public_url or settings.url(port)).rstrip("/")
    state = State(settings.keys, settings.flows, settings.run_id_type, settings.first_run_id, url)
    for run in journal.runs():
        state.add_run(run)
    for upload in journal.uploads():
        state.add_upload(upload)
    for callback in journal.callbacks():
        state.add_callback(callback)
    return state
