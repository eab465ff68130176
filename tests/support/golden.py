"""
Texts of ``tests/unit/golden``, each compared as a whole.

``GOLDEN=1`` in the environment renews them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "unit" / "golden"


def check(name: str, texts: Iterable[str]) -> None:
    """
    Compare texts with those of a file.

    Read the difference before what was renewed is committed.
    """
    path, text = FOLDER / name, "\n\n".join(texts) + "\n"
    if os.environ.get("GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
