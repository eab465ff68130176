"""A batch that waits: its runs write their ends to a folder, and each item has its run's end."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from entry_keys import PROBE, batch_key
from sentences import NOT_RECORDED
from store_proxy import Fault, StoreProxy
from workflow_automation_provider.client.redaction import WITHHELD
from workflow_automation_provider.exceptions import (
    BusyError,
    Code,
    ConnectionUnusableError,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    RunFailedError,
    RunTimeoutError,
    UnidentifiedError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.batch import ends
from workflow_automation_provider.hooks.mailbox import Mailbox
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.testing.context import make_context
from workflow_automation_provider.triggers.mailbox import INTERVAL, MailboxFolderTrigger

from ..batches import Batches, entries_of, failing, rows, times_started
from ..starts import mentions


class WaitingBatches(Batches):
    """Executes batches that wait, each as a try of a task does."""

    def __init__(self, output):
        super().__init__(make_context)
        self.output = output

    def __call__(self, items, **options):
        arguments = {"wait_for_completion": True, "output_path": str(self.output), **options}
        return super().__call__(items, **arguments)

    def resume(self, deferred, *, entries=None, failure=None):
        """Continue a batch that was suspended, as Airflow does, in another process."""
        operator, self.context = self.task, make_context(self.task, store=None)
        self.context["task_state_store"] = self.store
        server = SimpleNamespace(next_method=deferred.method_name)
        self.context["ti"]._ti_context_from_server = server
        method, kwargs = deferred.method_name, {**deferred.kwargs, "event": {}}
        if failure:
            method, kwargs = "__fail__", {"error": failure}
        if entries is not None:
            kwargs["entries"] = entries
        return operator.resume_execution(method, kwargs, self.context)

    @property
    def items(self):
        """What the output file has."""
        return [json.loads(line) for line in self.output.open()]

    @property
    def statuses(self):
        return [item["status"] for item in self.items]

    @property
    def folder(self):
        """The folder of the batch, as its last entry has it."""
        return Path(entries_of(self.store)[-1]["folder"].removeprefix("file://"))

    def write(self, index, **end):
        """Write the end of a run."""
        (self.folder / f"{index}.json").write_text(json.dumps({"status": "success", **end}))


@pytest.fixture
def supervised(monkeypatch):
    """Have the batch wait as under a scheduler, or else in this process."""
    is_supervised = SimpleNamespace(value=True)
    monkeypatch.setattr(ends, "is_supervised", lambda: is_supervised.value)
    return is_supervised


@pytest.fixture
def waiting(service, workflow_automation_connect, tmp_path, supervised):
    """Execute batches that wait, each as a try of a task does."""
    supervised.value = False
    workflow_automation_connect(extra={"callback_base_url": (tmp_path / "ends").as_uri()})
    (tmp_path / "output").mkdir()
    return WaitingBatches(tmp_path / "output" / "runs.jsonl")


@pytest.fixture
def begin(waiting, supervised):
    """Execute a batch until it is suspended."""
    supervised.value = True

    def execute(items, **options):
        with pytest.raises(TaskDeferred) as caught:
            waiting(items, **options)
        return caught.value

    return execute


@pytest.fixture
def time_is_up(monkeypatch):
    return lambda: monkeypatch.setattr(ends.BatchEnds, "_left", lambda _: timedelta())


# Ends ---------------------------------------------------------------------------------------------


def test_each_item_has_the_end_of_its_run(waiting, service):
    for n in range(3):
        service.callbacks.add(result={"rows": n}, inputs={"n": n}, times=1)
    returned = waiting(rows(3), key="n", flow_id="demo-flow")
    counts = {"total": 3, "success": 3, "failed": 0, "overdue": 0, "started": 0, "not_started": 0}
    assert returned.items() >= counts.items()
    expected = [
        {
            "index": n,
            "key": str(n),
            "status": "success",
            "run_id": run.run_id,
            "run_link": f"{service.url}/runs/{run.run_id}",
            "flow_id": "demo-flow",
            "result": {"rows": n},
        }
        for n, run in enumerate(sorted(service.runs, key=lambda run: run.inputs["n"]))
    ]
    assert waiting.items == expected


def test_an_empty_batch_has_ended(waiting):
    assert waiting([])["total"] == 0
    assert waiting.items == []


@pytest.mark.parametrize(
    ("fault", "status"), [("drop_after", "unknown"), ("garbage", "unidentified")]
)
def test_an_item_in_doubt_is_settled_by_its_end(waiting, begin, service, fault, status):
    service.faults.add(fault, inputs={"n": 1})
    deferred = begin(rows(3), flow_id="demo-flow")
    assert deferred.trigger.awaited == 3
    for n in range(3):
        waiting.write(n, run_id="the run itself" if n == 1 else None)
    assert waiting.resume(deferred).items() >= {"success": 3, "unknown": 0}.items()
    assert waiting.items[1]["run_id"] == "the run itself"


def test_what_has_no_end_in_time_is_overdue_or_stays_unknown(waiting, begin, service, time_is_up):
    service.faults.add("drop_after", inputs={"n": 1})
    deferred = begin(rows(3))
    waiting.write(0)
    time_is_up()
    with pytest.raises(OutcomeUnknownError) as caught:
        waiting.resume(deferred)
    assert isinstance(caught.value, AirflowFailException)
    assert waiting.statuses == ["success", "unknown", "overdue"]
    assert entries_of(waiting.store)[-1]["until"][:19] in waiting.items[2]["why"]


def test_an_end_of_a_rejected_item_and_of_another_run(waiting, begin, service, log):
    service.faults.add("reject", inputs={"n": 1})
    deferred = begin(rows(3))
    assert deferred.trigger.awaited == 2  # the rejected one has no run, as far as is known
    waiting.write(0, run_id="another run")
    waiting.write(1)
    waiting.write(2)
    assert waiting.resume(deferred)["success"] == 3
    first = waiting.items[0]
    assert (first["run_id"], "run_link" in first) == ("another run", False)
    (started,) = (run for run in service.runs if run.inputs["n"] == 0)
    assert str(started.run_id) in first["why"]
    assert mentions(log(), "batch[1]", "rejected")


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"status": "running"}', b" " * 70_000, b""])
def test_what_is_no_report_fails_its_item_alone(waiting, begin, body):
    deferred = begin(rows(2), on_run_failed="skip")
    waiting.write(1)
    (waiting.folder / "0.json").write_bytes(body)
    assert waiting.resume(deferred).items() >= {"success": 1, "failed": 1}.items()
    assert waiting.statuses == ["failed", "success"]
    assert waiting.items[0]["why"]


def test_a_run_that_failed_fails_the_task_after_the_others_have_ended(waiting, begin):
    deferred = begin(rows(3))
    waiting.write(0)
    waiting.write(1, status="failed", message="No such\ncustomer", result={"code": 7})
    waiting.write(2, result="z")
    with pytest.raises(RunFailedError) as caught:
        waiting.resume(deferred)
    error = caught.value
    assert isinstance(error, AirflowFailException)
    assert mentions(error.next_step, "batch[1]", "No such customer")
    assert mentions(error.next_step, waiting.output)
    assert waiting.statuses == ["success", "failed", "success"]
    assert waiting.items[1]["result"] == {"code": 7}
    # A person who marks the task as success passes the file on.
    pushed = waiting.context["ti"].xcoms["return_value"]
    assert pushed.items() >= {"path": str(waiting.output), "success": 2, "failed": 1}.items()


def test_a_failed_end_of_another_run_says_both(waiting, begin, service):
    deferred = begin(rows(1), on_run_failed="skip")
    waiting.write(0, run_id="another run", status="failed", message="No such customer.")
    waiting.resume(deferred)
    words = waiting.items[0]["why"].split()
    assert words[:3] == ["No", "such", "customer."]
    assert f"{service.runs[0].run_id}." in words


def test_the_key_is_withheld_from_an_end(waiting, begin, service):
    secret = service.keys[0].value
    deferred = begin(rows(1))
    waiting.write(0, run_id=secret, message=f"By {secret}", result=[secret])
    waiting.resume(deferred)
    (item,) = waiting.items
    assert item.keys() >= {"run_id", "message", "result"}
    assert secret not in waiting.output.read_text()


def test_an_end_that_names_its_run_leaves_its_link(waiting, begin, service):
    deferred = begin(rows(1))
    waiting.write(0, run_id=str(service.runs[0].run_id))
    waiting.resume(deferred)
    (item,) = waiting.items
    assert item.keys() == {"index", "status", "run_id", "run_link"}


def with_another_connection(waiting, monkeypatch, service=None):
    """Change the connection of a batch that is suspended."""
    if service:
        connection = service.airflow_connection(service.keys[0])
        connection["password"] = "another-key-of-the-workflow"
        monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(connection))
    waiting.task = TriggerFlowBatchOperator(
        task_id="batch",
        batch=rows(1),
        workflow_automation_conn_id="other",
        wait_for_completion=True,
        output_path=str(waiting.output),
        retries=3,
    )


def test_the_key_with_which_the_runs_were_started_is_withheld(waiting, begin, service, monkeypatch):
    secret = service.keys[0].value
    deferred = begin(rows(1))
    waiting.write(0, result=f"By {secret}")
    with_another_connection(waiting, monkeypatch, service)
    waiting.resume(deferred)
    assert waiting.statuses == ["success"]
    assert secret not in waiting.output.read_text()


def test_a_connection_that_is_gone_is_left_to_a_retry(waiting, begin, monkeypatch):
    deferred = begin(rows(1))
    waiting.write(0)
    with_another_connection(waiting, monkeypatch)
    with pytest.raises(ConnectionUnusableError) as caught:
        waiting.resume(deferred)
    assert not isinstance(caught.value, AirflowFailException)
    assert mentions(str(caught.value), "runs", "other")


def test_a_run_that_failed_can_be_skipped(waiting, begin, time_is_up):
    deferred = begin(rows(2), on_run_failed="skip")
    waiting.write(0, status="failed")
    time_is_up()
    expected = {"failed": 1, "overdue": 1, "success": 0, "started": 0}
    assert waiting.resume(deferred).items() >= expected.items()


def looks(waiting, monkeypatch, *found):
    """Have each look into the folder find these ends, after that of the check."""
    remaining = iter([set(), *found])

    def indexes(_):
        indexes = next(remaining)
        for n in indexes:
            waiting.write(n)
        return indexes

    monkeypatch.setattr(Mailbox, "indexes", indexes)
    monkeypatch.setattr(ends, "POLL_INTERVAL", 0.05)


def test_outside_a_scheduler_it_looks_again_and_says_what_is_new(waiting, monkeypatch, log):
    looks(waiting, monkeypatch, {0}, {0}, {0}, {0, 1})
    began = time.monotonic()
    assert waiting(rows(2))["success"] == 2
    assert time.monotonic() - began >= 3 * 0.05
    until = entries_of(waiting.store)[-1]["until"][:19]
    waits = [line for line in log().splitlines() if mentions(line, "of 2 runs", until)]
    assert len(waits) == 1
    assert "1 of 2" in waits[0]


def test_outside_a_scheduler_it_looks_until_the_task_is_ended(waiting, monkeypatch):
    looks(waiting, monkeypatch, set(), {0})
    monkeypatch.setattr(time, "sleep", lambda _: waiting.task.on_kill())
    with pytest.raises(RunTimeoutError, match="ended"):
        waiting(rows(2))


# Between the tries --------------------------------------------------------------------------------


def test_a_batch_is_suspended_and_goes_on_without_its_source(waiting, begin, service, tmp_path):
    source = tmp_path / "items.jsonl"
    source.write_text("\n".join(json.dumps(row) for row in rows(5)))
    options = {"max_concurrency": 1, "completion_timeout": timedelta(hours=2)}
    deferred = begin(str(source), **options)
    # Longer than the trigger waits, unless there is no triggerer.
    assert deferred.timeout > timedelta(hours=2)
    trigger = deferred.trigger
    assert isinstance(trigger, MailboxFolderTrigger)
    assert trigger.interval == INTERVAL
    assert (trigger.folder, trigger.seen, trigger.awaited) == (waiting.folder.as_uri(), 0, 5)
    entries = entries_of(waiting.store)
    assert len({(entry["folder"], entry["until"]) for entry in entries}) == 1
    assert entries[-1]["ended"] == 0
    until = datetime.fromisoformat(entries[-1]["until"])
    assert datetime.fromisoformat(trigger.until) == until

    source.unlink()
    service.stop()
    for n in range(4):
        waiting.write(n)
    with pytest.raises(TaskDeferred) as caught:
        waiting.resume(deferred)
    again = caught.value
    assert (again.trigger.seen, again.trigger.awaited) == (4, 5)
    last = entries_of(waiting.store)[-1]
    assert last["ended"] == 4
    # What the page shows stays.
    assert {name: last[name] for name in ("conn_id", "output_path")} == {
        name: entries[0][name] for name in ("conn_id", "output_path")
    }
    # A look that finds nothing new writes nothing.
    number = len(entries_of(waiting.store))
    with pytest.raises(TaskDeferred):
        waiting.resume(again)
    assert len(entries_of(waiting.store)) == number
    waiting.write(4)
    assert waiting.resume(again)["success"] == 5
    settled = entries_of(waiting.store)[-1]
    assert settled["counts"].items() >= {"success": 5, "started": 0}.items()
    assert "ended" not in settled
    assert times_started(service) == Counter(range(5))


def test_each_run_gets_its_url_beside_what_its_line_has(waiting, begin, service, tmp_path):
    source = tmp_path / "items.jsonl"
    source.write_text('{}\n { } \n\t{"n": "}" }\t\n')
    begin(str(source), max_concurrency=1)
    urls = [f"{waiting.folder.as_uri()}/{n}.json" for n in range(3)]
    sent = sorted((run.inputs for run in service.runs), key=lambda inputs: inputs["callback_url"])
    others = [{}, {}, {"n": "}"}]
    assert sent == [{**own, "callback_url": url} for own, url in zip(others, urls, strict=True)]


def test_an_item_in_doubt_has_its_key_at_the_end_of_the_wait(waiting, begin, service, time_is_up):
    service.faults.add("drop_after", inputs={"n": 1})
    deferred = begin(rows(2), key="n")
    waiting.write(0)
    time_is_up()
    with pytest.raises(OutcomeUnknownError) as caught:
        waiting.resume(deferred)
    assert "batch[1] (1)  unknown" in caught.value.next_step
    assert [item["key"] for item in waiting.items] == ["0", "1"]


def test_a_batch_goes_on_though_its_source_is_no_batch_by_then(waiting, begin, service):
    """Such as an XCom that was deleted meanwhile."""
    deferred = begin(rows(2))
    for n in range(2):
        waiting.write(n)
    waiting.task.batch = None
    assert waiting.resume(deferred)["success"] == 2
    assert times_started(service) == Counter(range(2))


@pytest.mark.parametrize("lost", ["all", "the last"])
def test_a_batch_that_finds_no_entry_fails_and_sends_nothing(waiting, begin, service, lost):
    deferred = begin(rows(5), max_concurrency=1)
    entries = waiting.store.entries
    if lost == "all":
        entries.clear()
    else:
        del entries[batch_key(len(entries_of(waiting.store)) - 1)]
    left = {key: entry for key, entry in entries.items() if "probe" not in key}
    with pytest.raises(UnidentifiedError) as caught:
        waiting.resume(deferred)
    assert isinstance(caught.value, AirflowFailException)
    assert {key: entry for key, entry in entries.items() if "probe" not in key} == left
    assert times_started(service) == Counter(range(5))


def test_an_entry_that_a_read_misses_is_found(waiting, begin, service):
    deferred = begin(rows(5), max_concurrency=1)
    for n in range(5):
        waiting.write(n)
    waiting.store.lost = [batch_key(0), batch_key(2)]
    assert waiting.resume(deferred)["success"] == 5
    assert times_started(service) == Counter(range(5))


def test_a_retry_sends_what_was_never_sent_and_waits_on(waiting, begin, service):
    service.faults.add("busy", inputs={"n": 2})
    with pytest.raises(Exception, match="429") as caught:
        waiting(rows(4), max_concurrency=1, retries=3)
    assert not isinstance(caught.value, AirflowFailException)
    folder = waiting.folder
    deferred = begin(rows(4), try_number=2)
    assert (deferred.trigger.folder, deferred.trigger.awaited) == (folder.as_uri(), 4)
    assert times_started(service) == Counter(range(4))
    urls = {Path(run.inputs["callback_url"]).parent.name for run in service.runs}
    assert urls == {folder.name}


def test_a_batch_waits_as_it_began_whatever_the_dag_says_by_then(waiting, begin, service):
    service.faults.add("busy", inputs={"n": 2}, times=1)
    with pytest.raises(Exception, match="429"):
        waiting(rows(4), max_concurrency=1)
    deferred = begin(rows(4), try_number=2, wait_for_completion=False, output_path=None)
    for n in range(4):
        waiting.write(n)
    assert [item["status"] for item in waiting.resume(deferred)] == ["success"] * 4


def test_a_clear_has_a_folder_of_its_own(waiting, begin, service):
    """On Airflow 3.4 it deletes the entries, while runs still write to the old folder."""
    begin(rows(2))
    before = waiting.folder
    waiting.store.entries.clear()
    deferred = begin(rows(2), try_number=1)
    assert waiting.folder != before
    # Nobody guesses where the runs write.
    assert len(waiting.folder.name) == 32
    (before / "0.json").write_text("of a run that nobody awaits")
    for n in range(2):
        waiting.write(n)
    assert waiting.resume(deferred)["success"] == 2
    assert times_started(service) == Counter({0: 2, 1: 2})


def test_a_source_that_is_rejected_whole_is_not_awaited(waiting, begin, service):
    service.faults.add("reject", status=401, inputs={"n": 2})
    with pytest.raises(RejectedError) as caught:
        waiting(rows(20), max_concurrency=1)
    assert mentions(caught.value.next_step, str(waiting.folder))
    assert waiting.statuses == ["started"] * 2 + ["not started"] * 18
    assert str(waiting.folder / "1.json") in waiting.items[1]["why"]
    assert "401" in waiting.items[-1]["why"]
    assert [item["index"] for item in waiting.items] == [*range(20)]
    assert waiting.context["ti"].xcoms["return_value"]["started"] == 2


def test_a_source_that_has_changed_is_not_awaited(waiting, begin, service):
    service.faults.add("busy", inputs={"n": 2})
    with pytest.raises(BusyError):
        waiting(rows(3), max_concurrency=1)
    with pytest.raises(InvalidRequestError):
        waiting([{"n": 5}, *rows(2)], try_number=2)
    assert waiting.statuses == ["started"] * 2 + ["not started"]
    assert str(waiting.folder / "1.json") in waiting.items[1]["why"]


def test_what_is_not_sent_in_time_is_not_sent_and_the_ends_are_read(
    waiting, service, monkeypatch, log
):
    left = iter([timedelta(hours=1)] * 3)  # the check, and two items
    monkeypatch.setattr(ends.BatchEnds, "_left", lambda _: next(left, timedelta()))
    await_ends = ends.BatchEnds.wait

    def wait(self, *arguments):
        waiting.write(0, result=7)
        waiting.write(4)
        return await_ends(self, *arguments)

    monkeypatch.setattr(ends.BatchEnds, "wait", wait)
    with pytest.raises(InvalidRequestError) as caught:
        waiting(rows(5), max_concurrency=1)
    until = entries_of(waiting.store)[-1]["until"][:19]
    assert mentions(caught.value.message, "completion_timeout", until)
    assert waiting.statuses == ["success", "overdue", "not started", "not started", "success"]
    assert waiting.items[0]["result"] == 7
    assert [line for line in log().splitlines() if mentions(line, "batch[4]", "not started")]
    assert len(service.runs) == 2


# What fails ---------------------------------------------------------------------------------------


def test_a_trigger_that_fails_has_the_task_look_once_more(waiting, begin):
    deferred = begin(rows(2))
    waiting.write(0)
    with pytest.raises(ConnectionUnusableError) as caught:
        waiting.resume(deferred, failure="Trigger failure")
    assert not isinstance(caught.value, AirflowFailException)
    waiting.write(1)
    assert waiting.resume(deferred, failure="Trigger failure")["success"] == 2


@pytest.mark.parametrize("retries", [0, 3])
def test_a_folder_that_cannot_be_listed_decides_nothing(waiting, begin, retries, log):
    deferred = begin(rows(2), retries=retries)
    assert mentions(log(), "without retries") == (retries == 0)
    shutil.rmtree(waiting.folder)
    waiting.folder.touch()
    with pytest.raises(NotSentError) as caught:
        waiting.resume(deferred)
    assert not isinstance(caught.value, AirflowFailException)
    assert mentions(caught.value.consequence, "2 started")
    assert waiting.output.exists() == (retries == 0)


@pytest.mark.parametrize("retries", [0, 3])
def test_an_end_that_cannot_be_read_costs_no_more_than_the_ends(waiting, begin, retries):
    deferred = begin(rows(40), retries=retries, max_concurrency=1)
    for n in range(40):
        waiting.write(n, result=n)
    broken = waiting.folder / "25.json"
    broken.unlink()
    broken.mkdir()
    with pytest.raises(NotSentError) as caught:
        waiting.resume(deferred)
    assert not isinstance(caught.value, AirflowFailException)
    assert waiting.output.exists() == (retries == 0)
    if not retries:
        assert Counter(waiting.statuses).keys() == {"success", "started"}
        assert all(str(waiting.folder / f"{n}.json") in waiting.items[n]["why"] for n in range(40))
    assert "success" not in entries_of(waiting.store)[-1]["counts"]

    broken.rmdir()
    waiting.write(25, result=25)
    assert waiting.resume(deferred)["success"] == 40
    assert [item["result"] for item in waiting.items] == [*range(40)]


def test_many_ends_are_read_ahead_and_stay_in_order(waiting, begin, monkeypatch):
    deferred = begin(rows(70))
    for n in range(70):
        waiting.write(n, result=n)
    both, read = threading.Barrier(2), Mailbox.read

    def read_beside_another(mailbox, limit):
        if mailbox.url.endswith(("/0.json", "/1.json")):
            both.wait(10)
        return read(mailbox, limit)

    monkeypatch.setattr(Mailbox, "read", read_beside_another)
    assert waiting.resume(deferred)["success"] == 70
    assert [item["result"] for item in waiting.items] == [*range(70)]


def test_after_an_error_no_further_end_is_read_or_awaited(waiting, begin, monkeypatch):
    deferred = begin(rows(9), max_concurrency=2)
    for n in range(9):
        waiting.write(n)
    hangs, end, read = threading.Event(), threading.Event(), set()

    def hang_after_the_first(mailbox, _):
        name = mailbox.url.rpartition("/")[2]
        read.add(name)
        if name == "0.json":
            hangs.wait()
            raise NotSentError("The store is down")
        hangs.set()
        end.wait(5)

    monkeypatch.setattr(Mailbox, "read", hang_after_the_first)
    before = {*threading.enumerate()}
    began = time.monotonic()
    with pytest.raises(NotSentError):
        waiting.resume(deferred)
    assert time.monotonic() - began < 5
    end.set()
    for thread in {*threading.enumerate()} - before:
        thread.join()
    # A thread may begin another read before it is told to end.
    assert read <= {"0.json", "1.json", "2.json"}


def test_an_end_that_is_listed_and_missing_is_not_overdue(waiting, begin, monkeypatch):
    """As in a store that lists sooner than it reads."""
    deferred = begin(rows(2))
    waiting.write(0)
    with monkeypatch.context() as patch:
        patch.setattr(Mailbox, "indexes", lambda _: {0, 1})
        with pytest.raises(NotSentError, match=r"1\.json") as caught:
            waiting.resume(deferred)
    assert not isinstance(caught.value, AirflowFailException)
    waiting.write(1)
    assert waiting.resume(deferred)["success"] == 2


@pytest.mark.parametrize("retries", [0, 3])
def test_an_interruption_while_the_ends_are_read(waiting, begin, monkeypatch, retries):
    deferred = begin(rows(3), retries=retries)
    for n in range(3):
        waiting.write(n)
    read = Mailbox.read

    def interrupted(mailbox, limit):
        if mailbox.url.endswith("/1.json"):
            raise KeyboardInterrupt
        return read(mailbox, limit)

    monkeypatch.setattr(Mailbox, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        waiting.resume(deferred)
    assert waiting.output.exists() == (retries == 0)
    if not retries:
        assert waiting.statuses == ["success", "started", "started"]
        assert all(str(waiting.folder / f"{n}.json") in waiting.items[n]["why"] for n in range(3))


def test_an_interruption_once_the_file_is_written_leaves_it(waiting, begin):
    deferred = begin(rows(2), retries=0)
    for n in range(2):
        waiting.write(n, result=n)

    def interrupt(key, _):
        if key != PROBE:
            raise KeyboardInterrupt

    waiting.store.before_set = interrupt
    with pytest.raises(KeyboardInterrupt):
        waiting.resume(deferred)
    assert [item["result"] for item in waiting.items] == [0, 1]


@pytest.mark.parametrize("written", [1, 2])
def test_what_is_recorded_for_the_page_alone_fails_no_batch(waiting, begin, written, caplog):
    deferred = begin(rows(2), retries=0)
    for n in range(written):
        waiting.write(n)
    number = len(entries_of(waiting.store))
    waiting.store.before_set = failing(1)
    if written == 1:
        with pytest.raises(TaskDeferred):
            waiting.resume(deferred)
    else:
        assert waiting.resume(deferred)["success"] == 2
    assert len(entries_of(waiting.store)) == number
    (record,) = [record for record in caplog.records if record.exc_info]
    assert NOT_RECORDED in record.getMessage()


def test_an_output_that_cannot_be_written_is_left_to_a_retry(waiting, begin):
    deferred = begin(rows(2))
    waiting.write(0)
    waiting.write(1)
    waiting.output.parent.rmdir()
    with pytest.raises(Exception, match="output_path") as caught:
        waiting.resume(deferred)
    assert not isinstance(caught.value, AirflowFailException)
    waiting.output.parent.mkdir()
    assert waiting(rows(2), try_number=2)["success"] == 2


def test_a_wait_that_is_added_between_two_tries_is_no_success(waiting, service):
    """The rest is sent, and the output file has the runs."""
    service.faults.add("busy", times=None, inputs={"n": 1})
    with pytest.raises(BusyError):
        waiting(rows(2), wait_for_completion=False)
    service.faults.clear()
    with pytest.raises(RunTimeoutError, match="wait_for_completion=True") as caught:
        waiting(rows(2), try_number=2)
    assert isinstance(caught.value, AirflowFailException)
    assert waiting.statuses == ["started", "started"]
    assert times_started(service) == Counter([0, 1])


def test_an_output_that_cannot_be_written_in_the_last_try_leaves_the_ends(waiting, begin, log):
    deferred = begin(rows(2), retries=0)
    for n in range(2):
        waiting.write(n, run_id=f"run {n}")
    waiting.output.parent.rmdir()
    with pytest.raises(WorkflowAutomationError, match="output file") as caught:
        waiting.resume(deferred)
    assert mentions(caught.value.next_step, waiting.folder.as_uri())
    assert mentions(log(), "run 0", "run 1")
    assert sorted(path.name for path in waiting.folder.iterdir()) == ["0.json", "1.json"]


# Before anything is sent --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"output_path": None}, "output_path"),
        ({"on_unknown_start": "start_again"}, "on_unknown_start"),
        ({"on_run_failed": "start_again"}, "on_run_failed"),
        ({"completion_timeout": 0}, "completion_timeout"),
        ({"callback_input": ""}, "callback_input"),
        ({"wait_for_completion": "yes"}, "wait_for_completion"),
    ],
)
def test_arguments_that_are_no_wait(waiting, changed, named):
    with pytest.raises(ValueError, match=named):
        waiting(rows(2), **changed)


@pytest.mark.parametrize(
    ("extra", "options", "named"),
    [
        ({}, {}, "callback_base_url"),
        ({"callback_base_url": "https://airflow.example"}, {}, "callback_base_url"),
        (None, {"callback_input": "n"}, "callback_input"),
    ],
)
def test_nothing_is_sent_where_no_run_could_write(
    waiting, service, workflow_automation_connect, extra, options, named
):
    if extra is not None:
        workflow_automation_connect(extra=extra)
    with pytest.raises(InvalidRequestError) as caught:
        waiting(rows(2), **options)
    assert caught.value.code is Code.INVALID
    assert mentions(str(caught.value), named)
    assert not service.runs
    assert not entries_of(waiting.store)


def test_nothing_is_sent_where_the_ends_could_not_be_listed(
    waiting, service, bucket, s3_port, workflow_automation_connect, monkeypatch
):
    workflow_automation_connect(extra={"callback_base_url": bucket.url("ends")})
    denied = b"<Error><Code>AccessDenied</Code></Error>"
    with StoreProxy(s3_port).running() as proxy:
        name = f"AIRFLOW_CONN_{bucket.conn_id.upper()}"
        monkeypatch.setenv(name, json.dumps(bucket.connection(proxy.port)))
        is_list = lambda seen: "list-type" in seen.target  # noqa: E731
        proxy.faults.append(Fault(is_list, status=403, body=denied, times=None))
        with pytest.raises(NotSentError, match="AccessDenied"):
            waiting(rows(2))
    assert not service.runs


def test_nothing_is_sent_where_a_url_could_not_be_used(
    waiting, begin, bucket, s3_port, workflow_automation_connect, monkeypatch
):
    """The end could be read in transit, or comes when the URL has expired."""
    resolve = socket.getaddrinfo

    def resolve_here(_host, *more, **options):
        return resolve("127.0.0.1", *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_here)
    store = bucket.connection(s3_port)
    store["extra"]["endpoint_url"] = f"http://minio:{s3_port}"
    monkeypatch.setenv(f"AIRFLOW_CONN_{bucket.conn_id.upper()}", json.dumps(store))
    extra = {"callback_base_url": bucket.url("ends")}
    workflow_automation_connect(extra=extra)
    with pytest.raises(InvalidRequestError, match="minio has no TLS"):
        waiting(rows(1))
    workflow_automation_connect(extra={**extra, "allow_http": True})
    with pytest.raises(InvalidRequestError, match="7 days"):
        waiting(rows(1), completion_timeout=timedelta(days=7))
    assert not entries_of(waiting.store)
    begin(rows(1), completion_timeout=timedelta(days=6))


def test_needs_a_state_that_lasts(waiting, service, monkeypatch):
    monkeypatch.setenv("AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS", "True")
    with pytest.raises(InvalidRequestError, match=r"wait_for_completion .* clear_on_success"):
        waiting(rows(2))
    assert not service.runs


# A store ------------------------------------------------------------------------------------------


def test_urls_are_signed_and_shown_nowhere(
    begin, waiting, bucket, workflow_automation_connect, monkeypatch, log
):
    workflow_automation_connect(extra={"callback_base_url": bucket.url("ends")})
    signed = []
    sign = Mailbox.sign

    def noted(*args):
        signed.append(sign(*args))
        return signed[-1]

    monkeypatch.setattr(Mailbox, "sign", noted)
    deferred = begin(rows(3), completion_timeout=timedelta(hours=2))
    token = deferred.trigger.folder.rpartition("/")[2]
    signed.sort(key=lambda url: url.partition("?")[0])
    assert len(signed) == 3
    for n, url in enumerate(signed):
        assert f"/{token}/{n}.json?" in url
        (seconds,) = parse_qs(urlsplit(url).query)["X-Amz-Expires"]
        assert int(seconds) > timedelta(hours=2).total_seconds()
        end = {"status": "success", "result": f"I was given {url}", "run_id": url[-64:]}
        sent = [httpx.put(url, json=end, headers={"If-None-Match": "*"}) for _ in range(2)]
        assert [response.status_code for response in sent] == [200, 412]
    assert waiting.resume(deferred)["success"] == 3
    shown = waiting.output.read_text() + json.dumps(waiting.store.entries) + log()
    assert "X-Amz-Signature" not in shown


@pytest.mark.parametrize("part", ["folder", "signature"])
def test_what_a_service_echoes_of_a_url_is_withheld(waiting, raw_server, bucket, part):
    def respond(_):
        url = json.loads(server.local.body)["inputs"]["callback_url"]
        path, _, query = url.partition("?")
        echo = query if part == "signature" else path
        return f"HTTP/1.1 400 Bad Request\r\nContent-Length: {len(echo)}\r\n\r\n{echo}".encode()

    server = raw_server(respond, extra={"callback_base_url": bucket.url("ends")})
    waiting(rows(1), workflow_automation_conn_id="raw", on_rejected="skip")
    assert WITHHELD in waiting.items[0]["why"]
