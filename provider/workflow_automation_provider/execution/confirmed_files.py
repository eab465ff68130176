"""
Which files a confirmed request had, in bounded space.

Of a request with few files, an identity of each is kept. Of one with many, a *sketch* is kept instead (an
invertible Bloom lookup table): together with a list of files that is nearly the same, it yields all that differs.
A retry lists the files again, so it knows such a list. If more differs than the sketch can hold, that is noticed,
and all files of the request count as missing.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypedDict

__all__ = ["IDENTITY_SIZE", "Identities", "indexes_of", "kept"]

IDENTITY_SIZE = 12
"""The length of a file's identity in bytes: two among a million are the same once in 10^17 uploads."""

# The most files of a request whose identities are kept: 16 KB of text.
_FEW = 1000

# The cells of a sketch: 24 KB of text, enough for about 750 differences. Each identity is in one cell of each part.
_PARTS = 4
_CELLS = 250

# Where the files of a request are looked for: how far on, and how far apart, which adds few differences.
_NEAR = 2000
_STEP = 100

# With as many differences as can be told, about 45 cells are empty.
_FEWEST_EMPTY = 10

# A cell: a number of identities, their XOR, and the XOR of their checksums.
_CELL = struct.Struct(f"<H{IDENTITY_SIZE}s4s")
_CHECK_SIZE = 4
_SUM_SIZE = IDENTITY_SIZE + _CHECK_SIZE


class Identities(TypedDict, total=False):
    """What is kept of the files of a request: either ``each``, or the other two, or nothing."""

    each: str
    """The identity of each file, in base64."""
    sketch: str
    """The cells of the sketch, in base64."""
    digest: str
    """A hash of all identities."""


def kept(identities: Iterable[bytes]) -> Identities:
    """Return what to keep of the files of a request."""
    found = sorted(identities)
    if len(found) <= _FEW:
        return {"each": base64.b64encode(b"".join(found)).decode()}
    found = _distinct(found)
    return {"sketch": _Sketch.of(found).text(), "digest": _digest(found)}


def indexes_of(requests: Sequence[tuple[int, Identities]], listed: Sequence[bytes]) -> tuple[set[int], int]:
    """
    Find the files that were in confirmed requests.

    :param requests: the number of files of each request, and what was kept of them
    :param listed: the identities of all files, in the order in which they would be sent
    :return: the positions of those that were confirmed, and the number of requests whose files cannot be told
    """
    confirmed: set[int] = set()
    each: Counter[bytes] = Counter()
    unknown = 0
    for _, identities in requests:
        raw = base64.b64decode(identities.get("each", ""))
        each.update(raw[at : at + IDENTITY_SIZE] for at in range(0, len(raw), IDENTITY_SIZE))
    # These first: the fewer files are left, the less there is that a sketch must tell apart.
    _take(each, listed, confirmed)
    skipped = 0
    for count, identities in requests:
        if "sketch" in identities:
            found = _found_in(identities, count, listed, confirmed, skipped)
            confirmed |= found or set()
            if found is None:
                unknown += 1
                skipped += count
    return confirmed, unknown


def _take(each: Counter[bytes], listed: Sequence[bytes], confirmed: set[int]) -> None:
    """Add the files of such identities, each as often as it was confirmed."""
    if not each:
        return
    for index, identity in enumerate(listed):
        if each[identity] > 0 and index not in confirmed:
            each[identity] -= 1
            confirmed.add(index)
    each.clear()


def _found_in(
    identities: Identities, count: int, listed: Sequence[bytes], confirmed: set[int], skipped: int
) -> set[int] | None:
    """
    Find the files of one request among those that were in none before it, None if they cannot be told.

    :param skipped: the number of files of the requests before it that could not be told
    """
    left = [index for index in range(len(listed)) if index not in confirmed]
    names = _distinct([listed[index] for index in left])
    # Requests are made of the first files that are missing: but for what has changed since, these were its files. If
    # many were added or removed before them, they are nearby.
    unlike = _Sketch.read(identities["sketch"])
    start = end = max(0, skipped - _NEAR)
    for begin in range(start, max(1, min(skipped + _NEAR, len(names))), _STEP):
        for name in names[start:begin]:
            unlike.add(name, 1)
        for name in names[end : begin + count]:
            unlike.add(name, -1)
        start, end = begin, begin + count
        difference = unlike.decoded()
        if difference is None:
            continue
        sent = (set(names[start:end]) - difference[1]) | difference[0]
        if _digest(sorted(sent)) == identities["digest"]:
            return {index for index, name in zip(left, names, strict=True) if name in sent}
    return None


def _distinct(identities: list[bytes]) -> list[bytes]:
    """Tell the same identities apart by how often each came before."""
    ordered = sorted(identities)
    twice = {one for one, other in pairwise(ordered) if one == other}
    if not twice:
        return identities
    seen: Counter[bytes] = Counter()
    distinct = []
    for identity in identities:
        if identity in twice:
            seen[identity] += 1
            if seen[identity] > 1:
                identity = hashlib.sha256(b"%b %d" % (identity, seen[identity])).digest()[:IDENTITY_SIZE]
        distinct.append(identity)
    return distinct


def _digest(identities: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(sorted(identities))).hexdigest()


class _Sketch:
    """
    A set of identities of which only differences to another can be told.

    :param counts: the number of identities in each cell, modulo 65,536
    :param sums: the XOR of each cell's identities and checksums
    """

    def __init__(self, counts: list[int], sums: list[int]) -> None:
        self._counts = counts
        self._sums = sums

    @classmethod
    def of(cls, identities: Iterable[bytes]) -> _Sketch:
        sketch = cls([0] * (_PARTS * _CELLS), [0] * (_PARTS * _CELLS))
        for identity in identities:
            sketch.add(identity, 1)
        return sketch

    @classmethod
    def read(cls, text: str) -> _Sketch:
        cells = [*_CELL.iter_unpack(base64.b64decode(text))]
        return cls([cell[0] for cell in cells], [int.from_bytes(cell[1] + cell[2]) for cell in cells])

    def text(self) -> str:
        sums = (total.to_bytes(_SUM_SIZE) for total in self._sums)
        cells = (
            _CELL.pack(count % 65536, total[:IDENTITY_SIZE], total[IDENTITY_SIZE:])
            for count, total in zip(self._counts, sums, strict=True)
        )
        return base64.b64encode(b"".join(cells)).decode()

    def decoded(self) -> tuple[set[bytes], set[bytes]] | None:
        """Return what was only added, and what was only removed, None if that is too much."""
        mine: set[bytes] = set()
        its: set[bytes] = set()
        if self._sums.count(0) < _FEWEST_EMPTY:
            return None
        rest = _Sketch([*self._counts], [*self._sums])
        cells = [*range(len(rest._counts))]
        while cells:
            at = cells.pop()
            sign = {1: 1, 65535: -1}.get(rest._counts[at] % 65536)
            total = rest._sums[at].to_bytes(_SUM_SIZE)
            identity = total[:IDENTITY_SIZE]
            if sign is None or _check(identity) != total[IDENTITY_SIZE:]:
                continue
            found = mine if sign == 1 else its
            if identity in found:
                return None  # not what it seemed
            found.add(identity)
            cells += rest.add(identity, -sign)
        if any(rest._sums) or any(count % 65536 for count in rest._counts):
            return None
        return mine, its

    def add(self, identity: bytes, times: int) -> list[int]:
        """Add or remove an identity; its cells."""
        total = int.from_bytes(identity + _check(identity))
        # An identity is a hash: its own bytes say in which cells it is.
        cells = [
            part * _CELLS + int.from_bytes(identity[part * 3 : part * 3 + 3]) % _CELLS
            for part in range(_PARTS)
        ]
        for cell in cells:
            self._counts[cell] += times
            self._sums[cell] ^= total
        return cells


def _check(identity: bytes) -> bytes:
    return hashlib.blake2b(identity, digest_size=_CHECK_SIZE).digest()
