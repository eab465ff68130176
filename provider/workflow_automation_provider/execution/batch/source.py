"""
The items of a batch, from a list, an XCom or a JSON Lines file.

They are read in order, as often as needed.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow.sdk import ObjectStoragePath
from airflow.sdk.execution_time.lazy_sequence import LazyXComSequence

from workflow_automation_provider.client.json_values import encode
from workflow_automation_provider.client.rendered_values import (
    check_names,
    check_path,
    check_rendered,
)
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.execution.batch.json_lines import (
    numbered_lines,
    parse_line,
)
from workflow_automation_provider.execution.batch.location import Location, locate, shown_path
from workflow_automation_provider.wording import kind_of, one_line

Batch = Sequence[Mapping[str, Any]] | str | os.PathLike[str] | ObjectStoragePath
"""``inputs`` objects; or the path or URL of a JSON Lines file with one of them in each line."""

DIGEST_BYTES = 6
"""
Length of an item's digest.

With 100,000 items that all changed, one in a billion batches goes unnoticed.
"""

MAX_KEY = 100
"""Maximum length of an item's key, in characters: a row of an error's table has 160."""

# How many elements of an XCom are fetched at once: one by one, each costs a request to Airflow.
_SLICE = 500

# How many wrong items are named at once.
_MAX_WRONG = 20


@dataclass(frozen=True, slots=True)
class Item:
    """
    One item of a batch.

    :param index: its position, from 0
    :param inputs: its encoded inputs, those of a file exactly as they are written there
    :param digest: identifies its inputs and the flow
    :param label: what it is called in errors
    :param key: what people recognize it by, None without one
    """

    index: int
    inputs: bytes
    digest: bytes
    label: str
    key: str | None = None


class BatchSource:
    """
    The items of a batch; each iteration reads them from the beginning, in constant memory.

    :param batch: as the DAG author gave it, rendered
    :param flow_id: the flow, None if the API key identifies it
    :param key: the name of the input by which people recognize an item, None for none
    :param redact: returns a key as it may be shown
    :param reserved: the name of the input for a run's URL, None if the runs get none
    :raises InvalidRequestError: if it cannot be a batch
    """

    def __init__(
        self,
        batch: object,
        flow_id: str | None,
        key: str | None = None,
        redact: Callable[[str], str] = str,
        reserved: str | None = None,
    ) -> None:
        self._key = key
        self._redact = redact
        self._reserved = reserved
        self._batch: Any = batch
        self._prefix = f"{flow_id} ".encode(errors="surrogatepass")
        self._is_file = isinstance(batch, str | os.PathLike | ObjectStoragePath)
        if self._is_file:
            check_path("batch", str(batch))
        elif isinstance(batch, bytes | bytearray) or not isinstance(batch, Sequence):
            raise InvalidRequestError(
                f"batch is {kind_of(batch)}: expected a list of inputs objects, "
                "or the path or URL of a JSON Lines file."
            )

    def __iter__(self) -> Iterator[Item]:
        """
        Yield the items; after one that cannot be sent, only look for others of the kind.

        :raises InvalidRequestError: if items cannot be sent, naming the first ones but not showing
            them; or if the path is a pattern
        :raises FileUnavailableError: if the file is missing or cannot be read
        """
        wrong: list[InvalidRequestError] = []
        with contextlib.closing(self._labelled()) as labelled:
            for index, (label, element) in enumerate(labelled):
                try:
                    item = self._item(index, label, element)
                except InvalidRequestError as error:
                    wrong.append(error)
                    if len(wrong) == _MAX_WRONG:
                        break

                    continue

                if not wrong:
                    yield item

        if wrong:
            raise _all_of(wrong)

    def label_of(self, index: int, line: int | None = None) -> str:
        """
        Return what an item is called in errors.

        :param line: its number in the file, from 1; None if it has none
        """
        if not self._is_file:
            return f"batch[{index}]"
        where = f"line {line} " if line is not None else ""
        return f"batch[{index}] ({where}of {shown_path(self._batch)})"

    def is_at(self, location: Location) -> bool:
        """Return whether the items are in this file, as the same connection names it."""
        return self._is_file and locate("batch", self._batch) == location

    def _labelled(self) -> Generator[tuple[str, Any], None, None]:
        """Yield each element of a list or line of a file, after what it is called in errors."""
        if not self._is_file:
            for index, inputs in enumerate(_elements(self._batch)):
                yield self.label_of(index), inputs

            return

        with contextlib.closing(numbered_lines(self._batch)) as lines:
            for index, (number, line) in enumerate(lines):
                yield self.label_of(index, number), line

    def _item(self, index: int, label: str, element: Any) -> Item:
        """
        Return the item of an element of a list, or of a line, which is sent as it is written.

        :raises InvalidRequestError: if it cannot be sent
        """
        if self._is_file:
            inputs = parse_line(label, element)
            encode(label, inputs)  # checks its values; their numbers are sent with all their digits
            encoded = element.strip()
        else:
            inputs = _inputs(label, element)
            encoded = encode(label, inputs)

        if self._reserved in inputs:
            raise InvalidRequestError(
                f"{label} already has {self._reserved!r}, the name of the callback URL: pass "
                "another callback_input."
            )

        digest = hashlib.sha256(self._prefix + encoded).digest()[:DIGEST_BYTES]
        return Item(index, encoded, digest, label, self._key_of(label, inputs))

    def _key_of(self, label: str, inputs: Mapping[str, Any]) -> str | None:
        """
        Return an item's key as it may be shown, None without one.

        :raises InvalidRequestError: if the input is missing, or cannot be a key
        """
        if self._key is None:
            return None
        value = None
        if self._key in inputs:
            # As it is sent: a date, for example, is text.
            value = json.loads(encode(label, inputs[self._key]), parse_int=str, parse_float=str)
        if not isinstance(value, str) or not value.strip() or len(value) > MAX_KEY:
            raise InvalidRequestError(
                f"{label} has no {self._key!r} that can be its key: expected text or a number, of "
                f"at most {MAX_KEY} characters."
            )

        return one_line(self._redact(value))


def _inputs(label: str, element: object) -> Mapping[str, Any]:
    """
    Return an element of a list, once it is checked.

    :raises InvalidRequestError: if it is no inputs object
    """
    check_rendered(label, element)
    check_names(label, element)
    if not isinstance(element, Mapping):
        raise InvalidRequestError(
            f"{label} is {kind_of(element)}: expected an object of input names and values."
        )

    return element


def _elements(batch: Sequence[Any]) -> Iterator[Any]:
    """Yield the elements of a sequence, those of a mapped task's XComs many at a time."""
    if not isinstance(batch, LazyXComSequence):
        # By its length: a sequence of one's own need not raise an IndexError at its end.
        yield from itertools.islice(batch, len(batch))
        return

    start = 0
    while True:
        part = batch[start : start + _SLICE]
        if not part:
            return
        yield from part
        start += len(part)


def _all_of(wrong: Sequence[InvalidRequestError]) -> InvalidRequestError:
    """Return one error for all items that cannot be sent."""
    first, *others = wrong
    if not others:
        return first

    lines = ["Further items that cannot be sent:"]
    lines.extend(error.message for error in others)
    if len(wrong) == _MAX_WRONG:
        lines.append(f"The check ended with these {_MAX_WRONG}.")
    return InvalidRequestError(first.message, next_step="\n".join(lines))
