"""Metrics of what tasks do, as a real StatsD server gets them from Airflow, and spans, as OpenTelemetry's SDK does."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import socket
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, Stats

from workflow_automation_provider.exceptions import OutcomeUnknownError, WorkflowAutomationError
from workflow_automation_provider.execution.callback import OPTIONS
from workflow_automation_provider.execution.telemetry import PREFIX, Telemetry
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import UploadFilesOperator

from ..answers import TIMEOUT, person
from ..claims import BRIEF, claim_at_deletion
from ..starts import TaskTimeout, WithoutTextError, trigger

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def factory():
    """What Airflow makes its logger of metrics with, as it is configured."""
    try:
        module = importlib.import_module("airflow.sdk.observability.metrics.statsd_logger")
    except ImportError:  # before Airflow 3.2
        module = importlib.import_module("airflow.metrics.statsd_logger")
    return module.get_statsd_logger


class Server:
    """A StatsD server: its datagrams, each as name, value and kind."""

    def __init__(self, receiver):
        self._receiver = receiver
        self._receiver.setblocking(False)
        self.seen = []

    def read(self):
        """Return the metrics so far, without Airflow's prefix."""
        try:
            while True:
                for line in self._receiver.recv(65536).decode().splitlines():
                    name, _, value = line.partition(":")
                    number, kind = value.split("|")[:2]
                    assert name.startswith("airflow.")
                    name = name.removeprefix("airflow.").removeprefix(f"{PREFIX}.")
                    self.seen.append((name, float(number), kind))
        except BlockingIOError:
            return self.seen

    @property
    def counters(self):
        total: Counter[str] = Counter()
        for name, value, kind in self.read():
            if kind == "c":
                total[name] += int(value)
        return dict(total)

    @property
    def timers(self):
        return [name for name, _, kind in self.read() if kind == "ms"]


@pytest.fixture
def statsd(monkeypatch):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        for name, value in {
            "STATSD_ON": "True",
            "STATSD_HOST": "127.0.0.1",
            "STATSD_PORT": str(receiver.getsockname()[1]),
        }.items():
            monkeypatch.setenv(f"AIRFLOW__METRICS__{name}", value)
        initialize = inspect.getattr_static(Stats, "initialize", None)
        if isinstance(initialize, staticmethod):
            from airflow.sdk._shared.observability.metrics import stats

            monkeypatch.setattr(stats, "_backend", None)
            monkeypatch.setattr(stats, "_factory", factory())
        else:  # before Airflow 3.3
            monkeypatch.setattr(Stats, "instance", None, raising=False)
            # A function of the class on Airflow 3.2, a method of its metaclass on earlier versions.
            holder = Stats if initialize else type(Stats)
            monkeypatch.setattr(holder, "factory", factory(), raising=False)
        yield Server(receiver)


def test_a_start(service, context, statsd):
    trigger().execute(context())
    assert statsd.counters == {"runs.started": 1}
    assert statsd.timers == ["runs.response_time"]
    ((_, milliseconds, _),) = [metric for metric in statsd.seen if metric[2] == "ms"]
    assert 0 < milliseconds < 60_000


def test_a_busy_service(service, context, statsd):
    service.faults.add("busy", retry_after=0)
    trigger(send_retry_timeout=30).execute(context())
    assert statsd.counters == {"runs.retried": 1, "runs.started": 1}


def test_a_later_try(service, store, context, statsd):
    trigger().execute(context(store))
    trigger().execute(context(store, try_number=2))
    assert statsd.counters == {"runs.started": 1, "runs.returned": 1}


def test_a_start_that_no_run_may_claim_any_more(service, store, context, claims, statsd):
    service.faults.add("drop_after")
    with pytest.raises(OutcomeUnknownError):
        claims(**BRIEF).execute(context(store, max_tries=0))
    assert statsd.counters == {"runs.unknown": 1, "starts.revoked": 1}


def test_an_upload(service, context, statsd, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(3):
        (folder / str(number)).write_text("1234")
    trigger().execute(context())
    before = statsd.counters
    service.faults.add("busy", operation="upload", retry_after=0)
    UploadFilesOperator(
        task_id="upload", run_id="1001", files=f"{folder}/*", files_per_request=2, send_retry_timeout=30
    ).execute(context(task_id="upload"))
    assert before == {"runs.started": 1}
    assert statsd.counters == {
        "runs.started": 1,
        "uploads.files": 3,
        "uploads.bytes": 12,
        "uploads.retried": 1,
    }
    assert statsd.timers[1:] == ["uploads.response_time"] * 2
    assert all(0 < value < 60_000 for _, value, kind in statsd.seen if kind == "ms")


def test_a_batch(service, context, statsd):
    service.faults.add("reject", inputs={"n": 1})
    service.faults.add("busy", inputs={"n": 2}, retry_after=0)
    batch = TriggerFlowBatchOperator(
        task_id="batch", batch=[{"n": n} for n in range(5)], on_rejected="skip", send_retry_timeout=30
    )
    batch.execute(context(task_id="batch"))
    assert {name: number for name, number in statsd.counters.items() if name != "runs.retried"} == {
        "runs.started": 4,
        "runs.rejected": 1,
        "batches.succeeded": 1,
    }
    assert statsd.counters["runs.retried"] >= 1
    # As of single runs, "busy" is a response as well.
    assert Counter(statsd.timers) == {"runs.response_time": 6, "batches.duration": 1}


def test_a_batch_counts_as_its_runs_would(service, context, statsd):
    """Also a rejection that ends the batch."""
    service.faults.add("reject", status=401, inputs={"n": 1})
    batch = TriggerFlowBatchOperator(
        task_id="batch", batch=[{"n": 0}, {"n": 1}], max_concurrency=1, send_retry_timeout=0
    )
    with pytest.raises(AirflowFailException):
        batch.execute(context(task_id="batch"))
    assert statsd.counters == {"runs.started": 1, "runs.rejected": 1, "batches.failed": 1}
    assert Counter(statsd.timers) == {"runs.response_time": 2}


@pytest.mark.parametrize(
    ("fault", "counters", "responses"),
    [
        ("reject", {"runs.rejected": 1}, 1),
        ("drop_after", {"runs.unknown": 1}, 0),
        ("status_after", {"runs.unknown": 1}, 1),
        ("garbage", {"runs.started": 1}, 1),
        ("busy", {}, 1),
    ],
)
def test_a_batch_of_one_counts_as_a_single_run(service, context, statsd, fault, counters, responses):
    service.faults.add(fault, times=2)
    with pytest.raises(WorkflowAutomationError):
        trigger().execute(context())
    assert (statsd.counters, statsd.timers) == (counters, ["runs.response_time"] * responses)
    statsd.seen.clear()
    batch = TriggerFlowBatchOperator(task_id="batch", batch=[{}], send_retry_timeout=0)
    with pytest.raises(WorkflowAutomationError):
        batch.execute(context(task_id="batch"))
    assert statsd.counters == {**counters, "batches.failed": 1}
    assert statsd.timers == ["runs.response_time"] * responses


def test_a_later_try_of_a_batch(service, store, context, statsd):
    service.faults.add("drop_after", inputs={"n": 1})
    service.faults.add("reject", inputs={"n": 1})
    for try_number in (1, 2):
        batch = TriggerFlowBatchOperator(
            task_id="batch",
            batch=[{"n": 0}, {"n": 1}],
            on_unknown_start="start_again",
            send_retry_timeout=0,
        )
        with pytest.raises(WorkflowAutomationError):
            batch.execute(context(store, task_id="batch", try_number=try_number))
    assert statsd.counters == {
        "runs.started": 1,
        "runs.unknown": 1,
        "runs.returned": 1,
        "runs.rejected": 1,
        "batches.failed": 2,
    }


class TestWaits:
    def test_of_a_task_that_is_parked(self, service, store, context, endpoint, waits, parked, resume, statsd):
        now = context(store)
        kwargs, _ = parked(waits(), now)
        assert statsd.counters == {"runs.started": 1, "waits.started": 1}
        kwargs, _ = parked(waits(), now, TIMEOUT, **kwargs)
        resume(waits(), now, person(OPTIONS["success"]), **kwargs)
        assert statsd.counters == {"runs.started": 1, "waits.started": 1, "waits.succeeded": 1}
        assert statsd.timers == ["runs.response_time", "waits.duration"]

    def test_in_this_process(self, service, store, context, endpoint, waits, statsd):
        service.callbacks.add("failed")
        with pytest.raises(AirflowFailException):
            waits().execute(context(store))
        assert statsd.counters["waits.failed"] == 1
        assert statsd.timers[0] == "runs.response_time"

    def test_that_nobody_ends(self, service, store, context, endpoint, waits, statsd):
        with pytest.raises(AirflowFailException):
            waits(completion_timeout=timedelta(seconds=0.1)).execute(context(store))
        assert statsd.counters == {"runs.started": 1, "waits.started": 1, "waits.timed_out": 1}
        assert statsd.timers[1:] == ["waits.duration"]


def test_every_name_is_on_the_page():
    sources = Path(inspect.getfile(Telemetry)).parent.rglob("*.py")
    code = "\n".join(path.read_text() for path in sources)
    used = {*re.findall(r'(?:\.(?:count|time)\(\s*f?|return )"([a-z]+\.\w*)"', code)} - {"waits."}
    used |= {f"waits.{outcome}" for outcome in ("succeeded", "failed", "timed_out")}
    told = {*re.findall(rf"^\| `{PREFIX}\.(\w+\.\w+)`", PAGE.read_text(), re.MULTILINE)}
    assert used == told


def test_tags_are_those_of_the_task(monkeypatch):
    sent = []
    monkeypatch.setattr(Stats, "incr", lambda *args, **more: sent.append((args, more)), raising=False)

    class Task:
        stats_tags = {"dag_id": "report", "task_id": "trigger"}  # noqa: RUF012 - as Airflow's

    Telemetry({"ti": Task()}).count("runs.started", 2)  # type: ignore[typeddict-item]
    assert sent == [(("workflow_automation.runs.started", 2), {"tags": Task.stats_tags})]


def test_tags_of_a_task_that_has_none_ready(monkeypatch, context):
    """As on Airflow 3.0 to 3.2."""
    sent = []
    monkeypatch.setattr(Stats, "incr", lambda *_, tags: sent.append(tags), raising=False)
    Telemetry(context(dag_id="report")).count("runs.started")
    assert sent == [{"dag_id": "report", "task_id": "trigger"}]


def interrupt(*_, **__):
    raise TaskTimeout


class TestFailures:
    @pytest.mark.parametrize("what", ["incr", "timing", "end"])
    def test_an_upload_is_recorded_before_its_span_and_metrics(
        self, service, store, context, monkeypatch, tmp_path, what
    ):
        """So that a try that ends while it sends them has recorded what was uploaded."""
        (tmp_path / "a").write_text("1234")
        trigger().execute(context(store))

        def upload(try_number):
            UploadFilesOperator(task_id="upload", run_id="1001", files=f"{tmp_path}/a").execute(
                context(store, task_id="upload", try_number=try_number)
            )

        with monkeypatch.context() as patched:
            patched.setattr(Telemetry, "_begin", lambda *_: object())
            patched.setattr(Telemetry, "_end", interrupt if what == "end" else lambda *_: None)
            if what != "end":
                patched.setattr(Stats, what, interrupt, raising=False)
            with pytest.raises(TaskTimeout):
                upload(1)
        assert len(service.uploads) == 1
        upload(2)
        assert len(service.uploads) == 1

    @pytest.mark.parametrize("method", ["incr", "timing"])
    @pytest.mark.parametrize("error", [RuntimeError("no metrics"), WithoutTextError("no metrics")])
    def test_stats_that_fail_are_ignored(self, service, context, monkeypatch, method, error, caplog):
        def fail(*_, **__):
            raise error

        caplog.set_level("DEBUG")  # so that the error is shown
        monkeypatch.setattr(Stats, method, fail, raising=False)
        assert trigger().execute(context())["run_id"] == "1001"

    def test_metrics_are_sent_after_the_record(self, service, store, context, monkeypatch):
        """A try that ends while it sends a metric has recorded its run."""
        monkeypatch.setattr(Stats, "incr", interrupt, raising=False)
        with pytest.raises(TaskTimeout):
            trigger().execute(context(store))
        monkeypatch.undo()
        assert [state for _, state, _ in store.writes] == ["starting", "started"]

    @pytest.mark.parametrize("method", ["incr", "timing"])
    def test_a_batch_mentions_its_runs_before_their_metrics(self, service, context, log, monkeypatch, method):
        """Without a record, the log is what names them."""
        monkeypatch.setattr(Stats, method, interrupt, raising=False)
        with pytest.raises(TaskTimeout):
            TriggerFlowBatchOperator(task_id="batch", batch=[{}] * 3).execute(context(task_id="batch"))
        text = log()
        assert service.runs
        assert [run.run_id for run in service.runs if f": {run.run_id}" not in text] == []


class TestSpans:
    """On Airflow 3.3 and later, tasks have spans; here, one that is made by hand stands for them."""

    @pytest.fixture
    def spans(self):
        pytest.importorskip("opentelemetry.sdk")
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        before: Any = trace._TRACER_PROVIDER
        trace._TRACER_PROVIDER = provider

        def run(execute):
            task = provider.get_tracer("test").start_as_current_span("task")
            with task as parent, contextlib.suppress(AirflowFailException):
                execute()
            done = [span for span in exporter.get_finished_spans() if span.name != "task"]
            expected = parent.get_span_context().span_id
            assert [span.parent and span.parent.span_id for span in done] == [expected] * len(done)
            return [(span.name, {**(span.attributes or {})}, span.status.status_code.name) for span in done]

        yield run
        trace._TRACER_PROVIDER = before

    def test_a_start_and_its_upload(self, service, context, spans, tmp_path):
        (tmp_path / "a").write_text("a")
        told = {
            f"{PREFIX}.conn_id": "workflow_automation_default",
            f"{PREFIX}.flow_id": "demo-flow",
            f"{PREFIX}.run_id": "1001",
        }
        assert spans(lambda: trigger(files=f"{tmp_path}/a").execute(context())) == [
            (f"{PREFIX}.trigger", told, "UNSET"),
            (f"{PREFIX}.upload", {**told, f"{PREFIX}.files": 1}, "UNSET"),
        ]

    @pytest.mark.parametrize(
        "make", [trigger, lambda: UploadFilesOperator(task_id="upload", run_id="1001", files=[{}])]
    )
    def test_a_failure(self, service, context, spans, make):
        service.faults.add("echo_key")
        task = make()
        ((name, told, status),) = spans(lambda: task.execute(context(task_id=task.task_id)))
        assert (name, status) == (f"{PREFIX}.{task.task_id}", "ERROR")
        assert told[f"{PREFIX}.error"] == "RejectedError"
        assert service.keys[0].value not in str(told)

    def test_a_rejected_start_whose_run_has_claimed(self, service, store, context, claims, spans, statsd):
        service.faults.add("status_after", status=422)
        claim_at_deletion(store)
        ((_, told, status),) = spans(lambda: claims().execute(context(store)))
        assert (told[f"{PREFIX}.run_id"], status) == ("1001", "UNSET")
        assert statsd.counters == {"runs.started": 1, "starts.claimed": 1}

    def test_a_batch(self, service, context, spans):
        batch = TriggerFlowBatchOperator(task_id="batch", batch=[{}, {}])
        ((name, told, _),) = spans(lambda: batch.execute(context(task_id="batch")))
        assert (name, told[f"{PREFIX}.started"]) == (f"{PREFIX}.batch", 2)

    @pytest.mark.parametrize("method", ["start_span", "set_attributes"])
    @pytest.mark.parametrize("error", [RuntimeError("no traces"), WithoutTextError("no traces")])
    def test_spans_that_fail_are_ignored(self, service, context, spans, monkeypatch, method, error, caplog):
        from opentelemetry.sdk import trace

        caplog.set_level("DEBUG")  # so that the error is shown

        def fail(*_, **__):
            raise error

        def execute():
            monkeypatch.setattr(trace.Tracer if method == "start_span" else trace.Span, method, fail)
            assert trigger().execute(context())["run_id"] == "1001"
            monkeypatch.undo()

        spans(execute)
