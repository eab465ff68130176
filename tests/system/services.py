"""The local service, in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_launcher.processes import Program, free_port, wait_for
from workflow_automation_provider.testing import Journal
from workflow_automation_provider.testing.control_client import ControlClient

if TYPE_CHECKING:
    from workflow_automation_provider.testing.journal import Run

# With all that is written differently in a URL, in HTML, in JSON and in base64.
KEY = "k3y+/with=odd&chars-<7Qz9'\"~_!>"
FLOW_ID = "demo-flow"


class Service:
    """
    The local service.

    :param home: where its journal and its output go
    """

    def __init__(self, home: Path) -> None:
        self.port = free_port()
        self.journal = Journal(home / "service.jsonl")
        self.url = f"http://127.0.0.1:{self.port}"
        self.base_url = f"{self.url}/api"
        command = [
            sys.executable,
            "-m",
            "workflow_automation_provider.testing",
            "--port",
            str(self.port),
        ]
        command += ["--journal", str(self.journal.path), "--key", f"{KEY}:{FLOW_ID}"]
        self.program = Program("service", command, home, os.environ)
        self.control = ControlClient(self.url)

    def start(self) -> None:
        """Start it; when this returns, requests are answered."""
        self.program.start()
        wait_for("the local service", self.control.healthy)

    def stop(self) -> None:
        """Stop it."""
        self.control.close()
        self.program.stop()

    def runs_of(self, case: str, task_id: str = "trigger") -> list[Run]:
        """Return the runs that a task of a DAG run has started."""
        wanted = {"case": case, "task": task_id}
        return [run for run in self.journal.runs() if run.inputs == wanted]

    def add_fault(self, kind: str, case: str, **options: Any) -> None:
        """Script a fault for a DAG run."""
        self.control.add_fault(kind, inputs={"case": case}, **options)
