"""
What a task ends with because of its earlier tries, its run or a person.

Each once, in golden/run_errors.txt.

With the class of the error, whether a run was started and Airflow may retry the task, how many
requests were sent, and how many entries there are.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from jinja2 import StrictUndefined

from entry_keys import ADOPTED, FIRST_START, PROBE, REVOKED
from golden import as_on_3_3
from workflow_automation_provider.exceptions import Accepted, WorkflowAutomationError
from workflow_automation_provider.execution.upload import UPLOAD_KEY
from workflow_automation_provider.operators.batch import TriggerFlowBatchOperator
from workflow_automation_provider.operators.flows import UploadFilesOperator
from workflow_automation_provider.taskflow import trigger_flow_once
from world_calls import before

from ..starts import claims, later, requests, trigger, waits

GOLDEN = Path(__file__).parents[1] / "golden" / "run_errors.txt"
"""
Renewed by ``GOLDEN=1`` in the environment of these tests.

Read the difference before it is committed.
"""

FILES = [{"name": "a"}]


def upload(run_id="1001", **options):
    return UploadFilesOperator(
        task_id="trigger", run_id=run_id, files=FILES, send_retry_timeout=0, **options
    )


def batch(items, **options):
    return TriggerFlowBatchOperator(task_id="trigger", batch=items, **options)


class Tries:
    """What the steps of a case share: the tries of a task instance."""

    def __init__(self, request):
        self.fixture = request.getfixturevalue
        self.store, self.service = self.fixture("store"), self.fixture("service")
        self.left = lambda: (requests(self.service), len(self.store.entries))
        self.number = 0

    def next(self, **options):
        self.number += 1
        return self.fixture("context")(self.store, **{"try_number": self.number, **options})


# The steps of a case: what they raise is suppressed, but for the last one.


def execute(*operators, **options):
    """Execute operators in the next try, given options of its context."""

    def step(tries):
        now = tries.next(**options)
        for operator in operators:
            copy.copy(operator).execute(now)  # itself is for all runs of the test in this process

    return step


def starts(*names, **options):
    """Start runs by name in the next try."""

    def step(tries):
        now = tries.next(task_id="customers")
        for name in names:
            trigger_flow_once(name, context=now, **{"send_retry_timeout": 0, **options})

    return step


def fault(kind, **options):
    return lambda tries: tries.service.faults.add(kind, **options)


def adopts_what_is_none(tries):
    tries.store.entries[ADOPTED] = {"run": "77"}


def forgets(tries):
    tries.store.lost = [FIRST_START, PROBE, PROBE]


def airflow(**settings):
    """Set settings of Airflow."""
    return environment({f"AIRFLOW__{name}": value for name, value in settings.items()})


def elsewhere(**extra):
    """Return the variable of a connection to another service."""
    fields = {
        "conn_type": "workflow_automation",
        "host": "https://service.example/api",
        "extra": extra,
    }
    return {"AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT": json.dumps(fields)}


def environment(variables):
    def step(tries):
        for name, value in variables.items():
            tries.fixture("monkeypatch").setenv(name, value)

    return step


def rendered(operator, **values):
    """Return an operator with what its templates became."""
    vars(operator).update(values)
    return operator


def in_world(operator, *steps, struck_by=None, lost_before_upload=False, **connection):
    """
    Raise the error of a task in a database after its first try.

    And what happens to it from then on.
    """

    def step(tries):
        task = tries.fixture("world")(operator, **connection)
        # Whether the store is probed differs between Airflow's versions.
        tries.left = lambda: (
            len(task.requests),
            sum(not key.endswith("_probe") for key in task.rows.entries),
        )
        task.faults.add(struck_by) if struck_by else None
        task.try_(*([before("get", UPLOAD_KEY, "kill")] if lost_before_upload else []))
        for happens in steps:
            happens(task)
        raise task.last.error

    return [step]


def tries_again(task):
    task.try_()


def says(status, run=-1, **fields):
    return lambda task: task.flow.reports(status, run, **fields)


def passes(**time):
    return lambda task: later(task, **time)


def adopts(run_id=None):
    """Have the task adopt a run, by default the task's own, and clear the task."""

    def happens(task):
        task.mark("failed")
        task.adopt(run_id or task.flow.runs[0].run_id)
        task.clear()
        task.until_end()

    return happens


def cleared(task):
    task.mark("failed")
    task.clear()


def doubts(task):
    task.faults.add("drop_after")
    task.try_()


def marked(task):
    task.try_(before("get", REVOKED, lambda: task.mark("failed")))


def loses_its_connection(_):
    del os.environ["AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT"]


def is_ended(tries):
    """Wait outside a scheduler until the task is ended."""
    operator, patch = waits(), tries.fixture("monkeypatch")
    patch.delattr("airflow.sdk.execution_time.task_runner.SUPERVISOR_COMMS", raising=False)
    patch.setattr("time.sleep", lambda _: operator.on_kill())
    operator.execute(tries.next())


def moves_the_service(_):
    os.environ.update(elsewhere())


def writes_its_file(_):
    FILE.parent.mkdir(exist_ok=True)
    FILE.touch()


def rejects(task):
    task.faults.add("reject")


def spoils_the_start(task):
    task.rows.put(FIRST_START, {"at": "yesterday"})


def waits_only_now(task):
    task.operator = waits()


def forgets_that_it_waits(task):
    start = json.loads(task.rows.entries[FIRST_START])
    del start["completion_timeout"]
    task.rows.put(FIRST_START, start)


START_AGAIN = starts("ada", on_unknown_start="start_again")
DOUBT = [fault("drop_after"), START_AGAIN]
CLAIMED = says("started", 0, run_id=True)
LOCAL = "http://127.0.0.1"
FILE = Path(tempfile.mkdtemp()) / "box" / "file"
FOLDER = "s3://aws_default@bucket/folder"


def mailed(*steps, struck_by=None, **options):
    """Raise the error of a look at a run that writes to a mailbox."""
    folder = Path(tempfile.mkdtemp()).as_uri()
    return in_world(
        waits(**options),
        *steps,
        tries_again,
        struck_by=struck_by,
        callback_base_url=f"{folder}/box",
    )


def spoilt(task):
    Path(unquote(urlsplit(task.flow.runs[0].url).path)).mkdir()


def spoilt_by(body):
    return lambda task: Path(unquote(urlsplit(task.flow.runs[0].url).path)).write_bytes(body)


def fails_the_trigger(task):
    task.rows.defer("__fail__", {"traceback": ["Traceback", "ImportError: no such module\n"]})


CASES: dict[str, list[Callable[[Tries], object]]] = {
    "an earlier try is in doubt": [fault("drop_after"), execute(trigger()), execute(trigger())],
    "an earlier run has no known id": [fault("garbage"), execute(trigger()), execute(trigger())],
    "a name with other inputs": [starts("ada"), starts("ada", inputs={"a": 1})],
    "a name with another flow": [
        fault("garbage"),
        starts("ada"),
        starts("ada", flow_id="demo-flow"),
    ],
    "a name with a wrong argument after a doubt": [
        *DOUBT,
        starts("ada", on_unknown_start="start_again", send_retry_timeout=-1),
    ],
    "a name that was rejected after a doubt": [*DOUBT, fault("reject"), START_AGAIN],
    "a name in doubt after a rejection": [*DOUBT, fault("reject"), START_AGAIN, starts("ada")],
    "a name that was used": [starts("ada", "ada")],
    "a name of two lines": [starts("a\nb")],
    "an operator that was executed": [execute(trigger(), trigger())],
    "an operator inside a task": [execute(trigger(task_id="ada"), task_id="customers")],
    "an adopted run that is none": [adopts_what_is_none, execute(trigger(), try_number=2)],
    "a store that forgets": [execute(trigger()), forgets, execute(trigger())],
    "a template that was not rendered": [execute(trigger(flow_id="{{ ds }}"))],
    "a template without a value after a doubt": [
        fault("drop_after"),
        execute(trigger()),
        execute(rendered(trigger(), flow_id=StrictUndefined(name="ds"))),
    ],
    "a template without a value": [execute(rendered(trigger(), flow_id="None"))],
    "a connection id that is none": [execute(trigger(workflow_automation_conn_id=None))],
    "an upload for a result without a run_id": [execute(upload({"flow_id": "demo-flow"}))],
    "an upload for several results": [execute(upload([{"run_id": "1001"}]))],
    "an upload for the text of a result": [execute(upload("{'run_id': '1001'}"))],
    "an upload that was executed": [execute(trigger()), execute(upload(), upload())],
    "an upload of the flow of its run": [
        execute(trigger()),
        execute(upload({"run_id": "1001", "flow_id": "another"})),
    ],
    "files that are not there": [execute(trigger(files="/nowhere/*.csv"))],
    "files that are not JSON": [execute(trigger(files=[{"a": {1}}]))],
    "files for a run without an id": [fault("response", body={}), execute(trigger(files=FILES))],
    "a batch that changed": [
        fault("reject", status=401, inputs={"number": 2}),
        execute(batch([{"number": 1}, {"number": 2}], max_concurrency=1)),
        execute(batch([{"number": 2}])),
    ],
    "an output_path that is a folder": [execute(batch([], output_path="/"))],
    "a wait without a store": [lambda tries: waits().execute(tries.fixture("context")())],
    "a wait without its entries": [airflow(STATE_STORE__CLEAR_ON_SUCCESS="True"), execute(waits())],
    "a claim with another store": [airflow(STATE_STORE__BACKEND="theirs"), execute(claims())],
    "a wait with a store of workers": [
        airflow(WORKERS__STATE_STORE_BACKEND="theirs"),
        execute(waits()),
    ],
    "a callback URL without a base": [airflow(API__BASE_URL=""), execute(waits())],
    "a callback URL that is none": [airflow(API__BASE_URL="ftp://a.example"), execute(waits())],
    "an Airflow that only this machine reaches": [
        environment(elsewhere()),
        airflow(API__BASE_URL=LOCAL),
        execute(waits()),
    ],
    "a callback_base_url of this machine": [
        environment(elsewhere(callback_base_url=LOCAL)),
        execute(waits()),
    ],
    "a mailbox of this machine": [
        environment(elsewhere(callback_base_url="file:///tmp/mailboxes")),
        execute(waits()),
    ],
    "a mailbox and a claim": [environment(elsewhere(callback_base_url=FOLDER)), execute(claims())],
    "a mailbox and a heartbeat": [
        environment(elsewhere(callback_base_url=FOLDER)),
        execute(waits(heartbeat_timeout=timedelta(minutes=1))),
    ],
    "a mailbox for a week": [
        environment(elsewhere(callback_base_url=FOLDER)),
        execute(waits(completion_timeout=timedelta(days=7))),
    ],
    "inputs that are a list": [execute(rendered(waits(), inputs=["a"]))],
    "inputs with the name of the callback URL": [execute(waits(inputs={"callback_url": "mine"}))],
    "the flow says failed": in_world(waits(), says("failed", message="No rows"), tries_again),
    "the flow says failed and nothing else": in_world(waits(), says("failed"), tries_again),
    "nobody says how the run ended": in_world(waits(), passes(days=1), tries_again),
    "nobody says how a run that claimed ended": in_world(
        waits(),
        says("started", run_id="77"),
        says("running", run_id="77"),
        passes(days=1),
        tries_again,
    ),
    "nobody says how a run without an id ended": in_world(
        claims(wait_for_completion=True),
        says("started"),
        tries_again,
        passes(days=1),
        tries_again,
        struck_by="drop_after",
    ),
    "a wait that is ended": [airflow(API__BASE_URL=LOCAL), is_ended],
    "the run says nothing more": in_world(
        waits(heartbeat_timeout=timedelta(minutes=1)), passes(minutes=3), tries_again
    ),
    "no run claimed its start": in_world(claims(), struck_by="drop_after"),
    "no run claimed its start in the last try": in_world(claims(retries=0), struck_by="drop_after"),
    "a doubt that was closed": in_world(waits(), struck_by="drop_after"),
    "a task that a person marked": in_world(claims(), marked, struck_by="drop_after"),
    "an adopted run while another has the task": in_world(waits(), CLAIMED, adopts("77")),
    "an adopted run that was told to stop": in_world(
        waits(), CLAIMED, says("started", 0, run_id="77"), adopts("77")
    ),
    "an adopted run of a start that was told to stop": in_world(
        waits(), cleared, CLAIMED, adopts()
    ),
    "an adopted run that is not that of the last start": in_world(waits(), adopts("77")),
    "an adopted run of a start that was rejected": in_world(
        waits(), adopts("77"), struck_by="reject"
    ),
    "an adopted run of an earlier start": in_world(waits(), cleared, doubts, adopts()),
    "an adopted run of an earlier start in doubt": in_world(
        waits(on_unknown_start="start_again"), doubts, adopts(), struck_by="drop_after"
    ),
    "a wait that is not recorded": in_world(waits(), forgets_that_it_waits, tries_again),
    "an adopted run that cannot be waited for": in_world(trigger(), waits_only_now, adopts("77")),
    "a connection that broke while the task waited": in_world(
        waits(),
        says("success", result=3),
        lambda _: os.environ.update(elsewhere(typo=1)),
        tries_again,
    ),
    "a connection that is gone when the run failed": in_world(
        waits(), says("failed"), loses_its_connection, tries_again
    ),
    "another service before the upload": in_world(
        trigger(files=FILES), moves_the_service, tries_again, lost_before_upload=True
    ),
    "another start is rejected after a run that failed": in_world(
        waits(on_run_failed="start_again"),
        says("failed"),
        tries_again,
        rejects,
        tries_again,
    ),
    "a second start in doubt": in_world(
        trigger(on_unknown_start="start_again", retries=1), doubts, struck_by="drop_after"
    ),
    "a file that is gone before the upload": [
        writes_its_file,
        *in_world(
            trigger(files=str(FILE)),
            lambda _: FILE.unlink(),
            tries_again,
            lost_before_upload=True,
        ),
    ],
    "an adopted run that failed, and a rejection": in_world(
        waits(on_run_failed="start_again"),
        adopts(),
        says("failed"),
        tries_again,
        rejects,
        tries_again,
    ),
    "a start whose entry a person changed": in_world(
        trigger(files=FILES), spoils_the_start, tries_again, lost_before_upload=True
    ),
    "a mailbox that cannot be read": mailed(spoilt),
    "a mailbox that cannot be read in doubt": mailed(
        spoilt, struck_by="drop_after", on_unknown_start="start_again"
    ),
    "a mailbox with what is no report": mailed(spoilt_by(b"{}")),
    "a trigger that failed": mailed(fails_the_trigger),
}


def expected():
    """Return the texts of the golden file, by the name of the case."""
    parts = re.split(r"^## (.+)\n", GOLDEN.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))


def renew(name, text):
    texts = {**(expected() if GOLDEN.exists() else {}), name: text}
    GOLDEN.write_text(
        "\n\n".join(f"## {one}\n{texts[one]}" for one in CASES if one in texts) + "\n"
    )


@pytest.mark.parametrize("name", CASES)
def test_messages(request, name):
    tries, (*steps, last) = Tries(request), CASES[name]
    for step in steps:
        with contextlib.suppress(WorkflowAutomationError):
            step(tries)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its class is in the file
        last(tries)
    accepted = getattr(caught.value, "accepted", Accepted.NO).name
    retry = "no retry" if isinstance(caught.value, AirflowFailException) else "retry"
    text = "{}, accepted: {}, {}, requests: {}, entries: {}\n{}".format(
        type(caught.value).__name__, accepted, retry, *tries.left(), caught.value
    )
    text = re.sub(r"http://127\.0\.0\.1:\d+", "http://service", text)
    text = re.sub(r"/\S+/box/\w+", "/box/HASH", text)
    text = re.sub(r"(\d{4}-\d\d-\d\dT|\b)\d\d:\d\d:\d\d(\.\d+)?(\+00:00)?", "TIME", text)
    text = as_on_3_3(text)
    if os.environ.get("GOLDEN"):
        renew(name, text)
    assert text == expected()[name]


def test_each_golden_text_has_a_case():
    assert expected().keys() == CASES.keys()
