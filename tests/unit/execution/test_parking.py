"""What Airflow offers to wait without a worker, and to ask."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from workflow_automation_provider.client.checks import one_line
from workflow_automation_provider.execution import parking
from workflow_automation_provider.execution.callback import CALLBACK_USER, OPTIONS
from workflow_automation_provider.execution.parking import Question, Reply

from ..answers import TIMEOUT, person, woken

QUESTION = Question("How?", "Look", ("Well", "Badly"), {"why": "A reason"})


class TestReply:
    @pytest.mark.parametrize(
        "event", [None, {}, TIMEOUT, {"chosen_options": None, "responded_by_user": None}]
    )
    def test_at_a_timeout(self, event):
        assert Reply.of(event) == Reply()

    def test_of_a_person(self):
        event = person("Well", why=" because ", empty="", blank=" ", none=None, number=7)
        assert Reply.of(event) == Reply("Well", {"why": "because", "number": "7"}, "ada")

    @pytest.mark.parametrize(
        ("user", "by"),
        [({"id": "7", "name": None}, "7"), ({}, "somebody"), (None, "somebody"), ({"name": "ada"}, "ada")],
    )
    def test_of_somebody(self, user, by):
        assert Reply.of({**person("Well"), "responded_by_user": user}).by == by

    @pytest.mark.parametrize("option", OPTIONS.values())
    def test_of_the_endpoint(self, option):
        """Its answer is in the row: an option would pass for a person's."""
        assert Reply.of(woken(option)) == Reply(by=CALLBACK_USER)

    def test_of_the_endpoint_without_an_option(self):
        assert Reply.of(woken()) == Reply()

    @given(
        st.dictionaries(
            st.sampled_from(
                ["chosen_options", "params_input", "responded_at", "responded_by_user", "timedout"]
            ),
            st.none() | st.just([]) | st.just({}),
        )
    )
    def test_of_nothing(self, event):
        assert Reply.of(event) == Reply()


class TestCanPark:
    def test_here(self, store):
        assert parking.can_park({"task_state_store": store})

    def test_without_a_store(self):
        assert not parking.can_park({})

    def test_before_airflow_3_3(self, store, monkeypatch):
        monkeypatch.delattr("airflow.sdk.exceptions.TaskAwaitingInput")
        assert not parking.can_park({"task_state_store": store})


class TestCanAsk:
    def test_in_a_task(self, supervisor):
        assert parking.can_ask()
        assert parking.has_supervisor()
        assert parking.is_supervised()

    def test_without_a_supervisor(self, store):
        assert parking.can_ask()
        assert not parking.has_supervisor()
        assert not parking.is_supervised()

    def test_before_airflow_3_1(self, supervisor, monkeypatch):
        monkeypatch.delattr("airflow.sdk.execution_time.hitl.upsert_hitl_detail")
        assert not parking.can_ask()

    def test_in_dag_test(self, store, monkeypatch):
        from airflow.sdk.execution_time import task_runner

        comms = type("InProcessSupervisorComms", (), {})()
        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", comms, raising=False)
        assert parking.has_supervisor()
        assert not parking.is_supervised()

    def test_on_airflow_2(self, store, monkeypatch):
        monkeypatch.delattr("airflow.sdk.execution_time.task_runner")
        monkeypatch.setitem(__import__("sys").modules, "airflow.sdk.execution_time.task_runner", None)
        assert not parking.has_supervisor()
        assert not parking.is_supervised()


class TestPark:
    @pytest.fixture
    def context(self):
        return {"ti": SimpleNamespace(id=uuid4())}

    def test_it_parks(self, store, context):
        from airflow.sdk.exceptions import TaskAwaitingInput

        with pytest.raises(TaskAwaitingInput) as caught:
            parking.park(context, QUESTION, timedelta(seconds=7), {"checks": 1})
        assert caught.value.timeout == timedelta(seconds=7)
        then = {"checks": 1, "ti_id": str(context["ti"].id)}
        assert (caught.value.method_name, caught.value.kwargs) == ("execute_complete", then)

    def test_before_airflow_3_3_it_defers(self, store, context, monkeypatch):
        from airflow.providers.common.compat.sdk import TaskDeferred
        from airflow.providers.standard.triggers.hitl import HITLTrigger

        monkeypatch.delattr("airflow.sdk.exceptions.TaskAwaitingInput")
        with pytest.raises(TaskDeferred) as caught:
            parking.park(context, QUESTION, timedelta(seconds=7), {"pending": {}})
        trigger = caught.value.trigger
        assert isinstance(trigger, HITLTrigger)
        assert (trigger.ti_id, trigger.options) == (context["ti"].id, ["Well", "Badly"])
        then = {"pending": {}, "ti_id": str(context["ti"].id)}
        assert (caught.value.method_name, caught.value.kwargs) == ("execute_complete", then)

    def test_it_asks(self, supervisor, context):
        parking.ask(context, QUESTION)
        (question,) = supervisor.questions
        assert (question.ti_id, question.subject, question.body) == (context["ti"].id, "How?", "Look")
        assert question.options == ["Well", "Badly"]
        assert question.params["why"]["value"] is None
        assert question.params["why"]["description"] == "A reason"
        assert question.params["why"]["schema"]["type"] == ["null", "string"]


@given(st.text(min_size=1) | st.text("`a <[](*\n", min_size=1))
def test_code_is_shown_as_it_is_written(text):
    (inline,) = [
        token for token in MarkdownIt().parse(f"- Run: {parking.code(text)} <http://a>") if token.children
    ]
    assert inline.children
    label, shown, *rest = inline.children
    assert (label.content, shown.type) == ("Run: ", "code_inline")
    assert shown.content.strip(" ") == one_line(text).strip(" ")
    assert [token.type for token in rest] == ["text", "link_open", "text", "link_close"] or rest[
        0
    ].content == " <http://a>"
