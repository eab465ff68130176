"""
Identities of the files of confirmed requests, by which a retry leaves these files out.

A request with more than :data:`MAX_FILES` files has none: a retry sends it again.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

from workflow_automation_provider.client.files import Element, File, version_of
from workflow_automation_provider.client.json_values import encode

MAX_FILES = 20_000
"""The maximum number of files of a request that are identified."""

MAX_PER_ENTRY = 1000
"""The maximum number of identities in one entry of the task state store: 16 KB of text."""

# Bytes of an identity: two among a million are the same once in 10^17 uploads.
_SIZE = 12


def identities_of(elements: Sequence[Element], target: str) -> list[str]:
    """
    Identify the current versions of the files and mappings of a request.

    :param target: what they are sent for
    :return: in base64, up to 1,000 of them in each text; nothing if there are too many
    :raises FileUnavailableError: if a file can no longer be read
    """
    if len(elements) > MAX_FILES:
        return []
    identities = [_identity(element, target) for element in elements]
    return [
        base64.b64encode(b"".join(identities[start : start + MAX_PER_ENTRY])).decode()
        for start in range(0, len(identities), MAX_PER_ENTRY)
    ]


def without(elements: Sequence[Element], target: str, confirmed: Iterable[str]) -> list[Element]:
    """
    Return the elements that were not confirmed.

    :param target: what they are sent for
    :param confirmed: texts of :func:`identities_of`
    :raises FileUnavailableError: if a file can no longer be read
    """
    # Counted, because a file may be listed twice.
    left = Counter(
        raw[start : start + _SIZE]
        for raw in map(base64.b64decode, confirmed)
        for start in range(0, len(raw), _SIZE)
    )
    if not left:
        return [*elements]
    missing = []
    for element in elements:
        identity = _identity(element, target)
        if left[identity]:
            left[identity] -= 1
        else:
            missing.append(element)
    return missing


def _identity(element: Element, target: str) -> bytes:
    if isinstance(element, File):
        what = f"{element.source} {element.size} {version_of(element)}"
    else:
        what = encode("files", element).decode()
    return hashlib.sha256(f"{target} {what}".encode(errors="surrogatepass")).digest()[:_SIZE]
