from __future__ import annotations

import pytest

from workflow_automation_provider.testing.control_client import ControlClient


@pytest.fixture
def control(service):
    with ControlClient(service.url) as client:
        yield client


def test_health(service, control):
    assert control.healthy()
    service.stop()
    assert not control.healthy()


def test_faults_are_queued_listed_and_cleared(service, control, call):
    added = control.add_fault("reject", status=418, times=2, inputs={"case": "x"})
    assert added == {
        "kind": "reject",
        "status": 418,
        "inputs": {"case": "x"},
        "times": 2,
        "remaining": 2,
        "struck": 0,
    }
    assert call.by_path({"case": "x"}).status_code == 418
    assert call.by_path({"case": "y"}).status_code == 201
    (listed,) = control.faults()
    assert (listed["remaining"], listed["struck"]) == (1, 1)
    control.clear_faults()
    assert control.faults() == []
    assert call.by_path({"case": "x"}).status_code == 201


def test_a_fault_without_end(control):
    control.add_fault("drop_before", times=None)
    assert control.faults()[0]["remaining"] is None


def test_client_tells_why_a_fault_is_bad(control):
    with pytest.raises(ValueError, match="redirect needs a location"):
        control.add_fault("redirect")


def test_journal(control, call):
    call.by_path({"a": "b"})
    call.upload("1001", ["x"])
    journal = control.journal()
    assert journal["runs"][0]["inputs"] == {"a": "b"}
    assert journal["uploads"][0]["files"] == ["x"]
    assert [request["operation"] for request in journal["requests"]] == ["trigger_by_path", "upload"]
