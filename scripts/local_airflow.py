"""
Airflow in .airflow/ with the example DAGs, their connections and a local service.

For the demo and the UI.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow_launcher.airflow import (
    DAG_PROCESSOR,
    SCHEDULER,
    TRIGGERER,
    VERSION,
    Airflow,
    Component,
)
from airflow_launcher.processes import free_port, wait_for
from local_s3 import BUCKET, LocalS3
from workflow_automation_provider.testing import DEMO_KEY, JournalError, Key, LocalService, Run

PROJECT = Path(__file__).resolve().parent.parent
DAGS = PROJECT / "example_dags"
HOMES = PROJECT / ".airflow"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KEYS = {
    "workflow_automation_default": DEMO_KEY,
    **{
        f"workflow_automation_{name}": Key(f"{name}-key", f"{name}-flow")
        for name in ("orders", "invoices", "mailbox")
    },
}
MAILBOX = "workflow_automation_mailbox"
POOL = {
    "name": "workflow_automation",
    "slots": 2,
    "description": "Requests to the service at a time",
}
OBJECTS = {"orders/monday.csv": b"order\n1001\n", "orders/tuesday.csv": b"order\n1002\n"}


@contextlib.contextmanager
def local_airflow(
    name: str, delay: float, port: int | None = None, service_port: int = 0
) -> Iterator[tuple[Airflow, LocalService, LocalS3]]:
    """
    Run it all; any signal to end this process is a KeyboardInterrupt.

    :param name: of the folder in .airflow/
    :param delay: seconds from the start of a run to its end
    :param port: where the UI listens; a free one by default, as for the service
    :raises SystemExit: with what to tell, if a part of it does not start, or ends
    """
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)
    airflow = _LocalAirflow(HOMES / name, port)
    try:
        if not airflow.prepared:
            # Another Airflow's database cannot always be migrated, and nothing in it is worth
            # keeping.
            shutil.rmtree(airflow.home, ignore_errors=True)
            airflow.home.mkdir(parents=True)
        with (
            LocalService(
                [*KEYS.values()], airflow.home / "service.jsonl", port=service_port
            ) as service,
            LocalS3() as s3,
        ):
            print(f"Starting Airflow {VERSION} in {airflow.home} (about 40 s) …")
            with airflow:
                _set_up(airflow, service, s3)
                script_flows(service, s3, delay)
                yield airflow, service, s3
    except KeyboardInterrupt:
        sys.exit(130)
    except (JournalError, RuntimeError, TimeoutError) as error:
        sys.exit(str(error))


class _LocalAirflow(Airflow):
    """Airflow with a UI, in which new DAGs are paused; what stops it cannot be interrupted."""

    def __init__(self, home: Path, port: int | None) -> None:
        # Where the tasks report to. With SQLite, one process for both now and then blocks itself:
        # the UI waits for the database while it keeps a task's transaction from ending.
        execution_port = str(free_port())
        super().__init__(
            home,
            DAGS,
            components=[
                Component("ui", ["api-server", "--apps", "core"]),
                Component(
                    "execution-api", ["api-server", "--apps", "execution", "--port", execution_port]
                ),
                SCHEDULER,
                DAG_PROCESSOR,
                TRIGGERER,
            ],
            settings={
                # Nobody wants to watch a failing example wait for five minutes.
                "CORE__DEFAULT_TASK_RETRY_DELAY": "2",
                "DAG_PROCESSOR__REFRESH_INTERVAL": "10",
                "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{execution_port}/execution/",
                "CORE__PARALLELISM": "4",
                "CORE__TEST_CONNECTION": "Enabled",
            },
            port=port,
        )

    def stop(self) -> None:
        """Stop everything, orphans too."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        print("\nStopping Airflow …")
        super().stop()


def _set_up(airflow: Airflow, service: LocalService, s3: LocalS3) -> None:
    """Make what the examples need, and wait until Airflow has found them."""
    for conn_id, key in KEYS.items():
        extra = {}
        if conn_id == MAILBOX:
            extra["callback_base_url"] = (airflow.home / "mailboxes").as_uri()
        _set_connection(airflow, conn_id, service.airflow_connection(key, extra=extra))
    _set_connection(airflow, "aws_default", s3.connection)
    if not airflow.api.answers(f"/api/v2/pools/{POOL['name']}"):
        airflow.api.ask("POST", "/pools", POOL)
    for name, content in OBJECTS.items():
        s3.put(name, content)
    names = {path.stem for path in DAGS.glob("*.py")}

    def parsed() -> bool:
        dags = airflow.api.ask("GET", "/dags?limit=100")["dags"]
        return names <= {Path(dag["fileloc"]).stem for dag in dags}

    wait_for("the examples", parsed)


def _set_connection(airflow: Airflow, conn_id: str, connection: dict[str, Any]) -> None:
    """Add a connection in place of the one from an earlier start, which has another address."""
    if airflow.api.answers(f"/api/v2/connections/{conn_id}"):
        airflow.api.ask("DELETE", f"/connections/{conn_id}")
    # The Test button of Airflow to 3.3.2 sends 0 for a port that is not set, and is refused:
    # another address.
    more = {"description": "A local service of make ui", "port": 0}
    airflow.api.add_connection(conn_id, {**connection, **more})


def script_flows(service: LocalService, s3: LocalS3 | None, delay: float) -> None:
    """
    Have the runs of the examples claim, report and call back.

    The task of the one that claims gets no response. Without a store, none writes to it.
    """

    def write_object(run: Run) -> None:
        assert s3
        s3.put(run.inputs["key"], b"customer,total\nAda,19.99\nGrace,240.00\n")

    service.callbacks.add(result=write_object, inputs={"bucket": BUCKET}, delay=delay)
    service.callbacks.add(
        result=lambda run: {"score": len(run.inputs["customer"])},
        flow_id=KEYS[MAILBOX].flow_id,
        delay=delay,
    )
    words = [
        {"progress": part, "message": f"Exported {part:.0%}", "delay": delay / 3}
        for part in (0.3, 0.7)
    ]
    service.callbacks.add(
        result=lambda run: {"rows": 1250, "file": f"{run.inputs.get('report', 'all')}.csv"},
        started=0,
        running=words,
        delay=delay / 3,
    )
    service.faults.add(
        "drop_after", flow_id=DEMO_KEY.flow_id, inputs={"report": "refunds"}, times=None
    )
