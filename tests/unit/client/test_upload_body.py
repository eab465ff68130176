"""The upload body: valid JSON of exactly the length announced, and never of a file that changed."""

from __future__ import annotations

import base64
import dataclasses
import io
import itertools
import json
import os
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workflow_automation_provider.client import files
from workflow_automation_provider.client.file_format import DEFAULT_FILE_FORMAT
from workflow_automation_provider.client.files import File, upload_bodies
from workflow_automation_provider.exceptions import (
    Accepted,
    FileUnavailableError,
    InvalidRequestError,
)

from .conftest import client_of, trigger_flow, upload_files

CHUNK = files._CHUNK
WORDS = ["name", "path", "base64", "data_url", "content_type", "size"]


def in_memory(content, name="a.txt", content_type="text/plain", **more):
    return File(name, len(content), content_type, f"<{name}>", lambda: io.BytesIO(content), **more)


def on_disk(path, content_type="application/octet-stream"):
    def fingerprint():
        state = path.stat()
        return state.st_size, state.st_mtime_ns, state.st_ino

    return File(
        path.name,
        path.stat().st_size,
        content_type,
        repr(str(path)),
        lambda: path.open("rb"),
        fingerprint,
    )


def body_of(elements, file_format=DEFAULT_FILE_FORMAT):
    (body,) = upload_bodies("flow", "run", elements, file_format)
    return body


def sent(elements, file_format=DEFAULT_FILE_FORMAT):
    body = body_of(elements, file_format)
    data = b"".join(body.stream())
    assert len(data) == len(body)
    assert b"".join(body.stream()) == data, "a second reading differs"
    document = json.loads(data)
    assert list(document) == ["flow_id", "run_id", "files"]
    assert (document["flow_id"], document["run_id"]) == ("flow", "run")
    return document["files"]


def expected(word, name, content, content_type):
    encoded = base64.b64encode(content).decode()
    return {
        "name": name,
        "path": name,
        "base64": encoded,
        "data_url": f"data:{content_type};base64,{encoded}",
        "content_type": content_type,
        "size": len(content),
    }[word]


text_names = st.text(st.characters(codec="utf-8")) | st.sampled_from(
    ['"', "a\nb", "😀", "\\", "\x00"]
)
formats = st.dictionaries(
    st.text(), st.sampled_from(WORDS), min_size=1, max_size=6
) | st.sampled_from(WORDS)


@given(
    st.lists(
        st.tuples(
            text_names, st.text(st.characters(exclude_categories=["Cs"])), st.text(max_size=9)
        ),
        min_size=1,
        max_size=4,
    ),
    formats,
)
def test_any_files_in_any_format(given_files, file_format):
    elements = [in_memory(text.encode(), name, kind) for name, text, kind in given_files]
    for (name, text, kind), element in zip(given_files, sent(elements, file_format), strict=True):
        if isinstance(file_format, str):
            assert element == expected(file_format, name, text.encode(), kind)
        else:
            assert element == {
                field: expected(word, name, text.encode(), kind)
                for field, word in file_format.items()
            }
            assert list(element) == list(file_format)


@pytest.mark.parametrize("size", [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 2])
@pytest.mark.parametrize("word", ["base64", "data_url"])
def test_chunks_join(size, word):
    content = os.urandom(size)
    assert sent([in_memory(content)], word) == [expected(word, "", content, "text/plain")]


def test_source_that_gives_little_at_a_time():
    class Stingy(io.BytesIO):
        """Reads fewer bytes than asked for, as object stores may."""

        def read(self, size=-1):
            return super().read(min(size, 1000) if size > 0 else size)

    content = os.urandom(CHUNK + 100)
    file = File("a", len(content), "x/y", "a", lambda: Stingy(content))
    assert base64.b64decode(sent([file], "base64")[0]) == content


# Files that do not stay what they were ------------------------------------------------------------

SIZE = 3 * CHUNK


def grow(path):
    with path.open("ab") as stream:
        stream.write(b"more")


def shrink(path):
    os.truncate(path, SIZE - CHUNK - 7)


def rewrite(path):
    path.write_bytes(b"y" * SIZE)
    os.utime(path, ns=(1, 1))


def replace(path):
    """Put another file of the same size and time in its place."""
    state, other = path.stat(), path.with_name("other")
    other.write_bytes(b"y" * SIZE)
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    other.replace(path)


@pytest.fixture
def started(client):
    return trigger_flow(client, {}, "demo-flow").run_id


def broken_off(service, client, run_id, path, *files):
    """Upload files, of which one is not what it was."""
    with pytest.raises(FileUnavailableError, match=re.escape(str(path))) as caught:
        upload_files(client, run_id, files, "demo-flow")
    assert (caught.value.accepted, caught.value.code) == (Accepted.NO, "file-unavailable")
    assert service.uploads == []


def changed_within(path, change):
    """Make a file that changes once its first chunk was read."""

    class Changing(io.FileIO):
        changed = False

        def read(self, size=-1):
            data = super().read(size)
            if not self.changed:
                self.changed = True
                change(path)
            return data

    return dataclasses.replace(on_disk(path), open=lambda: Changing(path))


@pytest.mark.parametrize("change", [grow, shrink, rewrite, replace])
def test_file_that_changes_while_it_is_sent(service, client, started, tmp_path, change):
    path = tmp_path / "data"
    path.write_bytes(b"x" * SIZE)
    broken_off(service, client, started, path, changed_within(path, change), {})


@pytest.mark.parametrize(
    ("size", "change"), [(0, grow), (0, os.unlink), (SIZE, grow), (SIZE, shrink)]
)
def test_file_that_changed_before_it_is_sent(service, client, started, tmp_path, change, size):
    path = tmp_path / "data"
    path.write_bytes(b"x" * size)
    file = on_disk(path)
    change(path)
    broken_off(service, client, started, path, file)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyError("k")])
def test_source_that_cannot_be_read(service, client, started, error):
    def fail():
        raise error

    broken_off(
        service, client, started, "s3://bucket/a", {}, File("a", 9, "x/y", "s3://bucket/a", fail)
    )


# What is handed over ------------------------------------------------------------------------------


def test_parts_are_not_large(tmp_path):
    """A large file takes no more memory."""
    path = tmp_path / "large"
    with path.open("wb") as stream:
        stream.truncate(5_000_000)
    body = body_of(
        [on_disk(path), *(in_memory(b"x" * 1000, str(number)) for number in range(1000))]
    )
    sizes = [*map(len, body.stream())]
    assert max(sizes) < 1_000_000
    assert sum(sizes) == len(body)


# Requests -----------------------------------------------------------------------------------------


def split_into(elements, file_format=DEFAULT_FILE_FORMAT, **limits):
    """Split elements, and return those of each request."""
    bodies = upload_bodies("flow", "run", elements, file_format, **limits)
    return [
        [json.loads(one) if isinstance(one, bytes) else one for one in body.files]
        for body in bodies
    ]


elements_to_split = st.lists(
    st.binary(max_size=300).map(lambda content: in_memory(content, "n" * (len(content) % 7)))
    | st.dictionaries(st.text("abc", max_size=3), st.integers(), max_size=3),
    max_size=12,
)
any_format = st.sampled_from(["base64", "size", DEFAULT_FILE_FORMAT])


@given(
    elements_to_split, any_format, st.none() | st.integers(1, 5), st.none() | st.integers(60, 900)
)
@settings(max_examples=3 * settings().max_examples)
def test_split_is_in_order_within_the_limits_and_greedy(elements, file_format, count, size):
    limits = {"files_per_request": count, "max_request_bytes": size}
    if size is not None and any(len(body_of([one], file_format)) > size for one in elements):
        with pytest.raises(InvalidRequestError, match=rf"more than max_request_bytes \({size}\)"):
            split_into(elements, file_format, **limits)
        return
    requests = split_into(elements, file_format, **limits)
    assert [element for request in requests for element in request] == elements

    def fits(request):
        length = len(body_of(request, file_format))
        return (count is None or len(request) <= count) and (size is None or length <= size)

    assert all(map(fits, requests))
    assert all(requests)
    assert not any(fits([*one, other[0]]) for one, other in itertools.pairwise(requests))


def test_split_names_the_element_that_is_too_large():
    elements = [{"a": 1}, in_memory(b"x" * 99, "big.csv"), {"b": "y" * 99}]
    with pytest.raises(InvalidRequestError, match=r" <big\.csv> alone .*\d+ bytes"):
        split_into(elements, max_request_bytes=100)
    with pytest.raises(InvalidRequestError, match=r" files\[1\] alone"):
        split_into([{"a": 1}, elements[2]], max_request_bytes=100)


# Over the wire ------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(text_names, st.binary(max_size=2000)), min_size=1, max_size=4),
    st.sampled_from(["base64", "data_url", DEFAULT_FILE_FORMAT]),
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_on_the_wire_are_json(answering, given_files, file_format):
    elements = [in_memory(content, name) for name, content in given_files]
    server = answering(b'"ok"', status=200)
    assert upload_files(client_of(server), "run", elements, "flow", file_format=file_format) == "ok"
    ((head, body),) = server.requests
    assert b"transfer-encoding" not in head.lower()
    assert f"content-length: {len(body)}".encode() in head.lower()
    assert json.loads(body)["files"] == sent(elements, file_format)
