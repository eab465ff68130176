"""What docs/testing.md shows works, and its tables are those of the code; tests/crash/test_docs_testing.py runs its project."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import httpx
from packaging.requirements import Requirement

from code_blocks import read_code_blocks
from workflow_automation_provider.testing import Callback, Fault, Faults, pytest_plugin
from workflow_automation_provider.testing.faults import KINDS

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_the_install_command_names_what_there_is():
    (command,) = [b.text for b in read_code_blocks(PAGE, "sh") if "pip install" in b.text]
    quoted = re.search(r"'\.(\[.+\])'", command)
    assert quoted, command
    requirement = Requirement(f"airflow-provider-workflow-automation{quoted[1]}")
    assert requirement.extras <= set(metadata(requirement.name).get_all("Provides-Extra", []))


def test_the_commands_of_the_page_work():
    command, fault, calls = [b.text for b in read_code_blocks(PAGE, "sh", "on its own")]
    # The shell finds curl, but no Python: the command is run as it is but for that.
    assert command == "python -m workflow_automation_provider.testing\n"
    process = subprocess.Popen(
        [sys.executable, *command.split()[1:], "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            printed = list(iter(process.stdout.readline, "To make the next request fail, script a fault:\n"))
            address = re.search(r":(\d+)/api", printed[0])
            assert address, printed
            port = address[1]
            assert process.stdout.readline().replace(f":{port}/", ":8070/") == fault
            lines = [*fault.splitlines(), *calls.splitlines()]
            responses = [run(line.replace(":8070/", f":{port}/")) for line in lines]
        finally:
            process.terminate()
    assert responses[0]["kind"] == "busy"
    assert responses[1]["result"] == {"rows": 3}
    assert responses[2]["status"] == "failed"
    assert [len(response["callbacks"]) for response in responses[3:]] == [2, 0, 0]
    assert set(responses[5]) >= {"runs", "uploads", "requests", "callbacks"}
    assert not any(responses[5].values())


def run(line):
    environment = {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    done = subprocess.run(line, shell=True, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_json_of_the_page_is_what_an_upload_holds(workflow_automation_service):
    (block,) = read_code_blocks(PAGE, "json")
    url = workflow_automation_service.base_url
    headers = {"X-API-Key": "demo-key"}
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60) as http:
        run_id = http.post("/trigger", json={"inputs": {}}).json()["run_id"]
        file = {"name": "a.bin", "content": "A" * 1368}
        http.post("/public/upload", json={"flow_id": "demo-flow", "run_id": run_id, "files": [file]})
    (found,) = workflow_automation_service.uploads[0].files
    hidden = re.sub(r'"[0-9a-f]{64}"', '"…"', json.dumps(found))
    # 1368 characters are 1026 bytes without padding, 1024 with it.
    assert json.loads(hidden.replace("1026", "1024")) == json.loads(block.text)


def rows(first_column, second_column):
    """The rows of the table with these first columns, without the marks of code in their first cells."""
    text = PAGE.read_text().partition(f"| {first_column} | {second_column} |")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()[2:]]
    return {name.strip("`"): [first, " | ".join(others)] for name, first, *others in cells}


def test_the_tables_of_faults_are_those_of_the_code():
    kinds = rows("Kind", "Accepted")
    narrowing = {*rows("Option", "Default | Matches")}
    assert kinds.keys() == KINDS.keys()
    for name, kind in KINDS.items():
        accepted, effect = kinds[name]
        if name != "echo_key":
            assert accepted == {True: "yes", False: "no", None: "normal"}[kind.accepts]
        assert set(re.findall(r"`([a-z_]+)`", effect)) == set(kind.options), name
        for option, default in kind.options.items():
            if isinstance(default, int | float) and option != "limit":
                assert re.search(rf"`{option}` \({default:.0f}\)", effect), name
    assert {"kind", *narrowing} | {option for kind in KINDS.values() for option in kind.options} == {
        field.name for field in dataclasses.fields(Fault)
    }


def test_the_faults_of_the_page_exist():
    calls = re.findall(r"faults\.add\((\".+?)\)", PAGE.read_text())
    assert len(calls) >= 2
    for call in calls:
        eval(f"Faults().add({call})", {"Faults": Faults})


def test_the_table_of_callback_options_is_that_of_the_code():
    table = rows("Option", "Default | Meaning")
    fields = {field.name: field.default for field in dataclasses.fields(Callback)}
    assert set(table) == set(fields)
    for name, (default, _) in table.items():
        shown = default.strip("`").strip('"')
        if shown in ("yes", "no"):
            assert fields[name] is (shown == "yes")
        elif shown not in ("none", "all"):
            assert shown == (f"{fields[name]:.0f}" if isinstance(fields[name], float) else str(fields[name]))


def test_the_table_of_fixtures_is_that_of_the_plugin():
    known = {name for name in pytest_plugin.__all__ if name.startswith("workflow_automation_")}
    assert {*rows("Fixture", "Provides")} == known
