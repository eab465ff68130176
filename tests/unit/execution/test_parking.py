"""What Airflow offers to wait without a worker."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from workflow_automation_provider.execution import parking


class TestIsSupervised:
    def test_in_a_task(self, supervisor):
        assert parking.is_supervised()

    def test_without_a_supervisor(self, store):
        assert not parking.is_supervised()

    def test_in_dag_test(self, store, monkeypatch):
        from airflow.sdk.execution_time import task_runner

        comms = type("InProcessSupervisorComms", (), {})()
        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", comms, raising=False)
        assert not parking.is_supervised()


def test_it_parks(store):
    from airflow.sdk.exceptions import TaskAwaitingInput

    context: Any = {"ti": SimpleNamespace(id=uuid4())}
    with pytest.raises(TaskAwaitingInput) as caught:
        parking.park(context, timedelta(seconds=7), {"checks": 1})
    assert caught.value.timeout == timedelta(seconds=7)
    then = {"checks": 1, "ti_id": str(context["ti"].id)}
    assert (caught.value.method_name, caught.value.kwargs) == ("execute_complete", then)
