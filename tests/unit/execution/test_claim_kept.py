"""A run that has claimed is kept, and one that was told to stop is not: whatever the policy, Clear or late repeat."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from workflow_automation_provider.exceptions import (
    FileUnavailableError,
    OutcomeUnknownError,
    RejectedError,
    RunTimeoutError,
)
from workflow_automation_provider.execution.callback import (
    Answer,
    claim_key,
    digest_of,
    end_key,
    token_key,
    token_keys,
)

from ..claims import BRIEF, claim_at_deletion, first_step, now, token_of
from ..starts import KEY, TIMEOUT, requests
from .test_claim import POLICIES

pytestmark = pytest.mark.usefixtures("issued")


STOPPED = "is told to stop"


def claiming(waits):
    return lambda **options: waits(on_unknown_start="claim", **options)


def is_open(store, token, max_tries=3):
    return any(key in store.entries for key in token_keys(digest_of(token), max_tries))


def lose(service, store, context, claims, **options):
    """Have the response of a try lost, and return the token of its run."""
    service.faults.add("drop_after")
    with pytest.raises(OutcomeUnknownError):
        claims(**BRIEF).execute(context(store, **options))
    return token_of(service.runs[0])


class TestLateRepeat:
    """Airflow repeats a request that timed out, and the first one may be carried out after all."""

    def test_of_a_deletion_does_not_stop_the_run_that_claimed_before_it(
        self, service, store, context, claims
    ):
        token = lose(service, store, context, claims)
        claim_at_deletion(store, token)
        assert claims(**BRIEF).execute(context(store, try_number=2))["run_id"] == "1001"
        for key in list(store.deleted):
            store.delete(key)
        assert is_open(store, token)
        assert first_step(store, token, "1001") == 200

    def test_of_a_deletion_of_another_token_does_not_matter(self, service, store, context, claims):
        lose(service, store, context, claims)
        claims(**BRIEF).execute(context(store, try_number=2))
        for key in list(store.deleted):
            store.delete(key)
        assert [is_open(store, token_of(run)) for run in service.runs] == [False, True]

    def test_a_token_that_was_opened_again_is_closed_with_the_wait(
        self, service, store, context, waits, endpoint
    ):
        service.callbacks.add(delay=1.5)
        token = lose(service, store, context, claiming(waits))
        claim_at_deletion(store, token)
        assert claiming(waits)(**BRIEF).execute(context(store, try_number=2))["run_id"] == "1001"
        assert endpoint.statuses == [200]
        assert not is_open(store, token)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_known_run_that_was_told_to_stop_is_not_returned(
    service, store, context, waits, parked, endpoint, log, policy
):
    """The task was cleared while it ran, which Airflow has counted as a failed try."""
    operator = waits(on_unknown_start=policy)
    parked(operator, context(store))
    assert first_step(store, token_of(service.runs[0]), "1001") == 200
    store.entries[claim_key(3)]["stopped"] = now()
    then, _ = parked(operator, context(store, try_number=2))
    assert then["run"]["run_id"] == "1002"
    assert [first_step(store, token_of(run), run.run_id) for run in service.runs] == [404, 200]
    assert "told to stop" in log()


def test_a_run_that_was_told_to_stop_is_not_returned_by_the_try_after_one_that_sent_nothing(
    service, store, context, waits, parked, endpoint, tmp_path
):
    parked(waits(), context(store))
    assert first_step(store, token_of(service.runs[0]), "1001") == 200
    store.entries[claim_key(3)]["stopped"] = now()
    with pytest.raises(FileUnavailableError):
        waits(files=[tmp_path / "missing"], flow_id="demo-flow").execute(context(store, try_number=2))
    then, _ = parked(waits(), context(store, try_number=3))
    assert then["run"]["run_id"] == "1002"


@pytest.mark.parametrize("policy", ["fail", "claim"])
def test_a_run_that_asks_after_its_end_is_returned(
    service, store, context, waits, parked, resume, endpoint, policy
):
    """Or one that a proxy has started beside it; the task was killed before it was green."""
    operator, first = waits(on_unknown_start=policy), context(store)
    then, _ = parked(operator, first)
    token = token_of(service.runs[0])
    assert first_step(store, token, "1001") == 200
    store.entries[end_key(digest_of(token))] = Answer("success", 5).row(now())
    assert resume(operator, first, TIMEOUT, **then)["result"] == 5
    assert first_step(store, token, "1001") == 404
    store.entries[claim_key(3)]["stopped"] = now()
    again = waits(on_unknown_start=policy).execute(context(store, try_number=2))
    assert (again["run_id"], again["result"], requests(service)) == ("1001", 5, 1)


def test_the_run_of_the_response_is_not_taken_for_one_that_was_told_to_stop(
    service, store, context, waits, parked, endpoint
):
    """Which had claimed; the run of this try has not yet."""
    token = lose(service, store, context, claiming(waits))
    assert first_step(store, token, "1001") == 200
    store.entries[claim_key(3)]["stopped"] = now()
    then, _ = parked(claiming(waits)(**BRIEF), context(store, try_number=2))
    assert then["run"]["run_id"] == "1002"


def test_a_run_that_is_told_to_stop_just_as_a_clear_keeps_it(service, store, context, claims):
    """On Airflow 3.4: the endpoint holds the key of the entry by which it would go on until it has recorded that."""
    claims().execute(context(store))
    token = token_of(service.runs[0])
    assert first_step(store, token, "1001") == 200
    again = context(store, try_number=2, max_tries=4)
    again["ti"].region_id = 0
    write = store.set

    def stop(key, value, **options):
        if key == token_keys(digest_of(token), 4)[1]:
            store.entries[claim_key(3)]["stopped"] = now()
        write(key, value, **options)

    store.set = stop
    assert claims().execute(again)["run_id"] == "1002"
    assert not is_open(store, token, 3)
    assert not is_open(store, token, 4)


def test_a_run_that_was_told_to_stop_but_may_still_speak(service, store, context, claims):
    """Its token cannot be deleted, as by a zombie: nothing else is sent."""
    claims().execute(context(store))
    token = token_of(service.runs[0])
    assert first_step(store, token, "1001") == 200
    store.entries[claim_key(3)]["stopped"] = now()
    store.delete = lambda _: None
    with pytest.raises(RuntimeError):
        claims().execute(context(store, try_number=2))
    assert requests(service) == 1


def test_a_run_that_was_kept_by_a_clear_but_cannot_be_let_go_on(service, store, context, claims):
    """On Airflow 3.4, where the user keeps the task's state: its run would be told to stop at its next word."""
    claims().execute(context(store))

    def again():
        found = context(store, try_number=2, max_tries=4)
        found["ti"].region_id = 0
        return found

    write = store.set

    def fail_to_open(key, value, **options):
        if "_token/" in key:
            store.set = write
            raise RuntimeError
        write(key, value, **options)

    store.set = fail_to_open
    with pytest.raises(RuntimeError):
        claims().execute(again())
    assert claims().execute(again())["run_id"] == "1001"
    assert is_open(store, token_of(service.runs[0]), 4)


@pytest.mark.parametrize(("entered", "is_told"), [("77", 404), ("1001", 200)])
def test_a_run_in_whose_place_a_person_entered_another_is_told_to_stop(
    service, store, context, waits, parked, endpoint, entered, is_told
):
    parked(waits(), context(store))
    token = token_of(service.runs[0])
    assert first_step(store, token, "1001") == 200
    store.entries["workflow_automation_run"] = entered
    then, _ = parked(waits(), context(store, try_number=2))
    assert then["run"]["run_id"] == entered
    assert (claim_key(3) in store.entries) == (is_told == 200)
    assert (store.entries["workflow_automation_wait"].get("digest") == digest_of(token)) == (is_told == 200)
    assert first_step(store, token, "1001") == is_told


def test_a_run_that_a_person_entered_goes_on_after_its_token_was_revoked(service, store, context, claims):
    token = lose(service, store, context, claims, max_tries=0)
    assert not is_open(store, token, 0)
    store.entries["workflow_automation_run"] = "1001"
    assert claims().execute(context(store, try_number=2, max_tries=1))["run_id"] == "1001"
    assert first_step(store, token, "1001", 1) == 200


def test_a_claim_of_before_a_clear_is_one(service, store, context, waits, endpoint, log):
    service.callbacks.add(delay=1.5)
    token = lose(service, store, context, claiming(waits))
    assert first_step(store, token, "1001") == 200
    endpoint.max_tries = 4
    again = context(store, try_number=2, max_tries=4)
    assert claiming(waits)(**BRIEF).execute(again)["run_id"] == "1001"
    assert endpoint.statuses == [200]
    assert "has not claimed" not in log()


@pytest.mark.parametrize(
    ("policy", "max_tries", "is_revoked"),
    [("fail", 3, True), ("start_again", 0, True), ("start_again", 3, False)],
)
def test_an_unknown_start_says_whether_its_run_may_go_on(
    service, store, context, waits, endpoint, supervisor, policy, max_tries, is_revoked
):
    """In this try, and in the one that reports it."""
    service.faults.add("drop_after")
    with pytest.raises(OutcomeUnknownError) as caught:
        waits(on_unknown_start=policy).execute(context(store, max_tries=max_tries))
    assert (STOPPED in str(caught.value)) is is_revoked
    assert first_step(store, token_of(service.runs[0]), "1001", max_tries) == (404 if is_revoked else 200)


def test_a_try_that_died_is_reported_with_what_became_of_its_run(service, store, context, waits, endpoint):
    service.faults.add("drop_after")
    operator = waits()
    with pytest.raises(OutcomeUnknownError):
        operator.execute(context(store))
    store.set(token_key(store.entries[KEY]["token"], 3), {})  # as if it had died before it was revoked
    with pytest.raises(OutcomeUnknownError) as caught:
        operator.execute(context(store, try_number=2))
    assert STOPPED in str(caught.value)
    assert first_step(store, token_of(service.runs[0]), "1001") == 404
    assert requests(service) == 1


@pytest.mark.parametrize("waits_for_end", [False, True])
def test_a_run_whose_token_an_earlier_try_deleted_before_it_saw_the_claim(
    service, store, context, waits, endpoint, waits_for_end
):
    """The store failed, or the try was killed, just then."""
    options = (
        {"completion_timeout": timedelta(seconds=30)} if waits_for_end else {"wait_for_completion": False}
    )
    operator = claiming(waits)(**BRIEF, **options)
    service.callbacks.add(delay=1.5)
    token, delete = lose(service, store, context, claiming(waits)), store.delete

    def claim_and_delete(key):
        if "_token/" in key:
            store.delete = delete
            assert first_step(store, token, "1001") == 200
            store.lost.append("workflow_automation_probe")
        delete(key)

    store.delete = claim_and_delete
    with pytest.raises(OutcomeUnknownError):
        operator.execute(context(store, try_number=2))
    assert operator.execute(context(store, try_number=3))["run_id"] == "1001"
    if waits_for_end:
        assert endpoint.statuses == [200]
    else:
        assert first_step(store, token, "1001") == 200


@pytest.mark.parametrize("known", [False, True])
def test_a_run_that_was_told_to_stop_between_two_clears_that_kept_it(service, store, context, claims, known):
    """On Airflow 3.4: its claim is of before the first of them, or of after it."""

    def again(try_number, max_tries):
        found = context(store, try_number=try_number, max_tries=max_tries)
        found["ti"].region_id = 0
        return found

    if known:
        claims().execute(again(1, 3))
        token = token_of(service.runs[0])
    else:
        token = lose(service, store, context, claims)
        assert first_step(store, token, "1001") == 200
    assert claims(**BRIEF).execute(again(2, 4))["run_id"] == "1001"
    if known:
        assert first_step(store, token, "1001", max_tries=4) == 200
    store.entries[claim_key(4 if known else 3)]["stopped"] = now()
    assert claims(**BRIEF).execute(again(3, 5))["run_id"] == "1002"
    assert not is_open(store, token, 5)


def test_a_run_is_recorded_although_the_store_fails_once(service, store, context, claims):
    """Of a task that is green, the endpoint tells only a run that is recorded to go on."""
    store.failures["set started"] = 1
    claims().execute(context(store))
    assert store.entries[KEY]["state"] == "started"


def test_a_late_repeat_of_a_deletion_does_not_end_the_wait_for_a_run_that_a_person_entered(
    service, store, context, waits, parked, resume, endpoint
):
    now_ = context(store)
    then, _ = parked(waits(), now_)
    store.entries["workflow_automation_wait"]["since"] = "2026-01-01T00:00:00+00:00"
    with pytest.raises(RunTimeoutError):
        resume(waits(), now_, **then)
    store.entries["workflow_automation_run"] = "1001"
    again = context(store, try_number=2, max_tries=4)
    then, _ = parked(waits(), again)
    for key in list(store.deleted):
        store.delete(key)
    token = token_of(service.runs[0])
    assert is_open(store, token, 4)
    store.entries[end_key(digest_of(token))] = Answer("success", 5).row(now())
    assert resume(waits(), again, **then)["result"] == 5


def test_a_doubt_stays_if_the_next_start_is_rejected(service, store, context, waits, endpoint):
    operator = waits(on_unknown_start="start_again")
    service.faults.add("drop_after")
    with pytest.raises(OutcomeUnknownError):
        operator.execute(context(store))
    first = store.entries[KEY]
    service.faults.add("reject")
    with pytest.raises(RejectedError):
        operator.execute(context(store, try_number=2))
    assert store.entries[KEY] == first


class TestNotFound:
    """What the SDK reads as no entry may be a 404 of an API server that lacks the route."""

    def test_for_the_claim_of_a_run_that_was_told_to_stop(self, service, store, context, claims):
        claims().execute(context(store))
        assert first_step(store, token_of(service.runs[0]), "1001") == 200
        store.entries[claim_key(3)]["stopped"] = now()
        store.lost.append(claim_key(3))
        assert claims().execute(context(store, try_number=2))["run_id"] == "1002"

    @pytest.mark.parametrize("kept", [False, True])
    def test_for_the_end_of_a_run(self, service, store, context, claims, kept):
        """On Airflow 3.4, a Clear may have kept what was in doubt."""
        key, get, reads = (
            end_key(digest_of(lose(service, store, context, claims))),
            store.get,
            iter(range(99)),
        )
        store.entries[key] = Answer("success").row(now())
        store.get = lambda name: None if name == key and next(reads) % 2 == 0 else get(name)
        again = context(store, try_number=2, max_tries=3 + kept)
        if kept:
            again["ti"].region_id = 0
        claims(**BRIEF).execute(again)
        assert requests(service) == 1


def test_a_run_that_was_told_to_stop_before_a_clear_that_lowered_max_tries(service, store, context, claims):
    """On Airflow 3.4: the DAG was edited to fewer retries."""

    def again(try_number, max_tries):
        found = context(store, try_number=try_number, max_tries=max_tries)
        found["ti"].region_id = 0
        return found

    claims().execute(again(1, 5))
    assert first_step(store, token_of(service.runs[0]), "1001", max_tries=5) == 200
    store.entries[claim_key(5)]["stopped"] = now()
    assert claims().execute(again(2, 1))["run_id"] == "1002"


@pytest.mark.parametrize("slow", [False, True])
def test_what_a_late_write_of_starting_cannot_undo(service, store, context, claims, monkeypatch, slow):
    """Of a green task, the endpoint tells only a run that is recorded to go on."""
    monkeypatch.setenv("AIRFLOW__WORKERS__EXECUTION_API_RETRY_WAIT_MIN", "0.2" if slow else "20")
    write = store.set

    def write_slowly(key, value, **options):
        write(key, value, **options)
        time.sleep(0.2 * (value.get("state") == "starting"))

    store.set = write_slowly
    claims().execute(context(store))
    known = store.entries.get("workflow_automation_started", {}).get("token")
    assert known == (digest_of(token_of(service.runs[0])) if slow else None)
