"""The components of Airflow, and how each is started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Component(NamedTuple):
    """
    A component, running as a process of its own.

    :param name: names its output file
    :param command: what follows ``airflow`` on the command line
    """

    name: str
    command: Sequence[str]


API_SERVER = Component("api-server", ["api-server"])
DAG_PROCESSOR = Component("dag-processor", ["dag-processor"])
# These two would serve logs on fixed ports; the api-server reads them from the disk.
SCHEDULER = Component("scheduler", ["scheduler", "--skip-serve-logs"])
TRIGGERER = Component("triggerer", ["triggerer", "--skip-serve-logs"])
