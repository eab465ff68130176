"""What a flow may say."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
import timeit
from urllib.parse import quote
from uuid import uuid4

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workflow_automation_provider.client.json_values import why_not_storable
from workflow_automation_provider.client.redaction import CALLBACK_PATH
from workflow_automation_provider.execution.record.callback import (
    MAX_RUN_ID,
    Ended,
    Running,
    Started,
    digest_of,
    is_token,
    new_token,
    parse,
    task_of,
    without_mailbox,
    without_token,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
FULL = TEXT.filter(str.strip)
RUN_IDS = FULL.map(lambda text: text[:MAX_RUN_ID].strip()).filter(bool)
RESERVED = {"__classname__", "__id__", "__type", "__var"}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: (
        st.lists(inner) | st.dictionaries(TEXT.filter(lambda name: name not in RESERVED), inner)
    ),
)

ENDS = st.builds(
    Ended,
    st.sampled_from(["success", "failed"]),
    st.sampled_from([None, 0, False, 1, True, 1.0, "", "a", [], {}]) | VALUES,
    st.none() | FULL,
    st.none() | RUN_IDS,
)
SAID = (
    st.builds(Started, st.none() | RUN_IDS, st.none() | FULL)
    | st.builds(
        Running,
        st.none() | FULL,
        st.none() | st.floats(0, 1),
        st.none() | RUN_IDS,
        st.none() | FULL,
    )
    | ENDS
)


def body(**fields):
    return json.dumps({"status": "success", **fields}).encode()


def sent(report):
    """Return what a flow sends to say it."""
    status = {Started: "started", Running: "running"}.get(type(report))
    return {"status": status, **report._asdict()} if status else report._asdict()


@given(SAID, st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]), st.booleans())
def test_a_report_is_read_as_it_was_sent(report, encoding, drops_nulls):
    document = {
        name: value for name, value in sent(report).items() if value is not None or not drops_nulls
    }
    assert parse(json.dumps(document).encode(encoding)) == report


FIELDS = st.fixed_dictionaries(
    {"status": st.sampled_from(["started", "running", "success", "failed"])},
    optional=dict.fromkeys(("run_id", "run_link", "message", "progress", "result"), VALUES),
)


@settings(max_examples=100)
@given(st.binary() | (VALUES | FIELDS).map(lambda value: json.dumps(value).encode()))
@example(b'{"status": "success", "result": {"\\u0000": 1}}')
@example(b'{"status": "success", "result": ' + b"9" * 5000 + b"}")
@example(b'{"status": "started", "run_id": ' + b"9" * 5000 + b"}")
@example(b'{"status": "running", "progress": ' + b"9" * 4000 + b"}")
@example(b'{"a":' * 10000)
def test_anything_is_read_or_rejected(data):
    report, words = None, ""
    try:
        report = parse(data)
    except ValueError as error:
        words = str(error)
    assert (report is None) == (0 < len(words) < 300)
    if report is not None:
        json.dumps(report, allow_nan=False, ensure_ascii=False).encode()


@given(
    st.fixed_dictionaries(
        {"status": st.sampled_from(["success", "Failed", " SUCCESS "]), "result": st.just(7)},
        optional=dict.fromkeys(("run_link", "message", "progress"), VALUES | st.just("\0\ud800")),
    )
)
def test_what_is_only_shown_never_costs_the_end(document):
    report = parse(json.dumps(document).encode())
    assert isinstance(report, Ended)
    assert (report.status, report.result) == (document["status"].strip().lower(), 7)
    assert report.message is None or why_not_storable(report.message) == ""


@pytest.mark.parametrize(
    ("value", "progress"),
    [
        (0, 0),
        (0.5, 0.5),
        (1, 1),
        (48, 0.48),
        (100, 1),
        (250, 1),
        (-3, 0),
        ("half", None),
        (True, None),
    ],
)
def test_progress(value, progress):
    report = parse(json.dumps({"status": "running", "progress": value}).encode())
    assert isinstance(report, Running)
    assert report.progress == progress


@pytest.mark.parametrize("status", ["started", "running", "failed"])
def test_number_as_run_id(status):
    """Exactly as it was written: so is that of the response to the start."""
    number = "12345678901234567890123"
    assert parse(f'{{"status": "{status}", "run_id": {number}}}'.encode()).run_id == number


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63)])
def test_largest_integers_reach_the_task(number):
    from airflow.sdk.execution_time import comms

    entry = parse(body(result=number))._asdict()
    frame = comms._ResponseFrame(id=1, body=comms.TaskStateStoreResult(value=entry).model_dump())
    assert frame.as_bytes()


def test_deepest_result():
    result = json.loads("[" * 51 + "]" * 51)
    assert parse(body(result=result))._asdict()["result"] == result


@given(st.uuids())
def test_token(ti_id):
    token = new_token(ti_id)
    assert len(token) == 64
    assert is_token(token)
    assert task_of(token) == ti_id
    assert digest_of(token) == hashlib.sha256(token.encode()).hexdigest()
    assert new_token(ti_id) != token


@given(st.from_regex(r"[A-Za-z0-9_-]{64}", fullmatch=True))
def test_what_may_be_a_token_names_a_task(text):
    assert is_token(text)
    assert text.startswith(base64.urlsafe_b64encode(task_of(text).bytes[:15]).decode())


@pytest.mark.parametrize(
    "text", ["", "a" * 63, "a" * 65, "a" * 63 + "\n", "a" * 63 + "=", "é" * 64]
)
def test_what_is_no_token(text):
    assert not is_token(text)


@pytest.mark.parametrize(
    "text", ["{}", "at /team/workflow-automation/callback?token={}, {}", "{}/"]
)
@pytest.mark.parametrize(
    "encode", [str, lambda token: base64.b64encode(token.encode()).decode(), quote]
)
def test_a_report_is_kept_without_the_token(text, encode):
    token = new_token(uuid4())
    report = text.replace("{}", encode(token))
    for kept in (
        without_token(Ended("failed", {report: [report]}, report, report), token),
        without_token(Started(report, report), token),
        without_token(Running(report, 0.5, report), token),
    ):
        assert token not in json.dumps(kept)
        assert encode(token) not in json.dumps(kept)
    assert without_token(Running("half", 0.5, "7"), token) == Running("half", 0.5, "7")


def test_token_of_another_try_is_withheld():
    other = f"https://airflow.example{CALLBACK_PATH}?token={new_token(uuid4())}"
    kept = without_token(Ended("success", {"inputs": other}, "done"), new_token(uuid4()))
    assert other not in json.dumps(kept)
    assert kept == Ended(
        "success", {"inputs": "(withheld: the URL that the run was given)"}, "done"
    )


MAILBOX = "a1" * 32
SIGNED = "X-Amz-Credential=me&X-Amz-Signature=hush1234&x-id=PutObject"
OF_AZURE = "se=2026-11-28T23%3A22%3A46Z&sp=c&sv=2026-10-06&sr=b&sig=hush1234"
URL = f"https://bucket.example/box/{MAILBOX}.json?{SIGNED}"
# Beside them, there is a signature.
MARKS = ("xamzsignature", "xamzsecuritytoken", "xgoogsignature", "spcsv20")
FORMS = st.sampled_from(
    [URL, SIGNED, json.dumps({"at": URL}), quote(SIGNED), OF_AZURE, quote(OF_AZURE)]
)


@given(VALUES, TEXT, TEXT, FORMS)
@example(None, "Wrote it to:\n", "", URL)
@example(None, "Wrote it to:\t", "", URL)
@example(None, "報告:", "", URL)
def test_an_end_is_kept_without_the_url_of_its_mailbox(value, before, after, url):
    report = f"{before}{url}{after}"
    end = Ended("failed", {"it": [value, report], report: 1}, report)
    assert parse(json.dumps(end._asdict()).encode()) == end
    kept = without_mailbox(end, MAILBOX)
    assert not [secret for secret in (MAILBOX, "hush1234") if secret in json.dumps(kept)]
    assert "withheld: the URL that the run was given" in json.dumps(kept)
    other = Ended("success", value, "done")
    letters = re.sub("[^a-z0-9]", "", json.dumps(value).lower())
    if not any(mark in letters for mark in MARKS):
        assert without_mailbox(other, MAILBOX) == other


def test_of_an_end_the_url_of_its_mailbox_alone_is_withheld():
    end = Ended("success", {"rows": 3}, f"Wrote it to:\n{URL} in time")
    note = "(withheld: the URL that the run was given)"
    assert without_mailbox(end, MAILBOX) == end._replace(message=f"Wrote it to:\n{note} in time")


@pytest.mark.parametrize(
    "query",
    [
        {"X-Amz-Signature": ["hush1234"]},
        dict(pair.split("=") for pair in OF_AZURE.split("&")),
    ],
)
def test_the_query_of_a_mailbox_as_an_object_is_withheld(query):
    end = Ended("success", {"query": query})
    assert "hush1234" not in json.dumps(without_mailbox(end, MAILBOX))


@pytest.mark.no_cover
def test_a_large_result_is_looked_through_in_little_time():
    """A batch has thousands of them."""
    rows = ["a row of a few short words " * 4] * 500
    end = Ended("success", rows, "done")

    def seconds(work):
        return min(timeit.repeat(work, timer=time.process_time, number=1, repeat=7))

    assert seconds(lambda: without_mailbox(end, MAILBOX)) < 30 * seconds(lambda: json.dumps(rows))


def test_the_url_of_a_file_that_a_flow_returns_is_kept():
    url = "https://account.blob.core.windows.net/box/a.csv?sp=r&sv=2026-10-06&sr=b&sig=a-design"
    end = Ended("success", {"file": url}, "signed")
    assert without_mailbox(end, MAILBOX) == end


@pytest.mark.parametrize(
    "make", [lambda token: {"status": token}, lambda token: {"status": "success", token: 1}]
)
def test_what_is_rejected_shows_nothing_of_what_was_sent(make):
    """It is stored, and people read it."""
    token = new_token(uuid4())
    with pytest.raises(ValueError, match="expected") as error:
        parse(json.dumps(make(token)).encode())
    assert token[:8] not in str(error.value)
