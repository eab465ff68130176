"""How a file becomes an element of an upload, as a connection or an operator says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.wording import kind_of

FormatWord = Literal["name", "path", "base64", "data_url", "content_type", "size"]
"""What a field of an element may hold."""

DEFAULT_FILE_FORMAT: Mapping[str, FormatWord] = {
    "name": "name",
    "content_type": "content_type",
    "content": "base64",
}
"""The file format if neither the connection nor the operator sets one."""

FileFormat = Mapping[str, str] | FormatWord
"""
How a file becomes an element of ``files``: a mapping of field name to word, or one word, for
elements that are plain strings.

The words of a mapping are typed as ``str``, which is what type checkers infer for a plain dict;
whether each is a :data:`FormatWord` is checked at run time.
"""


def check_file_format(value: Any) -> FileFormat:
    """
    Check a file format.

    :raises InvalidRequestError: if it is neither a word nor a mapping of field names to words
    """
    known = get_args(FormatWord)
    expected = f"expected one of {', '.join(known)}, or a mapping of field name to one of them"

    is_word = not isinstance(value, Mapping) and value in known
    is_mapping = isinstance(value, Mapping) and len(value) > 0
    if not (is_word or is_mapping):
        raise InvalidRequestError(f"file_format, {kind_of(value)}, is not supported; {expected}.")

    if is_mapping:
        for name, word in value.items():
            if not isinstance(name, str) or word not in known:
                raise InvalidRequestError(f"file_format[{name!r}] is not supported; {expected}.")

    return cast("FileFormat", value)
