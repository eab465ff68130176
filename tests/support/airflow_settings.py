"""The environment of an Airflow of the tests' own."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def airflow_environment(home: Path, *, port: int, **settings: str) -> dict[str, str]:
    """
    Return the environment of Airflow's processes, in which heartbeats soon find what was killed.

    :param home: Airflow's home; its DAGs lie in ``dags`` below it, unless the settings say otherwise.
    :param port: the api-server's port on this machine.
    :param settings: more of Airflow's settings, by the names of their variables without ``AIRFLOW__``.
    """
    settings = {
        "CORE__DAGS_FOLDER": str(home / "dags"),
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "API__HOST": "127.0.0.1",
        "API__PORT": str(port),
        "API__WORKERS": "1",
        "API__SECRET_KEY": secrets.token_hex(16),
        "API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "10",
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
        "WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
        **settings,
    }
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(("AIRFLOW", "PYTHONDONTWRITE"))}
    return {
        **inherited,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "AIRFLOW_HOME": str(home),
        **{f"AIRFLOW__{name}": value for name, value in settings.items()},
    }
