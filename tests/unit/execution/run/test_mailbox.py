"""A task whose run cannot reach Airflow: it writes its end to a mailbox."""

from __future__ import annotations

import base64
import itertools
import json
import time
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from entry_keys import FIRST_START, REVOKED, RUN, START
from sentences import NO_CLAIM, NOTHING_SENT_NOW, STARTS_ANOTHER, STOPS_WHO_CLAIMS
from workflow_automation_provider.exceptions import (
    Accepted,
    Code,
    ConnectionUnusableError,
    InvalidRequestError,
    OutcomeUnknownError,
    RunFailedError,
    RunTimeoutError,
    UnidentifiedError,
)
from workflow_automation_provider.execution.run.completion import TRIGGERER_MARGIN
from workflow_automation_provider.triggers.mailbox import INTERVAL
from world_calls import TRIGGER, after, at, before

from ...starts import ends_at, entries, later, mentions, struck, triggers, waits

MOMENT = timedelta(minutes=1)


@pytest.fixture
def folder(tmp_path):
    return (tmp_path / "mail boxes").as_uri()


@pytest.fixture
def mailing(world, folder):
    """Make a task whose runs write to mailboxes."""
    return lambda **options: world(waits(**options), callback_base_url=folder)


@pytest.fixture
def mailed(world, folder):
    """Make a task whose runs write to mailboxes, and execute its first try."""

    def make(fault=None, *scripts, **options):
        operator = waits(**options)
        if fault:
            return struck(world, operator, fault, *scripts, callback_base_url=folder)
        task = world(operator, callback_base_url=folder)
        task.try_(*scripts)
        return task

    return make


def object_of(task, run=-1):
    """Return the file to which a run writes its end."""
    return Path(task.flow.runs[run].url.removeprefix("file://").replace("%20", " "))


# The wait -----------------------------------------------------------------------------------------


def test_the_end_is_the_result(mailed):
    task = mailed()
    assert task.state == "deferred"
    mailbox = entries(task, START)["1/0"]["mailbox"]
    assert mentions(task.last.log, f"Its run writes its end to {mailbox}.")
    assert task.flow.reports("success", run_id=True, result={"rows": 3}, message="all there") == 200
    ended = task.try_()
    run = task.flow.runs[0].run_id
    assert ended.result["run_id"] == run
    assert ended.result["result"] == {"rows": 3}
    assert mentions(ended.log, "succeeded", "all there")
    assert task.state == "success"


def test_the_first_end_stays(mailed):
    task = mailed()
    assert [task.flow.reports("success", result=1), task.flow.reports("failed")] == [200, 412]
    assert task.try_().result["result"] == 1


def test_a_failure_fails_the_task(mailed):
    task = mailed()
    task.flow.reports("failed", message="no such table")
    error = task.try_().error
    assert isinstance(error, RunFailedError)
    assert "no such table" in str(error)
    assert (task.state, triggers(task)) == ("failed", 1)


def test_a_failure_is_started_again_where_that_is_asked_for(mailed):
    task = mailed(on_run_failed="start_again")
    task.flow.reports("failed")
    task.try_()
    assert task.state == "up_for_retry"
    task.try_()
    assert (task.state, triggers(task)) == ("deferred", 2)
    task.flow.reports("success", result=2)
    assert task.try_().result["result"] == 2


def test_the_trigger_knows_the_mailbox_and_the_deadline(mailed, folder):
    task = mailed(completion_timeout=timedelta(hours=2))
    path, kwargs = task.last.trigger.serialize()
    assert path == "workflow_automation_provider.triggers.mailbox.MailboxTrigger"
    start = entries(task, START)["1/0"]
    assert start["mailbox"] == f"{folder}/{start['token_hash']}.json"
    assert "callback_url" not in start

    until = ends_at(task)
    assert (kwargs["mailbox"], kwargs["interval"]) == (start["mailbox"], INTERVAL)
    assert abs(datetime.fromisoformat(kwargs["until"]) - until) < timedelta(seconds=1)
    # Airflow wakes it after that, if the trigger does not.
    assert abs(task.rows.ti.trigger_timeout - until - TRIGGERER_MARGIN) < MOMENT


def test_a_look_pushes_nothing_again(mailed):
    task = mailed()
    assert [call.name for call in task.try_().calls if call.kind == "push"] == []


def test_a_look_that_finds_nothing_defers_again(mailed):
    task = mailed()
    task.try_()
    assert (task.state, triggers(task)) == ("deferred", 1)


def test_no_end_in_time_fails_the_task_and_names_the_mailbox(mailed):
    task = mailed(completion_timeout=MOMENT)
    later(task, hours=1)
    error = task.try_().error
    assert isinstance(error, RunTimeoutError)
    assert entries(task, START)["1/0"]["mailbox"] in str(error)
    run = task.flow.runs[0].run_id
    assert error.consequence == f"Run {run} was started, and may still be running."
    assert error.flow_id == "demo-flow"


FAILED = {"error": "Trigger failure", "traceback": ["Traceback", "ImportError: no such module\n"]}
TIMED_OUT = {"error": "Trigger timeout"}


@pytest.mark.parametrize("failure", [FAILED, TIMED_OUT])
def test_an_end_counts_also_where_the_trigger_has_failed(mailed, failure):
    task = mailed()
    task.flow.reports("success", result=1)
    task.rows.defer("__fail__", failure)
    assert task.try_().result["result"] == 1


@pytest.mark.parametrize(
    ("failure", "why"),
    [(FAILED, "ImportError"), (TIMED_OUT, "failed: Trigger timeout"), ({}, "failed: unknown")],
)
def test_a_trigger_that_failed_ends_the_try_and_the_next_one_waits_again(mailed, failure, why):
    task = mailed()
    task.rows.defer("__fail__", failure)
    error = task.try_().error
    assert (task.state, error.accepted) == ("up_for_retry", Accepted.YES)
    assert error.run_id == task.flow.runs[0].run_id
    assert why in str(error)
    task.try_()
    assert (task.state, triggers(task)) == ("deferred", 1)


@pytest.mark.parametrize(("method", "kwargs"), [("execute_complete", {}), ("__fail__", TIMED_OUT)])
def test_a_task_that_goes_on_starts_nothing_where_its_entries_are_gone(mailed, method, kwargs):
    task = mailed()
    task.rows.defer(method, kwargs)
    error = task.try_(at("get", FIRST_START, "lost", nth=None)).error
    assert isinstance(error, UnidentifiedError)
    assert mentions(str(error), "is gone from Airflow's task state store")
    assert triggers(task) == 1


def test_a_trigger_that_was_not_run_in_time_is_an_overdue_run(mailed):
    task = mailed()
    later(task, days=2)
    task.rows.defer("__fail__", TIMED_OUT)
    error = task.try_().error
    assert (task.state, error.code) == ("failed", Code.RUN_OVERDUE)
    assert error.run_id == task.flow.runs[0].run_id


def test_a_task_that_another_version_suspended_goes_on(mailed):
    task = mailed()
    task.rows.defer("execute_complete", {"of_another_version": 1})
    task.flow.reports("success", result=1)
    assert task.try_().result["result"] == 1


def test_an_end_at_the_deadline_counts(mailed):
    task = mailed(completion_timeout=MOMENT)
    later(task, hours=1)
    task.flow.reports("success", result=1)
    assert task.try_().result["result"] == 1


def test_the_run_is_looked_for_where_it_was_started(mailed, world, tmp_path):
    task = mailed()
    connection = {"callback_base_url": (tmp_path / "elsewhere").as_uri()}
    world(task.operator, **connection)  # only the connection changes
    task.flow.reports("success", result=1)
    assert task.try_().result["result"] == 1


def test_the_end_is_recorded_and_outlives_the_object(mailed):
    task = mailed()
    task.flow.reports("success", result=1)
    task.try_(at_copy("kill after"))
    assert task.state == "up_for_retry"
    object_of(task).unlink()
    assert task.try_().result["result"] == 1
    assert triggers(task) == 1


@pytest.mark.parametrize("act", ["kill", "kill after", "fail after", "slow"])
def test_the_end_is_recorded_whatever_happens_to_the_write(mailed, act):
    task = mailed()
    task.flow.reports("success", result=1)
    task.try_(at_copy(act))
    if task.state != "success":
        task.try_()
    for late in task.late:
        late()
    assert (task.state, triggers(task)) == ("success", 1)
    assert [entry["end"]["result"] for entry in entries(task, RUN).values()] == [1]


def test_outside_a_scheduler_the_task_looks_by_itself(mailing, monkeypatch):
    from airflow.sdk.execution_time import task_runner

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", None)
    task = mailing()
    task.try_(after("send", TRIGGER, lambda: task.flow.reports("success", result=1)))
    assert task.state == "success"


@pytest.fixture
def in_its_process(monkeypatch):
    """Have tasks wait as outside a scheduler."""
    from airflow.sdk.execution_time import task_runner

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", None)


def test_a_run_of_this_try_is_named_where_its_end_is_not_valid(mailed, in_its_process):
    def spoil():
        object_of(task_of_process()).write_text("{")

    task = mailed(None, after("send", TRIGGER, spoil))
    assert isinstance(task.last.error, RunFailedError)
    assert f"Run {task.flow.runs[0].run_id} was started." in str(task.last.error)


def test_what_is_no_report_ends_a_doubt(mailed):
    def spoil():
        object_of(task_of_process()).write_text("{")

    task = mailed("drop_after", after("send", TRIGGER, spoil))
    assert isinstance(task.last.error, RunTimeoutError)
    assert "not valid" in str(task.last.error)


def spoil_then_repair(looks):
    """
    Put a folder where the object will be; some looks later, have the run write its end.

    :return: what is to be called before each look
    """
    numbers = itertools.count()

    def act():
        number, task = next(numbers), task_of_process()
        if number == 0:
            object_of(task).mkdir()
        if number == looks:
            object_of(task).rmdir()
            assert task.flow.reports("success", result=1) == 200

    return before("get", RUN, act, nth=None)


def test_a_run_of_this_try_is_named_where_its_mailbox_cannot_be_read(mailed, in_its_process):
    def spoil():
        object_of(task_of_process()).mkdir()

    task = mailed(None, after("send", TRIGGER, spoil), completion_timeout=timedelta(seconds=1))
    assert f"Run {task.flow.runs[0].run_id} was started." in str(task.last.error)
    assert "Nothing was sent" not in str(task.last.error)


def at_copy(act):
    """Have something happen as the end is copied from the object."""
    return at("set", RUN, act)


# A start in doubt -----------------------------------------------------------------------------------


def test_an_end_settles_a_doubt_in_a_retry(mailed):
    task = mailed(None, at("send", TRIGGER, "kill after"))
    assert (task.state, len(task.flow.runs)) == ("up_for_retry", 1)
    task.flow.reports("success", run_id=True, result=1)
    ended = task.try_()
    assert (task.state, triggers(task)) == ("success", 1)
    assert ended.result["run_id"] == task.flow.runs[0].run_id


def test_a_doubt_without_an_end_fails_and_revokes_nothing(mailed):
    task = mailed("drop_after")
    error = task.last.error
    assert isinstance(error, OutcomeUnknownError)
    assert isinstance(error, AirflowFailException)
    assert not [words for words in (NO_CLAIM, STOPS_WHO_CLAIMS) if words in task.last.output]
    assert (triggers(task), entries(task, REVOKED)) == (1, {})


def test_a_retry_in_doubt_sends_nothing(mailed):
    task = mailed(None, at("send", TRIGGER, "kill after"))
    error = task.try_().error
    assert isinstance(error, OutcomeUnknownError)
    assert not [words for words in (NO_CLAIM, STOPS_WHO_CLAIMS) if words in task.last.output]
    assert (task.state, triggers(task), entries(task, REVOKED)) == ("failed", 1, {})


def test_an_end_within_claim_timeout_settles_a_doubt(mailed):
    answers: list[int] = []

    def end():
        if not answers:
            answers.append(task_of_process().flow.reports("success", result=1))

    ended = mailed("drop_after", before("get", RUN, end), claim_timeout=MOMENT)
    assert (ended.state, answers) == ("success", [200])


def test_an_end_within_claim_timeout_is_read_once_the_mailbox_can_be(mailed):
    ended = mailed("drop_after", spoil_then_repair(3), claim_timeout=MOMENT)
    assert ended.state == "success", ended.last.output
    assert ended.last.result["result"] == 1


def task_of_process():
    """Return the task whose process makes a call now."""
    import world

    process = world._machinery.process
    assert process is not None
    return process._world


def test_a_doubt_is_started_again_where_that_is_asked_for(mailed):
    task = mailed("drop_after", on_unknown_start="start_again")
    assert task.state == "up_for_retry"
    task.try_()
    assert (task.state, triggers(task), entries(task, REVOKED)) == ("deferred", 2, {})
    assert mentions(task.last.log, STARTS_ANOTHER, "on_unknown_start is 'start_again'")
    # Its run is that of the last start.
    task.flow.reports("success", 0, result=1)
    task.try_()
    assert task.state == "deferred"
    task.flow.reports("success", 1, result=2)
    assert task.try_().result["result"] == 2


def test_an_end_keeps_a_doubt_from_being_started_again(mailed):
    task = mailed("drop_after", on_unknown_start="start_again")
    task.flow.reports("success", result=1)
    assert task.try_().result["result"] == 1
    assert triggers(task) == 1


def test_a_marked_task_starts_nothing_again(mailed):
    task = mailed("drop_after", on_unknown_start="start_again")
    task.try_(before("states", "", lambda: task.mark("success")))
    assert (task.state, triggers(task)) == ("success", 1)


def test_claim_that_the_dag_asks_for_later_sends_nothing(mailed):
    task = mailed(None, at("send", TRIGGER, "kill after"))
    task.operator = waits(on_unknown_start="claim")
    task.try_()
    assert triggers(task) == 1


def test_a_rejected_start_is_sent_again(mailed):
    task = mailed("busy")
    assert task.state == "up_for_retry"
    task.try_()
    assert (task.state, triggers(task)) == ("deferred", 2)


def test_no_run_gets_a_url_that_expires_before_the_wait_for_it_ends(mailing):
    """Each wait that the service asks for counts: the next try signs another."""
    task = mailing(send_retry_timeout=60, retries=1)
    task.faults.add("busy", retry_after="600", times=2)
    task.try_()
    # On Airflow 3.4, the same try is executed again.
    assert task.state in ("up_for_retry", "up_for_reschedule")
    assert (triggers(task), task.flow.runs) == (2, [])
    task.try_()
    assert (task.state, triggers(task), len(task.flow.runs)) == ("deferred", 3, 1)


def test_a_start_whose_url_does_not_expire_is_sent_as_often_as_the_service_asks(world):
    task = world(waits(send_retry_timeout=60, retries=1))
    task.faults.add("busy", retry_after="600", times=2)
    task.try_()
    assert (task.state, triggers(task)) == ("awaiting_input", 3)


def test_a_run_that_the_response_does_not_name_is_taken_by_its_end(mailed):
    answers: list[int] = []

    def end():
        if not answers:
            answers.append(task_of_process().flow.reports("success", run_id=True))

    task = mailed("garbage", before("get", RUN, end), claim_timeout=MOMENT)
    assert (task.state, answers) == ("success", [200])


def kill_at(number):
    """Have the process killed at a call, by its number."""
    return lambda call: "kill" if call.number == number else None


def test_a_kill_at_any_call_starts_no_second_run(mailing):
    for number in range(99):
        task = mailing()
        killed = task.try_(kill_at(number))
        if not killed.is_dead:
            break
        started = [*task.flow.runs]
        for run in started:
            task.flow.reports("success", run, run_id=True, result=1)
        task.until_end()
        assert triggers(task) <= 1, killed.calls[-1]
        if started:
            assert task.state == "success", killed.calls[-1]
    assert number > 5


def test_a_kill_at_any_call_of_a_look_loses_no_end(mailed):
    for number in range(99):
        task = mailed()
        task.flow.reports("success", run_id=True, result=1)
        killed = task.try_(kill_at(number))
        if not killed.is_dead:
            break
        task.until_end()
        assert (task.state, triggers(task)) == ("success", 1), killed.calls[-1]
    assert number > 3


# A Clear, and a person ------------------------------------------------------------------------------


def test_a_clear_starts_another_run_with_a_mailbox_of_its_own(mailed):
    task = mailed()
    task.clear()
    task.try_()
    assert (task.state, triggers(task)) == ("deferred", 2)
    assert object_of(task, 0) != object_of(task, 1)
    task.flow.reports("success", 0, result="of before")
    task.try_()
    assert task.state == "deferred"
    task.flow.reports("success", 1, result="of now")
    assert task.try_().result["result"] == "of now"


def test_what_is_not_valid_before_a_clear_is_not_read_after_it(mailed):
    task = mailed()
    object_of(task).write_text("{")
    task.try_()
    task.clear()
    task.try_()
    assert (task.state, triggers(task)) == ("deferred", 2)


def test_an_adopted_run_writes_to_the_mailbox_that_it_was_given(mailed):
    task = mailed("drop_after")
    run = task.flow.runs[0].run_id
    task.adopt(run)
    task.clear()
    task.try_()
    assert (task.state, triggers(task)) == ("deferred", 1), task.last.error
    task.flow.reports("success", run_id=True, result=1)
    ended = task.try_()
    assert (ended.result["run_id"], ended.result["result"]) == (run, 1)
    assert (triggers(task), entries(task, REVOKED)) == (1, {})


def test_an_adopted_run_needs_no_heartbeat(mailed):
    task = mailed("drop_after")
    task.adopt(task.flow.runs[0].run_id)
    task.operator = waits(heartbeat_timeout=MOMENT)
    task.clear()
    task.try_()
    assert task.state == "deferred"
    later(task, minutes=10)
    task.try_()
    assert task.state == "deferred", task.last.error


def test_a_run_cannot_be_adopted_where_another_one_has_ended(mailed):
    task = mailed("drop_after")
    task.flow.reports("success", run_id=True)
    task.adopt("another")
    task.clear()
    assert "another run has the task" in str(task.try_().error)
    assert (triggers(task), [*entries(task, START)]) == (1, ["1/0"])


# What is read ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "no object"),
        (b"{}", "status is missing"),
        (b'{"status": "started"}', "for the end alone"),
        (b'{"status": "running"}', "for the end alone"),
        (b'{"status": "success", "run_id": 1.5}', "run_id is of another type"),
        (b'{"status": "success", "result": "' + b"x" * 65536 + b'"}', "more than 65536 bytes"),
    ],
)
def test_what_is_no_report_fails_the_task_and_stays(mailed, written, why):
    task = mailed()
    object_of(task).write_bytes(written)
    error = task.try_().error
    assert isinstance(error, RunFailedError)
    assert why in str(error)
    assert f"Run {task.flow.runs[0].run_id} was started." in str(error)
    assert (task.state, triggers(task)) == ("failed", 1)
    assert (object_of(task).read_bytes(), entries(task, RUN)) == (written, {})


def test_an_end_may_have_65536_bytes(mailed):
    task = mailed()
    written = json.dumps({"status": "success", "result": ""})
    result = "x" * (65536 - len(written))
    object_of(task).write_text(json.dumps({"status": "success", "result": result}))
    assert task.try_().result["result"] == result


def test_a_mailbox_that_cannot_be_read_is_retried(mailed):
    task = mailed()
    task.operator = waits(flow_id="another")
    object_of(task).mkdir()
    error = task.try_().error
    run = task.flow.runs[0].run_id
    assert isinstance(error, ConnectionUnusableError)
    assert (error.accepted, error.run_id, error.flow_id) == (Accepted.YES, run, "demo-flow")
    assert f'set workflow_automation_run to "{run}"' in str(error)
    assert task.state == "up_for_retry"
    object_of(task).rmdir()
    task.flow.reports("success", result=1)
    assert task.try_().result["result"] == 1
    assert triggers(task) == 1


def test_a_doubt_whose_mailbox_cannot_be_read_sends_nothing(mailed):
    task = mailed("drop_after", on_unknown_start="start_again")
    object_of(task).mkdir()
    error = task.try_().error
    assert (task.state, triggers(task)) == ("up_for_retry", 1)
    assert (error.accepted, error.code) == (Accepted.MAYBE, Code.START_UNKNOWN)


@pytest.mark.parametrize("policy", ["fail", "start_again"])
@pytest.mark.parametrize(
    ("fault", "happened"),
    [("drop_after", "no response"), ("garbage", "not JSON"), ("reject", "was rejected")],
)
def test_a_mailbox_that_cannot_be_read_decides_nothing(mailed, policy, fault, happened):
    spoilt: list[Path] = []

    def spoil():
        if not spoilt:
            mailbox = entries(task_of_process(), START)["1/0"]["mailbox"]
            spoilt.append(Path(mailbox.removeprefix("file://").replace("%20", " ")))
            spoilt[0].mkdir()

    task = mailed(fault, before("get", RUN, spoil), on_unknown_start=policy)
    assert (task.state, triggers(task)) == ("up_for_retry", 1), task.last.error
    assert mentions(task.last.error.consequence, "POST", happened)
    error = task.try_().error
    assert (error.run_id, error.flow_id) == (None, "demo-flow")
    if fault == "reject":
        assert (error.accepted, error.consequence) == (Accepted.NO, NOTHING_SENT_NOW)
    else:
        assert error.consequence.startswith("Before, try 1")
    assert (task.state, triggers(task)) == ("up_for_retry", 1)
    spoilt[0].rmdir()
    if fault == "reject":
        task.try_()
        assert (task.state, triggers(task)) == ("deferred", 2)
    else:
        task.flow.reports("success", result=1)
        assert task.try_().result["result"] == 1


def test_what_is_no_report_spends_no_retry(mailed):
    task = mailed(on_run_failed="start_again")
    object_of(task).write_text("{")
    error = task.try_().error
    assert isinstance(error, AirflowFailException)
    assert (task.state, triggers(task)) == ("failed", 1)


@pytest.mark.parametrize("before", ["Wrote it to:\n", "Wrote it to:\t", "報告:", '<a href="'])
def test_an_end_may_name_its_mailbox(mailed, before):
    task = mailed()
    url = f"{task.flow.runs[0].url}?X-Amz-Signature=secret"
    task.flow.reports("success", result={"rows": 3, url: 1}, message=f"{before}{url}")
    ended = task.try_()
    assert ended.result["result"]["rows"] == 3
    assert "secret" not in ended.output


@pytest.mark.parametrize("form", [str, lambda url: base64.b64encode(f"x{url}".encode()).decode()])
def test_the_url_is_withheld_from_what_a_run_returns(mailed, form):
    task = mailed()
    url = task.flow.runs[0].url
    quoted = {"inputs": [form(f"{url}?X-Amz-Signature=secret")], "n": 1}
    assert task.flow.reports("success", result=quoted, message=f'see "{url}?a=secret"') == 200
    shown = task.try_().output
    assert "withheld: the URL that the run was given" in shown
    assert not [text for text in ("secret", form("secret")) if text in shown]


def test_the_signature_is_withheld_where_the_url_is_escaped(mailed):
    """Such as by a service in Go, in a text that is JSON."""
    task = mailed()
    url = f"{task.flow.runs[0].url}?a=b&X-Amz-Signature=secret"
    inner = json.dumps({"callback_url": url}).replace("&", "\\u0026")
    assert task.flow.reports("success", result={"inputs": inner}) == 200
    shown = task.try_().output
    assert "withheld: the URL that the run was given" in shown
    assert "secret" not in shown


def test_a_long_word_is_checked_at_once(mailed):
    task = mailed()
    task.flow.reports("success", result="x" * 65_000)
    began = time.monotonic()
    assert task.try_().result["result"] == "x" * 65_000
    assert time.monotonic() - began < 10


# What is refused before anything is started ---------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"on_unknown_start": "claim"}, "on_unknown_start='claim'"),
        ({"heartbeat_timeout": MOMENT}, "heartbeat_timeout"),
    ],
)
def test_what_needs_an_answer_is_refused(mailed, options, name):
    task = mailed(**options)
    error = task.last.error
    assert isinstance(error, InvalidRequestError)
    assert f"{name} needs a flow that can call Airflow" in str(error)
    assert (task.state, triggers(task)) == ("failed", 0)


def test_a_claim_without_a_wait_is_refused(mailed):
    task = mailed(on_unknown_start="claim", wait_for_completion=False)
    assert isinstance(task.last.error, InvalidRequestError)
    assert triggers(task) == 0


def test_a_task_that_does_not_wait_needs_no_mailbox(mailed):
    task = mailed(wait_for_completion=False)
    assert (task.state, task.flow.runs[0].url) == ("success", None)


def test_a_local_folder_is_refused_for_a_service_elsewhere(mailed, monkeypatch):
    import world

    connection = world._machinery.service.airflow_connection(world.KEY)
    elsewhere = {**connection, "host": "https://service.example/api"}
    monkeypatch.setattr(
        world._machinery.service,
        "airflow_connection",
        lambda _, extra: {**elsewhere, "extra": extra},
    )
    task = mailed()
    assert "folder of this machine" in str(task.last.error)
    assert triggers(task) == 0


# A store --------------------------------------------------------------------------------------------


@pytest.fixture
def stored(world, bucket):
    """Make a task whose runs write to a bucket, and execute its first try."""

    def make(**options):
        task = world(waits(**options), callback_base_url=bucket.url("callbacks"))
        task.try_()
        return task

    return make


def test_a_run_writes_to_a_store_by_a_signed_url_that_shows_nowhere(stored, bucket, monkeypatch):
    from workflow_automation_provider.execution.run import trigger_execution

    masked: list[str] = []
    monkeypatch.setattr(trigger_execution, "mask_secret", masked.append)
    task = stored()
    url = task.flow.runs[0].url
    assert [task.flow.reports("success", result={"url": url}) for _ in range(2)] == [200, 412]
    ended = task.try_()
    assert task.state == "success"
    signature = masked[0]
    assert f"X-Amz-Signature={signature}" in urlsplit(url).query
    shown = "".join(process.output for process in task.processes) + json.dumps(task.rows.entries)
    assert signature not in shown
    assert ended.result["result"] == {"url": "(withheld: the URL that the run was given)"}
    (key,) = {*bucket.keys()} - {"callbacks/.mailbox"}
    start = entries(task, START)["1/0"]
    assert start["mailbox"] == f"s3://{bucket.conn_id}@{bucket.name}/{key}"


@pytest.fixture
def in_azure(world, monkeypatch):
    """Make a task whose runs write to Azure, and execute its first try."""
    pytest.importorskip("airflow.providers.microsoft.azure.hooks.wasb")
    from azure_account import AzureAccount
    from workflow_automation_provider.hooks.mailboxes import azure

    azure.open_client.cache_clear()
    with AzureAccount("box").running() as account:
        monkeypatch.setenv("AIRFLOW_CONN_AZURE_TEST", json.dumps(account.connection()))

        def make(*scripts):
            task = world(waits(), callback_base_url="abfs://azure_test@box/callbacks")
            task.try_(*scripts)
            return task

        yield make


@pytest.mark.parametrize("scripts", [(), (at("send", TRIGGER, "kill after"),)])
def test_an_end_in_azure_is_the_result_and_its_signature_shows_nowhere(in_azure, scripts):
    """Also where the response to the start is lost."""
    task = in_azure(*scripts)
    url = task.flow.runs[0].url
    (signature,) = parse_qs(urlsplit(url).query)["sig"]
    statuses = [task.flow.reports("success", result={"url": url}) for _ in range(2)]
    assert statuses == [201, 403]
    ended = task.try_()
    assert (task.state, triggers(task)) == ("success", 1)
    assert ended.result["result"] == {"url": "(withheld: the URL that the run was given)"}
    shown = "".join(process.output for process in task.processes) + json.dumps(task.rows.entries)
    assert not [text for text in (signature, quote(signature, safe="/")) if text in shown]


def test_a_wait_that_outlives_the_signature_starts_nothing(stored):
    task = stored(completion_timeout=timedelta(days=7))
    assert isinstance(task.last.error, InvalidRequestError)
    assert "7 days" in str(task.last.error)
    assert (task.state, triggers(task)) == ("failed", 0)
