"""The fixtures for DAG authors, each in a pytest run of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest


@pytest.fixture
def run_pytest(tmp_path):
    """Run tests, given as text, with nothing but the plugin."""

    def run(tests, conftest="", *, env=None, returncodes=(0,)):
        plugins = 'pytest_plugins = ["workflow_automation_provider.testing.pytest_plugin"]\n'
        (tmp_path / "conftest.py").write_text(plugins + textwrap.dedent(conftest))
        (tmp_path / "test_it.py").write_text("import json, os, pytest\n" + textwrap.dedent(tests))
        command = ["-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:anyio", str(tmp_path)]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *command], capture_output=True, text=True, cwd=tmp_path, env=env
        )
        assert done.returncode in returncodes, done.stdout + done.stderr
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


@pytest.mark.since_3_3
@pytest.mark.parametrize("first", [True, False], ids=["made before", "made after"])
def test_the_callback_base_url_of_each_connection(run_pytest, first):
    endpoint, connection = "workflow_automation_callback_base_url", "workflow_automation_connection"
    run_pytest(
        f"""
        import httpx
        from workflow_automation_provider.testing import DEMO_KEY
        def test_it({", ".join([connection, endpoint] if first else [endpoint, connection])},
                    workflow_automation_connect):
            workflow_automation_connect('second', extra={{'timeout': 5}})
            workflow_automation_connect('third', DEMO_KEY, extra={{'callback_base_url': 'https://airflow.example'}})
            found = {{name: json.loads(value)['extra'] for name, value in os.environ.items()
                     if name.startswith('AIRFLOW_CONN_')}}
            url = {endpoint}
            assert found == {{
                'AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT': {{'flow_id': 'demo-flow', 'callback_base_url': url}},
                'AIRFLOW_CONN_SECOND': {{'flow_id': 'demo-flow', 'callback_base_url': url, 'timeout': 5}},
                'AIRFLOW_CONN_THIRD': {{'flow_id': 'demo-flow', 'callback_base_url': 'https://airflow.example'}},
            }}
            assert httpx.put(f'{{url}}/workflow-automation/callback', trust_env=False).status_code == 405
        def test_after():
            assert not [name for name in os.environ if name.startswith('AIRFLOW_CONN_')]
        """
    )


# A user's Airflow, whose secrets backend has the connection to a real service.
BACKEND = "airflow.secrets.local_filesystem.LocalFilesystemBackend"
READ = """
    def test_it(workflow_automation_connection, workflow_automation_service):
        from airflow.sdk import BaseHook
        found = BaseHook.get_connection(workflow_automation_connection)
        assert found.host == workflow_automation_service.base_url
"""


@pytest.fixture
def airflow_with_a_backend(request, tmp_path):
    """The environment of an Airflow with a secrets backend; the parameter says where it is set."""
    home = tmp_path / "airflow"
    home.mkdir()
    connections = home / "connections.json"
    connections.write_text(
        json.dumps(
            {
                "workflow_automation_default": {
                    "conn_type": "workflow_automation",
                    "host": "https://real.invalid",
                }
            }
        )
    )
    arguments = json.dumps({"connections_file_path": str(connections)})
    environment = {name: text for name, text in os.environ.items() if not name.startswith("AIRFLOW_")}
    environment |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    match request.param:
        case "secrets":
            environment["AIRFLOW__SECRETS__BACKEND"] = BACKEND
            environment["AIRFLOW__SECRETS__BACKEND_KWARGS"] = arguments
        case "workers":
            environment["AIRFLOW__WORKERS__SECRETS_BACKEND"] = BACKEND
            environment["AIRFLOW__WORKERS__SECRETS_BACKEND_KWARGS"] = arguments
        case _:
            (home / "airflow.cfg").write_text(
                f"[secrets]\nbackend = {BACKEND}\nbackend_kwargs = {arguments}\n"
            )
    return environment


@pytest.mark.parametrize("airflow_with_a_backend", ["workers", "airflow.cfg"], indirect=True)
def test_a_secrets_backend_is_not_asked(run_pytest, airflow_with_a_backend):
    run_pytest(READ, env=airflow_with_a_backend)


@pytest.mark.since_3_3  # earlier versions make the list of their secrets backends anew for each connection
@pytest.mark.parametrize("airflow_with_a_backend", ["secrets", "workers"], indirect=True)
def test_a_secrets_backend_that_is_asked_all_the_same_fails_the_test(run_pytest, airflow_with_a_backend):
    """Airflow was imported, and has read a connection, before the plugin could turn the backend off."""
    printed = run_pytest(
        READ,
        conftest="""
            from airflow.sdk import BaseHook
            assert BaseHook.get_connection("workflow_automation_default").host == "https://real.invalid"
        """,
        env=airflow_with_a_backend,
        returncodes=(1,),
    )
    assert "'workflow_automation_default' from a secrets backend" in printed


def test_the_backend_of_the_environment_is_there_again_after_the_session(run_pytest, tmp_path):
    run_pytest(
        "def test_it(): assert os.environ['AIRFLOW__SECRETS__BACKEND'] == ''",
        conftest="""
            import atexit, os, pathlib
            atexit.register(lambda: pathlib.Path('after').write_text(os.environ['AIRFLOW__SECRETS__BACKEND']))
        """,
        env={**os.environ, "AIRFLOW__SECRETS__BACKEND": "some.Backend"},
    )
    assert (tmp_path / "after").read_text() == "some.Backend"


def test_every_fixture_is_in_the_table():
    from workflow_automation_provider.testing import pytest_plugin

    for name in pytest_plugin.__all__:
        if name.startswith("workflow_automation_"):
            assert f"\n``{name}``  " in pytest_plugin.__doc__
