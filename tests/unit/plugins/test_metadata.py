"""
The contract with Airflow's insides: what must be there, and what is said if it is not.

What the endpoint does with them is in test_callback_endpoint.py; there, a real scheduler's sweep resumes a task.
"""

from __future__ import annotations

from uuid import uuid4

import pytest

from workflow_automation_provider.execution.callback import PATH, new_token
from workflow_automation_provider.plugins import metadata


def detail_of(http):
    response = http.post(f"{PATH}?token={new_token(uuid4())}", json={"status": "success"})
    assert set(response.json()) == {"detail"}
    return response.status_code, response.json()["detail"]


def test_nothing_is_missing(dag, http):
    assert metadata.missing() is None
    status, reason = detail_of(http)
    assert (status, reason.endswith("stop.")) == (404, True)


@pytest.mark.parametrize(
    ("owner", "name"),
    [("TaskInstance", "trigger_timeout"), ("Store", "key"), ("TaskInstanceState", "RESTARTING")],
)
def test_column_is_missing(http, monkeypatch, owner, name):
    class Renamed(type):
        def __getattr__(cls, asked):
            if asked == name:
                raise AttributeError(asked)
            return asked

    monkeypatch.setattr(metadata, owner, Renamed(owner, (), {}))
    reason = metadata.missing()
    assert f"{owner} has no {name}." in str(reason)
    assert detail_of(http) == (501, reason)


def test_every_coordinate_is_known():
    """A column that tells task instances apart and is not compared would let one answer for another."""
    from airflow.models.task_state_store import TaskStateStoreModel
    from sqlalchemy import UniqueConstraint

    (unique,) = (
        constraint
        for constraint in TaskStateStoreModel.__table__.constraints
        if isinstance(constraint, UniqueConstraint)
    )
    known = {*metadata.COORDINATES, "dag_run_id", "key"}
    assert {column.name for column in unique.columns} - known == set()
