"""The plugin in an API server that cannot keep what tasks record."""

from __future__ import annotations

import os
import subprocess
import sys


def test_each_api_server_is_found_to_be_one() -> None:
    """However it is run: Airflow's commands, uvicorn and gunicorn all name this module."""
    script = "import airflow.api_fastapi.main"
    env = os.environ | {"AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS": "True"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env
    )
    assert "[state_store] clear_on_success" in done.stdout + done.stderr
