"""Arguments that mean nothing without another one: an error where the DAG is parsed, if a DAG author gives them."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

__all__ = ["DEPENDED_ON", "check_given", "checking_expand", "is_mapped"]

# Each with the argument, and its value, that it needs.
_NEEDS: dict[str, tuple[str, object]] = {
    "callback_input": ("wait_for_completion", True),
    "completion_timeout": ("wait_for_completion", True),
    "ask_timeout": ("on_unknown_start", "ask"),
    "notifiers": ("on_unknown_start", "ask"),
}

DEPENDED_ON = frozenset(name for name, _ in _NEEDS.values())
"""The arguments that others need."""

_Expandable = TypeVar("_Expandable")


def check_given(given: Iterable[str], chosen: Mapping[str, object]) -> None:
    """
    Check that no argument is given that would be ignored.

    :param given: the arguments that the DAG author gave: those of ``default_args`` are for several tasks
    :param chosen: values of the arguments that others need, but for those that are not known yet
    :raises ValueError: if one would be ignored
    """
    for name in given:
        other, needed = _NEEDS.get(name, ("", None))
        if other in chosen and chosen[other] != needed:
            raise ValueError(
                f"{name} has no effect without {other}={needed!r}: add {other}={needed!r}, or leave {name} out."
            )


def is_mapped(operator: object) -> bool:
    """Return whether an operator is a task instance of a mapped one; of those, :func:`checking_expand` checks more."""
    return bool(getattr(operator, "_BaseOperator__from_mapped", False))


def checking_expand(expandable: _Expandable, *, maps_arguments: bool = True) -> _Expandable:
    """
    Have the ``expand`` and ``expand_kwargs`` of Airflow's object check what was given.

    :param expandable: what ``partial()``, or a decorator, returned
    :param maps_arguments: whether they map arguments of the operator, rather than those of a function
    """
    kind: Any = type(expandable)
    expandable.__class__ = _checking(kind, maps_arguments)
    return expandable


# A subclass, because the objects have slots, and a wrapper would not be what Airflow looks for.
@functools.cache
def _checking(kind: Any, maps_arguments: bool) -> Any:
    class Checking(kind):  # type: ignore[misc]
        __slots__ = ()
        __doc__ = kind.__doc__

        def expand(self, **mapped: Any) -> Any:
            names = mapped if maps_arguments else ()
            return _checked(super().expand(**mapped), self.kwargs, names)

        def expand_kwargs(self, kwargs: Any, **options: Any) -> Any:
            names = _names(kwargs) if maps_arguments else ()
            return _checked(super().expand_kwargs(kwargs, **options), self.kwargs, names)

    Checking.__name__, Checking.__qualname__ = kind.__name__, kind.__qualname__
    return Checking


def _names(kwargs: Any) -> Collection[str] | None:
    """Return what is mapped, None if an upstream task tells."""
    if isinstance(kwargs, Sequence) and all(isinstance(item, Mapping) for item in kwargs):
        return {name for item in kwargs for name in item}
    return None


def _checked(mapped: Any, kwargs: Mapping[str, Any], names: Collection[str] | None) -> Any:
    """
    Check the arguments of a mapped task, and return it.

    :param kwargs: the arguments that are the same for all its task instances
    :param names: the other ones, None if they are not known yet
    """
    if names is not None:
        operator = getattr(mapped, "operator", mapped)
        known: dict[str, Any] = {}
        for parent in (operator.dag, operator.task_group):
            known |= getattr(parent, "default_args", None) or {}
        known |= kwargs
        given = [name for name in kwargs if name != "notifiers" or kwargs[name]]
        check_given([*given, *names], {name: known.get(name) for name in DEPENDED_ON - {*names}})
    return mapped
