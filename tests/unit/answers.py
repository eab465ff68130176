"""The events that Airflow continues a parked task with, as ``HITLDetail.as_resume_event_payload`` makes them."""

from __future__ import annotations

from workflow_automation_provider.execution.callback import CALLBACK_USER


def person(option, *, user="ada", **fields):
    return {
        "chosen_options": [option],
        "params_input": fields,
        "responded_at": None,
        "responded_by_user": {"id": "7", "name": user},
        "timedout": False,
    }


def woken(*options):
    """By the endpoint, which has stored the flow's answer."""
    return {
        "chosen_options": [*options],
        "params_input": {},
        "responded_at": None,
        "responded_by_user": {"id": CALLBACK_USER, "name": "The flow's callback"},
        "timedout": False,
    }


TIMEOUT: dict[str, object] = {
    "chosen_options": [],
    "params_input": {},
    "responded_at": None,
    "responded_by_user": None,
    "timedout": True,
}
