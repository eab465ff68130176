"""What the demo and the UI share: an Airflow of the project's own in .airflow/, and how they begin and end."""

from __future__ import annotations

import io
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from workflow_automation_provider.testing import DEMO_KEY

if TYPE_CHECKING:
    from airflow_launcher.airflow import Airflow
    from workflow_automation_provider.testing import LocalService

PROJECT = Path(__file__).resolve().parent.parent
DAGS = PROJECT / "example_dags"
HOMES = PROJECT / ".airflow"
CONN_ID = "workflow_automation_default"
# Nobody wants to watch a failing example wait for five minutes.
SETTINGS = {"CORE__DEFAULT_TASK_RETRY_DELAY": "2"}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def begin() -> None:
    """Prepare this process: any signal to end it is a KeyboardInterrupt, and output is shown at once."""
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def prepare(airflow: Airflow) -> None:
    """Make an Airflow's home and database, unless this version of Airflow already did."""
    if not airflow.prepared:
        print(f"Setting up Airflow's database in {shown(airflow.home)} (about 10 s, first time only) …")
        # Another Airflow's database cannot always be migrated, and nothing in it is worth keeping.
        shutil.rmtree(airflow.home, ignore_errors=True)
    airflow.prepare()


def script_flows(service: LocalService, delay: float) -> None:
    """
    Have the runs of the examples that wait claim their start, report their progress and call back.

    The task of the example that claims gets no response.

    :param delay: seconds from the start of a run to its end
    """
    words = [{"progress": part, "message": f"Exported {part:.0%}", "delay": delay / 3} for part in (0.3, 0.7)]
    service.callbacks.add(
        result=lambda run: {"rows": 1250, "file": f"{run.inputs.get('report', 'all')}.csv"},
        started=0,
        running=words,
        delay=delay / 3,
    )
    service.faults.add("drop_after", flow_id=DEMO_KEY.flow_id, inputs={"report": "refunds"}, times=None)


def shown(path: Path) -> str:
    """Return a path of the project as people want to read it."""
    return str(path.relative_to(PROJECT))
