"""What docs/testing.md shows works, and tests/crash/test_docs_testing.py runs its project."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from code_blocks import read_code_blocks
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


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
            printed = list(
                iter(process.stdout.readline, "To make the next request fail, script a fault:\n")
            )
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
    done = subprocess.run(
        line, shell=True, env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_the_json_of_the_page_is_what_an_upload_holds(service):
    (block,) = read_code_blocks(PAGE, "json")
    hook = WorkflowAutomationHook()
    run_id = str(hook.trigger_flow({}).run_id)
    hook.upload_files(run_id, [{"name": "a.bin", "content": "A" * 1368}])
    (found,) = service.uploads[0].files
    hidden = re.sub(r'"[0-9a-f]{64}"', '"…"', json.dumps(found))
    # 1368 characters are 1026 bytes without padding, 1024 with it.
    assert json.loads(hidden.replace("1026", "1024")) == json.loads(block.text)
