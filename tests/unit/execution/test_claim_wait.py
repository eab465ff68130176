"""A task that waits for a run that claims its start and speaks while it works."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.exceptions import (
    RunFailedError,
    RunTimeoutError,
)
from workflow_automation_provider.execution.callback import (
    Answer,
    claim_key,
    digest_of,
    end_key,
    token_keys,
    word_key,
)
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

from ..claims import first_step, flow, now, token_of
from ..starts import KEY, TIMEOUT

pytestmark = pytest.mark.usefixtures("issued")


class TestWait:
    def test_the_run_that_claimed_is_the_one_waited_for(self, service, store, context, waits, endpoint, log):
        """A proxy sent the request twice. The claim and the end come while the task does not look."""

        def claim(_):
            return first_step(store, token_of(service.runs[0]), "77")

        service.callbacks.add(result=claim, delay=0.2)
        result = waits().execute(context(store))
        assert (result["run_id"], result["result"]) == ("77", 200)
        assert "The response named run 1001, but run 77 has claimed the start" in log()

    def test_a_run_that_names_itself_by_the_key(self, service, store, context, waits, endpoint, log):
        key = WorkflowAutomationHook().get_connection("workflow_automation_default").password
        assert key
        secret = base64.b64encode(key.encode()).decode()
        service.callbacks.add(delay=0.5)
        with flow(service, store, name=lambda _: f"x{secret}"):
            result = waits().execute(context(store))
        assert secret not in f"{log()}{result}"

    @pytest.mark.parametrize("claims", [True, False])
    def test_a_flow_without_the_first_step_is_warned_of(
        self, service, store, context, waits, endpoint, log, claims
    ):
        service.callbacks.add(delay=0.5)
        operator = waits(on_unknown_start="claim")
        if claims:
            with flow(service, store):
                operator.execute(context(store))
        else:
            operator.execute(context(store))
        assert ("The run has not claimed its start" in log()) is not claims

    def test_a_wait_that_ended_closes_the_token(self, service, store, context, waits, endpoint):
        service.callbacks.add()
        waits().execute(context(store))
        assert not any("_token/" in key for key in store.entries)

    @pytest.mark.parametrize("word", [None, {"message": "half of it", "progress": 0.5}])
    def test_silence(self, service, store, context, waits, parked, resume, endpoint, word):
        now_, operator = context(store), waits(heartbeat_timeout=timedelta(minutes=1))
        then, timeout = parked(operator, now_)
        assert timeout == timedelta(seconds=15)
        long_ago = (datetime.now(UTC) - timedelta(minutes=3)).isoformat()
        store.entries["workflow_automation_wait"]["since"] = long_ago
        token = token_of(service.runs[0])
        if word:
            store.entries[word_key(digest_of(token))] = {**word, "at": long_ago}
        with pytest.raises(RunTimeoutError, match=r"\[run-silent\]") as caught:
            resume(operator, now_, **then)
        assert ("half of it (50%)" in str(caught.value)) is bool(word)
        assert first_step(store, token) == 404

    @pytest.mark.parametrize("over", ["silent", "timeout"])
    def test_a_run_that_asks_after_the_wait_is_not_started_over(
        self, service, store, context, waits, parked, resume, endpoint, over
    ):
        """The task was killed before it had failed."""
        operator, now_ = (
            waits(heartbeat_timeout=timedelta(minutes=1 if over == "silent" else 9e3)),
            context(store),
        )
        then, _ = parked(operator, now_)
        token = token_of(service.runs[0])
        assert first_step(store, token, "1001") == 200
        long_ago = (datetime.now(UTC) - timedelta(days=2 if over == "timeout" else 0.5)).isoformat()
        store.entries["workflow_automation_wait"]["since"] = store.entries[claim_key(3)]["at"] = long_ago
        with pytest.raises(RunTimeoutError):
            resume(operator, now_, **then)
        assert first_step(store, token, "1001") == 404
        store.entries[claim_key(3)]["stopped"] = now()
        with pytest.raises(RunTimeoutError):
            operator.execute(context(store, try_number=2))
        assert len(service.runs) == 1

    @pytest.mark.parametrize("said", ["word", "claim"])
    def test_a_word_in_time(self, service, store, context, waits, parked, resume, endpoint, said):
        now_, operator = context(store), waits(heartbeat_timeout=timedelta(seconds=40))
        then, _ = parked(operator, now_)
        store.entries["workflow_automation_wait"]["since"] = (
            datetime.now(UTC) - timedelta(minutes=3)
        ).isoformat()
        digest = digest_of(token_of(service.runs[0]))
        if said == "word":
            store.entries[word_key(digest)] = {"at": now()}
        else:
            store.entries[claim_key(3)] = {"digest": digest, "run_id": "1001", "at": now()}
        _, timeout = parked(operator, now_, **then)
        assert timedelta(seconds=30) < timeout <= timedelta(seconds=40)

    def test_an_answer_at_the_last_moment(self, service, store, context, waits, parked, resume, endpoint):
        now_, operator = context(store), waits(heartbeat_timeout=timedelta(minutes=1))
        then, _ = parked(operator, now_)
        store.entries["workflow_automation_wait"]["since"] = (
            datetime.now(UTC) - timedelta(minutes=3)
        ).isoformat()
        delete, digest = store.delete, digest_of(token_of(service.runs[0]))

        def answer_and_delete(key):
            store.delete = delete
            store.entries[end_key(digest)] = Answer("success", 5).row(now())
            delete(key)

        store.delete = answer_and_delete
        assert resume(operator, now_, **then)["result"] == 5


class TestRunFailed:
    def test_airflows_retry_starts_another_run(self, service, store, context, waits, endpoint):
        service.callbacks.add("failed", message="No rows")
        operator = waits(on_run_failed="start_again")
        with flow(service, store) as told:
            with pytest.raises(RunFailedError) as caught:
                operator.execute(context(store))
            assert not isinstance(caught.value, AirflowFailException)
            assert caught.value.run_id == "1001"
            service.callbacks.clear()
            service.callbacks.add(result=3, delay=0.3)
            again = waits(on_run_failed="start_again").execute(context(store, try_number=2))
        assert (again["run_id"], again["result"]) == ("1002", 3)
        assert told.get("1002") == 200

    def test_one_that_cannot_be_started_over_is_reported_again(
        self, service, store, context, waits, parked, resume, endpoint
    ):
        operator, now_, delete = waits(on_run_failed="start_again"), context(store), store.delete
        then, _ = parked(operator, now_)

        def fail_for_the_start(key):
            if key == KEY:
                raise RuntimeError
            delete(key)

        store.delete = fail_for_the_start
        token = token_of(service.runs[0])
        store.entries[end_key(digest_of(token))] = Answer("failed").row(now())
        with pytest.raises(RunFailedError):
            resume(operator, now_, TIMEOUT, **then)
        store.delete = delete
        with pytest.raises(RunFailedError):
            operator.execute(context(store, try_number=2))
        then, _ = parked(operator, context(store, try_number=3))
        assert then["run"]["run_id"] == "1002"

    def test_there_is_room_for_its_claim(self, service, store, context, waits, endpoint):
        """Also if the token of the one that failed could not be deleted when the wait ended."""
        delete, failures = store.delete, [RuntimeError()] * 2

        def fail(key):
            if "_token/" in key and failures:
                raise failures.pop()
            delete(key)

        def fail_and_claim(_):
            digest = digest_of(token_of(service.runs[0]))
            for key in (claim_key(3), *token_keys(digest, 3)):
                store.entries[key] = {"digest": digest, "at": now()}
            store.delete = fail

        service.callbacks.add("failed", result=fail_and_claim, delay=0.2)
        with pytest.raises(RunFailedError):
            waits(on_run_failed="start_again").execute(context(store))
        assert failures == []
        assert not [key for key in store.entries if "_token/" in key or "_claim/" in key]

    @pytest.mark.parametrize("policy", ["fail", "claim", "start_again"])
    def test_without_retries_left_it_is_kept(self, service, store, context, waits, endpoint, policy):
        endpoint.max_tries = 0
        service.callbacks.add("failed")
        operator = waits(on_run_failed="start_again", on_unknown_start=policy)
        with pytest.raises(RunFailedError) as caught:
            operator.execute(context(store, max_tries=0))
        assert "Find the run" not in str(caught.value)
        assert store.entries[KEY]["state"] == "started"
