"""Addresses, identifiers and requests: as values, and where it matters on the wire."""

from __future__ import annotations

from urllib.parse import unquote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.client import protocol
from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.client.urls import parse_base_url
from workflow_automation_provider.exceptions import InvalidRequestError

from .conftest import trigger_flow, upload_requests

# Base URL -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" https://service.example/api// ", "https://service.example/api"),
        ("http://127.8.8.8/api", "http://127.8.8.8/api"),
        ("http://[::1]:1/api", "http://[::1]:1/api"),
    ],
)
def test_base_url(text, expected):
    assert parse_base_url(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("https://", "not usable"),
        ("https://user:hush@[service", "not usable"),
        ("https://service.example/api#x", "fragment"),
        ("https://service example", "blank"),
        ("http://localhost.evil.example/api", "allow_http"),
    ],
)
def test_base_url_that_is_wrong(text, words):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        FlowClient(text)
    assert "hush" not in str(caught.value)


@given(st.text() | st.from_regex(r"https?://[a-z0-9@:/?#\[\]%.\\-]*", fullmatch=True))
def test_any_text_is_an_address_or_a_clear_error(text):
    try:
        base_url = parse_base_url(text, allow_http=True)
    except InvalidRequestError:
        return
    assert parse_base_url(base_url, allow_http=True) == base_url
    assert not base_url.endswith("/")
    url = httpx.URL(base_url)
    assert (url.userinfo, url.query, url.fragment) == (b"", b"", "")
    assert url.host


# Identifiers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("flow_id", ["../../x", "..", "a?b#c\n日本", "%2F \0"])
def test_flow_id_reaches_the_service_as_it_is(service, client, flow_id):
    trigger_flow(client, {}, flow_id)
    (run,) = service.runs
    assert run.flow_id == flow_id


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip))
def test_flow_id_is_always_one_segment(flow_id):
    url = protocol.trigger_request("https://service.example/api", {}, flow_id).url
    sent = httpx.URL(url).raw_path.decode()
    before, _, rest = sent.partition("/api/flows/")
    segment, _, after = rest.partition("/")
    assert (before, after) == ("", "trigger")
    assert unquote(segment, errors="strict") == flow_id
    assert segment.strip(".")


def test_body_of_a_request_is_not_in_its_repr(client):
    requests = [
        protocol.trigger_request("https://x.example", {"secret": "hush"}),
        *upload_requests(client, "1", [{"x": "hush"}], "f"),
    ]
    assert "hush" not in repr(requests)
