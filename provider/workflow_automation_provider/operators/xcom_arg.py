"""The result of a start, or a field of it, as an argument of later tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
from airflow.sdk.definitions.xcom_arg import PlainXComArg, XComArg

if TYPE_CHECKING:
    from airflow.sdk.types import Operator

KEYS = ("run_id", "run_link", "flow_id", "response", "result")
"""The keys of the result of a start, each an XCom of its own."""

_RESULT = "return_value"


@attrs.define
class FlowOutput(PlainXComArg):
    """
    The result of a start, or a part of it.

    ``trigger.output["result"]["rows"]`` is a field of the flow's result. Airflow's own class takes
    the last key for that of an XCom, which nobody has pushed.

    :param path: the keys of the part, within the XCom
    """

    path: tuple[str | int, ...] = ()

    def __getitem__(self, item: str | int) -> FlowOutput:
        """
        Return a part of the result.

        :raises ValueError: if no start has it
        """
        if self.key != _RESULT:
            return FlowOutput(operator=self.operator, key=self.key, path=(*self.path, item))
        check_key(self.operator, item)
        return FlowOutput(operator=self.operator, key=str(item))

    def __str__(self) -> str:
        """Return the template of the part, for a text that contains it."""
        reference = super().__str__().removesuffix(" }}")
        path = "".join(f"[{part!r}]" for part in self.path)
        return f"{reference}{path} }}}}"

    def resolve(self, context: Mapping[str, Any]) -> Any:
        """
        Return the part's value.

        :raises KeyError: if the flow's result does not have it
        """
        value = super().resolve(context)
        for part in self.path:
            try:
                if isinstance(value, str):  # an index would return one of its characters
                    raise TypeError
                value = value[part]
            except (KeyError, IndexError, TypeError):
                raise KeyError(
                    f"The output[{self.key!r}] of task {self.operator.task_id} has no {part!r} in "
                    f"{value!a:.60}"
                ) from None

        return value


def check_pushed(operator: Operator) -> None:
    """Raise a ValueError if a start keeps its result to itself: a later task would get None."""
    given = getattr(operator, "partial_kwargs", {}).get("do_xcom_push", True)
    if not getattr(operator, "do_xcom_push", given):
        raise ValueError(
            f"Task {operator.task_id} has no output with do_xcom_push=False: leave that out."
        )


def check_key(operator: Operator, key: object) -> None:
    """Raise a ValueError if no start has this key in its result."""
    waits = getattr(operator, "wait_for_completion", True)
    if key == "result" and not waits:
        raise ValueError(
            f"The output of task {operator.task_id} has no 'result' "
            "without wait_for_completion=True."
        )

    if key not in KEYS:
        raise ValueError(
            f"The output of task {operator.task_id} has no {key!r}; "
            f"expected one of {', '.join(KEYS)}. "
            f"A field of what the flow returned is output['result'][{key!r}]."
        )


def check_references(*values: object) -> None:
    """
    Check references of Airflow's own class to the output of a start.

    ``@task.trigger_flow`` and mapped starts have such an output, of which
    ``output["result"]["rows"]`` is the XCom *rows*, which is always None.

    :raises ValueError: if a reference names a key that no start has, or a start without an output
    """
    for operator, key in XComArg.iter_xcom_references(values):
        # That of a mapped task is another.
        operator_class = getattr(operator, "operator_class", type(operator))
        is_start = getattr(operator_class, "_returns_run", False)
        if key.startswith("_") or not is_start:
            continue

        check_pushed(operator)
        if key != _RESULT:
            check_key(operator, key)
