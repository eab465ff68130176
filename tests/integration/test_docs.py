"""Every code block of the README and the docs works as it is."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shlex
import textwrap
from importlib.metadata import metadata
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from code_blocks import read_code_blocks
from doc_pages import DOCS, ROOT, is_from_example, table
from workflow_automation_provider.client.files import DEFAULT_FILE_FORMAT
from workflow_automation_provider.execution import retry
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

README = ROOT / "README.md"
BATCH, CONNECTION, FAILS, PROMISES, TRIGGER, UPLOADS = (
    ROOT / "docs" / f"{name}.md"
    for name in ("batch", "connection", "if-it-fails", "promises", "trigger", "uploads")
)
# The others have tests of their own.
PAGES = [
    README,
    *(page for page in DOCS if page.stem not in ("assets", "notifier", "quickstart", "testing", "wait")),
]

# What each Python block starts and uploads, by page and heading, in order. The block of imports is part of all others
# of its page. On a page that is not listed, each block that is a DAG must succeed; tests/unit/test_documentation.py holds
# its fragments against what there is, as those of all pages. What is cut from an example DAG is run with that.
PYTHON = {
    "README.md First steps": [(2, 0)],
    "batch.md Only the items that failed": [(1, 0)],
    "batch.md Result": [(2, 2)],
    "hook.md WorkflowAutomationHook": [(1, 1)],
    "if-it-fails.md Errors in code": [(1, 0)],
    "trigger.md Pass on the result": [(2, 0), (1, 1)],
    "trigger.md Map over a list": [(2, 2), (2, 2)],
    "uploads.md UploadFilesOperator": [(0, 1)],
}


def python_blocks():
    """The Python blocks as whole DAG files, by page and heading."""
    found: dict[str, list[str]] = {}
    for page in PAGES:
        imports = ""
        for block in read_code_blocks(page, "python"):
            place = f"{page.name} {block.headings[-1]}"
            text = block.text
            if all(line.startswith(("from ", "import ")) for line in text.splitlines() if line):
                imports = text
                continue
            if is_from_example(block):
                continue
            if page.name in LISTED and "with DAG(" not in text:
                number = len([text for texts in found.values() for text in texts])
                text = (
                    f"import datetime\n{imports}\n\n"
                    f"with DAG('docs_{number}', schedule=None, start_date=datetime.datetime(2026, 1, 1)):\n"
                    f"{textwrap.indent(text, '    ')}"
                )
            if page.name in LISTED or re.search(r"\bDAG\(|^@dag\b", text, re.MULTILINE):
                found.setdefault(place, []).append(text)
    return found


LISTED = {place.partition(" ")[0] for place in PYTHON}
BLOCKS = python_blocks()


@pytest.fixture
def data(tmp_path):
    """The files that the pages name, below a folder that stands for /data."""
    for name in ("orders.csv", "Ada.csv", "Grace.csv", "terms.pdf", "north/orders.csv", "south/orders.csv"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("customer,total")
    (tmp_path / "data" / "customers.jsonl").write_text('{"customer": "Ada"}\n\n{"customer": "Grace"}\n')
    items = [
        {"index": 0, "status": "started", "run_id": "1"},
        {"index": 1, "status": "rejected", "why": "400"},
    ]
    (tmp_path / "data" / "runs.jsonl").write_text("".join(f"{json.dumps(item)}\n" for item in items))
    return tmp_path / "data"


@pytest.fixture
def run_block(run_dag, service, workflow_automation_connect, workflow_automation_callback_base_url, data):
    """Run a block as a DAG; its state, and the runs and uploads that it made."""
    workflow_automation_connect("workflow_automation_publish")
    service.callbacks.add(result={"rows": 3}, times=None)

    def run(text, **options):
        if '"1001"' in text:
            with WorkflowAutomationHook() as hook:
                assert hook.trigger_flow({}).run_id == "1001"
        before = len(service.runs)
        text = text.replace("/data/", f"{data}/").replace('"FLOW"', '"demo-flow"')
        result = run_dag(text, preamble="", **options)
        return result.state, service.runs[before:], service.uploads

    return run


# In these, each run gets its own file.
OWN_FILES = {("batch.md Result", 0), ("trigger.md Map over a list", 1)}
# These are run below, each with what its page says of it.
OWN_TESTS = {
    "README.md First steps",
    "batch.md Only the items that failed",
    "if-it-fails.md Errors in code",
}


def test_every_python_block_is_run():
    assert {place: len(texts) for place, texts in BLOCKS.items() if place.partition(" ")[0] in LISTED} == {
        place: len(counts) for place, counts in PYTHON.items()
    }


@pytest.mark.parametrize(
    ("place", "number"),
    [
        (place, number)
        for place, texts in BLOCKS.items()
        for number in range(len(texts))
        if place not in OWN_TESTS
    ],
)
def test_python(run_block, place, number):
    state, runs, uploads = run_block(BLOCKS[place][number])
    assert state == "success"
    if place in PYTHON:
        assert (len(runs), len(uploads)) == PYTHON[place][number]
    if (place, number) in OWN_FILES:
        customers = {run.run_id: run.inputs["customer"] for run in runs}
        files = {customers[upload.run_id]: upload.files[0]["name"] for upload in uploads}
        assert files == {"Ada": "Ada.csv", "Grace": "Grace.csv"}


def test_what_a_batch_returns(run_dag, data, service):
    """And each mapped batch writes a file of its own."""
    items, summary = (json.loads(block.text) for block in read_code_blocks(BATCH, "json"))
    (path,) = re.findall(r"`(\"/data/runs-.+?\")`", BATCH.read_text())
    service.faults.add("reject", inputs={"customer": "Grace"}, body="", times=2)
    result = run_dag(f"""
        from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator as Batch

        with DAG("what_a_batch_returns", schedule=None, start_date=START):
            options = {{"batch": "{data}/customers.jsonl", "on_rejected": "skip"}}
            Batch(task_id="items", **options)
            Batch(task_id="summary", output_path="{data}/runs.jsonl", **options)
            Batch.partial(task_id="mapped", output_path={path.replace("/data", str(data))}).expand(
                batch=[[{{}}], [{{}}]]
            )
    """)
    assert result.state == "success"
    returned = json.dumps(result.xcom("items")).replace(service.url, "https://service.example")
    assert re.sub(r"\b100\d\b", "1001", returned) == json.dumps(items)
    assert result.xcom("summary") == {**summary, "path": f"{data}/runs.jsonl"}
    written = [path.read_text().splitlines() for path in sorted(data.glob("runs-*.jsonl"))]
    assert [[json.loads(line)["index"] for line in lines] for lines in written] == [[0], [0]]


def test_the_readmes_dag_needs_no_logical_date(run_block):
    state, runs, _ = run_block(
        BLOCKS["README.md First steps"][0], logical_date=None, run_conf={"region": "south"}
    )
    assert state == "success"
    export, publish = runs
    assert export.inputs["region"] == "south"
    assert publish.inputs == {"rows": 3}


def test_only_the_items_that_failed(run_block, data):
    """The second item of the file, which has a blank line before it."""
    state, runs, _ = run_block(BLOCKS["batch.md Only the items that failed"][0])
    assert (state, [run.inputs for run in runs]) == ("success", [{"customer": "Grace"}])
    (item,) = map(json.loads, (data / "runs.jsonl.rest").read_text().splitlines())
    assert (item["index"], item["status"]) == (0, "started")


def test_the_template_for_the_day_needs_no_logical_date(run_block, capfd):
    """It also logs the last line of a task that is killed before it knows more."""
    (template,) = re.findall(r"`(\{\{ \(dag_run\..*?\}\})`", TRIGGER.read_text())
    text = BLOCKS["trigger.md Pass on the result"][1].replace('"north"', f'"{template}"')
    state, runs, _ = run_block(text, logical_date=None)
    assert state == "success"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", runs[0].inputs["region"])
    (line,) = re.findall(r'"(If no later line .+?)"', " ".join(PROMISES.read_text().split()))
    logged = capfd.readouterr().out
    assert logged.index(line) < logged.index("Started run ")


def test_what_an_upload_returns(run_dag, service, data):
    (shown,) = read_code_blocks(UPLOADS, "json", "Result")
    result = run_dag(f"""
        with DAG("what_an_upload_returns", schedule=None, start_date=START):
            trigger = TriggerFlowOperator(task_id="trigger")
            UploadFilesOperator(task_id="upload", run_id=trigger.output, files=["{data}/orders.csv", {{"a": 1}}])
    """)
    returned = result.xcom("upload")
    assert returned["requests"][0]["response"]
    returned["requests"][0]["response"] = "…"
    assert returned == json.loads(shown.text)


# Errors -------------------------------------------------------------------------------------------------


def shown_error(text, service):
    """The text of an error as the page shows it, without what differs from run to run."""
    text = text.replace(service.base_url, "https://service.example/api").replace(
        "Flow: demo-flow", "Flow: FLOW"
    )
    return re.sub(r"[\d.]+ s|\d+ times", "N", text)


@pytest.fixture
def errors_of(run_dag, task_errors, service):
    """Run a trigger that fails; the text of the error of each try."""

    def run(dag_id, arguments):
        run_dag(f"""
            with DAG({dag_id!r}, schedule=None, start_date=START):
                TriggerFlowOperator(task_id="trigger", retry_delay=pendulum.duration(seconds=1), {arguments})
        """)
        return [shown_error(str(error), service) for error in task_errors]

    return run


def test_the_error_of_an_unknown_outcome(errors_of, service):
    shown, _ = read_code_blocks(FAILS, "text")
    service.faults.add("drop_after")
    text = shown_error(shown.text.strip(), service)
    assert errors_of("unknown", "retries=1") == [text]


def test_the_error_of_a_busy_service(errors_of, service, monkeypatch):
    # A clock of its own: on a loaded machine the first attempt would use up the time.
    slept: list[float] = []
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append))
    _, shown = read_code_blocks(FAILS, "text")
    service.faults.add("busy", retry_after="1", body="", times=None)
    text = shown_error(shown.text.strip(), service)
    assert errors_of("busy", "send_retry_timeout=1.5, retries=1") == [text, text]


@pytest.mark.parametrize(("fault", "notified"), [("drop_after", True), ("reject", False)])
def test_the_callback(run_block, service, capfd, fault, notified):
    service.faults.add(fault)
    text = BLOCKS["if-it-fails.md Errors in code"][0].replace('"notify"', f'"notify_{fault}"')
    state, *_ = run_block(text)
    assert state == "failed"
    said = "Check the runs of flow demo-flow (workflow_automation_default): POST"
    assert (said in capfd.readouterr().out) is notified


# Connections --------------------------------------------------------------------------------------------

SHELL = [
    block.text
    for page in (README, CONNECTION, ROOT / "docs" / "install.md")
    for block in read_code_blocks(page, "sh")
]
VARIABLES = [text for text in SHELL if text.startswith("export ")]
COMMANDS = {
    kind: [line for text in SHELL for line in text.replace("\\\n", "").splitlines() if line.startswith(kind)]
    for kind in ("make ", "pip install ", "pip wheel ", "airflow ")
}


def test_every_shell_block_is_tested():
    lines = [line for text in SHELL for line in text.replace("\\\n", "").splitlines()]
    assert len(lines) == len(VARIABLES) + sum(map(len, COMMANDS.values()))
    assert len(VARIABLES) >= 4


def is_the_pages(connection):
    with WorkflowAutomationHook() as hook:
        hook.connection = connection
        found = (hook.get_conn().base_url, connection.password, hook.extra.flow_id)
    return found == ("https://service.example/api", "KEY", "FLOW")


@pytest.mark.parametrize("text", VARIABLES)
def test_connections_of_the_environment(monkeypatch, text):
    (_, assignment) = shlex.split(text)
    monkeypatch.setenv(*assignment.split("=", 1))
    hook = WorkflowAutomationHook()
    if "127.0.0.1" in text:
        assert hook.get_conn().base_url == "http://127.0.0.1:8070/api"
        assert hook.connection.password == "KEY"
    else:
        assert is_the_pages(hook.connection)
        assert ("timeout" in text) is (hook.extra.timeout == 30)


def test_a_connection_of_the_command_line(airflow_home):
    from airflow.cli import cli_parser
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session

    (command,) = [line for line in COMMANDS["airflow "] if " connections add " in line]
    arguments = shlex.split(command)[1:]
    parser = cli_parser.get_parser()

    def run(*words):
        parsed = parser.parse_args(words)
        parsed.func(parsed)

    run(*arguments)
    try:
        with create_session() as session:
            found = session.query(Connection).filter_by(conn_id="workflow_automation_default").one()
            assert is_the_pages(found)
    finally:
        run("connections", "delete", "workflow_automation_default")


def test_what_a_secrets_backend_stores(tmp_path):
    """The fields in Vault, and the file of Airflow's own backend; the others hold the text of a variable."""
    from airflow.models.connection import Connection
    from airflow.secrets.local_filesystem import LocalFilesystemBackend

    fields, file = read_code_blocks(CONNECTION, "json", "In a secrets backend")
    conn_id = "workflow_automation_default"
    assert is_the_pages(Connection(conn_id=conn_id, **json.loads(fields.text)))
    (tmp_path / "connections.json").write_text(file.text)
    backend = LocalFilesystemBackend(connections_file_path=str(tmp_path / "connections.json"))
    assert is_the_pages(backend.get_connection(conn_id))


@pytest.mark.parametrize(
    ("backend", "module", "separator"),
    [
        ("AWS Secrets Manager", "secrets_manager.SecretsManagerBackend", "/"),
        ("AWS Systems Manager Parameter Store", "systems_manager.SystemsManagerParameterStoreBackend", "/"),
    ],
)
def test_the_default_names_of_secrets(backend, module, separator):
    name, _, kind = module.partition(".")
    found = getattr(importlib.import_module(f"airflow.providers.amazon.aws.secrets.{name}"), kind)
    prefix = inspect.signature(found).parameters["connections_prefix"].default
    shown = dict(table(CONNECTION, "Backend"))
    assert shown[backend] == f"`{prefix}{separator}workflow_automation_default`"


def test_the_commands_of_airflow_exist():
    from airflow.cli import cli_parser

    parser = cli_parser.get_parser()
    for line in COMMANDS["airflow "]:
        assert callable(parser.parse_args(shlex.split(line)[1:]).func)


def test_the_default_file_format():
    (shown,) = read_code_blocks(CONNECTION, "json", "File format")
    assert json.loads(shown.text) == DEFAULT_FILE_FORMAT


@pytest.mark.parametrize("command", COMMANDS["pip install "])
def test_pip_installs_what_there_is(command):
    (what,) = shlex.split(command)[2:]
    if what == "dist/*.whl":
        assert COMMANDS["pip wheel "] == ["pip wheel --no-deps --wheel-dir dist ."]
        return
    if what.startswith("."):
        assert (ROOT / "pyproject.toml").is_file()
        what = what.replace(".", "airflow-provider-workflow-automation", 1)
    requirement = Requirement(what)
    assert requirement.extras <= set(metadata(requirement.name).get_all("Provides-Extra", []))
