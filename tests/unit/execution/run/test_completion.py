"""
A task that waits for the end of its run.

Suspended, polling where nobody would wake it, and with files.
"""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta
from types import MappingProxyType, SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from entry_keys import FIRST_START, MESSAGE, OUTCOME, RUN, START, report_key
from sentences import (
    NO_RUN_ID,
    NOT_PUSHED,
    OTHER_INPUTS,
    OTHER_RUN,
    RUN_ID_UNKNOWN,
    STARTS_ANOTHER,
    WITHOUT_CLAIM,
    WITHOUT_RETRIES,
)
from workflow_automation_provider.client.redaction import CALLBACK_PATH, WITHHELD
from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    Code,
    ConnectionUnusableError,
    InvalidRequestError,
    OutcomeUnknownError,
    RejectedError,
    RunFailedError,
    RunTimeoutError,
)
from workflow_automation_provider.execution.record import callback
from world_calls import TRIGGER, after, before

from ...starts import (
    MAYBE,
    claims,
    ends_at,
    entries,
    later,
    mentions,
    trigger,
    triggers,
    waits,
)

CONNECTION = "AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT"
MOMENT = timedelta(minutes=1)
FILES = [{"name": "a"}]


def uploads(task):
    return task.requests.count("/api/public/upload")


def stop(task):
    """Record that the run of the only start was told to stop."""
    (start,) = entries(task, START).values()
    task.rows.put(report_key(start["token_hash"]), {"stopped": datetime.now(UTC).isoformat()})


@pytest.fixture
def suspended(world):
    def make(*scripts, **options):
        task = world(waits(**options))
        task.try_(*scripts)
        assert task.state == "awaiting_input", task.last.error
        return task

    return make


@pytest.mark.parametrize(
    "reports",
    [
        {"stopped": "2026-01-01T00:00:00Z"},
        {"refused": ["RUN"]},
        {"claim": {"at": "2026-01-01T00:00:00Z", "run_id": "another"}},
    ],
)
def test_an_adopted_run_that_lost_the_task_fails_it(world, reports):
    task = world(waits())
    task.faults.add("drop_after")
    task.try_()
    run = task.flow.runs[0].run_id
    task.adopt(run)
    task.clear()
    task.try_()
    token = entries(task, START)["2/0"]["token_hash"]
    task.rows.put(report_key(token), json.loads(json.dumps(reports).replace("RUN", run)))
    error = task.try_().error
    assert isinstance(error, InvalidRequestError)
    assert run in error.reason
    assert (task.state, triggers(task)) == ("failed", 1)


def test_the_log_lists_the_reports_and_their_times(suspended):
    task = suspended(on_unknown_start="claim")
    for word in ("started", "running", "success"):
        assert task.flow.reports(word) == 200
    expected = (
        r"The run said: started at {0}, running \(its last\) at {0}, success at {0}\.".format(
            r"\d\d(:\d\d){2}"
        )
    )
    assert re.search(expected, task.try_().log)


def test_a_message_that_cannot_be_read_loses_no_end(suspended):
    def fail():
        raise RuntimeError("No database")

    task = suspended(on_unknown_start="claim")
    for word in ("started", "success"):
        assert task.flow.reports(word) == 200
    assert task.try_(before("get", MESSAGE, fail)).result


# The end ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [None, False, {"a": [{"ä\n😀": None}, [-0.5, 2**64 - 1]]}])
def test_what_the_flow_returns_comes_out_unchanged(suspended, result):
    task = suspended()
    assert (
        task.flow.reports("success", run_id=True, result=result, message="all there\nRun 9 failed")
        == 200
    )
    ended = task.try_()
    run, link = task.flow.runs[0].run_id, task.xcoms["_link_FlowRunLink"]
    returned = {} if result is None else {"result": result}
    assert ended.result == {"run_id": run, "run_link": link, "flow_id": "demo-flow", **returned}
    assert task.state == "success"
    assert mentions(ended.log, "succeeded", r"all there\nRun 9 failed")
    assert OTHER_RUN not in ended.log


def test_what_the_run_does_not_report_is_that_of_the_response(suspended):
    task = suspended()
    assert task.flow.reports("started", run_link="https://there/9") == 200
    assert task.flow.reports("success") == 200
    run = {
        "run_id": task.flow.runs[0].run_id,
        "run_link": "https://there/9",
        "flow_id": "demo-flow",
    }
    assert task.try_().result == run
    assert not [words for words in (OTHER_RUN, RUN_ID_UNKNOWN) if words in task.last.log]


def test_what_was_pushed_of_a_response_without_an_id_is_taken_back_once_the_run_says_its_own(world):
    task = world(waits())
    task.faults.add("response", body={"run_link": "https://there/1"})
    task.try_()
    assert task.flow.reports("success", run_id="77") == 200
    task.try_()
    assert (task.xcoms["run_id"], task.xcoms["run_link"]) == ("77", None)
    assert OTHER_RUN not in task.last.log


def test_an_error_names_the_flow_of_the_run(suspended):
    task = suspended()
    task.operator = trigger(flow_id="another")
    assert task.flow.reports("failed") == 200
    assert task.try_().error.flow_id == "demo-flow"


def test_on_run_failed_starts_another_run_while_a_retry_is_left(suspended):
    task = suspended(on_run_failed="start_again", retries=1)
    assert task.flow.reports("failed") == 200
    ended = task.try_()
    assert isinstance(ended.error, RunFailedError)
    assert not isinstance(ended.error, AirflowFailException)
    task.try_()
    assert (task.state, triggers(task)) == ("awaiting_input", 2)
    assert [task.flow.reports("started", run) for run in (0, 1)] == [404, 200]
    assert task.flow.reports("failed") == 200
    task.until_end()
    assert (task.state, triggers(task)) == ("failed", 2)


@pytest.mark.parametrize("has_key", [False, True])
def test_each_failed_run_is_named_where_the_next_start_is_in_doubt(world, monkeypatch, has_key):
    """By the connection that started it, of which nothing is shown under another one."""
    from world import KEY

    task = world(waits(on_run_failed="start_again"))
    run_id = f"x{KEY.value}" if has_key else "77"
    for _ in range(2):
        task.try_()
        assert task.flow.reports("failed", run_id=run_id) == 200
        task.try_()

    without_key = {**json.loads(os.environ[CONNECTION]), "password": ""}
    monkeypatch.setenv("AIRFLOW_CONN_ANOTHER", json.dumps(without_key))
    task.operator = waits(
        flow_id="demo-flow",
        workflow_automation_conn_id="another",
        on_run_failed="start_again",
    )
    task.faults.add("drop_after")
    error = task.try_().error
    assert isinstance(error, OutcomeUnknownError), error
    named = "a run whose run_id cannot be shown" if has_key else "run 77"
    (before,) = re.findall("Before, .*", str(error))
    assert re.findall(r"try \d", before) == ["try 1", "try 2"]
    assert before.count(named) == 2
    assert KEY.value not in task.last.output


def test_a_stopped_run_fails_the_task(suspended, monkeypatch):
    """Also without the connection."""
    task = suspended()
    monkeypatch.delenv(CONNECTION)
    task.lose(task.last)
    stop(task)
    error = task.try_().error
    assert isinstance(error, RunFailedError)
    assert error.run_id == task.flow.runs[0].run_id
    assert triggers(task) == 1


@pytest.mark.parametrize("operator", [claims(wait_for_completion=True), waits()])
@pytest.mark.parametrize("is_claimed", [True, False])
def test_a_flow_without_the_first_step_is_warned_of(world, operator, is_claimed):
    task = world(operator)
    task.try_()
    if is_claimed:
        task.flow.reports("started", run_id=True)
    task.flow.reports("success", run_id=True)
    warned = WITHOUT_CLAIM in task.try_().log
    assert warned is (operator.on_unknown_start == "claim" and not is_claimed)


@pytest.fixture
def without_scheduler(world, monkeypatch):
    """Nobody would wake the task, as in dag.test()."""
    from airflow.sdk.execution_time import task_runner

    comms = type("InProcessSupervisorComms", (SimpleNamespace,), {})(send=lambda *_, **__: None)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", comms)


@pytest.mark.parametrize("status", ["success", "failed"])
@pytest.mark.usefixtures("without_scheduler")
def test_where_nobody_would_wake_it_it_polls(world, status):
    task = world(waits())
    ended = task.try_(before("get", RUN, lambda: task.flow.reports(status, result=1), nth=5))
    assert task.state == status
    assert ended.late_by >= 1
    assert ended.result["result"] == 1 if status == "success" else ended.error.result == 1


@pytest.mark.usefixtures("without_scheduler")
def test_where_it_polls_a_stopped_run_fails_it(world):
    task = world(waits())
    error = task.try_(before("get", RUN, lambda: stop(task), nth=5)).error
    assert isinstance(error, RunFailedError)
    assert (error.run_id, error.flow_id) == (task.flow.runs[0].run_id, "demo-flow")


@pytest.mark.parametrize("begins_with", ["the response", "the claim", "the person"])
def test_when_a_wait_begins(world, begins_with):
    task = world(claims(wait_for_completion=True, completion_timeout=timedelta(days=9)))
    if begins_with != "the response":
        task.faults.add("drop_after")
    task.try_()
    began = datetime.now(UTC)
    later(task, days=1)
    if begins_with == "the claim":
        assert task.flow.reports("started") == 200
    elif begins_with == "the person":
        task.mark("failed")
        task.adopt(task.flow.runs[0].run_id)
        task.clear()
    task.try_()
    waits = ends_at(task) - began
    assert abs(waits - timedelta(days=8 if begins_with == "the response" else 9)) < MOMENT


def test_other_inputs_are_a_warning_of_a_retry_but_not_of_a_look(world, suspended):
    """A template such as the time renders to others each time."""
    task = suspended()
    task.operator = waits(inputs={"a": 2})
    assert OTHER_INPUTS not in task.try_().log
    task = world(trigger())
    task.try_(after("set", OUTCOME, "kill"))
    task.operator = trigger(inputs={"a": 2})
    assert OTHER_INPUTS in task.try_().log


def test_how_long_a_task_waits_is_what_it_recorded(suspended):
    """Whatever the DAG says by then."""
    task = suspended(completion_timeout=timedelta(days=9))
    until = ends_at(task)
    task.operator = waits(completion_timeout=timedelta(days=1))
    task.try_()
    assert ends_at(task) == until


# Suspended -------------------------------------------------------------------------------------------


def test_what_it_leaves_before_it_suspends(suspended):
    """A task that a person then marks as success leaves its run to the next one."""
    task = suspended()
    link = task.xcoms["_link_FlowRunLink"]
    run = {"run_id": task.flow.runs[0].run_id, "run_link": link, "flow_id": "demo-flow"}
    assert task.xcoms == {**run, "return_value": run, "_link_FlowRunLink": link}
    assert mentions(task.last.log, f"Started run {run['run_id']}", link)
    assert mentions(task.last.log, f"Run {run['run_id']}", "until 20")
    run = {"run_id": "77", "flow_id": "demo-flow"}
    assert task.flow.reports("started", run_id="77") == 200
    task.try_()
    assert task.xcoms["return_value"] == run
    assert (task.xcoms["run_link"], task.xcoms["_link_FlowRunLink"]) == (None, "")
    task.lose(task.last)
    task.rows.end("retry")
    task.try_()
    assert task.xcoms["return_value"] == run, "a try deletes them"
    assert triggers(task) == 1


@pytest.mark.parametrize(
    ("settings", "keys"),
    [({"do_xcom_push": False}, set()), ({"multiple_outputs": False}, {"return_value"})],
)
def test_only_the_xcoms_that_the_task_wants(suspended, settings, keys):
    assert {*suspended(**settings).xcoms} == {"_link_FlowRunLink", *keys}


def test_xcoms_that_cannot_be_pushed_do_not_end_the_wait(suspended):
    def fail():
        raise RuntimeError("No database")

    log = suspended(before("push", "return_value", fail)).last.log
    assert NOT_PUSHED in log
    assert "No database" in log


@pytest.mark.parametrize(
    ("timeout", "waited", "sleep"),
    [(9e9, 0, 25), (9e9, 25, 75), (9e9, 1000, 3000), (9e9, 9000, 3600), (60, 30, 30), (4, 0, 25)],
)
def test_it_looks_ever_more_rarely_but_not_before_the_scheduler_notices(
    world, timeout, waited, sleep
):
    task = world(waits(completion_timeout=timedelta(days=365)))
    task.try_()
    start = json.loads(task.rows.entries[FIRST_START])
    task.rows.put(FIRST_START, {**start, "completion_timeout": timeout})
    later(task, seconds=waited)
    task.try_()
    left = (task.rows.ti.trigger_timeout - datetime.now(UTC)).total_seconds()
    assert sleep - 5 < left <= sleep + 3


@pytest.mark.parametrize("retries", [0, 1])
def test_without_retries_it_warns(world, retries):
    """What fails while it looks would fail it for good."""
    task = world(waits(retries=retries))
    task.try_()
    assert (WITHOUT_RETRIES in task.last.log) is (retries == 0)
    task.try_()
    assert WITHOUT_RETRIES not in task.last.log


def test_a_claim_is_a_heartbeat(suspended):
    task = suspended(heartbeat_timeout=timedelta(minutes=1))
    later(task, minutes=3)
    assert task.flow.reports("started") == 200
    task.try_()
    assert task.state == "awaiting_input"


def test_a_silent_run_that_is_overdue_is_called_overdue(suspended):
    task = suspended(heartbeat_timeout=timedelta(minutes=1))
    later(task, days=2)
    assert task.try_().error.code == Code.RUN_OVERDUE


def test_the_run_that_reports_has_the_task(suspended):
    """Whichever the response named: a proxy may have sent the request twice."""
    task = suspended()
    (run,) = task.flow.runs
    assert task.ask(run.url, body={"status": "success", "run_id": "77"}) == 200
    ended = task.try_()
    assert ended.result["run_id"] == "77"
    assert mentions(ended.log, "Run 77 has the task", f"not run {run.run_id}")


@pytest.mark.parametrize("fault", ["", "drop_after"])
def test_a_run_whose_end_is_there_is_pushed_once(world, fault):
    task = world(waits())
    if fault:
        task.faults.add(fault)
    ended = task.try_(after("send", TRIGGER, lambda: task.flow.reports("success", run_id=True)))
    assert task.state == "success", ended.error
    pushed = [call.name for call in ended.calls if call.kind == "push"]
    assert "return_value" in pushed
    assert len({*pushed}) == len(pushed)


def test_a_run_by_key_without_an_id(world):
    task = world(waits())
    task.faults.add("response", body={"run_link": "https://there/1"})
    task.try_()
    assert task.xcoms["return_value"].keys() == {"run_link", "flow_id", "response"}
    assert mentions(task.last.log, NO_RUN_ID, "https://there/1")
    assert task.flow.reports("started") == 200
    task.lose(task.last)
    task.rows.end("retry")
    assert RUN_ID_UNKNOWN not in task.try_().log
    later(task, days=1)
    assert "https://there/1" in task.try_().error.next_step


def test_a_response_that_names_no_run_is_in_the_log(world):
    task = world(trigger())
    task.faults.add("response", body={"rows": 5})
    assert mentions(task.try_().log, NO_RUN_ID, '{"rows": 5}')


def test_cleared_while_it_continues_it_starts_over(suspended):
    task = suspended()
    task.try_(before("get", RUN, task.clear))
    task.until_end()
    assert (task.state, triggers(task)) == ("awaiting_input", 2)
    assert [task.flow.reports("started", run) for run in (0, 1)] == [404, 200]


@pytest.mark.parametrize(("how", "status"), [("invalid", "success"), ("missing", "failed")])
def test_a_connection_that_breaks_during_the_wait_loses_no_end(suspended, monkeypatch, how, status):
    """And nothing of it is shown unredacted."""
    task, works = suspended(), os.environ[CONNECTION]
    assert task.flow.reports(status, result="the secret of the flow", message="x") == 200
    if how == "missing":
        monkeypatch.delenv(CONNECTION)
    else:
        monkeypatch.setenv(CONNECTION, json.dumps({**json.loads(works), "extra": {"typo": 1}}))
    broken = task.try_()
    assert (task.state, "the secret" in broken.output) == ("up_for_retry", False)
    monkeypatch.setenv(CONNECTION, works)
    mended = task.try_()
    assert (task.state, triggers(task)) == (status, 1)
    assert "the secret of the flow" in (mended.result or vars(mended.error))["result"]


def broken(monkeypatch, how="invalid"):
    """Have the connection not be usable; return what it was."""
    works = os.environ[CONNECTION]
    if how == "missing":
        monkeypatch.delenv(CONNECTION)
    else:
        monkeypatch.setenv(CONNECTION, json.dumps({**json.loads(works), "extra": {"typo": 1}}))
    return works


@pytest.mark.parametrize("how", ["invalid", "missing"])
@pytest.mark.parametrize("is_claimed", [True, False])
def test_a_connection_that_breaks_while_the_task_waits_ends_nothing(
    suspended, monkeypatch, how, is_claimed
):
    """
    A look needs no connection.

    What the run has reported of itself is pushed once it can be searched for secrets.
    """
    task = suspended()
    if is_claimed:
        assert task.flow.reports("started", run_id="the-claimer") == 200
    works = broken(monkeypatch, how)
    task.try_()
    task.lose(task.last)
    task.rows.end("retry")
    task.try_()
    assert (task.state, triggers(task)) == ("awaiting_input", 1)
    assert "the-claimer" not in task.last.output

    monkeypatch.setenv(CONNECTION, works)
    task.try_()
    run_id = "the-claimer" if is_claimed else task.flow.runs[0].run_id
    assert task.xcoms["run_id"] == run_id
    assert task.flow.reports("success", run_id=run_id) == 200
    assert task.try_().result["run_id"] == run_id


@pytest.mark.parametrize("options", [{}, {"files": FILES}])
def test_an_error_of_the_connection_is_retried_once_a_run_is_known(world, monkeypatch, options):
    task = world(waits(retries=5, **options))
    task.try_(before("push", "", "kill"))
    if not options:
        assert task.flow.reports("success", run_id=True) == 200
    works = broken(monkeypatch)
    for _ in range(2):
        error = task.try_().error
        assert (task.state, type(error)) == ("up_for_retry", ConnectionUnusableError)
        assert task.flow.runs[0].run_id in error.consequence
    monkeypatch.setenv(CONNECTION, works)
    task.try_()
    assert (task.state, triggers(task)) == ("awaiting_input" if options else "success", 1)


@pytest.mark.parametrize("files", [None, FILES])
def test_another_connection_than_the_run_was_started_by(world, monkeypatch, files):
    task = world(waits(files=files))
    task.try_(before("push", "", "kill"))
    monkeypatch.setenv("AIRFLOW_CONN_ANOTHER", os.environ[CONNECTION])
    task.operator = waits(files=files, workflow_automation_conn_id="another")
    task.try_()
    assert (triggers(task), uploads(task)) == (1, 1 if files else 0)
    assert task.state == "awaiting_input"


@pytest.mark.parametrize("make", [waits, claims])
def test_the_run_that_claims_replaces_that_of_the_response(world, make):
    """A proxy has sent the request twice."""
    task = world(make(files=FILES))
    task.faults.add("twice")
    task.try_(after("send", TRIGGER, lambda: task.flow.reports("started", 0, run_id=True)))
    claimer, other = task.flow.runs
    assert task.flow.reports("started", other, run_id=True) == 404
    assert task.xcoms["return_value"]["run_id"] == claimer.run_id
    assert other.run_id not in task.xcoms.get("_link_FlowRunLink", "")
    assert uploads(task) == 1


def test_after_a_clear_the_log_names_the_run_before(suspended):
    task = suspended(on_unknown_start="claim")
    assert task.flow.reports("started", run_id="77", run_link="https://there/77") == 200
    assert task.flow.reports("failed") == 404
    assert task.flow.reports("failed", run_id="77") == 200
    task.try_()
    task.clear()
    log = task.try_().log
    assert mentions(log, "Try 1 (", "run 77", "https://there/77", "failed", STARTS_ANOTHER)
    assert MAYBE not in log.splitlines()[0]


def test_the_log_has_the_callback_url_without_the_token(suspended):
    task = suspended()
    assert mentions(task.last.log, f"Its run calls Airflow at http://127.0.0.1:1{CALLBACK_PATH}")
    assert nowhere(task, task.flow.runs[0].url.rpartition("token=")[2])


def test_the_error_names_refused_calls(world):
    task = world(waits(retries=0))
    task.try_()
    url = task.flow.runs[0].url
    assert task.ask(url, body={"status": "done"}) == 400
    later(task, days=2)
    error = str(task.try_().error)
    assert mentions(error, "said nothing. A call at", "400", "status")


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_wait_goes_on_whatever_the_dag_now_asks(world, is_killed):
    task = world(waits())
    if is_killed:
        task.try_(after("set", OUTCOME, "kill"))
    else:
        task.try_()

    task.operator = trigger()
    task.try_()
    assert task.state == "awaiting_input"
    assert task.flow.reports("success", result=1) == 200
    assert task.try_().result["result"] == 1
    assert triggers(task) == 1


def test_a_wait_that_is_added_between_two_tries_fails_without_a_retry(world):
    task = world(trigger())
    task.try_(after("set", OUTCOME, "kill"))
    task.operator = waits()
    assert task.until_end().state == "failed"
    assert_not_awaited(task)


def test_a_task_that_waits_and_whose_start_does_not_say_so_is_no_success(world):
    """As an earlier version had recorded it, by other names."""
    task = world(waits())
    task.try_()
    start = json.loads(task.rows.entries[FIRST_START])
    del start["completion_timeout"]
    task.rows.put(FIRST_START, start)
    later(task, hours=1)
    task.try_()
    assert task.state == "failed"
    assert_not_awaited(task)


def assert_not_awaited(task):
    error = task.last.error
    (run,) = task.flow.runs
    assert isinstance(error, RunTimeoutError)
    assert (error.run_id, error.accepted) == (run.run_id, Accepted.YES)
    assert mentions(str(error), "wait_for_completion=True")
    assert mentions(str(error), "Flow run")
    assert triggers(task) == 1


# What a secret is kept from -----------------------------------------------------------------------


def nowhere(task, secret):
    output = "".join(process.output for process in task.processes)
    errors = [repr(vars(process.error)) for process in task.processes if process.error]
    kept = (
        output,
        *errors,
        str(task.xcoms),
        str(task.rows.ti.next_kwargs),
        *task.rows.entries.values(),
    )
    return not [text for text in kept if secret in text]


class TestRedaction:
    @pytest.fixture
    def token(self, monkeypatch):
        """Have the task give out one token."""
        tokens: list[str] = []

        def new_token(ti_id):
            tokens[:] = tokens or [callback.new_token(ti_id)]
            return tokens[0]

        monkeypatch.setattr(
            "workflow_automation_provider.execution.run.trigger_execution.new_token", new_token
        )
        return lambda task: new_token(task.rows.ti.id)

    @pytest.mark.parametrize("status", ["success", "failed"])
    def test_of_the_key_and_the_token_in_reports(self, suspended, status):
        from world import KEY

        task = suspended()
        url, own = task.flow.runs[0].url, f"x{KEY.value}"
        assert task.flow.reports("started", run_id=own, run_link=f"http://a/{KEY.value}") == 200
        task.try_()
        report = {"result": [KEY.value, url], "message": f"by {KEY.value} {url}"}
        assert task.flow.reports(status, run_id=own, **report) == 200
        ended = task.try_()
        assert (ended.result or vars(ended.error))["result"] == WITHHELD
        assert mentions(ended.log, "result", WITHHELD)
        assert KEY.value not in ended.output + str(task.xcoms)
        assert nowhere(task, url.rpartition("token=")[2])

    @pytest.mark.parametrize(
        ("kind", "options"),
        [("reject", {"status": 400}), ("response", {"status": 500}), ("response", {"status": 200})],
    )
    def test_of_the_token_that_the_service_echoes(self, world, token, kind, options):
        task = world(waits())
        link = f"http://there/runs/7?token={token(task)}"
        task.faults.add(kind, body={"run_id": "7", "run_link": link, "detail": link}, **options)
        task.try_()
        assert nowhere(task, token(task))

    def test_of_the_token_in_the_response_to_an_upload(self, world, token):
        """Also of a later try, which does not know the token."""
        task = world(waits(files=FILES))
        task.faults.add("busy", operation="upload")
        body = {"run": {"callback_url": f"http://a{CALLBACK_PATH}?token={token(task)}"}}
        task.faults.add("response", operation="upload", body=body)
        task.until_end()
        assert (task.state, uploads(task)) == ("awaiting_input", 2)
        assert nowhere(task, token(task))


# Before anything is sent --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("STATE_STORE__BACKEND", "[state_store] backend"),
        ("WORKERS__STATE_STORE_BACKEND", "[workers] state_store_backend"),
    ],
)
def test_only_a_task_that_waits_needs_entries_that_stay(world, monkeypatch, option, name):
    tasks = [world(waits()), world(trigger())]  # Airflow loads its backend for the first
    monkeypatch.setenv(f"AIRFLOW__{option}", "their.Backend")
    waiting, triggering = [task.try_() for task in tasks]
    assert isinstance(waiting.error, InvalidRequestError)
    assert f"{name} is set" in str(waiting.error)
    assert triggering.result


class TestUrl:
    def test_is_the_address_of_airflow_if_the_connection_has_none(self, world, monkeypatch):
        task = world(waits())
        connection = json.loads(os.environ[CONNECTION])
        del connection["extra"]["callback_base_url"]
        monkeypatch.setenv(CONNECTION, json.dumps(connection))
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://127.0.0.1:1/team/")
        task.try_()
        assert task.flow.runs[0].url.startswith(
            "http://127.0.0.1:1/team/workflow-automation/callback?token="
        )

    @pytest.mark.parametrize("end", [CALLBACK_PATH, "/workflow-automation", "/api/v2"])
    def test_is_not_that_of_the_endpoint_itself(self, world, end):
        task = world(waits(), callback_base_url=f"http://127.0.0.1:1{end}")
        expected = re.compile(r"http://127\.0\.0\.1:1(?!/)")
        assert expected.search(str(task.try_().error))
        assert triggers(task) == 0

    @pytest.mark.parametrize("allow_http", [False, True])
    def test_has_tls_unless_the_connection_allows_plain_http(self, world, allow_http):
        extra = {"callback_base_url": "http://airflow.example", "allow_http": allow_http}
        task = world(waits(), **extra)
        task.try_()
        assert triggers(task) == allow_http

    def test_has_the_name_that_the_task_gives_it(self, world):
        operator = waits(callback_input="report_to", inputs=MappingProxyType({"b": 2}))
        task = world(operator)
        task.try_()
        assert task.flow.runs[0].url
        assert dict(operator.inputs) == {"b": 2}


# Files --------------------------------------------------------------------------------------------


class TestFiles:
    def test_a_retry_uploads_them_for_a_run_that_has_ended(self, world):
        task = world(waits(files=FILES))
        task.faults.add("busy", operation="upload")
        task.try_(
            after("send", TRIGGER, lambda: task.flow.reports("success", run_id=True, result=1))
        )
        assert (task.state, uploads(task)) == ("up_for_retry", 1)
        task.try_()
        assert (task.state, uploads(task), triggers(task)) == ("success", 2, 1)

    def test_are_uploaded_before_the_wait_and_once(self, suspended):
        task = suspended(files=[*FILES, {"name": "b"}])
        task.try_()
        task.rows.end("retry")
        task.try_()
        assert (task.state, triggers(task), uploads(task)) == ("awaiting_input", 1, 1)

    @pytest.mark.parametrize(
        ("fault", "error", "final"),
        [
            ("busy", BusyError, False),
            ("drop_after", OutcomeUnknownError, False),
            ("reject", RejectedError, True),
        ],
    )
    def test_of_a_try_that_failed_are_uploaded_by_the_next(self, world, fault, error, final):
        task = world(waits(files=FILES))
        task.faults.add(fault, operation="upload")
        first = task.try_()
        run = task.flow.runs[0].run_id
        assert isinstance(first.error, error)
        assert isinstance(first.error, AirflowFailException) is final
        assert first.error.consequence.startswith(f"Run {run} ")
        if final:
            task.adopt(run)
            task.clear()
        task.try_()
        assert (task.state, triggers(task), uploads(task)) == ("awaiting_input", 1, 2)

    def test_of_an_adopted_run_are_not_uploaded_again(self, suspended):
        task = suspended(files=FILES)
        for is_adopted in (True, False):
            task.mark("failed")
            if is_adopted:
                task.adopt(task.flow.runs[0].run_id)
            task.clear()
            task.try_()
            assert task.state == "awaiting_input"
            assert triggers(task) == uploads(task) == 2 - is_adopted

    def test_are_those_that_were_checked_before_the_start(self, world, tmp_path):
        (tmp_path / "checked").write_text("x")
        task = world(waits(files=f"{tmp_path}/*"))
        task.try_(after("send", TRIGGER, lambda: (tmp_path / "later").write_text("x")))
        assert (task.state, uploads(task)) == ("awaiting_input", 1)
