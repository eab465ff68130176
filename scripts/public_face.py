"""
Make the tables of ``docs/api.md`` from the code: all that the versions keep.

What a module lists in ``__all__`` is public; of some modules, which offer more to the rest of the
package, only the names below.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib
import inspect
import tomllib
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PACKAGE = "workflow_automation_provider"
PROJECT = Path(__file__).parent.parent

PUBLIC: dict[str, tuple[str, ...]] = {
    "operators.flows": (),
    "operators.batch": (),
    "decorators.flows": (),
    "taskflow": (),
    "notifications.flows": (),
    "hooks.workflow_automation": (),
    "links": (),
    "assets": (),
    "exceptions": (),
    "types": (),
    "get_provider_info": ("get_provider_info",),
    "testing": (),
    "testing.context": ("StateStore", "make_context"),
    "testing.control_client": (),
    "testing.pytest_plugin": (),
}
"""Module → its public names; without any, those of its ``__all__``."""

INNER = {
    "WorkflowAutomationError.with_facts",
    "WorkflowAutomationHook.located",
    "WorkflowAutomationHook.prepare_trigger",
    "WorkflowAutomationHook.prepare_uploads",
    "TriggerFlowOperator.execute_complete",
    "TriggerFlowBatchOperator.execute_complete",
    "FlowNotifier.get_template_env",
    "FlowNotifier.notify",
    "Callback.shown",
    "Callback.first_steps",
    "Callback.progress_calls",
    "Callback.ends",
    "Callback.url_in",
    "Callback.body_of",
    "Callback.matches",
    "Callbacks.take",
    "Fault.accepts",
    "Fault.responds",
    "Fault.matches",
    "Faults.take",
    "ScriptedCallback.as_json",
    "ScriptedFault.as_json",
}
"""Members of public classes that are for Airflow, or for the rest of the package alone."""

_FOR_AIRFLOW = {"operator_extra_links", "template_fields_renderers"}
_FOR_PYTEST = {"pytest_configure", "pytest_unconfigure"}
_FIXTURE, _TYPE = "a fixture", "a type"


# Names --------------------------------------------------------------------------------------------


def surface() -> dict[str, dict[str, str]]:
    """Return module → name, or class.member → its arguments, its values, or what it is."""
    return {module: _names_of(module) for module in PUBLIC}


def _names_of(module: str) -> dict[str, str]:
    values = vars(importlib.import_module(f"{PACKAGE}.{module}"))
    found: dict[str, str] = {}
    for name in PUBLIC[module] or values["__all__"]:
        if name in _FOR_PYTEST:
            continue

        is_fixture = name.startswith("workflow_automation_")
        found[name] = _FIXTURE if is_fixture else described(values[name])
        for member, value in _members(values[name]).items():
            found[f"{name}.{member}"] = described(value)

    return found


def described(value: Any) -> str:
    """Return a name's arguments, its values, or what it is."""
    if typing.is_typeddict(value):
        return ", ".join(value.__annotations__)
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        return ", ".join(value.__members__)
    if typing.get_origin(value) is typing.Literal:
        return ", ".join(map(repr, typing.get_args(value)))
    if typing.get_origin(value):
        return _TYPE
    if isinstance(value, property | functools.cached_property):
        return "property"
    if inspect.isclass(value) and issubclass(value, Exception):
        return ""
    if isinstance(value, classmethod | staticmethod):
        return _arguments(value.__func__)
    if getattr(value, "_is_protocol", False):
        return _arguments(value.__call__)
    if callable(value):
        return _arguments(value)
    try:
        return repr(ast.literal_eval(repr(value)))
    except (SyntaxError, ValueError):
        return type(value).__name__


def _arguments(function: Callable[..., object]) -> str:
    """Return names and defaults, without the types: those are mypy's."""
    signature = inspect.signature(function)
    bare = []
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue

        default = ... if " at 0x" in repr(parameter.default) else parameter.default
        bare.append(parameter.replace(annotation=_choices(parameter), default=default))

    text = str(signature.replace(parameters=bare, return_annotation=signature.empty))
    return text.replace("datetime.timedelta", "timedelta").replace("mappingproxy({})", "{}")


def _choices(parameter: inspect.Parameter) -> Any:
    """Return the values that an argument takes, nothing where its annotation does not name them."""
    try:
        annotation = eval(str(parameter.annotation), _choice_types())
    except (NameError, SyntaxError):
        return parameter.empty

    alternatives = typing.get_args(annotation)
    values = [
        value
        for literal in (annotation, *alternatives)
        if typing.get_origin(literal) is typing.Literal
        for value in typing.get_args(literal)
    ]
    if values and type(None) in alternatives:
        values.append(None)
    return _Choices(values) if values else parameter.empty


class _Choices:
    """Values, as a signature shows them in place of a type."""

    def __init__(self, values: list[object]) -> None:
        self._values = values

    def __repr__(self) -> str:
        return " | ".join(map(repr, self._values))


@functools.cache
def _choice_types() -> dict[str, Any]:
    """Return what the names in an annotation stand for, where they are public choices."""
    found: dict[str, Any] = {"Literal": typing.Literal}
    for module, names in PUBLIC.items():
        values = vars(importlib.import_module(f"{PACKAGE}.{module}"))
        found |= {
            name: values[name]
            for name in names or values["__all__"]
            if typing.get_origin(values[name]) is typing.Literal
        }
    return found


def _members(value: Any) -> dict[str, Any]:
    """
    Return name → what a class defines itself, or has of a private class beside it.

    Without the fields of a dataclass: they are its arguments.
    """
    if not inspect.isclass(value) or typing.is_typeddict(value) or issubclass(value, enum.Enum):
        return {}

    private = [
        base
        for base in value.__bases__
        if base.__module__ == value.__module__ and base.__name__[0] == "_"
    ]
    own = {name: member for found in (*private, value) for name, member in vars(found).items()}
    left_out = {*own.get("__dataclass_fields__", {}), *_FOR_AIRFLOW}
    return {
        name: member
        for name, member in own.items()
        if not name.startswith("_")
        and name not in left_out
        and f"{value.__name__}.{name}" not in INNER
    }


# Tables -------------------------------------------------------------------------------------------


def names() -> Iterator[list[str]]:
    """Return a row for each public name, but for the exceptions, which have a table."""
    yield ["Name", "Arguments, fields or values; members"]
    for module, found in surface().items():
        if module == "exceptions":
            continue

        for name, what in found.items():
            if "." in name:
                continue

            first = what if what in ("", _FIXTURE, _TYPE) else _code(what)
            members = [
                f"``.{member.partition('.')[2]}{_call(of_member)}``"
                for member, of_member in found.items()
                if member.startswith(f"{name}.")
            ]
            yield [f"``{module}.{name}``", "; ".join([first, *members])]


def _call(what: str) -> str:
    """Return the arguments of a member that is called, or the value of one that is none."""
    if what == "property":
        return ""
    return what if what.startswith("(") and not what.startswith("('") else f" = {what}"


def exceptions() -> Iterator[list[str]]:
    """Return a row for each exception."""
    module = importlib.import_module(f"{PACKAGE}.exceptions")
    yield ["Exception", "Subclass of", "Code by default", "``accepted``"]
    found = (getattr(module, name) for name in module.__all__)
    for one in found:
        if issubclass(one, Exception):
            bases = ", ".join(f"``{base.__name__}``" for base in one.__bases__)
            code = f"``{one._code}``" if one._code else ""
            yield [f"``{one.__name__}``", bases, code, f"``{one.accepted.name}``"]


def codes() -> Iterator[list[str]]:
    """Return a row for each code of an error."""
    from workflow_automation_provider.exceptions import Code

    yield ["``Code``", "Value"]
    for code in Code:
        yield [f"``{code.name}``", f"``{code}``"]


def xcoms() -> Iterator[list[str]]:
    """Return a row for each kind of task, with the keys of its XComs."""
    from workflow_automation_provider.execution.batch.progress import PROGRESS_XCOM
    from workflow_automation_provider.links import FlowRunLink
    from workflow_automation_provider.operators.xcom_arg import KEYS

    result = "return_value"
    yield ["Task", "XCom keys"]
    yield ["``TriggerFlowOperator``, ``@task.trigger_flow``", _code(result, FlowRunLink().xcom_key)]
    yield ["the same, with ``multiple_outputs``", _code(*KEYS)]
    yield ["``TriggerFlowBatchOperator``", _code(result, PROGRESS_XCOM)]
    yield ["``UploadFilesOperator``", _code(result)]


def settings() -> Iterator[list[str]]:
    """Return a row for each extra of a connection."""
    from workflow_automation_provider.client.settings import FIELDS, Settings

    yield ["Extra", "Kind", "Default"]
    for name, (kind, _) in FIELDS.items():
        default = getattr(Settings(), name)
        is_given = default or default is False
        yield [f"``{name}``", kind.json_type, f"``{default}``" if is_given else ""]


def callback() -> Iterator[list[str]]:
    """Return a row for each status of a run's request, or of what it writes to its mailbox."""
    from workflow_automation_provider.execution.record.callback import _REPORTS

    yield ["``status``", "Other fields"]
    for status, kind in _REPORTS.items():
        yield [f"``{status}``", _code(*(name for name in kind._fields if name != "status"))]


def others() -> Iterator[list[str]]:
    """Return a row for each name that stands in none of the other tables."""
    from workflow_automation_provider.client.redaction import CALLBACK_PATH
    from workflow_automation_provider.exceptions import RunFailedError
    from workflow_automation_provider.execution.record.entries import ADOPTED
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    yield ["What", "Name"]
    attributes = (name for name in vars(RunFailedError("")) if name != "result")
    yield ["Attributes of an error", _code(*attributes, "reason")]
    yield ["Of a ``RunFailedError``, also", _code("result")]
    yield ["Extras of the package", _code(*project["optional-dependencies"])]
    yield ["Type of a connection", _code(WorkflowAutomationHook.conn_type)]
    yield ["Path of a run's request", _code(CALLBACK_PATH)]
    yield ["Key of the entry that gives a task its run", _code(ADOPTED)]


def _code(*found: str) -> str:
    return ", ".join(f"``{name}``" for name in found)


TABLES: dict[str, Callable[[], Iterator[list[str]]]] = {
    table.__name__: table for table in (names, exceptions, codes, xcoms, settings, callback, others)
}
"""By the names in comments of the page."""
