"""The fixtures for DAG authors, each in a pytest run of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


@pytest.fixture
def run_pytest(tmp_path):
    """Run tests, given as text, with nothing but the plugin."""

    def run(tests, conftest=""):
        plugins = 'pytest_plugins = ["workflow_automation_provider.testing.pytest_plugin"]\n'
        (tmp_path / "conftest.py").write_text(plugins + textwrap.dedent(conftest))
        (tmp_path / "test_it.py").write_text("import json, os, pytest\n" + textwrap.dedent(tests))
        command = ["-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:anyio", str(tmp_path)]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *command], capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_the_default_connection(run_pytest):
    run_pytest("""
        def test_it(workflow_automation_connection, workflow_automation_service):
            assert workflow_automation_connection == 'workflow_automation_default'
            connection = json.loads(os.environ['AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT'])
            assert connection == {'conn_type': 'workflow_automation',
                'host': workflow_automation_service.base_url, 'password': 'demo-key',
                'extra': {'flow_id': 'demo-flow'}}
            assert workflow_automation_service.keys[0].flow_id == 'demo-flow'
            assert workflow_automation_service.runs == []
        def test_after():
            assert 'AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT' not in os.environ
    """)


def test_keys_and_connections_of_the_users_own(run_pytest):
    run_pytest(
        """
        from conftest import A, B
        from workflow_automation_provider.testing import Key
        def test_it(workflow_automation_connect, workflow_automation_connection, workflow_automation_service):
            assert workflow_automation_service.keys == (A, B)
            assert workflow_automation_connect('second', B, extra={'timeout': 5}) == 'second'
            found = {name: json.loads(value) for name, value in os.environ.items() if name.startswith('AIRFLOW_CONN_')}
            assert {name: (c['password'], c['extra']) for name, c in found.items()} == {
                'AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT': ('a', {'flow_id': 'flow-a'}),
                'AIRFLOW_CONN_SECOND': ('b', {'flow_id': 'flow-b', 'timeout': 5}),
            }
            with pytest.raises(ValueError, match='add it to the keys of the service'):
                workflow_automation_connect('third', Key('c', 'flow-c'))
        def test_after():
            assert not [name for name in os.environ if name.startswith('AIRFLOW_CONN_')]
        """,
        conftest="""
        import pytest
        from workflow_automation_provider.testing import Key
        A, B = Key('a', 'flow-a'), Key('b', 'flow-b')
        @pytest.fixture
        def workflow_automation_keys():
            return [A, B]
        """,
    )


def test_every_fixture_is_in_the_table():
    from workflow_automation_provider.testing import pytest_plugin

    for name in pytest_plugin.__all__:
        if name.startswith("workflow_automation_"):
            assert f"\n``{name}``  " in pytest_plugin.__doc__
