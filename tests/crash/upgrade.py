"""
Another version of the package is installed under tasks at work.

    python tests/crash/upgrade.py
    python tests/crash/upgrade.py --before COMMIT

With one version, a task of each kind comes to where an upgrade may find it. Then all processes of
Airflow are killed, the other version is installed, and Airflow is started again on the same
database. What waited ends as its run does, what was in doubt stays so, and nothing is sent twice.

The versions are that of the last commit, the same code under a higher version, and the first one
again. With ``--before``, a commit of before 1.0.0 comes first, and the last one takes over: where
it cannot read what that has stored, it sends nothing and names the mend.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from airflow_launcher.airflow import temporary_home
from airflow_launcher.processes import end, inhabitants, wait_for
from case import Case
from deployment import Deployment
from real_airflow import OLD_HEARTBEAT, Flow
from sentences import LET_IT_END
from workflow_automation_provider.exceptions import Code
from workflow_automation_provider.testing import DEMO_KEY, LocalService

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = "airflow-provider-workflow-automation"
UNKNOWN = f"[{Code.START_UNKNOWN}]"


class Kind(NamedTuple):
    """
    A kind of task.

    :param name: for people
    :param dag_id: its DAG
    :param found: its state when Airflow is killed, and how many runs it has started by then
    :param ended: its state in the end
    :param runs: how many runs it may have started by then
    :param says: what its log has in the end
    :param hangs: the requests that get no response, by parts of their inputs
    """

    name: str
    dag_id: str
    found: tuple[str, int]
    ended: str
    runs: Container[int] = (1,)
    says: str = ""
    hangs: Sequence[Mapping[str, Any]] = ()


CALL = Kind("waits for a call", "upgrade_call", ("awaiting_input", 1), "success")
MAILBOX = Kind("waits by a mailbox", "upgrade_mailbox", ("deferred", 1), "success")
IN_DOUBT = Kind("in doubt", "upgrade_in_doubt", ("running", 1), "failed", says=UNKNOWN, hangs=[{}])
# Of the 8 items in flight two hang, and up to 6 are about to be sent.
BATCH = Kind(
    "batch, killed",
    "upgrade_batch",
    ("running", 8),
    "failed",
    runs=range(14, 21),
    says=UNKNOWN,
    hangs=[{"n": 6}, {"n": 7}],
)
BATCH_WAITS = Kind(
    "batch that waits", "upgrade_batch_waits", ("deferred", 20), "success", runs=(20,)
)

KINDS: Sequence[Kind] = (CALL, MAILBOX, IN_DOUBT, BATCH, BATCH_WAITS)
# Of before 1.0.0: a start without a URL is stored as it was.
KINDS_OF_BEFORE: Sequence[Kind] = (
    CALL._replace(ended="failed", says=LET_IT_END),
    MAILBOX._replace(ended="failed", says=LET_IT_END),
    IN_DOUBT,
    BATCH._replace(runs=(8,), says=LET_IT_END),
)


def build(folder: Path, commit: str, version: str) -> Path:
    """Return the wheel of a commit, under another version."""
    sources = folder / f"sources-{version}"
    wheels = folder / f"wheel-{version}"
    archive = subprocess.run(
        ["git", "archive", commit], cwd=PROJECT, check=True, capture_output=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(sources, filter="data")

    project = sources / "pyproject.toml"
    text = re.sub("^version = .*$", f'version = "{version}"', project.read_text(), flags=re.M)
    project.write_text(text)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*command, "--directory", wheels], cwd=sources, check=True, capture_output=True)
    (wheel,) = wheels.iterdir()
    return wheel


class Upgraded(Deployment):
    """An Airflow in an environment of its own, in which the package is replaced."""

    python = f"{sys.prefix}-upgrade/bin/python"

    def install(self, wheel: Path) -> None:
        options = ["--quiet", "--no-deps", "--reinstall", "--compile-bytecode"]
        install = [sys.executable, "-m", "uv", "pip", "install", *options]
        subprocess.run([*install, "--python", self.python, wheel], check=True)

    def replace(self, wheel: Path) -> None:
        """Kill everything at once, install another version, and start everything again."""
        while processes := inhabitants(self.home):
            end(processes)

        # Else the scheduler takes over no task of its predecessor for some minutes.
        self.update("job", "latest_heartbeat", "TRUE", OLD_HEARTBEAT)
        self.install(wheel)
        self.launch(*self.components)

    @property
    def version(self) -> str:
        """The version of the package that the api-server has."""
        providers = self.api.ask("GET", "/providers?limit=100")["providers"]
        (found,) = (one["version"] for one in providers if one["package_name"] == PACKAGE)
        return str(found)


def until_found(case: Case, kind: Kind) -> None:
    """Wait until a task is where it is to be found."""
    wait_for(f"{case.run_id}: {kind.found}", lambda: (case.state, len(case.runs)) == kind.found)
    if kind is CALL:
        # Only the call of its run wakes it. One of before 1.0.0, whose calls are in vain, is not
        # put off, and soon looks by itself.
        case.suspended()


def is_taken_over(case: Case, kind: Kind) -> bool:
    """Wait for the end of a task, print what came of it, and tell whether that is as expected."""
    case.api.finished(case.dag_id, case.run_id, 600)
    runs = [run for run in case.service.runs if run.inputs["case"] == case.run_id]
    per_item = Counter(run.inputs.get("n") for run in runs)
    is_ok = (
        case.state == kind.ended
        and len(runs) in kind.runs
        and set(per_item.values()) == {1}
        and kind.says in case.log
    )
    print(f"  {kind.name:20}{case.state:10}{len(runs):3} runs  {'ok' if is_ok else 'NOT OK'}")
    if not is_ok:
        print(case.log)
    return is_ok


def are_taken_over(
    deployment: Upgraded, service: LocalService, wheel: Path, kinds: Sequence[Kind]
) -> bool:
    """Begin a task of each kind, replace the version, and tell whether all are taken over."""
    version = deployment.version
    flow = Flow()
    cases = [
        (Case(deployment, service, kind.dag_id, f"{kind.dag_id}-{version}"), kind) for kind in kinds
    ]
    for case, kind in cases:
        case.calls_back(result=flow)
        for inputs in kind.hangs:
            case.fault("hang_after", seconds=1200, inputs={"case": case.run_id, **inputs})
        case.begin()

    for case, kind in cases:
        until_found(case, kind)

    deployment.replace(wheel)
    print(f"From {version} to {deployment.version}:")
    flow.end()
    ok = [is_taken_over(case, kind) for case, kind in cases]
    return all(ok)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", metavar="COMMIT", help="one of before 1.0.0")
    before = parser.parse_args().before
    with LocalService(keys=[DEMO_KEY]) as service, temporary_home("upgrade") as home:
        last = build(home, "HEAD", "1.0.0")
        if before:
            kinds, wheels = KINDS_OF_BEFORE, [build(home, before, "0.9.0"), last]
        else:
            kinds, wheels = KINDS, [last, build(home, "HEAD", "1.1.0"), last]

        extras = {
            "workflow_automation_default": {},
            "mailboxes_file": {"callback_base_url": (home / "mailboxes").as_uri()},
        }
        connections = {
            conn_id: service.airflow_connection(extra={"timeout": 600, **extra})
            for conn_id, extra in extras.items()
        }
        airflow = Upgraded(home, connections)
        airflow.install(wheels[0])
        with airflow:
            ok = [are_taken_over(airflow, service, wheel, kinds) for wheel in wheels[1:]]

    if not all(ok):
        sys.exit("Not all tasks were taken over as expected.")


if __name__ == "__main__":
    main()
