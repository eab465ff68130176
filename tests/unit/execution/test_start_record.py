"""What a later try reads of a record, and whether it is a retry, for which the record counts, or a Clear."""

from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from workflow_automation_provider.exceptions import OutcomeUnknownError
from workflow_automation_provider.execution.ledger import Entry, State
from workflow_automation_provider.execution.start_record import RunResult, StartRecord

from ..starts import KEY, MAYBE, requests, trigger

RUN: RunResult = {"run_id": "7", "run_link": "http://there/7"}


@pytest.mark.parametrize(
    ("write", "state", "run", "message"),
    [
        (lambda record: record.starting(), State.OPEN, {}, ""),
        (lambda record: record.started(RUN), State.STARTED, RUN, ""),
        (lambda record: record.unidentified("It is empty."), State.UNIDENTIFIED, {}, "It is empty."),
    ],
)
def test_a_later_try_reads_what_was_written_last(store, context, write, state, run, message):
    first = StartRecord(context(store))
    assert first.read() is None
    first.starting()
    write(first)

    entry = StartRecord(context(store, try_number=2)).read()
    assert entry is not None
    assert (entry.state, entry.run, entry.message) == (state, run, message)
    assert (entry.attempt.try_number, entry.request) == (1, None)
    assert entry.for_ledger() == Entry(entry.attempt, ((0, b""),), ((0, state),))


# How the first try and a later one see the task instance, and whether that is a Clear: the table of the record.
FIRST = {"try_number": 1, "max_tries": 1, "retries": 1, "clear_number": 0}
ROWS = {
    "a retry": ({"try_number": 2}, "kept"),
    "a retry of the last try": ({"try_number": 3}, "kept"),
    "cleared": ({"try_number": 2, "max_tries": 2, "clear_number": 1}, "cleared"),
    "cleared, the DAG run left as it was": ({"try_number": 2, "max_tries": 2}, "cleared"),
    "edited to more retries, cleared": (
        {"try_number": 2, "max_tries": 4, "retries": 3, "clear_number": 1},
        "cleared",
    ),
    "edited to more retries, a retry": ({"try_number": 2, "retries": 3}, "kept"),
    "edited to fewer retries, a retry": ({"try_number": 2, "retries": 0}, "kept"),
    "edited to fewer retries, cleared": (
        {"try_number": 2, "retries": 0, "clear_number": 1},
        "nobody can tell",
    ),
    "another task cleared": ({"try_number": 2, "clear_number": 1}, "kept"),
    "another task cleared, edited to more": ({"try_number": 2, "clear_number": 1, "retries": 2}, "kept"),
    "edited to fewer, which no Clear explains": (
        {"try_number": 2, "max_tries": 1, "retries": -1, "clear_number": 1},
        "kept",
    ),
    "Airflow does not count Clears": ({"try_number": 2, "retries": 0, "clear_number": None}, "kept"),
    "no count of Clears": ({"try_number": 2, "retries": 0, "clear_number": "not there"}, "kept"),
}


@pytest.mark.parametrize(("later", "meaning"), ROWS.values(), ids=ROWS)
class TestClear:
    def test_after_a_run_was_started(self, service, store, context, log, later, meaning):
        trigger().execute(context(store, **FIRST))
        result = trigger().execute(context(store, **FIRST | later))

        assert result["run_id"] == ("1002" if meaning == "cleared" else "1001")
        assert len(service.runs) == (2 if meaning == "cleared" else 1)
        assert ("The task has been cleared since" in log()) == (meaning == "cleared")
        assert ("clear it again" in log()) == (meaning == "nobody can tell")

    def test_after_a_start_of_unknown_outcome(self, service, store, context, log, later, meaning):
        service.faults.add("drop_after")
        with pytest.raises(AirflowFailException):
            trigger().execute(context(store, **FIRST))
        operator = trigger()
        if meaning == "cleared":
            assert operator.execute(context(store, **FIRST | later))["run_id"] == "1002"
            assert f"{MAYBE}. The task has been cleared since" in log()
        else:
            with pytest.raises(AirflowFailException, match=MAYBE) as caught:
                operator.execute(context(store, **FIRST | later))
            assert ("clear it again" in str(caught.value)) == (meaning == "nobody can tell")
            assert requests(service) == 1

    def test_where_a_clear_discards_what_is_not_to_count(self, service, store, context, log, later, meaning):
        """Airflow 3.4+, where a task instance has a region: what is still there was kept."""
        trigger().execute(context(store, **FIRST, region_id="0"))
        assert trigger().execute(context(store, **FIRST | later, region_id="0"))["run_id"] == "1001"
        assert requests(service) == 1
        # As by a Clear of the whole DAG run, which may have been meant to start another.
        assert ("clear it again" in log()) == (later.get("max_tries", 1) != 1)


def test_a_clear_after_a_later_try(service, store, context, log):
    """Any try since the record was written may have been the last."""
    first = {"try_number": 1, "max_tries": 3, "retries": 3}
    trigger().execute(context(store, **first))
    # Try 2 was the last, then edited to 1 retry and cleared.
    after = {"try_number": 3, "max_tries": 3, "retries": 1, "clear_number": 1}
    assert trigger().execute(context(store, **after))["run_id"] == "1001"
    assert "clear it again" in log()


def test_cleared_once_more_where_nobody_could_tell(service, store, context):
    trigger().execute(context(store, **FIRST))
    unclear = FIRST | {"try_number": 2, "retries": 0, "clear_number": 1}
    assert trigger().execute(context(store, **unclear))["run_id"] == "1001"
    again = unclear | {"try_number": 3, "max_tries": 2, "clear_number": 2}
    assert trigger().execute(context(store, **again))["run_id"] == "1002"


def test_what_the_page_of_the_flow_runs_reads(service, store, context, waits, endpoint, supervisor):
    service.faults.add("drop_after")
    with pytest.raises(OutcomeUnknownError):
        waits().execute(context(store))
    entry = store.entries[KEY]
    assert (entry["conn_id"], entry["flow_id"]) == ("workflow_automation_default", "demo-flow")
    assert (entry["sent"], entry["waits"]) == (entry["at"], True)
