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
        # Without what other tests have set.
        env = {
            name: text for name, text in (env or os.environ).items() if not name.startswith("AIRFLOW_CONN_")
        }
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *command], capture_output=True, text=True, cwd=tmp_path, env=env
        )
        assert done.returncode in returncodes, done.stdout + done.stderr
        return done.stdout

    return run


def test_connections_and_the_environment_afterwards(run_pytest, tmp_path):
    run_pytest(
        """
        from workflow_automation_provider.testing import Key
        A, B = Key('a', 'flow-a'), Key('b', 'flow-b')
        def connections():
            return {name: json.loads(value) for name, value in os.environ.items() if name.startswith('AIRFLOW_CONN_')}
        def test_default(workflow_automation_connection, workflow_automation_service):
            assert workflow_automation_connection == 'workflow_automation_default'
            assert connections() == {'AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT': {'conn_type': 'workflow_automation',
                'host': workflow_automation_service.base_url, 'password': 'demo-key',
                'extra': {'flow_id': 'demo-flow'}}}
            assert workflow_automation_service.keys[0].flow_id == 'demo-flow'
            assert workflow_automation_service.runs == []
        def test_after():
            assert connections() == {}
            assert os.environ['AIRFLOW__SECRETS__BACKEND'] == ''
        class TestOwnKeys:
            @pytest.fixture
            def workflow_automation_keys(self):
                return [A, B]
            def test_it(self, workflow_automation_connect, workflow_automation_connection, workflow_automation_service):
                assert workflow_automation_service.keys == (A, B)
                assert workflow_automation_connect('second', B, extra={'timeout': 5}) == 'second'
                assert {name: (c['password'], c['extra']) for name, c in connections().items()} == {
                    'AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT': ('a', {'flow_id': 'flow-a'}),
                    'AIRFLOW_CONN_SECOND': ('b', {'flow_id': 'flow-b', 'timeout': 5}),
                }
                with pytest.raises(ValueError, match='add it to the keys of the service'):
                    workflow_automation_connect('third', Key('c', 'flow-c'))
        def test_after_that():
            assert connections() == {}
        """,
        conftest="""
        import atexit, os, pathlib
        atexit.register(lambda: pathlib.Path('after').write_text(os.environ['AIRFLOW__SECRETS__BACKEND']))
        """,
        env={**os.environ, "AIRFLOW__SECRETS__BACKEND": "some.Backend"},
    )
    assert (tmp_path / "after").read_text() == "some.Backend"


CALLBACKS = """
    import httpx, time
    from workflow_automation_provider.testing import DEMO_KEY
    def check(connect, url):
        connect('second', extra={'timeout': 5})
        connect('third', DEMO_KEY, extra={'callback_base_url': 'https://airflow.example'})
        found = {name: json.loads(value)['extra'] for name, value in os.environ.items()
                 if name.startswith('AIRFLOW_CONN_')}
        assert found == {
            'AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT': {'flow_id': 'demo-flow', 'callback_base_url': url},
            'AIRFLOW_CONN_SECOND': {'flow_id': 'demo-flow', 'callback_base_url': url, 'timeout': 5},
            'AIRFLOW_CONN_THIRD': {'flow_id': 'demo-flow', 'callback_base_url': 'https://airflow.example'},
        }
        assert httpx.put(f'{url}/workflow-automation/callback', trust_env=False).status_code == 405
    def test_first(workflow_automation_connection, workflow_automation_callback_base_url, workflow_automation_connect):
        check(workflow_automation_connect, workflow_automation_callback_base_url)
    def test_last(workflow_automation_callback_base_url, workflow_automation_connection, workflow_automation_connect):
        check(workflow_automation_connect, workflow_automation_callback_base_url)
    @pytest.mark.parametrize('scripted, path', [
        ({'inputs': {'day': 'friday'}}, 'callback'), ({'status': None}, 'callback'), ({'flow_id': 'x'}, 'elsewhere')])
    def test_missing(workflow_automation_service, workflow_automation_callback_base_url, scripted, path):
        service, base_url = workflow_automation_service, workflow_automation_callback_base_url
        service.callbacks.add(**scripted)
        url = f'{base_url}/workflow-automation/callback?token=hush' if path == 'callback' else 'http://127.0.0.1:9/'
        inputs = {'day': 'monday', 'callback_url': url}
        httpx.post(f'{service.base_url}/flows/f/trigger', json={'inputs': inputs}, trust_env=False)
        while 'inputs' in scripted and not service.journal.callbacks():
            time.sleep(0.01)
"""


@pytest.mark.since_3_3
def test_callbacks(run_pytest):
    """A test fails whose run would call the endpoint, but for the callback that is missing."""
    printed = run_pytest(CALLBACKS, returncodes=(1,))
    assert "5 passed, 1 error" in printed, printed
    assert "no callback matches run 1001 of flow f" in printed
    assert "'day': 'monday'" in printed
    assert "'inputs': {'day': 'friday'}" in printed
    assert "hush" not in printed


# A user's Airflow, whose secrets backends have the connection to a real service.
BACKEND = "airflow.secrets.local_filesystem.LocalFilesystemBackend"
READ = """
    def test_it(workflow_automation_connection, workflow_automation_service):
        from airflow.sdk import BaseHook
        found = BaseHook.get_connection(workflow_automation_connection)
        assert found.host == workflow_automation_service.base_url
"""


@pytest.fixture
def airflow_with_backends(tmp_path):
    """The environment of an Airflow with two secrets backends: that of its configuration, and that of the workers."""
    home = tmp_path / "airflow"
    home.mkdir()
    connections = home / "connections.json"
    connection = {"conn_type": "workflow_automation", "host": "https://real.invalid"}
    connections.write_text(json.dumps({"workflow_automation_default": connection}))
    arguments = json.dumps({"connections_file_path": str(connections)})
    (home / "airflow.cfg").write_text(f"[secrets]\nbackend = {BACKEND}\nbackend_kwargs = {arguments}\n")
    return {
        **{name: text for name, text in os.environ.items() if not name.startswith("AIRFLOW_")},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__WORKERS__SECRETS_BACKEND": BACKEND,
        "AIRFLOW__WORKERS__SECRETS_BACKEND_KWARGS": arguments,
    }


def test_secrets_backends_are_not_asked(run_pytest, airflow_with_backends):
    run_pytest(READ, env=airflow_with_backends)


@pytest.mark.since_3_3  # earlier versions make the list of their secrets backends anew for each connection
def test_a_secrets_backend_that_is_asked_all_the_same_fails_the_test(run_pytest, airflow_with_backends):
    """Airflow was imported, and has read a connection, before the plugin could turn the backends off."""
    printed = run_pytest(
        READ,
        conftest="""
            from airflow.sdk import BaseHook
            assert BaseHook.get_connection("workflow_automation_default").host == "https://real.invalid"
        """,
        env=airflow_with_backends,
        returncodes=(1,),
    )
    assert "'workflow_automation_default' from a secrets backend" in printed
