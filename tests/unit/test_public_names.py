"""What users may import: docs/api.md lists it, with its arguments, and is renewed on purpose."""

from __future__ import annotations

import ast
import importlib

import pytest

import public_face
from code_blocks import read_code_blocks

PACKAGE = public_face.PACKAGE
PROJECT = public_face.PROJECT
PUBLIC = public_face.surface()
# The modules without a list of names there offer nothing else.
WHOLE = [module for module, names in public_face.PUBLIC.items() if not names]


@pytest.mark.parametrize("module", WHOLE)
def test_what_a_public_module_has_is_public(module):
    values = vars(importlib.import_module(f"{PACKAGE}.{module}"))
    own = {
        name
        for name, value in values.items()
        if getattr(value, "__module__", "") == values["__name__"]
    }
    assert {name for name in own if name[0] != "_"} <= {*values["__all__"]}


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
