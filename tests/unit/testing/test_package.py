"""What the package exports, and which module may import which."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_unknown_names_of_the_package():
    from workflow_automation_provider import testing

    with pytest.raises(AttributeError):
        testing.nonsense  # noqa: B018


def test_it_imports_neither_airflow_nor_our_client():
    code = (
        "import sys, workflow_automation_provider.testing.service\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('airflow', 'httpx')"
        " or name.startswith(('workflow_automation_provider.client', 'workflow_automation_provider.hooks'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_modules_keep_to_the_contracts():
    """Among them: nothing but LocalService imports from _server, and there are no circles."""
    project = Path(__file__).parents[3]
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
