"""Bounds that are checked when a DAG is parsed, and so in a module that imports nothing."""

from __future__ import annotations

__all__ = ["LONGEST_TIMEOUT"]

LONGEST_TIMEOUT = 7 * 24 * 3600
"""In seconds: more than anybody means, and fewer than the clock can be asked for."""
