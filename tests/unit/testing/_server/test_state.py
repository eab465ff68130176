from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["1001", "1002"]),
        ({"run_id_type": "number"}, [1001, 1002]),
        ({"run_id_type": "number", "first_run_id": 2**53 + 1}, [2**53 + 1, 2**53 + 2]),
        ({"first_run_id": 10**40}, [str(10**40), str(10**40 + 1)]),
    ],
)
def test_run_ids(serve, options, expected):
    service, call = serve(**options)
    assert [call.by_path().json()["run_id"] for _ in expected] == expected
    assert [run.run_id for run in service.runs] == expected
    assert call.upload(str(expected[0]), key="demo-key").status_code == 200


def test_run_links_under_a_public_url(serve):
    _, call = serve(public_url="http://example.test:99/")
    assert call.by_path().json()["run_link"] == "http://example.test:99/runs/1001"
