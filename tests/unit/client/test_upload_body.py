"""The upload body: valid JSON of exactly the length announced, and never of a file that changed."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import itertools
import json
import os
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workflow_automation_provider.client import files
from workflow_automation_provider.client.files import DEFAULT_FILE_FORMAT, File
from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.client.upload_body import _SMALL_PIECE, measure, split, upload_body
from workflow_automation_provider.exceptions import Accepted, FileUnavailableError, InvalidRequestError

from .conftest import trigger_flow, upload_files

CHUNK = files._CHUNK
WORDS = ["name", "base64", "data_url", "text", "content_type", "size"]


def in_memory(content, name="a.txt", content_type="text/plain", **more):
    return File(name, len(content), content_type, f"<{name}>", lambda: io.BytesIO(content), **more)


def on_disk(path, content_type="application/octet-stream"):
    def fingerprint():
        state = path.stat()
        return state.st_size, state.st_mtime_ns, state.st_ino

    return File(
        path.name, path.stat().st_size, content_type, repr(str(path)), lambda: path.open("rb"), fingerprint
    )


def body_of(elements, file_format=DEFAULT_FILE_FORMAT):
    return upload_body("flow", "run", measure(elements, file_format))


@contextlib.contextmanager
def nothing_sent(words, kind=InvalidRequestError):
    """Expect an error that says in its first line what is wrong, and in its last that nothing was sent."""
    with pytest.raises(kind) as caught:
        yield
    assert re.search(words, caught.value.message)
    assert caught.value.consequence == "Nothing was sent."


def sent(elements, file_format=DEFAULT_FILE_FORMAT):
    body = body_of(elements, file_format)
    data = b"".join(body)
    assert len(data) == body.content_length
    assert b"".join(body) == data, "a second reading differs"
    document = json.loads(data)
    assert list(document) == ["flow_id", "run_id", "files"]
    assert (document["flow_id"], document["run_id"]) == ("flow", "run")
    return document["files"]


def expected(word, name, content, content_type):
    encoded = base64.b64encode(content).decode()
    return {
        "name": name,
        "base64": encoded,
        "data_url": f"data:{content_type};base64,{encoded}",
        "text": content.decode(errors="replace"),
        "content_type": content_type,
        "size": len(content),
    }[word]


text_names = st.text(st.characters(codec="utf-8")) | st.sampled_from(['"', "a\nb", "😀", "\\", "\x00"])
any_name = text_names | st.sampled_from(["\udcff.txt", "\ud800"])  # those of files may be no text
formats = st.dictionaries(st.text(), st.sampled_from(WORDS), min_size=1, max_size=6) | st.sampled_from(WORDS)


@given(
    st.lists(
        st.tuples(any_name, st.text(st.characters(exclude_categories=["Cs"])), st.text(max_size=9)),
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
                field: expected(word, name, text.encode(), kind) for field, word in file_format.items()
            }
            assert list(element) == list(file_format)


@pytest.mark.parametrize("size", [1, 2, 3, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 2])
@pytest.mark.parametrize("word", ["base64", "text"])
def test_chunks_join(size, word):
    content = (
        ("aé日😀\n" * (size // 11 + 1)).encode()[:size].decode(errors="ignore").encode().ljust(size, b".")
    )
    assert sent([in_memory(content)], word) == [expected(word, "", content, "")]


@given(st.integers(CHUNK - 5, CHUNK + 5), st.sampled_from(["é", "日", "😀", "\0", '"']))
@settings(max_examples=30)
def test_character_across_chunks(before, character):
    text = "." * before + character + "x"
    assert sent([in_memory(text.encode())], "text") == [text]


class Stingy(io.BytesIO):
    """Reads fewer bytes than asked for, as object stores may."""

    def read(self, size=-1):
        return super().read(min(size, 1000) if size > 0 else size)


def test_source_that_gives_little_at_a_time():
    content = os.urandom(CHUNK + 100)
    file = File("a", len(content), "x/y", "a", lambda: Stingy(content))
    assert base64.b64decode(sent([file], "base64")[0]) == content


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as stream:
        stream.truncate(50_000_000)
    assert max(map(len, body_of([on_disk(path)]))) < 1_000_000


@pytest.mark.parametrize("content", [b"\xff", b"ab\xc3", b"." * (CHUNK - 1) + b"\xc3", b"\xed\xa0\x80"])
def test_text_that_is_not_utf_8(content):
    with nothing_sent(r"^<a\.txt> is not UTF-8 text"):
        body_of([in_memory(content)], "text")


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (9, "is 1 bytes shorter .*9"),
        (7, "is longer .*7 bytes"),
        (0, "is no longer empty"),
    ],
)
def test_text_that_changed_before_it_is_measured(size, words):
    file = File("a", size, "text/plain", "<a>", lambda: io.BytesIO(b"x" * 8))
    with nothing_sent(f"^<a> {words}\\.$", FileUnavailableError):
        body_of([file], "text")


@pytest.mark.parametrize("element", ["a.txt", b"x", None, 7, ["a"]])
def test_element_that_is_none(element):
    with nothing_sent(r"^files\[1\] is (a|an|None)\b"):
        measure([{}, element])


# Files that do not stay what they were ------------------------------------------------------------------

SIZE = 3 * CHUNK


def grow(path):
    with path.open("ab") as stream:
        stream.write(b"more")


def shrink(path):
    os.truncate(path, SIZE - CHUNK - 7)


def empty(path):
    os.truncate(path, 0)


def rewrite(path):
    path.write_bytes(b"y" * SIZE)
    os.utime(path, ns=(1, 1))


def replace(path):
    state = path.stat()
    other = path.with_name("other")
    other.write_bytes(b"y" * SIZE)
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    other.replace(path)


CHANGES = [grow, shrink, empty, rewrite, replace]


@pytest.fixture
def started(client):
    return trigger_flow(client, {}, "demo-flow").run.run_id


@contextlib.contextmanager
def broken_off(service, path):
    with pytest.raises(FileUnavailableError) as caught:
        yield
    assert caught.value.accepted is Accepted.NO
    assert caught.value.code == "file-unavailable"
    assert str(path) in caught.value.message
    assert service.uploads == []


def changed_within(path, change):
    """Make a file that changes once its first chunk was read."""
    file = on_disk(path)

    class Changing(io.FileIO):
        changed = False

        def read(self, size=-1):
            data = super().read(size)
            if not self.changed:
                self.changed = True
                change(path)
            return data

    return File(
        file.name, file.size, file.content_type, file.source, lambda: Changing(path), file.fingerprint
    )


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("after", [False, True], ids=["alone", "then another"])
def test_file_that_changes_while_it_is_sent(service, client, started, tmp_path, change, after):
    path = tmp_path / "data"
    path.write_bytes(b"x" * SIZE)
    more = [in_memory(b"x")] if after else []
    with broken_off(service, path):
        upload_files(client, started, [changed_within(path, change), *more], "demo-flow")


@pytest.mark.parametrize(
    ("size", "change"), [(0, grow), (0, os.unlink), *((SIZE, c) for c in (grow, shrink, empty, os.unlink))]
)
def test_file_that_changed_before_it_is_sent(service, client, started, tmp_path, change, size):
    path = tmp_path / "data"
    path.write_bytes(b"x" * size)
    file = on_disk(path)
    change(path)
    with broken_off(service, path):
        upload_files(client, started, [file], "demo-flow")


@pytest.mark.parametrize("later", [b"\n" * 9, b"x" * 8 + b'"', b"\xff" * 9, "é".encode() * 4 + b"."])
def test_text_that_is_other_text_when_it_is_sent(service, client, started, later):
    versions = iter([b"x" * 9, later])
    file = File("a", 9, "text/plain", "a.txt", lambda: io.BytesIO(next(versions)))
    with broken_off(service, "a.txt"):
        upload_files(client, started, [file], "demo-flow", file_format="text")


@pytest.mark.parametrize(
    "error", [OSError(5, "Input/output error"), ValueError("x"), ConnectionError(), KeyError("k")]
)
def test_source_that_cannot_be_read(service, client, started, error):
    def fail():
        raise error

    with broken_off(service, "s3://bucket/a"):
        upload_files(client, started, [{}, File("a", 9, "x/y", "s3://bucket/a", fail)], "demo-flow")


def test_large_files_arrive_whole(service, client, started, tmp_path):
    contents = [os.urandom(size) for size in (0, 1, CHUNK, 2_000_003)]
    paths = [tmp_path / str(number) for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    upload_files(client, started, map(on_disk, paths), "demo-flow")
    (upload,) = service.uploads
    for content, file in zip(contents[2:], upload.files[2:], strict=True):
        decoded = file["content"]["long_string"]["decoded"]
        assert decoded == {"length": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert [f["content"] for f in upload.files[:2]] == ["", base64.b64encode(contents[1]).decode()]


# Formats that are callables ----------------------------------------------------------------------------

shapes = st.recursive(
    st.sampled_from(WORDS)
    | st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5).map(lambda t: f"={t}"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def filled(shape, leaf):
    """Put what ``leaf`` makes of a word into a shape, in place of the word."""
    if isinstance(shape, dict):
        return {key: filled(item, leaf) for key, item in shape.items()}
    if isinstance(shape, list):
        return [filled(item, leaf) for item in shape]
    return leaf(shape) if isinstance(shape, str) and shape in WORDS else shape


@given(
    st.lists(
        st.tuples(text_names, st.text(st.characters(exclude_categories=["Cs"])), st.text(max_size=9)),
        max_size=3,
    ),
    shapes.filter(lambda shape: shape is not None),
)
def test_any_shape_that_a_callable_returns(given_files, shape):
    elements = [in_memory(text.encode(), name, kind) for name, text, kind in given_files]
    found = sent(elements, lambda file: filled(shape, lambda word: getattr(file, word)))
    assert found == [
        filled(shape, lambda word, name=name, text=text, kind=kind: expected(word, name, text.encode(), kind))
        for name, text, kind in given_files
    ]


def test_callable_that_returns_nothing_or_raises_names_the_file():
    with nothing_sent(r"^file_format returned None .*<a\.txt>"):
        body_of([in_memory(b"x")], lambda file: None)  # noqa: ARG005
    with nothing_sent(r"^file_format raised AttributeError for <a\.txt>: .*nme"):
        body_of([in_memory(b"x")], lambda file: file.nme)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionResetError("by peer"), FileUnavailableError),
        (TimeoutError("no response"), FileUnavailableError),
        (FileNotFoundError("bucket/a"), FileUnavailableError),
        (IsADirectoryError("bucket"), InvalidRequestError),
        (ValueError("no date"), InvalidRequestError),
    ],
)
def test_callable_that_cannot_read_is_an_error_like_any_other_read(error, kind):
    """A retry may find the store or the file."""

    def fail(file):
        raise error

    with nothing_sent(rf"^file_format raised {type(error).__name__} for <a\.txt>: {error}\.$", kind):
        body_of([in_memory(b"x")], fail)


def test_callable_may_place_one_content_often_and_in_tuples():
    def shape(file):
        return {"a": (file.text, [file.base64, {"b": file.text}]), "n": file.size}

    assert sent([in_memory(b'"x\n')], shape) == [{"a": ['"x\n', ["IngK", {"b": '"x\n'}]], "n": 3}]


@pytest.mark.parametrize("value", [{1, 2}, {1: "a"}, {"\udcff": 1}, "\udcff", [float("nan")], object()])
def test_callable_that_returns_no_json(value):
    with nothing_sent(r"^files\[1\]"):
        measure([{}, in_memory(b"x")], lambda file: {"n": file.name, "v": value})


@pytest.mark.parametrize("elements", [[], [{}]])
@pytest.mark.parametrize("name", ["flow_id", "run_id"])
@pytest.mark.parametrize("value", [None, "", 1.5, True, "\ud800"])
def test_identifier_that_is_none(elements, name, value):
    ids = {"flow_id": "flow", "run_id": "run", name: value}
    measured = measure(elements)
    for make in (upload_body, split):
        with nothing_sent(f"^{name} is "):
            make(ids["flow_id"], ids["run_id"], measured)


# What is handed over ------------------------------------------------------------------------------------


def test_small_files_go_out_together():
    pieces = [*body_of([in_memory(b"x" * 1000, str(number)) for number in range(1000)])]
    assert len(pieces) < 30
    assert all(len(piece) >= _SMALL_PIECE for piece in pieces[:-1])


def test_progress_counts_every_byte_and_element():
    counted: list[int] = []
    begun: list[object] = []
    elements = [in_memory(b"x" * 3 * CHUNK)] * 3
    body = body_of(elements)
    with body.opened(lambda: False, begun.append, counted.append) as pieces:
        assert b"".join(pieces) == b"".join(body)
    assert sum(counted) == len(body)
    assert begun == elements


# Requests -----------------------------------------------------------------------------------------------


def length(elements, file_format=DEFAULT_FILE_FORMAT):
    return body_of(elements, file_format).content_length


def split_into(elements, file_format=DEFAULT_FILE_FORMAT, **limits):
    """Split elements, and return those of each request."""
    requests = split("flow", "run", measure(elements, file_format), **limits)
    return [[measured.element for measured in request] for request in requests]


elements_to_split = st.lists(
    st.binary(max_size=300).map(lambda content: in_memory(content, "n" * (len(content) % 7)))
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
    max_size=12,
)
any_format = st.sampled_from(["base64", "size", DEFAULT_FILE_FORMAT, lambda file: [file.data_url, file.name]])


@given(elements_to_split, any_format, st.none() | st.integers(1, 5), st.none() | st.integers(60, 900))
@settings(max_examples=3 * settings().max_examples)
def test_split_is_in_order_within_the_limits_and_greedy(elements, file_format, count, size):
    limits = {"files_per_request": count, "max_request_bytes": size}
    if size is not None and any(length([element], file_format) > size for element in elements):
        with nothing_sent(rf"more than max_request_bytes \({size}\)"):
            split_into(elements, file_format, **limits)
        return
    requests = split_into(elements, file_format, **limits)
    assert [element for request in requests for element in request] == elements

    def fits(request):
        return (count is None or len(request) <= count) and (
            size is None or length(request, file_format) <= size
        )

    assert all(map(fits, requests))
    assert all(requests) or (not elements and count is size is None)
    assert not any(fits([*one, other[0]]) for one, other in itertools.pairwise(requests))


def test_split_names_the_element_that_is_too_large():
    elements = [{"a": 1}, in_memory(b"x" * 99, "big.csv"), {"b": "y" * 99}]
    with nothing_sent(r"^<big\.csv> alone .*\d+ bytes"):
        split_into(elements, max_request_bytes=100)
    with nothing_sent(r"^files\[1\] alone"):
        split_into([{"a": 1}, elements[2]], max_request_bytes=100)


# Over the wire ------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(text_names, st.binary(max_size=2000)), min_size=1, max_size=4),
    st.sampled_from(
        ["base64", "data_url", DEFAULT_FILE_FORMAT, lambda file: {"n": [file.name], "c": [file.base64]}]
    ),
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_on_the_wire_are_json(raw_requests, given_files, file_format):
    elements = [in_memory(content, name, "x/y") for name, content in given_files]
    client, requests = raw_requests
    upload_files(client, "1", elements, "flow", file_format=file_format)
    head, body = requests[-1]
    assert b"transfer-encoding" not in head.lower()
    assert f"content-length: {len(body)}".encode() in head.lower()
    assert len(body) == upload_body("flow", "1", measure(elements, file_format)).content_length
    found = json.loads(body.decode("ascii"))["files"]
    for (name, content), element in zip(given_files, found, strict=True):
        encoded = base64.b64encode(content).decode()
        if isinstance(file_format, str):
            assert element == ("data:x/y;base64," if file_format == "data_url" else "") + encoded
        elif callable(file_format):
            assert element == {"n": [name], "c": [encoded]}
        else:
            assert element == {"name": name, "content_type": "x/y", "content": encoded}


@pytest.fixture
def raw_requests(answering):
    """A client, and the requests that it sent, byte by byte."""
    server = answering(b'"ok"', status=200)
    with FlowClient(server.base_url, api_key="wak-123456", timeout=20) as client:
        yield client, server.requests
