"""A Clear of a task whose runs claim their starts: which of them goes on."""

from __future__ import annotations

import pytest

from workflow_automation_provider.exceptions import (
    OutcomeUnknownError,
)
from workflow_automation_provider.execution.callback import (
    Answer,
    claim_key,
    digest_of,
    end_key,
    token_keys,
)

from ..claims import BRIEF, first_step, now, token_of
from ..starts import requests


class TestClear:
    def lose(self, service, store, context, claims, **options):
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError):
            claims(**BRIEF).execute(context(store, **options))
        return token_of(service.runs[0])

    def test_a_run_that_had_claimed_goes_on(self, service, store, context, claims, log):
        token = self.lose(service, store, context, claims)
        assert first_step(store, token, "1001") == 200
        result = claims().execute(context(store, try_number=2, max_tries=4))
        assert result["run_id"] == "1001"
        assert "cleared since try 1, but a run" in log()
        assert first_step(store, token, "1001", max_tries=4) == 200
        assert requests(service) == 1

    def test_one_that_was_told_to_stop_does_not(self, service, store, context, claims):
        token = self.lose(service, store, context, claims)
        assert first_step(store, token, "1001") == 200
        store.entries[claim_key(3)]["stopped"] = now()
        assert claims().execute(context(store, try_number=2, max_tries=4))["run_id"] == "1002"
        assert not {*token_keys(digest_of(token), 4)} & store.entries.keys()

    def test_one_that_is_told_to_stop_meanwhile_does_not(self, service, store, context, claims):
        token = self.lose(service, store, context, claims)
        assert first_step(store, token, "1001") == 200
        write = store.set

        def stop_and_set(key, value, **options):
            if key in token_keys(digest_of(token), 4):
                store.entries[claim_key(3)]["stopped"] = now()
            write(key, value, **options)

        store.set = stop_and_set
        assert claims().execute(context(store, try_number=2, max_tries=4))["run_id"] == "1002"
        assert not {*token_keys(digest_of(token), 4)} & store.entries.keys()

    @pytest.mark.parametrize("another", [False, True])
    def test_one_that_had_not_claimed_never_goes_on(self, service, store, context, claims, log, another):
        """Nobody had, or one with another token."""
        token = self.lose(service, store, context, claims)
        store.entries[end_key(digest_of(token))] = Answer("success").row(now())
        if another:
            store.entries[claim_key(3)] = {"digest": digest_of("another"), "run_id": "77", "at": now()}
        assert claims().execute(context(store, try_number=2, max_tries=4))["run_id"] == "1002"
        assert first_step(store, token, "1001", max_tries=4) == 404
        assert not any(digest_of(token) in key for key in store.entries)
        assert "goes on" not in log()

    def test_a_start_that_was_known_is_another_after_it(self, service, store, context, claims):
        claims().execute(context(store))
        assert first_step(store, token_of(service.runs[0]), "1001") == 200
        assert claims().execute(context(store, try_number=2, max_tries=4))["run_id"] == "1002"

    def test_that_leaves_max_tries_is_a_retry(self, service, store, context, claims):
        claims().execute(context(store, retries=2))
        token = token_of(service.runs[0])
        assert first_step(store, token, "1001") == 200
        again = context(store, try_number=2, retries=2, clear_number=1)
        assert claims().execute(again)["run_id"] == "1001"
        assert (first_step(store, token, "1001"), requests(service)) == (200, 1)

    @pytest.mark.parametrize("keeps", [False, True])
    def test_that_stopped_a_run_whose_start_was_known(self, service, store, context, claims, keeps):
        """While the task ran; or one that kept the task's state (Airflow 3.4+)."""
        claims().execute(context(store))
        token = token_of(service.runs[0])
        assert first_step(store, token, "1001") == 200
        store.entries[claim_key(3)]["stopped"] = now()
        again = context(store, try_number=2, max_tries=4 if keeps else 3)
        if keeps:
            again["ti"].region_id = 0
        assert claims().execute(again)["run_id"] == "1002"
        assert requests(service) == 2
        assert not any(digest_of(token) in key for key in store.entries)

    @pytest.mark.parametrize(("said", "run_id"), [("claim", "1001"), ("end", None), ("nothing", "1002")])
    def test_that_kept_a_start_in_doubt(self, service, store, context, claims, log, said, run_id):
        """On Airflow 3.4+, where the user keeps the task's state."""
        token = self.lose(service, store, context, claims)
        if said == "claim":
            assert first_step(store, token, "1001") == 200
        elif said == "end":
            store.entries[end_key(digest_of(token))] = Answer("success").row(now())
        again = context(store, try_number=2, max_tries=4)
        again["ti"].region_id = 0
        assert claims(**BRIEF).execute(again).get("run_id") == run_id
        assert requests(service) == (2 if said == "nothing" else 1)
        assert "has been cleared" not in log()


@pytest.mark.parametrize("claimed", [False, True])
def test_a_claim_of_before_two_clears_is_none(service, store, context, claims, claimed):
    """Where retries were reduced, the second of them sets max_tries to what it was before the first."""
    claims().execute(context(store))
    assert first_step(store, token_of(service.runs[0]), "1001") == 200
    claims().execute(context(store, try_number=2, max_tries=2, retries=1))
    service.faults.add("drop_after")
    with pytest.raises(OutcomeUnknownError):
        claims(**BRIEF).execute(context(store, try_number=3, retries=1))
    if claimed:
        token = token_of(service.runs[2])
        store.entries[claim_key(3)] = {"digest": digest_of(token), "run_id": "1003", "at": now()}
    again = claims(**BRIEF).execute(context(store, try_number=4, retries=1))
    assert again["run_id"] == ("1003" if claimed else "1004")
