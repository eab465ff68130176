"""What docs/wait.md shows works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest

from code_blocks import read_code_blocks
from entry_keys import ADOPTED
from workflow_automation_provider.client.redaction import CALLBACK_PATH
from workflow_automation_provider.execution.record.callback import (
    MAX_BODY,
    Ended,
    new_token,
    parse,
)
from workflow_automation_provider.testing import CallbackEndpoint

PAGE = Path(__file__).parents[2] / "docs" / "wait.md"
TEXT = PAGE.read_text()


def blocks(language):
    return [block.text for block in read_code_blocks(PAGE, language)]


def test_the_dag_of_the_page(run_dag, service, workflow_automation_callback_base_url, capfd):
    answer = json.loads(blocks("json")[0])
    service.callbacks.add(**answer)
    result = run_dag(blocks("python")[0], preamble="")
    assert result.xcom("trigger")["result"] == answer["result"]
    assert (
        f"{answer['result']['rows']} rows are in {answer['result']['file']}"
        in capfd.readouterr().out
    )
    assert [callback.body for callback in service.journal.callbacks()] == [answer]


def test_the_failure_of_the_page(
    run_dag, service, workflow_automation_callback_base_url, task_errors
):
    """And that of a run that no callback matches, at once."""
    service.callbacks.add(times=1, **json.loads(blocks("json")[1]))
    for _ in range(2):
        run_dag(blocks("python")[0], preamble="", ends="failed")
    failed, unmatched = map(str, task_errors)
    assert "The warehouse did not respond" in failed
    missing = service.callbacks.missing.pop()  # what stays there fails the test
    assert missing.startswith("no callback matches run 1002")
    assert missing in unmatched
    assert len(service.runs) == 2


@pytest.mark.parametrize("text", blocks("json"))
def test_the_bodies_of_the_page_are_accepted(text):
    assert parse(text.encode())


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_curl_command_of_the_page():
    (call,) = [text for text in blocks("sh") if "CALLBACK_URL" in text]
    with CallbackEndpoint() as endpoint:
        environment = {
            **os.environ,
            "CALLBACK_URL": f"{endpoint.url}{CALLBACK_PATH}?token={new_token(uuid4())}",
            "NO_PROXY": "127.0.0.1",
        }
        done = subprocess.run(
            ["sh", "-c", call], env=environment, capture_output=True, text=True, check=True
        )
    body = json.loads(re.findall(r"-d '(.+)'", call)[0])
    assert isinstance(parse(json.dumps(body).encode()), Ended)
    assert "detail" in json.loads(done.stdout)


def test_names_and_numbers_of_the_page():
    assert f"`{{callback_base_url}}{CALLBACK_PATH}?token=…`" in TEXT
    assert f"location = {CALLBACK_PATH} {{" in TEXT
    assert f"`{ADOPTED}`" in PAGE.with_name("if-it-fails.md").read_text()
    assert MAX_BODY == 64 * 1024
    assert TEXT.count("64 KiB") == 1
