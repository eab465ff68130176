"""The commands of docs/cookbook.md do what the page says; its requests are in tests/system/test_cookbook.py."""

from __future__ import annotations

import shlex
from pathlib import Path

from code_blocks import read_code_blocks

PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"
POOL, CONNECTION = (b.text for b in read_code_blocks(PAGE, "sh") if not b.text.startswith("curl "))


def run_airflow(*arguments):
    from airflow.cli import cli_parser

    parsed = cli_parser.get_parser().parse_args(arguments)
    parsed.func(parsed)


def test_the_pool(airflow_home):
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session

    run_airflow(*shlex.split(POOL)[1:])
    try:
        with create_session() as session:
            pool = session.query(Pool).filter_by(pool="workflow_automation").one()
            assert (pool.slots, pool.description) == (2, "Requests to the service at a time")
    finally:
        run_airflow("pools", "delete", "workflow_automation")


def test_a_connection_is_replaced(airflow_home, tmp_path, monkeypatch):
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session

    (content,) = read_code_blocks(PAGE, "json")
    monkeypatch.chdir(tmp_path)
    Path("connections.json").write_text(content.text)
    old = "--conn-type workflow_automation --conn-host https://old.example --conn-password OLD"
    run_airflow("connections", "add", "workflow_automation_default", *old.split())
    try:
        run_airflow(*shlex.split(CONNECTION)[1:])
        with create_session() as session:
            found = session.query(Connection).filter_by(conn_id="workflow_automation_default").one()
            assert (found.host, found.password) == ("https://service.example/api", "NEW-KEY")
            assert found.extra_dejson == {"flow_id": "FLOW", "key_expires_on": "2027-12-31"}
    finally:
        run_airflow("connections", "delete", "workflow_automation_default")
