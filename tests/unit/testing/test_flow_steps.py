"""What a simulated flow does about the responses to its steps: it asks again, goes on, or stops."""

from __future__ import annotations

import threading

import pytest

from workflow_automation_provider.testing._server import callback_sender

from .conftest import wait_for
from .test_callbacks import receiver, sent

__all__ = ["receiver"]  # a fixture

OK: tuple[int, dict[str, str], bytes] = (200, {}, b"{}")


@pytest.mark.parametrize(("silent", "works"), [(1, True), (3, False)])
def test_first_step_that_gets_no_answer_is_sent_again_and_then_fails(
    service, call, receiver, monkeypatch, silent, works
):
    monkeypatch.setattr(callback_sender, "_TIMEOUT", 0.2)
    end = threading.Event()
    receiver.responses += [lambda: end.wait(30)] * silent
    service.callbacks.add(None, started=0, attempts=3, wait=0.01)
    call.by_path({"callback_url": receiver.url})
    (step,) = sent(service)
    end.set()
    assert (step.attempts, step.status) == ((2, 200) if works else (3, None))
    assert bool(step.error) is not works
    if works:
        wait_for(service.journal.worked)
    else:
        assert service.journal.worked() == []
    assert [body["status"] for body in receiver.bodies] == ["started"] * step.attempts


@pytest.mark.parametrize(
    ("status", "obeys", "ends"), [(200, True, True), (404, True, False), (404, False, True)]
)
def test_flow_that_is_told_to_stop_before_it_ends(service, call, receiver, status, obeys, ends):
    receiver.responses += [OK, OK, (status, {}, b"{}")]
    service.callbacks.add(started=0, running=[{}, {}], obeys=obeys)
    call.by_path({"callback_url": receiver.url})
    steps = sent(service, 3 + ends)
    assert [step.body["status"] for step in steps] == ["started", "running", "running"] + ["success"] * ends
    assert steps[2].status == status
