"""Entries of the state store that a person has written, and whose key is mistyped."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from workflow_automation_provider.execution.batch.batch_record import BATCH
from workflow_automation_provider.execution.starts.entries import (
    ADOPTED,
    OUTCOME,
    PREFIX,
    START,
    adopted_key,
    message_key,
    revoked_key,
    run_key,
)
from workflow_automation_provider.plugins.conversation import starts_of

_TOKEN = re.compile("[0-9a-f]{64}")
# Of the last two, the modules would import the client, which the API server does not need.
_WRITTEN = (START, OUTCOME, BATCH, f"{PREFIX}upload", f"{PREFIX}probe")
_NAMES = 200
"""How many names of starts a mistyped key is compared with."""
_SIMILAR = 0.85
"""How similar to :data:`ADOPTED` a key has to be that does not begin with our prefix."""


def mistyped(keys: Iterable[str]) -> dict[str, str]:
    """
    Return the keys of entries that nothing reads, each with the one that a person may have meant.

    :param keys: those of a task, also its own
    """
    keys = list(keys)
    names = {match[3] for match in starts_of(keys)}
    possible = [adopted_key(name) for name in names] or [ADOPTED]

    found = {}
    for key in keys:
        is_for_any_start = not names and _is_of_person(key)
        if not is_for_any_start and key not in possible and _is_meant_for_us(key):
            closest = difflib.get_close_matches(key, possible[:_NAMES], n=1, cutoff=0)
            found[key] = closest[0]

    return found


def _is_of_person(key: str) -> bool:
    return key == ADOPTED or key.startswith(f"{ADOPTED}/")


def _is_meant_for_us(key: str) -> bool:
    """Return whether a key is like that of a run that a person gives, and not one of ours."""
    if not key.startswith(PREFIX):
        written = key.partition("/")[0].strip().casefold()
        return difflib.SequenceMatcher(None, written, ADOPTED).ratio() >= _SIMILAR
    if key.startswith(_WRITTEN):
        return False
    token = key.rpartition("/")[2]
    is_of_token = key in (run_key(token), message_key(token), revoked_key(token))
    return not (is_of_token and _TOKEN.fullmatch(token))
