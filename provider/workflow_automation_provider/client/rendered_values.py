"""Check what a template or an XCom has made of an argument."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Mapping
from typing import Any

from workflow_automation_provider.client.redaction import shown
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.wording import kind_of


def rendered(name: str, value: Any) -> Any:
    """
    Return a value that a template or an XCom may have made; text loses the blanks around it.

    :param name: what the value is called in errors
    :raises InvalidRequestError: as :func:`check_rendered` does
    """
    check_rendered(name, value)
    return value.strip() if isinstance(value, str) else value


def check_rendered(name: str, value: object) -> None:
    """
    Check a value that a template or an XCom may have made.

    :param name: what the value is called in errors
    :raises InvalidRequestError: if it is None or empty, the text that a template makes of None, of
        a list or of a dict, or a template that was not rendered
    """
    if value is None or (isinstance(value, str) and value.strip() in ("", "None")):
        raise InvalidRequestError(
            f"{name} is {value!r}: the template or XCom that it comes from has no value.",
            next_step=(
                "The upstream task may have been skipped, or its result may have no such key."
            ),
        )

    if isinstance(value, str):
        check_text(name, value)


def check_text(name: str, text: str) -> None:
    """
    Check that a text is not what a template leaves in place of a value.

    :param name: what the text is called in errors
    :raises InvalidRequestError: if it is the text of a list or dict, or a template that was not
        rendered
    """
    kind = _kind_of_text(text.strip())
    if kind:
        # Not quoted: it may be long, and hold anything.
        raise InvalidRequestError(
            f"{name} is the text of {kind}: a template makes text of every value.",
            next_step=(
                "Pass the value itself, such as the output of an upstream task.\n"
                "For params and conf, set render_template_as_native_obj=True on the DAG."
            ),
        )

    check_no_template(name, text)


def _kind_of_text(text: str) -> str:
    """
    Return the kind of the list, tuple or dict that a text is made of.

    :return: empty if it is not made of one
    """
    if not text.startswith(("[", "(", "{")):
        return ""

    for parse in (ast.literal_eval, json.loads):
        try:
            value = parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue

        if isinstance(value, list | tuple | dict):
            return kind_of(value)

    return ""


def check_no_template(name: str, text: str) -> None:
    """Raise an InvalidRequestError if a text is a template that was not rendered."""
    if "{{" in text or "{%" in text:
        raise InvalidRequestError(
            f"{name} is {shown(text)}, a template that was not rendered.",
            next_step=(
                "Airflow renders templates in text, but not in a Path, in the names of a dict, or "
                "inside a @task.\n"
                "Give a path as text, and make any other value in a @task."
            ),
        )


def check_path(name: str, path: str | None) -> None:
    """
    Check a rendered path; one that exists is meant as it is written.

    :param name: what the path is called in errors
    :raises InvalidRequestError: as :func:`check_rendered` does
    """
    if not (path and os.path.lexists(path)):
        check_rendered(name, path)


def check_names(name: str, inputs: object) -> None:
    """
    Check that no input has a template as its name: Airflow renders only values.

    The names within a value may look like templates: a flow may use them to fill in a document.

    :param name: what the inputs are called in errors
    :raises InvalidRequestError: if one is
    """
    if isinstance(inputs, Mapping):
        for key in inputs:
            check_no_template(f"{name} has a name that", str(key))
