"""What is kept of a response that holds the key, or another secret."""

from __future__ import annotations

import base64
import json

import pytest

from workflow_automation_provider.client import protocol, responses
from workflow_automation_provider.client.redaction import WITHHELD, Redactor
from workflow_automation_provider.exceptions import ResponseUnusableError
from workflow_automation_provider.failures import run_of

from .forms import FORMS, nowhere

NUMBER = "73019482650173846"


def read(body, key, *, by_key=True, secrets=()):
    request = protocol.trigger_request("https://x.example", {}, None if by_key else "demo-flow")
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = protocol.Response(201, {}, body, "")
    return run_of(responses.read(response, request, Redactor(secrets, key=key)))


@pytest.mark.parametrize(
    "document",
    [
        {"run_id": "7", "n": int(NUMBER)},
        {"run_id": "7", "n": [float(NUMBER[:12])]},
        {"run_id": "7", "a": {NUMBER: None}},
        {"run_id": "7", "a": [NUMBER[:6], {"b": NUMBER[6:12]}, [NUMBER[12:]]]},
        {"run_id": "7", NUMBER[:6]: {NUMBER[6:12]: 1, NUMBER[12:]: [2]}},
        {"run_id": "7", "a": base64.b64encode(NUMBER.encode()).decode()},
    ],
)
def test_kept_response_is_withheld_where_the_key_is_anywhere_in_it(document):
    key = NUMBER[:12] if "n" in document else NUMBER
    for redacted in ({"key": key}, {"key": "another-key", "secrets": [key]}):
        run = read(document, **redacted)
        assert (run.run_id, run.response) == ("7", WITHHELD)


def test_number_that_becomes_the_key_when_it_is_read():
    run = read(b'{"run_id": "7", "n": 123456788.99999999999999999}', "123456789.0")
    assert run.response == WITHHELD


def test_kept_response_of_utf_16():
    run = read(json.dumps({"run_id": "7", "key": NUMBER}).encode("utf-16"), NUMBER)
    assert (run.run_id, run.response) == ("7", WITHHELD)


@pytest.mark.parametrize("echo", ["raw", "url, every character", "base64", "hex", "zero width"])
def test_run_id_and_link_that_contain_the_key_are_withheld(echo, key):
    echoed = FORMS[echo](key)
    document = {"run_id": f"run-{echoed}", "run_link": f"https://x.example/{echoed}"}
    run = read(document, key)
    assert (run.run_id, run.run_link, run.response) == (None, None, WITHHELD)
    with pytest.raises(ResponseUnusableError, match="its run_id contained the API key") as caught:
        read(document, key, by_key=False)
    nowhere(key, str(caught.value))


def test_run_id_that_is_the_key_as_a_number():
    assert read({"run_id": int(NUMBER)}, NUMBER).run_id is None


@pytest.mark.parametrize("by_key", [True, False])
def test_other_secrets_withhold_no_run_id_and_no_link(key, by_key):
    link = "https://x.example/hush-1234"
    run = read({"run_id": "hush-1234", "run_link": link}, key, by_key=by_key, secrets=["Bearer hush-1234"])
    assert (run.run_id, run.run_link, run.response) == ("hush-1234", link, WITHHELD)


@pytest.mark.parametrize("run_id", ["a\0", "a\ud800"])
def test_run_id_that_no_database_takes_is_none(run_id, key):
    """It would be another's if it were rewritten."""
    run = read({"run_id": run_id, "run_link": "b\0"}, key)
    assert (run.run_id, run.run_link) == (None, "b\ufffd")
    with pytest.raises(ResponseUnusableError, match="characters that a database cannot store"):
        read({"run_id": run_id}, key, by_key=False)
