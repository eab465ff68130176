"""Every code block of the README and the docs works as it is."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shlex
import textwrap
from datetime import UTC, datetime
from importlib.metadata import metadata

import pytest
from packaging.requirements import Requirement

from code_blocks import read_code_blocks
from doc_pages import DOCS, ROOT, is_from_example
from workflow_automation_provider.client.file_format import DEFAULT_FILE_FORMAT
from workflow_automation_provider.exceptions import Accepted, OutcomeUnknownError
from workflow_automation_provider.execution.errors import TICK
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

README = ROOT / "README.md"
BATCH, CONNECTION, COOKBOOK, FAILS, TRIGGER, UPLOADS = (
    ROOT / "docs" / f"{name}.md"
    for name in ("batch", "connection", "cookbook", "if-it-fails", "trigger", "uploads")
)
# The others have tests of their own.
PAGES = [
    README,
    *(page for page in DOCS if page.stem not in ("assets", "quickstart", "testing", "wait")),
]

# What each Python block starts and uploads, by page and heading, in order; None if a test below
# runs it. The block of imports is part of all others of its page. On a page that is not listed, no
# block is a DAG; tests/unit/test_documentation.py holds its fragments against what there is, as
# those of all pages. What is cut from an example DAG is run with that.
PYTHON: dict[str, list[tuple[int, int] | None]] = {
    "README.md First DAGs": [(1, 0), None, (1, 1)],
    "batch.md Result": [(2, 2)],
    "cookbook.md Yesterday's date, and the result of an asset event": [None],
    "httpoperator.md Moving from HttpOperator": [None, (1, 0)],
    "if-it-fails.md Errors in code": [None],
    "taskflow.md FlowNotifier": [None, None],
    "taskflow.md Deadline alerts": [None],
    "taskflow.md WorkflowAutomationHook": [(1, 1)],
    "trigger.md Pass on the result": [(2, 0), None],
    "trigger.md Map over a list": [(3, 0)],
}
LISTED = {place.partition(" ")[0] for place in PYTHON}


def is_import(line):
    return line.startswith(("from ", "import "))


def python_blocks():
    """The Python blocks as whole DAG files, by page and heading."""
    found: dict[str, list[str]] = {}
    for page in PAGES:
        imports = ""
        for block in read_code_blocks(page, "python"):
            text = block.text
            is_dag = re.search(r"\bDAG\(|^@dag\b", text, re.MULTILINE)
            if all(is_import(line) for line in text.splitlines() if line):
                imports = text
            elif not is_from_example(block) and (is_dag or page.name in LISTED):
                if page == README:
                    imports = imports or "\n".join(filter(is_import, text.splitlines()))
                    text = f"{imports}\n\n{text}"
                elif "with DAG(" not in text:
                    name = f"docs_{page.stem}_{block.line}"
                    text = f"{imports}\n\nwith DAG('{name}', schedule=None):\n{textwrap.indent(text, '    ')}"
                found.setdefault(f"{page.name} {block.headings[-1]}", []).append(text)
    return found


BLOCKS = python_blocks()


@pytest.fixture
def data(tmp_path):
    """The files that the pages name, below a folder that stands for /data."""
    folder = tmp_path / "data"
    for name in (
        "orders.csv",
        "Ada.csv",
        "Grace.csv",
        "north/orders.csv",
        "south/orders.csv",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("customer,total")
    (folder / "customers.jsonl").write_text('{"customer": "Ada"}\n\n{"customer": "Grace"}\n')
    return folder


@pytest.fixture
def run_block(
    run_dag, service, workflow_automation_connect, workflow_automation_callback_base_url, data
):
    """Run a block as a DAG; the runs that it started."""
    workflow_automation_connect("workflow_automation_publish")
    service.callbacks.add(result={"rows": 3, "customers": ["Ada", "Grace"]}, times=None)

    def run(text, **options):
        if '"1001"' in text:
            hook = WorkflowAutomationHook()
            assert hook.trigger_flow({}).run_id == "1001"
        before = len(service.runs)
        text = text.replace("/data/", f"{data}/").replace('"FLOW"', '"demo-flow"')
        run_dag(text, preamble="", **options)
        return service.runs[before:]

    return run


# In these, each run gets its own file.
OWN_FILES = {("batch.md Result", 0)}


def test_every_python_block_is_run():
    assert {place: len(texts) for place, texts in BLOCKS.items()} == {
        place: len(counts) for place, counts in PYTHON.items()
    }


@pytest.mark.parametrize(
    ("place", "number", "counts"),
    [
        (place, n, counts)
        for place, blocks in PYTHON.items()
        for n, counts in enumerate(blocks)
        if counts
    ],
)
def test_python(run_block, service, place, number, counts):
    runs = run_block(BLOCKS[place][number])
    assert (len(runs), len(service.uploads)) == counts
    if (place, number) in OWN_FILES:
        customers = {run.run_id: run.inputs["customer"] for run in runs}
        files = {customers[upload.run_id]: upload.files[0]["name"] for upload in service.uploads}
        assert files == {"Ada": "Ada.csv", "Grace": "Grace.csv"}


def test_the_dag_with_http_operator(run_dag, service, monkeypatch):
    """It sends what the DAG that takes its place sends."""
    before, after = BLOCKS["httpoperator.md Moving from HttpOperator"]
    password = service.airflow_connection()["password"]
    connection = {"conn_type": "http", "host": service.base_url, "password": password}
    monkeypatch.setenv("AIRFLOW_CONN_SERVICE", json.dumps(connection))
    for source in (before, after):
        run_dag(source, preamble="")
    old, new = service.runs
    assert (old.by, old.flow_id, old.inputs) == (new.by, new.flow_id, new.inputs)


def test_what_a_batch_returns(run_dag, data, service):
    """And each mapped batch writes a file of its own."""
    items, summary = (json.loads(block.text) for block in read_code_blocks(BATCH, "json", "Result"))
    (path,) = re.findall(r"`(\"/data/runs-.+?\")`", BATCH.read_text())
    service.faults.add("reject", inputs={"customer": "Grace"}, body="", times=2)
    result = run_dag(f"""
        Batch = TriggerFlowBatchOperator

        with DAG("what_a_batch_returns", schedule=None):
            options = {{"batch": "{data}/customers.jsonl", "on_rejected": "skip"}}
            Batch(task_id="items", **options)
            Batch(task_id="summary", output_path="{data}/runs.jsonl", **options)
            Batch.partial(task_id="mapped", output_path={path.replace("/data", str(data))}).expand(
                batch=[[{{}}], [{{}}]]
            )
    """)
    returned = json.dumps(result.xcom("items")).replace(service.url, "https://service.example")
    assert re.sub(r"\b100\d\b", "1001", returned) == json.dumps(items)
    assert result.xcom("summary") == {**summary, "path": f"{data}/runs.jsonl"}
    written = [path.read_text().splitlines() for path in sorted(data.glob("runs-*.jsonl"))]
    assert [[json.loads(line)["index"] for line in lines] for lines in written] == [[0], [0]]


@pytest.mark.since_3_3
def test_what_a_batch_that_waits_returns(
    run_dag, data, service, workflow_automation_connect, tmp_path
):
    lines, summary = (block.text for block in read_code_blocks(BATCH, "json", "Wait for the ends"))
    workflow_automation_connect(extra={"callback_base_url": (tmp_path / "ends").as_uri()})
    service.callbacks.add(result={"rows": 3}, inputs={"customer": "Ada"})
    service.callbacks.add("failed", message="No orders")
    result = run_dag(f"""
        with DAG("what_a_batch_that_waits_returns", schedule=None):
            TriggerFlowBatchOperator(
                task_id="batch",
                batch="{data}/customers.jsonl",
                output_path="{data}/runs.jsonl",
                wait_for_completion=True,
                on_run_failed="skip",
                max_concurrency=1,
            )
    """)
    written = (data / "runs.jsonl").read_text().replace(service.url, "https://service.example")
    assert [*map(json.loads, written.splitlines())] == [*map(json.loads, lines.splitlines())]
    assert result.xcom("batch") == {**json.loads(summary), "path": f"{data}/runs.jsonl"}


def test_the_readmes_dag_that_waits_passes_a_field_on(run_block):
    """And needs no logical date."""
    export, publish = run_block(BLOCKS["README.md First DAGs"][1], logical_date=None)
    assert export.inputs["region"] == "north"
    assert (publish.flow_id, publish.inputs) == ("PUBLISH", {"rows": 3})


def test_yesterday_and_the_result_of_an_asset_event(run_dag, run_block):
    caused = run_dag("""
        with DAG("report", schedule=None):
            TriggerFlowOperator(
                task_id="trigger", wait_for_completion=True, outlets=[Asset("report")]
            )
    """)
    (text,) = BLOCKS["cookbook.md Yesterday's date, and the result of an asset event"]
    (run,) = run_block(text, cause=caused, logical_date=datetime(2026, 3, 1, tzinfo=UTC))
    assert run.inputs == {"yesterday": "2026-02-28", "rows": "3"}


def test_the_template_for_the_day_needs_no_logical_date(run_block, service, capfd):
    """It also logs the last line of a task that is killed before it knows more."""
    (template,) = re.findall(r'"day": "(\{\{ \(dag_run\..*?\}\})"', TRIGGER.read_text())
    text = BLOCKS["trigger.md Pass on the result"][1].replace('"north"', f'"{template}"')
    (run,) = run_block(text, logical_date=None)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", run.inputs["region"])
    assert len(service.uploads) == 1
    (line,) = re.findall(r"`(If the log ends here.+?)`", FAILS.read_text())
    logged = capfd.readouterr().out
    assert logged.index(line) < logged.index("Started run ")


def test_what_an_upload_returns(run_dag, service, data):
    (shown,) = read_code_blocks(UPLOADS, "json", "Result")
    result = run_dag(f"""
        with DAG("what_an_upload_returns", schedule=None):
            trigger = TriggerFlowOperator(task_id="trigger")
            UploadFilesOperator(task_id="upload", run_id=trigger.output, files=["{data}/orders.csv", {{"a": 1}}])
    """)
    returned = result.xcom("upload")
    assert returned["requests"][0]["response"]
    returned["requests"][0]["response"] = "…"
    assert returned == json.loads(shown.text)


# Errors -------------------------------------------------------------------------------------------


def test_the_error_of_an_unknown_outcome(run_dag, task_errors, service):
    """It is that of the page, and a listener also gets its facts."""
    (shown,) = read_code_blocks(FAILS, "text")
    service.faults.add("drop_after")
    run_dag(
        """
        with DAG("fails_as_shown", schedule=None):
            TriggerFlowOperator(task_id="trigger", retries=1)
        """,
        ends="failed",
    )
    (error,) = task_errors
    assert isinstance(error, OutcomeUnknownError)
    assert (error.accepted, error.status) == (Accepted.MAYBE, None)

    message = str(error).replace(service.base_url, "https://service.example/api")
    message = message.replace("Flow: demo-flow", "Flow: FLOW")
    # The hint for a service over http.
    message = re.sub(r"Check the connection's base URL[^\n]*\n", "", message)
    # The hint for an Airflow whose Clear drops the state.
    message = message.replace(f"{TICK}\n", "")
    assert message == shown.text.strip()


@pytest.mark.parametrize(("fault", "notified"), [("drop_after", True), ("reject", False)])
def test_the_callback(run_block, service, capfd, fault, notified):
    service.faults.add(fault)
    text = BLOCKS["if-it-fails.md Errors in code"][0].replace('"notify"', f'"notify_{fault}"')
    run_block(text, ends="failed")
    message = "Check the runs of flow demo-flow (workflow_automation_default): POST"
    assert (message in capfd.readouterr().out) is notified


# Connections --------------------------------------------------------------------------------------


def shell_lines(*pages):
    texts = [
        block.text.replace("\\\n", "") for page in pages for block in read_code_blocks(page, "sh")
    ]
    return [line for text in texts for line in text.splitlines()]


SHELL = shell_lines(README, CONNECTION, ROOT / "docs" / "install.md")
VARIABLES = [line for line in SHELL if line.startswith("export ")]
AIRFLOW = [line for line in SHELL if line.startswith("airflow ")]
PIP = sorted({line for line in shell_lines(README, *DOCS) if line.startswith("pip ")})


def test_every_command_is_tested():
    assert all(line.startswith(("export ", "make ", "pip ", "airflow ")) for line in SHELL)
    assert len(VARIABLES) >= 4


def is_the_pages(connection):
    hook = WorkflowAutomationHook()
    hook.connection = connection
    found = (hook.get_conn().base_url, connection.password, hook.extra.flow_id)
    return found == ("https://service.example/api", "API_KEY", "FLOW")


@pytest.mark.parametrize("text", VARIABLES)
def test_connections_of_the_environment(monkeypatch, text):
    (_, assignment) = shlex.split(text)
    monkeypatch.setenv(*assignment.split("=", 1))
    hook = WorkflowAutomationHook()
    if "127.0.0.1" in text:
        assert hook.get_conn().base_url == "http://127.0.0.1:8070/api"
        assert hook.connection.password == "API_KEY"
    else:
        assert is_the_pages(hook.connection)
        assert ("timeout" in text) is (hook.extra.timeout == 30)


@pytest.fixture
def run_airflow(airflow_home, monkeypatch, tmp_path):
    """
    Run a command, without its first word.

    In a folder with the file of connections that the cookbook shows.
    """
    from airflow.cli import cli_parser

    (connections,) = read_code_blocks(COOKBOOK, "json")
    (tmp_path / "connections.json").write_text(connections.text)
    monkeypatch.chdir(tmp_path)

    def run(command):
        parsed = cli_parser.get_parser().parse_args(shlex.split(command)[1:])
        parsed.func(parsed)

    return run


@pytest.fixture
def stored(run_airflow):
    """Read the default connection as it is stored, which is deleted at the end."""
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session

    with create_session() as session:
        yield (
            lambda: session.query(Connection).filter_by(conn_id="workflow_automation_default").one()
        )
    run_airflow("airflow connections delete workflow_automation_default")


def test_a_connection_of_the_command_line_is_replaced(run_airflow, stored):
    (add,) = [line for line in AIRFLOW if " connections add " in line]
    run_airflow(add)
    assert is_the_pages(stored())
    (replace,) = [line for line in shell_lines(COOKBOOK) if " connections import " in line]
    run_airflow(replace)
    found = stored()
    assert (found.host, found.password) == ("https://service.example/api", "NEW-KEY")
    assert found.extra_dejson == {"flow_id": "FLOW", "key_expires_on": "2027-12-31"}


def test_the_pool_of_the_cookbook(run_airflow):
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session

    (command,) = [line for line in shell_lines(COOKBOOK) if " pools set " in line]
    run_airflow(command)
    with create_session() as session:
        pool = session.query(Pool).filter_by(pool="workflow_automation").one()
        assert (pool.slots, pool.description) == (2, "Requests to the service at a time")
    run_airflow("airflow pools delete workflow_automation")


def test_what_a_secrets_backend_stores(tmp_path):
    """The fields in Vault; the others hold the text of a variable, or the file of the cookbook."""
    from airflow.models.connection import Connection
    from airflow.secrets.local_filesystem import LocalFilesystemBackend

    (fields,) = read_code_blocks(CONNECTION, "json", "In a secrets backend")
    (file,) = read_code_blocks(COOKBOOK, "json")
    conn_id = "workflow_automation_default"
    assert is_the_pages(Connection(conn_id=conn_id, **json.loads(fields.text)))
    (tmp_path / "connections.json").write_text(file.text)
    backend = LocalFilesystemBackend(connections_file_path=str(tmp_path / "connections.json"))
    found = backend.get_connection(conn_id)
    assert found is not None
    assert found.host == "https://service.example/api"


def test_the_default_name_of_a_secret():
    manager = importlib.import_module("airflow.providers.amazon.aws.secrets.secrets_manager")
    known = inspect.signature(manager.SecretsManagerBackend).parameters
    name = f"{known['connections_prefix'].default}/workflow_automation_default"
    assert f"`{name}`" in CONNECTION.read_text()


def test_the_commands_of_airflow_exist():
    from airflow.cli import cli_parser

    parser = cli_parser.get_parser()
    for line in AIRFLOW:
        assert callable(parser.parse_args(shlex.split(line)[1:]).func)


def test_the_default_file_format():
    (shown,) = read_code_blocks(CONNECTION, "json", "File format")
    assert json.loads(shown.text) == DEFAULT_FILE_FORMAT


@pytest.mark.parametrize("command", PIP)
def test_pip_installs_what_there_is(command):
    if "dist/*.whl" in command:
        assert "pip wheel --no-deps --wheel-dir dist ." in PIP
    for what in shlex.split(command.replace("$(echo dist/*.whl)", "."))[2:]:
        if what.startswith("."):
            requirement = Requirement(what.replace(".", "airflow-provider-workflow-automation", 1))
            assert requirement.extras <= {*metadata(requirement.name).get_all("Provides-Extra", [])}
