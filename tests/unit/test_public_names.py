"""
What users may import, and with which arguments.

A change of it is deliberate, or a mistake that shows here.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib
import inspect
import typing
from pathlib import Path

import pytest

from code_blocks import read_code_blocks
from doc_pages import public_names

PACKAGE = "workflow_automation_provider"
PROJECT = Path(__file__).parents[2]

# As golden/public_names.txt lists it: module → name, or class.member → its arguments, its values,
# or what it is. Whatever changes there is told in CHANGELOG.md; what is listed nowhere may change
# at any time.
PUBLIC = public_names()

# The modules above that offer more to the rest of the package.
PARTLY_PUBLIC = {
    "client.file_format",
    "client.files",
    "client.protocol",
    "execution.batch.progress",
    "execution.batch.item_results",
    "execution.batch.source",
    "execution.batch.run_batch",
    "execution.record.entries",
    "execution.run.start",
    "execution.upload",
    "get_provider_info",
    "testing.context",
}

# Methods of public classes that are for Airflow, or for the rest of the package alone.
INNER_METHODS = {
    "WorkflowAutomationError.with_facts",
    "WorkflowAutomationHook.located",
    "WorkflowAutomationHook.prepare_trigger",
    "WorkflowAutomationHook.prepare_uploads",
}


def described(value):
    """Return how a name is listed in PUBLIC."""
    if typing.is_typeddict(value):
        return ", ".join(value.__annotations__)
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        return ", ".join(value.__members__)
    if typing.get_origin(value) is typing.Literal:
        return ", ".join(map(repr, typing.get_args(value)))
    if typing.get_origin(value):
        return "a type"
    if isinstance(value, enum.Enum):
        return str(value)
    if (
        inspect.isclass(value)
        and issubclass(value, Exception)
        and value.__init__ is Exception.__init__
    ):
        return ""
    if isinstance(value, property | functools.cached_property):
        return "property"
    if isinstance(value, classmethod | staticmethod):
        return arguments(value.__func__)
    if getattr(value, "_is_protocol", False):
        return arguments(value.__call__)
    if callable(value):
        return arguments(value)
    try:
        return repr(ast.literal_eval(repr(value)))
    except (SyntaxError, ValueError):
        return type(value).__name__


def arguments(function):
    """Return names and defaults, without the types: those are mypy's."""
    signature = inspect.signature(function)
    bare = []
    for parameter in signature.parameters.values():
        default = ... if " at 0x" in repr(parameter.default) else parameter.default
        bare.append(parameter.replace(annotation=parameter.empty, default=default))
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


def members(value):
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
    fields = own.get("__dataclass_fields__", {})
    return {
        name: member
        for name, member in own.items()
        if not name.startswith("_")
        and name not in fields
        and f"{value.__name__}.{name}" not in INNER_METHODS
    }


def surface(module):
    """Return what a module offers to users, as PUBLIC lists it."""
    found, values = {}, vars(importlib.import_module(f"{PACKAGE}.{module}"))
    names = [name for name in PUBLIC[module] if "." not in name]
    if module not in PARTLY_PUBLIC:
        names = values["__all__"]
        own = {
            name
            for name, value in values.items()
            if getattr(value, "__module__", "") == values["__name__"]
        }
        assert {name for name in own if name[0] != "_"} <= {*names}
    for name in names:
        value = values[name]
        found[name] = described(value)
        found |= {f"{name}.{member}": described(it) for member, it in members(value).items()}
    return found


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names(module):
    assert surface(module) == PUBLIC[module]


def imports_of(source):
    """Return module and name of what Python code imports of the package."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.startswith(PACKAGE):
                yield from ((module.removeprefix(f"{PACKAGE}."), name.name) for name in names)
            case ast.Import(names=names):
                yield from ((name.name, "") for name in names if name.name.startswith(PACKAGE))


SHOWN = [PROJECT / "README.md", *PROJECT.glob("docs/*.md"), *PROJECT.glob("example_dags/*.py")]


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.name)
def test_documentation_and_examples_import_only_public_names(path):
    if path.suffix == ".md":
        sources = [
            block.text for block in read_code_blocks(path, "python") if PACKAGE in block.text
        ]
    else:
        sources = [path.read_text()]
    shown = [found for source in sources for found in imports_of(source)]
    assert [(module, name) for module, name in shown if name not in PUBLIC.get(module, {})] == []
