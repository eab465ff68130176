"""
A run that claims its start.

Doubts settle themselves, what was closed never goes on, and a person has the last word.
"""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from entry_keys import (
    ADOPTED,
    FIRST_OUTCOME,
    FIRST_START,
    OUTCOME,
    REVOKED,
    RUN,
    START,
    report_key,
)
from sentences import (
    AWAITS_CLAIM,
    BEGUN_ANYWAY,
    HAS_CLAIMED,
    IS_SETTLED,
    NO_CLAIM,
    NOT_SETTLED,
    RUN_ID_UNKNOWN,
    STARTS_ANOTHER,
    STOPS_WHO_CLAIMS,
)
from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    InvalidRequestError,
    NotSentError,
    RejectedError,
    RunFailedError,
    UnidentifiedError,
)
from world_calls import TRIGGER, after, at, before

from ...starts import (
    MAYBE,
    claims,
    entries,
    mentions,
    struck,
    trigger,
    triggers,
    waits,
)


def asks(task, run=-1, **report):
    return task.flow.reports("started", run, **{"run_id": True, **report})


def asks_before(task, entry, answers):
    """Have the run ask before an entry is written, and Airflow lose the next read."""
    lost = iter(["lost"])

    def at_next_read(call):
        return next(lost, None) if answers and call.kind == "get" else None

    return before("set", entry, lambda: answers.append(asks(task))), at_next_read


def at_the_third_look(what):
    """
    Do something before a task looks for the third time at what its run has reported.

    It is to look fewer than ten times.
    """
    does = before("get", RUN, what, nth=2)
    fails = before("get", RUN, lambda: pytest.fail("It goes on looking"), nth=9)
    return lambda call: does(call) or fails(call)


def is_stopped(task):
    """Have the run of the last start be told to stop."""
    *_, start = entries(task, START).values()
    task.rows.put(report_key(start["token_hash"]), {"stopped": "2026-01-01T00:00:00+00:00"})


class TestDoubt:
    @pytest.mark.parametrize(
        ("fault", "policy", "word"),
        [
            ("drop_after", "fail", "started"),
            ("status_after", "claim", "success"),
            ("garbage", "start_again", "started"),
        ],
    )
    def test_a_report_settles_it(self, world, fault, policy, word):
        task = world(waits(on_unknown_start=policy))
        task.faults.add(fault)
        task.try_(after("send", TRIGGER, lambda: task.flow.reports(word, run_id=True)))
        assert task.state == ("success" if word == "success" else "awaiting_input")
        assert task.flow.reports("success", run_id=True) == 200
        if word == "started":
            task.try_()
        assert task.last.result["run_id"] == task.flow.runs[0].run_id
        assert triggers(task) == 1

    @pytest.mark.parametrize("files", [None, [{"name": "a"}]])
    def test_a_claim_without_an_id_leaves_it_unknown(self, world, files):
        task = struck(world, claims(files=files))
        assert asks(task, run_id=None, run_link="http://there/7") == 200
        again = task.try_()
        assert RUN_ID_UNKNOWN in again.log
        if files:
            assert isinstance(again.error, UnidentifiedError)
        else:
            assert again.result == {"flow_id": "demo-flow", "run_link": "http://there/7"}
        assert task.requests == ["/api/trigger"]

    @pytest.mark.parametrize("when", [REVOKED, FIRST_START])
    def test_a_claim_before_the_token_is_revoked_counts(self, world, when):
        task = struck(world, claims())
        answers: list[int] = []
        task.try_(*asks_before(task, when, answers))
        # Once it is revoked, the run is to ask again.
        if when == REVOKED:
            assert (answers, triggers(task)) == ([200], 1)
            assert task.last.result["run_id"] == task.flow.runs[0].run_id
        else:
            assert (answers, triggers(task)) == ([503], 2)
            assert [asks(task, run) for run in (0, 1)] == [404, 200]

    def test_a_response_that_is_recorded_after_that_does_not(self, world):
        task = struck(world, claims())
        task.try_(after("set", REVOKED, "kill"))
        outcome = {
            "status": "started",
            "at": "2026-01-01T00:00:00+00:00",
            "run": {"run_id": "1001"},
        }
        task.rows.put(FIRST_OUTCOME, outcome)
        task.try_()
        assert [asks(task, run) for run in (0, 1)] == [404, 200]

    @pytest.mark.parametrize(
        ("policy", "retries", "code", "response"),
        [
            ("fail", 2, "start-unknown", 404),
            ("start_again", 2, "start-unknown", 200),
            ("start_again", 0, "start-unknown", 404),
            ("claim", 0, "start-revoked", 404),
        ],
    )
    def test_no_run_can_go_on_unless_airflow_retries_the_task(
        self, world, policy, retries, code, response
    ):
        task = struck(world, waits(retries=retries, on_unknown_start=policy))
        error = task.last.error
        assert error.code == code
        assert (STOPS_WHO_CLAIMS in str(error)) is (response == 404)
        assert (asks(task), triggers(task)) == (response, 1)

    def test_nor_can_the_run_of_a_try_that_was_killed(self, world):
        operator = waits(on_unknown_start="fail")
        task = struck(world, operator, "drop_after", before("get", RUN, "kill"))
        error = task.try_().error
        assert error.code == "start-unknown"
        assert STOPS_WHO_CLAIMS in str(error)
        assert (asks(task), triggers(task)) == (404, 1)

    def test_no_second_run_unless_the_first_is_told_to_stop(self, world):
        task = struck(world, claims())
        error = task.try_(at("get", REVOKED, "lost", nth=None)).error
        assert isinstance(error, NotSentError)
        assert (error.accepted, triggers(task)) == (Accepted.MAYBE, 1)
        assert "try 1" in str(error)
        task.try_()
        assert (task.state, triggers(task)) == ("success", 2)

    @pytest.mark.parametrize("act", ["lost", "fail after"])
    def test_a_token_that_cannot_be_revoked_leaves_the_doubt(self, world, act):
        task = struck(world, claims(retries=0), "drop_after", at("set", REVOKED, act))
        assert NOT_SETTLED in task.last.log
        assert task.last.error.code == "start-unknown"
        assert "next try" not in task.last.output

    def test_a_response_that_cannot_be_used_mentions_the_doubt_before_it(self, world):
        task = struck(world, trigger(flow_id="demo-flow", on_unknown_start="start_again"))
        task.faults.add("response", body={})
        error = task.try_().error
        assert isinstance(error, UnidentifiedError)
        assert mentions(str(error), "Before, try 1")

    def test_a_try_that_started_nothing_is_not_mentioned(self, world):
        task = struck(world, trigger(), "busy")
        assert task.state == "up_for_retry"
        assert "Starting another run" not in task.try_().log
        assert task.state == "success"

    def test_a_doubt_mentions_no_start_from_before_a_clear(self, world):
        task = struck(world, trigger(retries=0))
        task.clear()
        task.faults.add("drop_after")
        error = task.try_().error
        assert (error.code, triggers(task)) == ("start-unknown", 2)
        assert "Before" not in str(error)

    def test_a_start_without_a_token_has_nothing_to_revoke(self, world):
        task = struck(world, trigger(retries=0))
        assert NOT_SETTLED not in task.last.log
        assert task.last.error.code == "start-unknown"
        assert "next try" not in task.last.output

    @pytest.mark.parametrize("make", [claims, waits, trigger])
    def test_a_wait_for_a_claim_lasts_as_long_as_asked(self, world, make):
        """Wherever the run was given a URL."""
        task = struck(world, make(claim_timeout=timedelta(seconds=1)))
        assert (task.last.late_by >= 0.9) is (make is not trigger)
        assert (AWAITS_CLAIM in task.last.log) is (make is not trigger)

    @pytest.mark.parametrize("status", ["started", "success"])
    def test_a_wait_takes_the_run_that_reports_in_time(self, world, status):
        """Whatever on_unknown_start is."""
        task = world(waits(claim_timeout=timedelta(seconds=30), on_unknown_start="fail"))
        task.faults.add("drop_after")
        task.try_(at_the_third_look(lambda: task.flow.reports(status, run_id=True)))
        run = task.flow.runs[0].run_id
        if status == "started":
            assert task.state == "awaiting_input"
            assert task.flow.reports("success", run_id=True) == 200
            task.try_()
        assert (task.state, task.last.result["run_id"], triggers(task)) == ("success", run, 1)

    def test_a_retry_waits_for_a_report_as_well(self, world):
        task = world(waits(claim_timeout=timedelta(seconds=30)))
        task.try_(after("send", TRIGGER, "kill"))
        task.try_(at_the_third_look(lambda: asks(task)))
        assert (task.state, triggers(task)) == ("awaiting_input", 1)

    @pytest.mark.parametrize("is_retry", [False, True])
    def test_the_wait_ends_with_the_claim(self, world, is_retry):
        """In the try that sent, or in the next one."""
        task = world(claims(claim_timeout=timedelta(seconds=30)))
        task.faults.add("drop_after")
        if is_retry:
            task.try_(before("get", RUN, "kill"))
        log = task.try_(before("get", RUN, lambda: asks(task), nth=3)).log
        run = task.flow.runs[0].run_id
        assert (task.last.result["run_id"], triggers(task)) == (run, 1)
        assert log.count(AWAITS_CLAIM) == 1
        assert re.search(rf"{AWAITS_CLAIM} \d+ s", log)
        assert mentions(log, run, HAS_CLAIMED)
        assert NO_CLAIM not in log
        assert RUN_ID_UNKNOWN not in log

    def test_the_wait_ends_once_the_run_is_stopped(self, world):
        task = world(claims(claim_timeout=timedelta(seconds=30)))
        task.faults.add("drop_after")
        assert task.try_(at_the_third_look(lambda: is_stopped(task))).error

    def test_another_start_follows_a_stopped_one(self, world):
        task = struck(world, claims())
        task.faults.add("drop_after")
        task.try_()
        is_stopped(task)
        assert STARTS_ANOTHER in task.try_().log
        assert triggers(task) == 3

    def test_another_start_says_why_also_where_the_dag_was_changed(self, world):
        """After a doubt that was settled, a busy service, and on_unknown_start="fail" by then."""
        task = struck(world, waits(on_unknown_start="start_again"))
        task.faults.add("busy")
        task.try_()
        task.operator = waits()
        assert mentions(task.try_().log, STARTS_ANOTHER, IS_SETTLED)
        assert triggers(task) == 3

    def test_another_run_is_not_that_of_the_doubt(self, world):
        task = struck(world, claims())
        log = task.try_().log
        assert (triggers(task), NO_CLAIM in log, STARTS_ANOTHER in log) == (2, True, True)
        # Before it waits for a claim, and before it starts another run.
        assert sum(mentions(line, "Try 1 (", MAYBE) for line in log.splitlines()) == 2


class TestNothing:
    """What the service rejects, or never got."""

    @pytest.mark.parametrize(
        ("fault", "extra", "error"),
        [
            ("busy", {}, BusyError),
            ("reject", {}, RejectedError),
            ("reject", {"proxy": "http://127.0.0.1:1"}, NotSentError),
        ],
    )
    def test_is_no_doubt(self, world, fault, extra, error):
        task = struck(world, waits(claim_timeout=timedelta(seconds=30)), fault=fault, **extra)
        assert isinstance(task.last.error, error)
        (outcome,) = entries(task, OUTCOME).values()
        assert outcome["status"] == "not started"
        assert STOPS_WHO_CLAIMS not in str(task.last.error)
        if fault == "busy":
            assert AWAITS_CLAIM not in task.try_().log
            assert (task.state, len(task.flow.runs)) == ("awaiting_input", 1)

    def test_is_not_waited_for(self, world):
        options = {"claim_timeout": timedelta(seconds=30), "retries": 0}
        task = struck(world, claims(**options), "reject")
        assert task.last.late_by == 0
        assert isinstance(task.last.error, RejectedError)

    @pytest.mark.parametrize(
        ("when", "nth", "answer"), [(OUTCOME, 0, 200), (REVOKED, 0, 200), (FIRST_START, 1, 503)]
    )
    @pytest.mark.parametrize(("status", "retries"), [(422, 2), (429, 0)])
    def test_of_a_gateway_that_lies(self, world, when, nth, answer, status, retries):
        """
        It rejects what it forwards.

        The run that claims is the task's, as long as the task has not failed.
        """
        task = world(claims(retries=retries))
        task.faults.add("status_after", status=status)
        report = []
        task.try_(before("set", when, lambda: report.append(asks(task)), nth=nth))
        has_claimed = answer == 200
        assert (report, triggers(task)) == ([answer], 1)
        assert task.state == ("success" if has_claimed else "failed")
        assert (BEGUN_ANYWAY in task.last.log) is has_claimed
        assert asks(task) == (200 if has_claimed else 404)


class TestMarked:
    def test_while_the_service_works_it_uploads_nothing_for_a_run_that_stops(self, world):
        task = world(claims(files=[{"name": "a"}]))
        error = task.try_(after("send", TRIGGER, lambda: (task.mark("failed"), asks(task)))).error
        assert isinstance(error, RunFailedError)
        assert error.run_id == task.flow.runs[0].run_id
        assert task.requests == ["/api/trigger"]


class TestClear:
    @pytest.mark.parametrize(
        ("make", "has_claimed", "keep"),
        [(claims, False, True), (claims, True, False), (waits, True, True)],
    )
    def test_starts_over_and_stops_the_run_of_before(self, world, make, has_claimed, keep):
        """On 3.4 too, whether the entries are kept."""
        task = world(make())
        task.try_()
        if has_claimed:
            assert asks(task) == 200
        task.mark("failed")
        task.clear(keep=keep)
        assert asks(task) == 404
        task.try_()
        assert [asks(task, run) for run in (0, 1)] == [404, 200]

    def test_of_a_running_task_is_a_retry(self, world):
        """Airflow leaves ``max_tries`` as it is where it misses the process."""
        task = world(claims())
        task.try_(before("push", "", task.clear))
        run = task.flow.runs[0].run_id
        assert task.until_end().result["run_id"] in (run, task.flow.runs[-1].run_id)
        assert sum(asks(task, n) == 200 for n in range(len(task.flow.runs))) == 1

    def test_of_a_doubt_twice_stops_both(self, world):
        task = struck(world, claims())
        for _ in range(2):
            task.mark("failed")
            task.clear()
            task.faults.add("drop_after")
            assert STARTS_ANOTHER in task.try_().log
        assert [asks(task, run) for run in range(3)] == [404, 404, 200]


class TestAdopted:
    """A run that a person gave to a task that failed."""

    @pytest.mark.parametrize("fault", ["drop_after", "garbage"])
    def test_of_a_start_in_doubt_is_waited_for(self, world, fault):
        task = struck(world, waits(), fault)
        run = task.flow.runs[0].run_id
        task.adopt(run)
        task.clear()
        task.try_()
        assert (task.state, asks(task, run_id="other"), asks(task)) == ("awaiting_input", 404, 200)
        assert task.flow.reports("success", run_id=True, result=3) == 200
        assert task.until_end().result == {"run_id": run, "flow_id": "demo-flow", "result": 3}
        assert triggers(task) == 1

    @pytest.mark.parametrize("end", ["success", "failed"])
    def test_that_has_ended_ends_the_task(self, world, end):
        """Also where that of an earlier start is in doubt."""
        task = struck(world, waits(on_unknown_start="start_again"))
        task.faults.add("drop_after")
        task.try_()
        assert task.flow.reports(end, run_id=True, result=3, message="rows lost") == 200
        task.mark("failed")
        task.adopt(task.flow.runs[1].run_id)
        task.clear()
        task.try_()
        assert (task.state, triggers(task)) == (end, 2)
        assert "rows lost" in task.last.output

    def test_that_is_left_does_not_matter_to_a_retry(self, world):
        """The task died before it deleted the entry; the first look of the retry finds nothing."""
        task = struck(world, claims())
        task.adopt(task.flow.runs[0].run_id)
        task.clear()
        task.try_(before("delete", ADOPTED, "kill"))
        assert (task.last.is_dead, asks(task, run_link="http://there/7")) == (True, 200)
        task.try_(at("get", RUN, "lost"))
        assert (task.state, ADOPTED in task.rows.entries, triggers(task)) == ("success", False, 1)
        assert task.last.result["run_link"] == "http://there/7"
        assert STARTS_ANOTHER not in task.last.log
        assert [*entries(task, START)] == ["1/0", "2/0"]

    def test_that_is_stopped_before_a_retry_is_not_the_task_s(self, world):
        task = struck(world, claims())
        task.adopt(task.flow.runs[0].run_id)
        task.clear()
        task.try_(before("delete", ADOPTED, "kill"))
        is_stopped(task)
        assert isinstance(task.try_().error, InvalidRequestError)
        assert (task.state, triggers(task)) == ("failed", 1)

    def test_of_a_start_whose_record_is_lost_ends_nothing(self, world):
        """
        The start that gave out the token cannot be written again.

        So a claim may still be decided.
        """
        task = struck(world, claims())
        for scripts in ([], [at("get", FIRST_START, "lost", nth=None)]):
            task.mark("failed")
            task.adopt(task.flow.runs[0].run_id)
            task.clear()
            task.try_(*scripts)
        assert FIRST_START in str(task.last.error)
        assert (task.state, triggers(task)) == ("up_for_retry", 1)

    def test_that_is_stopped_meanwhile_is_not_the_task_s(self, world):
        task, answers = struck(world, claims()), list[int]()
        task.mark("failed")
        task.adopt(task.flow.runs[0].run_id)
        task.clear()

        task.try_(*asks_before(task, START, answers))
        assert (task.state, triggers(task), answers) == ("failed", 1, [404])
        assert isinstance(task.last.error, InvalidRequestError)
