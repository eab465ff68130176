"""What each module of the package offers: ``__all__`` says it, and no more comes with ``import *``."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

import workflow_automation_provider

PACKAGE = workflow_automation_provider.__name__
MODULES = [
    PACKAGE,
    *(found.name for found in pkgutil.walk_packages(workflow_automation_provider.__path__, f"{PACKAGE}.")),
]

FACADES = {f"{PACKAGE}.testing"}  # offer what other modules define


def offered_by(module):
    names = importlib.import_module(module).__all__
    assert isinstance(names, list)
    return names


def tree_of(module):
    return ast.parse(Path(importlib.import_module(module).__file__).read_text())


def definitions(module):
    """Return name → docstring of all that a module defines at its top."""
    found = {}
    body = tree_of(module).body
    for statement, following in zip(body, [*body[1:], None], strict=True):
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found[name] = ast.get_docstring(statement)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                match following:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        found[name] = text
                    case _:
                        found[name] = None
    return found


@pytest.mark.parametrize("module", MODULES)
class TestModule:
    def test_has_names_without_repetition(self, module):
        names = offered_by(module)
        assert len(names) == len({*names})

    def test_offers_what_it_defines(self, module):
        """Nothing that is imported slips out, and nothing public is forgotten."""
        if module in FACADES:
            assert all(hasattr(importlib.import_module(module), name) for name in offered_by(module))
        else:
            assert {*offered_by(module)} == {name for name in definitions(module) if not name.startswith("_")}

    def test_import_of_everything(self, module):
        namespace = {}
        exec(f"from {module} import *", namespace)
        assert {*namespace} - {"__builtins__"} == {*offered_by(module)}

    def test_each_name_is_documented(self, module):
        defined = definitions(module)
        if module in FACADES:
            for below in MODULES:
                defined |= definitions(below) if below.startswith(f"{module}.") else {}
        assert [name for name in offered_by(module) if not defined[name]] == []
