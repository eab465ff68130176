"""
Texts of ``tests/unit/golden``, each compared as a whole.

``GOLDEN=1`` in the environment renews them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from workflow_automation_provider.execution.errors import TICK

FOLDER = Path(__file__).parents[1] / "unit" / "golden"


def as_on_3_3(text: str) -> str:
    """Return a text without what it says of a Clear from Airflow 3.4 on."""
    return text.replace(f"\n{TICK}", "")


def check(name: str, texts: Iterable[str]) -> None:
    """
    Compare texts with those of a file.

    Read the difference before what was renewed is committed.
    """
    path, text = FOLDER / name, as_on_3_3("\n\n".join(texts) + "\n")
    if os.environ.get("GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
