"""Questions of tasks in ``dag.test()``, which the fixture workflow_automation_answers answers."""

from __future__ import annotations

import importlib.util

import pytest

from workflow_automation_provider.testing import Answers

CAN_PARK = importlib.util.find_spec("airflow.models.task_state_store") is not None
needs_parking = pytest.mark.skipif(not CAN_PARK, reason="Before Airflow 3.3, dag.test() cannot ask a person")

ASKING = """
    with DAG("asking", schedule=None, start_date=START):
        TriggerFlowOperator(task_id="trigger", inputs={}, on_unknown_start="ask")
"""

MAPPED = """
    with DAG("asking", schedule=None, start_date=START):
        TriggerFlowOperator.partial(task_id="trigger", on_unknown_start="ask").expand(inputs=[{"n": 0}, {"n": 1}])
"""

WAITING = """
    with DAG("waiting", schedule=None, start_date=START):
        TriggerFlowOperator(task_id="trigger", inputs={}, wait_for_completion=True, on_unknown_start="ask")
"""


CLAIMING = """
    with DAG("claiming", schedule=None, start_date=START):
        TriggerFlowOperator(task_id="trigger", inputs={}, on_unknown_start="claim")
"""


@pytest.fixture
def service(workflow_automation_service, workflow_automation_connection):
    return workflow_automation_service


@pytest.fixture
def answers(workflow_automation_answers):
    return workflow_automation_answers


@needs_parking
def test_no_run_was_started(run_dag, service, answers):
    service.faults.add("drop_after")
    answers.add("No run was started")
    result = run_dag(ASKING)
    assert result.state == "success"
    assert len(service.runs) == 2
    assert result.xcom("trigger", "run_id") == service.runs[1].run_id
    (question,) = answers.asked
    assert (question.task_id, question.map_index, question.answer) == ("trigger", -1, "No run was started")
    assert question.subject == "Was a run started?"
    assert question.options == ["A run was started", "No run was started", "Fail the task"]
    assert "Connection: `workflow_automation_default`" in question.body


@needs_parking
def test_a_run_was_started(run_dag, service, answers):
    service.faults.add("drop_after")
    answers.add("A run was started", run_id=lambda: service.runs[0].run_id, run_link="https://there/1")
    result = run_dag(ASKING)
    assert result.state == "success"
    assert len(service.runs) == 1
    assert result.xcom("trigger", "run_id") == service.runs[0].run_id
    assert result.xcom("trigger", "run_link") == "https://there/1"


@needs_parking
def test_without_an_answer_the_task_fails(run_dag, service, answers, task_errors):
    service.faults.add("drop_after")
    result = run_dag(ASKING)
    assert result.state == "failed"
    assert "workflow_automation_answers answered: " in str(task_errors[0])
    assert [question.answer for question in answers.asked] == ["Fail the task"]


@needs_parking
def test_each_task_instance_gets_its_own(run_dag, service, answers):
    service.faults.add("drop_before", times=2)
    answers.add("A run was started", task_id="another", run_id="76")
    answers.add("A run was started", map_index=1, run_id="78")
    answers.add("A run was started", task_id="trigger", run_id="77")
    result = run_dag(MAPPED)
    assert result.state == "success"
    assert [result.xcom("trigger", "run_id", map_index=index) for index in (0, 1)] == ["77", "78"]
    assert sorted(question.map_index for question in answers.asked) == [0, 1]


@needs_parking
def test_an_error_of_a_function_fails_the_task_and_the_test(run_dag, service):
    service.faults.add("drop_after")
    answers = Answers()
    answers.add("A run was started", run_id=lambda: service.runs[7].run_id)
    answers.start()
    assert run_dag(ASKING).state == "failed"
    with pytest.raises(IndexError):
        answers.stop()
    answers.stop()


@needs_parking
def test_a_person_says_how_the_run_ended(run_dag, service, answers, workflow_automation_callback_base_url):
    """In the answer to the question whether one was started."""
    service.faults.add("drop_after")
    answers.add("The run succeeded", run_id=lambda: service.runs[0].run_id, result='{"rows": 3}')
    result = run_dag(WAITING)
    assert result.state == "success"
    assert result.xcom("trigger", "run_id") == service.runs[0].run_id
    assert result.xcom("trigger", "result") == {"rows": 3}


@needs_parking
def test_the_flow_is_waited_for(run_dag, service, answers, workflow_automation_callback_base_url):
    """Only it says how the run ended."""
    service.faults.add("drop_after")
    service.callbacks.add(result={"rows": 4}, delay=3)
    answers.add("A run was started", run_id=lambda: service.runs[0].run_id)
    result = run_dag(WAITING)
    assert result.state == "success"
    assert result.xcom("trigger", "result") == {"rows": 4}
    assert [question.answer for question in answers.asked] == ["A run was started"]


@needs_parking
def test_the_flow_claims_its_start(run_dag, service, workflow_automation_callback_base_url):
    service.faults.add("drop_after")
    service.callbacks.add(status=None, started=1)
    result = run_dag(CLAIMING)
    assert result.state == "success"
    assert [result.xcom("trigger", "run_id")] == [work.run_id for work in service.journal.worked()]


def test_an_option_that_no_question_has():
    with pytest.raises(ValueError, match="option 'Yes'"):
        Answers().add("Yes")


@pytest.mark.skipif(CAN_PARK, reason="Since Airflow 3.3, dag.test() can ask a person")
def test_an_airflow_that_cannot_ask(airflow_home):
    with pytest.raises(RuntimeError, match=r"Airflow 3\.3"), Answers():
        pass
