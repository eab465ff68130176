"""Flows as assets."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from airflow.sdk import Asset

from workflow_automation_provider.assets import (
    convert_asset_to_openlineage,
    create_asset,
    sanitize_uri,
)

BASE = "https://service.example:8443/api/"
FLOW = "workflow-automation://service.example:8443/api/flows"


@pytest.mark.parametrize(
    ("flow_id", "uri"),
    [
        ("F", f"{FLOW}/F"),
        ("a/b c?#%ä", f"{FLOW}/a%2Fb%20c%3F%23%25%C3%A4"),
        ("..", f"{FLOW}/%2E%2E"),
    ],
)
def test_its_uri_and_its_extra(flow_id, uri):
    asset = create_asset(base_url=BASE, flow_id=flow_id, extra={"owner": "me"})
    assert (asset.uri, asset.extra) == (uri, {"owner": "me"})


@pytest.mark.parametrize(
    ("given", "uri"),
    [
        (f"{FLOW}/F/", f"{FLOW}/F"),
        (FLOW.upper().replace("API/FLOWS", "api/flows") + "/F", f"{FLOW}/F"),
        (f"{FLOW.replace('//', '//me:secret@')}/F?a=1#b", f"{FLOW}/F"),
    ],
)
@pytest.mark.filterwarnings("ignore:An? (Asset|Dataset) URI should not contain a password")
def test_airflow_normalizes_it(given, uri):
    assert Asset(given).uri == uri


@pytest.mark.parametrize(
    "uri", ["workflow-automation:///flows/F", "workflow-automation://host/flows/", FLOW]
)
def test_what_names_no_flow(uri):
    with pytest.raises(ValueError, match="must be workflow-automation://HOST/…/flows/FLOW"):
        sanitize_uri(urlsplit(uri))


def test_the_dataset_of_openlineage():
    pytest.importorskip("openlineage.client")
    dataset = convert_asset_to_openlineage(create_asset(base_url=BASE, flow_id="a b"), None)
    assert (dataset.namespace, dataset.name) == (
        "workflow-automation://service.example:8443",
        "api/flows/a b",
    )
