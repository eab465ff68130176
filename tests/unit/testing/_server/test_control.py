from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"kind": "nonsense"}', b'{"kind": "delay", "x": 1}', b"\xff"]
)
def test_bad_faults(service, http, body):
    response = http.post("/_control/faults", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]
    assert service.faults.all() == []
