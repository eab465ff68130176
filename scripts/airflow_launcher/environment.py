"""The environment of Airflow's processes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# They would make this Airflow another one, or start it twice as slowly.
_NOT_INHERITED = ("AIRFLOW", "PYTHONDONTWRITEBYTECODE")


def airflow_environment(
    home: Path, settings: Mapping[str, str], connections: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """
    Return this process's environment, with one Airflow's settings in place of any other's.

    :param home: the ``AIRFLOW_HOME``
    :param settings: Airflow's settings, by the names of their variables without ``AIRFLOW__``
    :param connections: Airflow connections as JSON values, by connection id
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
    # Both spellings are in use, and whoever finds one may not look at the other.
    listed = ",".join(inherited.get(name, "") for name in ("NO_PROXY", "no_proxy")).split(",")
    direct = ",".join(sorted({"127.0.0.1", "localhost", *listed} - {""}))
    return {
        **inherited,
        "NO_PROXY": direct,
        "no_proxy": direct,
        "AIRFLOW_HOME": str(home),
        **{f"AIRFLOW__{name}": value for name, value in settings.items()},
        **{f"AIRFLOW_CONN_{conn_id.upper()}": json.dumps(value) for conn_id, value in connections.items()},
    }
