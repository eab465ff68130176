"""What is on the way of a start, from the operator to the socket."""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path

import pytest

from .starts import trigger

pytestmark = pytest.mark.usefixtures("airflow_home")

FRAMES = [
    ("TriggerFlowOperator.execute", "operators/base", "Airflow calls it"),
    ("TriggerFlowOperator._execute", "operators/base", "errors become those of a task"),
    ("TriggerFlowOperator._run_once", "operators/flows", "find, send, upload, wait"),
    (
        "TriggerExecution.send",
        "execution/run/trigger_execution",
        "gives the run its URL, makes the request",
    ),
    ("RunStarter.send", "execution/run/start", "makes the start"),
    ("StartSender.send", "execution/run/send", "records it, and its outcome"),
    ("SendRetrier.send", "execution/retry", "sends again while the service is busy"),
    ("StartSender._send_request", "execution/run/send", "has the client of the connection"),
    ("FlowClient.trigger", "client/flow_client", "reads the run"),
    ("FlowClient._send", "client/flow_client", "an error says whether a run was started"),
    ("FlowClient._response", "client/flow_client", "httpx builds the request"),
    ("Transport.handle_request", "client/transport", "one connection a request"),
    ("_Connection.write", "client/transport", "the deadline"),
]
"""Ours, from ``execute`` to the socket: what else is on the way is httpx and httpcore."""


def test_the_frames_of_a_start(world, monkeypatch):
    package = Path(sys.modules["workflow_automation_provider"].__path__[0])
    frames: list[tuple[str, str]] = []

    def sends(self, *args):
        if threading.current_thread() is threading.main_thread():
            frames[:] = reversed([*ours(sys._getframe(1))])
        return send(self, *args)

    def ours(frame):
        while frame:
            path = Path(frame.f_code.co_filename)
            if package in path.parents:
                module = path.relative_to(package).with_suffix("").as_posix()
                owner = type(frame.f_locals["self"]).__name__
                yield f"{owner}.{frame.f_code.co_name}", module

            frame = frame.f_back

    send = socket.socket.send
    monkeypatch.setattr(socket.socket, "send", sends)
    world(trigger()).try_()
    assert frames == [(name, module) for name, module, _ in FRAMES]
