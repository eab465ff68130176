"""Which runs and requests a fault or a callback applies to."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

__all__ = ["check_matching", "includes", "is_finite", "is_whole"]


def check_matching(flow_id: object, inputs: object, times: object) -> None:
    """
    Validate the options that every fault and callback has.

    :raises ValueError: if one is invalid, naming it
    """
    if flow_id is not None and not isinstance(flow_id, str):
        raise ValueError(f"flow_id is {flow_id!r}; pass text, or leave it out to match all flows")
    if inputs is not None and not isinstance(inputs, dict):
        raise ValueError(f"inputs is {inputs!r}; pass an object, or leave it out to match all inputs")
    if times is not None and not (is_whole(times) and times >= 1):
        raise ValueError(f"times is {times!r}; expected a whole number, 1 or more, or None for no limit")


def includes(actual: Any, wanted: Any) -> bool:
    """Return whether a JSON value includes another: objects by their fields, other values by equality."""
    if isinstance(wanted, dict):
        return isinstance(actual, dict) and all(
            name in actual and includes(actual[name], value) for name, value in wanted.items()
        )
    return bool(actual == wanted)


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_finite(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
