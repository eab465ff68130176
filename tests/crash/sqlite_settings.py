"""Named by Airflow's setting ``[database] sql_alchemy_connect_args``."""

from __future__ import annotations

CONNECT_ARGS = {"timeout": 30}
