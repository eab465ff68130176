"""Which runs and requests a fault or a callback applies to, and which numbers it may have."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["check_matching", "check_number", "includes"]


def check_matching(flow_id: object, inputs: object, times: object) -> None:
    """
    Validate the options that every fault and callback has.

    :raises ValueError: if one is invalid, naming it
    """
    if flow_id is not None and not isinstance(flow_id, str):
        raise ValueError(f"flow_id is {flow_id!r}; pass text, or leave it out to match all flows")
    if inputs is not None and not isinstance(inputs, dict):
        raise ValueError(f"inputs is {inputs!r}; pass an object, or leave it out to match all inputs")
    if times is not None:
        check_number("times", times, 1)


def includes(actual: Any, wanted: Any) -> bool:
    """Return whether a JSON value includes another: objects by their fields, other values by equality."""
    if isinstance(wanted, dict):
        return isinstance(actual, dict) and all(
            name in actual and includes(actual[name], value) for name, value in wanted.items()
        )
    return bool(actual == wanted)


def check_number(
    name: str, value: object, least: int = 0, most: float = math.inf, *, whole: bool = True
) -> None:
    """
    Validate a number.

    :raises ValueError: if it is another value, naming it
    """
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not (is_number and least <= value <= most and value != math.inf):  # type: ignore[operator]  # mypy does not narrow by a variable
        range_ = f"{least} or more" if most == math.inf else f"{least} to {most}"
        raise ValueError(f"{name} is {value!r}; expected a {'whole ' if whole else ''}number, {range_}")
