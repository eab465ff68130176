"""What a flow may say of its end."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import asdict

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workflow_automation_provider.execution.callback import (
    MAX_VALUES,
    OPTIONS,
    TOKEN_LENGTH,
    Answer,
    digest_of,
    end_key,
    is_token,
    new_token,
    receipt_key,
    task_of,
    token_key,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
RESERVED = {"__classname__", "__id__", "__type", "__var"}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT.filter(lambda name: name not in RESERVED), inner),
)

ANSWERS = st.builds(
    Answer,
    st.sampled_from([*OPTIONS]),
    st.sampled_from([None, 0, False, 1, True, 1.0, "", "a", [], {}]) | VALUES,
    st.none() | TEXT,
)


def body(**fields):
    return json.dumps({"status": "success", **fields}).encode()


@given(
    st.sampled_from([*OPTIONS]), VALUES, st.none() | TEXT, st.sampled_from(["utf-8", "utf-8-sig", "utf-16"])
)
def test_what_is_said_is_what_is_read(status, result, message, encoding):
    document = {"status": status, "result": result, "message": message}
    answer = Answer.read(json.dumps(document).encode(encoding))
    assert answer == Answer(status, result, message)
    row = json.loads(json.dumps(answer.row("2026-01-01T00:00:00+00:00")))
    assert Answer.of(row) == answer
    assert row["at"] == "2026-01-01T00:00:00+00:00"
    assert all(value is not None for value in row.values())


@given(st.binary() | st.recursive(VALUES, st.lists).map(lambda value: json.dumps(value).encode()))
@example(b'{"status": "success", "result": NaN}')
@example(b'{"status": "success", "result": 1e999}')
@example(b'{"status": "success", "result": "\\ud800"}')
@example(b'{"status": "success", "result": {"\\u0000": 1}}')
@example(b'{"status": "success", "result": ' + b"9" * 5000 + b"}")
@example(b"[" * 60000)
@example(b'{"a":' * 10000)
def test_anything_is_read_or_rejected(data):
    answer, words = None, ""
    try:
        answer = Answer.read(data)
    except ValueError as error:
        words = str(error)
    assert (answer is None) == (0 < len(words) < 300)
    if answer is not None:
        json.dumps(answer.row("now"), allow_nan=False, ensure_ascii=False).encode()


def test_row_without_an_answer():
    assert Answer.of({}) is None


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**30])
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [{"id": value}]])
def test_integer_that_airflow_cannot_hand_to_a_task(number, wrap):
    with pytest.raises(
        ValueError, match=r"result contains an integer of more than 64 bits; send it as text\.$"
    ):
        Answer.read(body(result=wrap(number)))


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63)])
def test_largest_integers_reach_the_task(number):
    comms = pytest.importorskip("airflow.sdk.execution_time.comms")
    if not hasattr(comms, "TaskStateStoreResult"):
        pytest.skip("Before Airflow 3.3 there is no state store")
    row = dict(Answer.read(body(result=number)).row("now"))
    frame = comms._ResponseFrame(id=1, body=comms.TaskStateStoreResult(value=row).model_dump())
    assert frame.as_bytes()


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_names_that_airflow_reserves(name):
    with pytest.raises(ValueError, match=f"result contains a field '{name}', a name that Airflow reserves"):
        Answer.read(body(result=[{name: 1}]))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "The body is not JSON: Expecting value: line 1 column 1 (char 0)."),
        (b"[" * 60000, "The body is not JSON: it is nested too deeply."),
        (b"null", "The body is null; expected an object with a status."),
        (b"[]", "The body is an array; expected an object with a status."),
        (b"{}", "status is missing; expected 'success' or 'failed'."),
        (b'{"status": true}', "status is a boolean; expected 'success' or 'failed'."),
        (b'{"status": 1}', "status is a number; expected 'success' or 'failed'."),
        (b'{"status": {}}', "status is an object; expected 'success' or 'failed'."),
        (b'{"status": "Success"}', "status is 'Success'; expected 'success' or 'failed'."),
        (body(message=["a"]), "message is an array; expected text."),
        (body(message="\0"), "message contains a NUL character or half of a surrogate pair."),
        (body(result={"a": "\ud800"}), "result contains a NUL character or half of a surrogate pair."),
        (
            body(result=json.loads("[" * 52 + "]" * 52)),
            "result is nested too deeply; expected at most 50 levels.",
        ),
        (
            body(run_id="1", more=2),
            "'more' is not supported; expected status, result and message. Put what else the flow returns into result.",
        ),
        (body().replace(b'"success"', b"NaN"), "The body is not JSON: NaN is not a JSON value."),
        (body(a=0).replace(b"0", b"1e999"), "The body is not JSON: 1e999 is too large."),
        (
            b'{"status": "failed", "status": "success"}',
            "The body is not JSON: it has the field 'status' twice.",
        ),
    ],
)
def test_what_is_rejected(data, words):
    with pytest.raises(ValueError, match=f"{re.escape(words)}$"):
        Answer.read(data)


def test_deepest_result():
    result = json.loads("[" * 51 + "]" * 51)
    assert Answer.read(body(result=result)).result == result


@given(st.uuids())
def test_token(ti_id):
    token = new_token(ti_id)
    assert len(token) == TOKEN_LENGTH == 64
    assert is_token(token)
    assert task_of(token) == ti_id
    assert new_token(ti_id) != token


@given(st.from_regex(r"[A-Za-z0-9_-]{64}", fullmatch=True))
def test_what_may_be_a_token_names_a_task(text):
    assert is_token(text)
    assert text.startswith(base64.urlsafe_b64encode(task_of(text).bytes[:15]).decode())


@pytest.mark.parametrize("text", ["", "a" * 63, "a" * 65, "a" * 63 + "\n", "a" * 63 + "=", "é" * 64])
def test_what_is_no_token(text):
    assert not is_token(text)


def test_keys():
    digest = digest_of("token")
    assert digest == hashlib.sha256(b"token").hexdigest()
    keys = {token_key(digest, 12), token_key(digest, 1), end_key(digest), receipt_key(digest)}
    assert len(keys) == 4
    assert all(digest in key for key in keys)
    assert len(token_key(digest, 10**9)) < 512


@given(ANSWERS, ANSWERS, st.sampled_from(["a", "b"]))
def test_fingerprint(answer, other, token):
    """The same for the same answer alone; without the token, it does not even tell whether two are the same."""
    same = json.dumps(asdict(answer), sort_keys=True) == json.dumps(asdict(other), sort_keys=True)
    assert (answer.fingerprint(token) == other.fingerprint(token)) == same
    assert answer.fingerprint("c") != answer.fingerprint(token)


@pytest.mark.parametrize(
    "make",
    [
        lambda count: [0] * (count - 1),
        lambda count: {str(number): None for number in range(count - 1)},
        lambda count: [[]] * (count - 1),
        lambda count: [[0] * 99] * (count // 100 - 1) + [0] * 99,
    ],
)
def test_number_of_values(make):
    assert Answer.read(body(result=make(MAX_VALUES))).status == "success"
    words = f"result contains more than {MAX_VALUES} values; return a reference to them instead."
    with pytest.raises(ValueError, match=f"{words}$"):
        Answer.read(body(result=[make(MAX_VALUES)]))
