"""A run that claims its start, as its first step: doubts settle themselves, and what was revoked never goes on."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    UnidentifiedError,
)
from workflow_automation_provider.execution.callback import (
    Answer,
    claim_key,
    digest_of,
    end_key,
    token_key,
    token_keys,
)
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

from ..claims import BRIEF, ISSUED, claim_at_deletion, first_step, flow, now, token_of
from ..starts import KEY, MAYBE, TaskTimeout, requests

pytestmark = pytest.mark.usefixtures("issued")

POLICIES = ("fail", "claim", "start_again")


class TestKnown:
    def test_a_start_whose_response_arrives_does_not_wait(self, service, store, context, claims):
        result = claims().execute(context(store))
        assert result["run_id"] == "1001"
        assert store.entries[KEY]["token"] == digest_of(token_of(service.runs[0]))
        assert first_step(store, token_of(service.runs[0]), "1001") == 200

    def test_it_costs_one_write_more(self, service, store, context, claims):
        claims().execute(context(store))
        with_claim = len(store.writes) + len(store.deleted)
        assert with_claim == 3

    def test_a_waiting_one_costs_none_more(self, service, store, context, waits, endpoint):
        """Three before it waits: the token, *starting* and *started*."""
        service.callbacks.add(delay=0.3)
        waits(on_unknown_start="claim").execute(context(store))
        assert [key for key, _, sent in store.writes if "_wait" not in key and "_end" not in key] == [
            token_key(store.entries[KEY]["token"], 3),
            KEY,
            KEY,
        ]


class TestDoubt:
    @pytest.mark.parametrize("fault", ["drop_after", "status_after", "garbage"])
    def test_a_claim_settles_it(self, service, store, context, claims, fault):
        service.faults.add(fault)
        with flow(service, store, after=0.3) as told:
            result = claims().execute(context(store))
        assert (result["run_id"], told) == ("1001", {"1001": 200})
        assert store.entries[KEY]["state"] == "started"
        assert requests(service) == 1

    @pytest.mark.parametrize("policy", POLICIES)
    def test_with_every_policy(
        self, service, store, context, waits, endpoint, supervisor, policy, workflow_automation_connect
    ):
        """One that came while the response was awaited."""
        service.faults.add("hang_after", seconds=2)
        del supervisor
        from airflow.sdk.exceptions import TaskAwaitingInput

        workflow_automation_connect.add_extra(timeout=1)
        operator = waits(on_unknown_start=policy)
        with flow(service, store) as told, pytest.raises(TaskAwaitingInput) as parked:
            operator.execute(context(store))
        assert (parked.value.kwargs or {})["run"]["run_id"] == "1001"
        assert told == {"1001": 200}

    def test_a_run_that_does_not_say_its_id(self, service, store, context, claims, log):
        service.faults.add("drop_after")
        with flow(service, store, name=lambda _: None):
            assert claims().execute(context(store)) == {"flow_id": "demo-flow"}
        assert "A run has claimed" in log()

    @pytest.mark.parametrize("ends", [False, True])
    def test_what_the_run_said_of_itself(self, service, store, context, claims, log, ends):
        """A run that has ended need not have claimed."""
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError):
            claims(**BRIEF).execute(context(store))
        digest, run = (
            digest_of(token_of(service.runs[0])),
            {"run_id": "1001", "run_link": "http://there/1001"},
        )
        if ends:
            store.entries[end_key(digest)] = Answer("success").row(now())
        else:
            store.entries[claim_key(3)] = {"digest": digest, **run, "at": now()}
        result = claims().execute(context(store, try_number=2))
        assert result == {"flow_id": "demo-flow", **({} if ends else run)}
        assert ("Run 1001 has claimed" in log(), "A run has claimed" in log()) == (not ends, False)

    def test_the_token_stays_open_until_the_next_try(self, service, store, context, claims):
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError, match=r"\[start-unknown\]") as caught:
            claims(**BRIEF).execute(context(store))
        assert not isinstance(caught.value, AirflowFailException)
        assert first_step(store, token_of(service.runs[0]), "1001") == 200
        assert claims().execute(context(store, try_number=2))["run_id"] == "1001"
        assert requests(service) == 1

    def test_it_is_revoked_before_another_send(self, service, store, context, claims):
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError):
            claims(**BRIEF).execute(context(store))
        assert claims(**BRIEF).execute(context(store, try_number=2))["run_id"] == "1002"
        assert [first_step(store, token_of(run), run.run_id) for run in service.runs] == [404, 200]

    def test_a_claim_just_before_the_deletion_counts(self, service, store, context, claims):
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError):
            claims(**BRIEF).execute(context(store))
        claim_at_deletion(store, token_of(service.runs[0]))
        assert claims(**BRIEF).execute(context(store, try_number=2))["run_id"] == "1001"
        assert requests(service) == 1
        assert first_step(store, token_of(service.runs[0]), "1001") == 200

    @pytest.mark.parametrize("when", ["before", "before it is let go on"])
    def test_a_run_that_was_told_to_stop_is_not_returned(self, service, store, context, claims, when):
        """The task was cleared while it ran, which Airflow has counted as a failed try."""
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError):
            claims(**BRIEF).execute(context(store))
        token, write = token_of(service.runs[0]), store.set

        def stop():
            store.entries[claim_key(3)]["stopped"] = now()

        def stop_and_set(key, value, **options):
            if key in token_keys(digest_of(token), 3):
                stop()
            write(key, value, **options)

        if when == "before":
            assert first_step(store, token, "1001") == 200
            stop()
        else:
            claim_at_deletion(store, token)
            store.set = stop_and_set
        assert claims(**BRIEF).execute(context(store, try_number=2))["run_id"] == "1002"
        assert not {*token_keys(digest_of(token), 3)} & store.entries.keys()

    def test_without_retries_left_no_run_can_go_on(self, service, store, context, claims, log):
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError, match=r"\[start-revoked\](.|\n)* \(0:00:00\.2"):
            claims(**BRIEF).execute(context(store, max_tries=0))
        assert "No run has claimed" in log()
        assert first_step(store, token_of(service.runs[0]), "1001", max_tries=0) == 404
        claims().execute(context(store, try_number=2, max_tries=1))
        assert requests(service) == 2

    @pytest.mark.parametrize(("lost", "error"), [("delete", OutcomeUnknownError), ("set", RuntimeError)])
    def test_a_revocation_that_is_not_certain_sends_nothing(
        self, service, store, context, claims, log, lost, error
    ):
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError):
            claims(**BRIEF).execute(context(store))
        if lost == "delete":
            store.delete = lambda _: None  # as of a zombie
        else:
            store.failures["set"] = 1
        with pytest.raises(error):
            claims(**BRIEF).execute(context(store, try_number=2))
        assert requests(service) == 1
        key = token_key(digest_of(token_of(service.runs[0])), 3)
        text = log()
        assert (f"still has the entry {key}" in text) is (lost == "delete")
        assert ("could not be settled" in text) is (lost == "delete")

    def test_a_revocation_that_fails_leaves_the_doubt(self, service, store, context, claims, log):
        service.faults.add("drop_after")
        store.failures["delete"] = 9
        with pytest.raises(OutcomeUnknownError, match=r"\[start-unknown\]"):
            claims(**BRIEF).execute(context(store, max_tries=0))
        assert "could not be settled" in log()

    @pytest.mark.parametrize("lost", [1, 3])
    def test_a_404_for_the_claim_is_not_trusted(self, service, store, context, claims, lost):
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError):
            claims(**BRIEF).execute(context(store))
        assert first_step(store, token_of(service.runs[0]), "1001") == 200
        store.lost += [claim_key(3)] * lost
        claims(**BRIEF).execute(context(store, try_number=2))
        assert requests(service) == 1

    def test_a_try_that_died_is_waited_for_no_longer_than_since_its_start(
        self, service, store, context, claims, monkeypatch
    ):
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError):
            claims(**BRIEF).execute(context(store))
        store.entries[KEY]["at"] = (datetime.now(UTC) - timedelta(seconds=61)).isoformat(timespec="seconds")
        waited: list[float] = []
        monkeypatch.setattr("workflow_automation_provider.execution.claim.time.sleep", waited.append)
        operator = claims(claim_timeout=timedelta(seconds=60))
        assert operator.execute(context(store, try_number=2))["run_id"] == "1002"
        assert waited == []

    def test_a_clock_that_was_ahead(self, service, store, context, claims, monkeypatch, log):
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError):
            claims(**BRIEF).execute(context(store))
        store.entries[KEY]["at"] = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds")
        naps, sleep = iter(range(4)), time.sleep

        def nap(_):
            next(naps)
            sleep(0.08)

        monkeypatch.setattr("workflow_automation_provider.execution.claim.time.sleep", nap)
        assert claims(**BRIEF).execute(context(store, try_number=2))["run_id"] == "1002"
        assert log().count("Waiting up to 0 s") == 2  # once in each try

    def test_a_claim_that_cannot_be_recorded_counts(self, service, store, context, claims, log):
        service.faults.add("drop_after")
        claim_at_deletion(store)
        store.failures["set started"] = 2
        assert claims(**BRIEF).execute(context(store, try_number=4))["run_id"] == "1001"
        assert "The run that claimed this start could not be recorded." in log()

    def test_what_an_earlier_try_started_is_mentioned(self, service, store, context, claims):
        """By the error of one whose request is rejected."""
        service.faults.add("garbage")
        with pytest.raises(OutcomeUnknownError):
            claims(**BRIEF).execute(context(store))
        service.faults.add("reject")
        with pytest.raises(RejectedError) as caught:
            claims(**BRIEF).execute(context(store, try_number=2))
        assert "try 1" in str(caught.value)
        assert caught.value.accepted is Accepted.YES

    def test_files_for_a_run_without_an_id(self, service, store, context, claims, tmp_path):
        (tmp_path / "a.csv").write_text("a")
        service.faults.add("drop_after")
        operator = claims(files=str(tmp_path / "a.csv"))
        with flow(service, store, name=lambda _: None), pytest.raises(UnidentifiedError):
            operator.execute(context(store))


class TestOneTokenForOneSend:
    @pytest.mark.parametrize(
        ("fault", "error"), [({"kind": "busy"}, BusyError), ({"kind": "reject"}, RejectedError)]
    )
    def test_what_was_rejected_can_never_go_on(self, service, store, context, claims, fault, error):
        service.faults.add(**fault)
        with pytest.raises(error):
            claims().execute(context(store))
        assert not any("_token/" in key for key in store.entries)
        assert KEY not in store.entries

    def test_a_busy_service_gets_another_token(self, service, store, context, claims):
        service.faults.add("busy", retry_after="0")
        claims(send_retry_timeout=10).execute(context(store))
        first, second = ISSUED
        assert token_key(digest_of(first), 3) not in store.entries
        assert store.entries[KEY]["token"] == digest_of(second)

    def test_a_run_that_was_rejected_but_claimed_is_the_run(self, service, store, context, claims, log):
        service.faults.add("status_after", status=422)
        claim_at_deletion(store)
        result = claims().execute(context(store))
        assert (result["run_id"], requests(service)) == ("1001", 1)
        assert first_step(store, token_of(service.runs[0]), "1001") == 200
        assert re.search(r"its run has begun: .*422", log())

    def test_what_was_rejected_is_in_doubt_if_it_cannot_be_revoked(
        self, service, store, context, claims, log
    ):
        service.faults.add("reject")
        write = store.set

        def fail_to_probe(key, value, **options):
            if "_probe" in key:
                raise RuntimeError
            write(key, value, **options)

        store.set = fail_to_probe
        with pytest.raises(OutcomeUnknownError, match="the fault reject") as caught:
            claims().execute(context(store, max_tries=0))
        assert MAYBE in caught.value.consequence
        assert caught.value.next_step
        assert store.entries[KEY]["state"] == "starting"
        assert "Whether a run has claimed this start could not be settled." in log()

    def test_what_was_not_sent_is_sent_with_the_same_token(
        self, service, store, context, claims, monkeypatch
    ):
        send = WorkflowAutomationHook.send_trigger

        def cannot_connect(_, request, **__):
            monkeypatch.setattr(WorkflowAutomationHook, "send_trigger", send)
            raise NotSentError("Not sent.")

        monkeypatch.setattr(WorkflowAutomationHook, "send_trigger", cannot_connect)
        claims(send_retry_timeout=10).execute(context(store))
        assert [key for key, *_ in store.writes if "_token/" in key] == [token_key(digest_of(ISSUED[0]), 3)]
        assert store.entries[KEY]["token"] == digest_of(ISSUED[0])

    @pytest.mark.parametrize("is_closed", [True, False])
    def test_a_service_that_is_not_there(self, service, store, context, claims, is_closed):
        service.stop()
        from workflow_automation_provider.exceptions import NotSentError

        delete = store.delete

        def fail_for_the_token(key):
            if "_token/" in key:
                raise RuntimeError
            delete(key)

        if not is_closed:
            store.delete = fail_for_the_token
        with pytest.raises(NotSentError):
            claims().execute(context(store))
        assert any("_token/" in key for key in store.entries) is not is_closed


class TestCheck:
    def test_before_airflow_3_3(self, service, context, claims):
        with pytest.raises(InvalidRequestError, match=r"on_unknown_start='claim' needs Airflow 3\.3"):
            claims().execute(context())
        assert requests(service) == 0

    def test_clear_on_success(self, service, store, context, claims, monkeypatch):
        monkeypatch.setenv("AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS", "True")
        with pytest.raises(InvalidRequestError, match="clear_on_success"):
            claims().execute(context(store))
        assert (requests(service), store.entries) == (0, {})


def test_a_kill_while_it_waits_for_the_claim_loses_nothing(service, store, context, claims, monkeypatch, log):
    def killed(_):
        raise TaskTimeout

    service.faults.add("drop_after")
    with monkeypatch.context() as patch:
        patch.setattr("workflow_automation_provider.execution.claim.time.sleep", killed)
        with pytest.raises(TaskTimeout):
            claims().execute(context(store))
    assert MAYBE in [line for line in log().splitlines() if "workflow_automation_provider" in line][-1]
    assert first_step(store, token_of(service.runs[0]), "1001") == 200
    assert claims().execute(context(store, try_number=2))["run_id"] == "1001"
    assert requests(service) == 1
