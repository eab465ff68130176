"""TriggerFlowOperator that waits for the end of its run, over HTTP: the URL, the answers, the park, the tries."""

from __future__ import annotations

import json
import pickle
import threading
import time
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workflow_automation_provider.client.redaction import WITHHELD
from workflow_automation_provider.exceptions import (
    Accepted,
    BusyError,
    InvalidRequestError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    ResponseUnusableError,
    RunFailedError,
    RunTimeoutError,
    WorkflowAutomationError,
)
from workflow_automation_provider.execution.ask import STARTED
from workflow_automation_provider.execution.callback import (
    OPTIONS,
    PATH,
    TOKEN_LENGTH,
    Answer,
    end_key,
    new_token,
    token_key,
    token_keys,
)
from workflow_automation_provider.execution.wait_state import WaitRecord
from workflow_automation_provider.failures import CLAIM_ADVICE, SUPPLIED_RUN_KEY, run_advice, run_started
from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

from ..answers import TIMEOUT, person, woken
from ..claims import BRIEF
from ..starts import KEY, mentions, requests, trigger

WAIT = "workflow_automation_wait"
TOKEN = "Abc-_123" * 8
SUCCEEDED, FAILED = OPTIONS["success"], OPTIONS["failed"]


def the_run(service, **more):
    return {"run_id": "1001", "run_link": f"{service.url}/runs/1001", "flow_id": "demo-flow", **more}


def tokens(store):
    """The keys of the tokens that a callback can answer with."""
    return {key for key in store.entries if "_token/" in key}


def answer(store, body, max_tries=3):
    """Answer as the endpoint does, for the token that counts."""
    digest = store.entries[KEY]["token"]
    assert {*token_keys(digest, max_tries)} & store.entries.keys()
    store.set(end_key(digest), Answer.read(json.dumps(body).encode()).row("2026-01-01T00:00:00+00:00"))


def answer_once_started(store, body):
    """Have the flow call back as soon as its run is recorded."""
    write = store.set

    def set_and_answer(key, value, **options):
        write(key, value, **options)
        if key == KEY and value["state"] == "started":
            answer(store, body)

    store.set = set_and_answer


def answer_before_the_token_is_deleted(store, body):
    """Have the flow call back, and get 200, after the task has looked for its answer."""
    delete = store.delete

    def answer_and_delete(key):
        if "_token/" in key:
            store.delete = delete
            answer(store, body)
        delete(key)

    store.delete = answer_and_delete


def later(store, **changes):
    """Move the beginning of the wait into the past."""
    store.entries[WAIT]["since"] = (datetime.now(UTC) - timedelta(**changes)).isoformat()


class TestInThisProcess:
    """Outside a scheduler, as in dag.test(): nobody would wake a parked task."""

    def test_success(self, service, store, context, endpoint, waits, log):
        service.callbacks.add(result={"rows": 3}, message="all there")
        now = context(store)
        assert waits().execute(now) == the_run(service, result={"rows": 3})
        assert mentions(log(), "The flow", "succeeded. all there")
        assert endpoint.statuses == [200]
        assert service.runs[0].inputs["a"] == 1

    def test_a_message_forges_no_line_of_the_log(self, service, store, context, endpoint, waits, log):
        service.callbacks.add(message="done\nRun 9 failed")
        waits().execute(context(store))
        assert "done\\nRun 9 failed" in log()

    @pytest.mark.parametrize("result", [0, False, "", [], {}])
    def test_a_result_that_is_empty_is_a_result(self, service, store, context, endpoint, waits, result):
        service.callbacks.add(result=result, body={"status": "success", "result": result})
        assert waits().execute(context(store))["result"] == result

    def test_without_a_result(self, service, store, context, endpoint, waits):
        service.callbacks.add()
        assert waits().execute(context(store)) == the_run(service)

    def test_another_input(self, service, store, context, endpoint, waits):
        service.callbacks.add(input="report_to")
        assert waits(callback_input="report_to").execute(context(store)) == the_run(service)

    def test_failed(self, service, store, context, endpoint, waits):
        service.callbacks.add("failed", message="No rows", result={"at": 7})
        with pytest.raises(RunFailedError) as caught:
            waits(retries=3).execute(context(store))
        error = caught.value
        assert isinstance(error, AirflowFailException)
        assert (error.result, error.accepted, error.run_id) == ({"at": 7}, Accepted.YES, "1001")
        assert error.code == "run-failed"
        assert pickle.loads(pickle.dumps(error)).result == {"at": 7}

    def test_failed_without_a_word(self, service, store, context, endpoint, waits):
        service.callbacks.add("failed")
        with pytest.raises(RunFailedError) as caught:
            waits().execute(context(store))
        assert caught.value.message.endswith("failed.")

    def test_nobody_says(self, service, store, context, endpoint, waits):
        with pytest.raises(RunTimeoutError) as caught:
            waits(completion_timeout=timedelta(seconds=1)).execute(context(store))
        assert isinstance(caught.value, AirflowFailException)
        assert (caught.value.code, caught.value.run_id) == ("run-overdue", "1001")
        assert f"{service.url}/runs/1001" in caught.value.next_step
        assert f'key {SUPPLIED_RUN_KEY}, value "1001"' in caught.value.next_step

    def test_ended_by_airflow(self, service, store, context, endpoint, waits):
        operator = waits()

        def end():
            while WAIT not in store.entries:
                time.sleep(0.01)
            operator.on_kill()

        thread = threading.Thread(target=end)
        thread.start()
        with pytest.raises(RunTimeoutError, match="was ended") as caught:
            operator.execute(context(store))
        thread.join()
        assert caught.value.consequence == run_started("1001")

    def test_the_same_run_is_waited_for_again(self, service, store, context, endpoint, waits, parked, resume):
        """As the error of a timeout says."""
        now = context(store)
        then, _ = parked(waits(), now)
        later(store, days=1)
        with pytest.raises(RunTimeoutError):
            resume(waits(), now, TIMEOUT, **then)
        store.entries[SUPPLIED_RUN_KEY] = "1001"
        now = context(store, try_number=2, max_tries=4)
        then, _ = parked(waits(), now)
        answer(store, {"status": "success", "result": 1}, max_tries=4)
        assert resume(waits(), now, woken(SUCCEEDED), **then) == {"run_id": "1001", "result": 1}
        assert requests(service) == 1

    def test_a_retry_waits_for_the_same_run(self, service, store, context, endpoint, waits):
        service.faults.add("busy", operation="upload")
        with pytest.raises(BusyError):
            waits(files=[{"name": "a"}]).execute(context(store))
        answer(store, {"status": "success", "result": 1})
        assert waits().execute(context(store, try_number=2)) == the_run(service, result=1)
        assert requests(service) == 2


class TestToken:
    """It is in the request alone: what is kept of it is its hash."""

    def expect_nowhere(self, endpoint, store, log, now, *things):
        token = endpoint.token
        assert len(token) == TOKEN_LENGTH
        texts = [
            log(),
            repr(store.entries),
            repr(store.writes),
            repr(now["ti"].pushed),
            *(f"{thing!s}{thing!r}" for thing in things),
        ]
        assert [text for text in texts if token in text] == []

    def test_of_a_run_that_succeeds(self, service, store, context, endpoint, waits, log):
        service.callbacks.add(result={"rows": 3})
        operator, now = waits(), context(store)
        result = operator.execute(now)
        self.expect_nowhere(
            endpoint,
            store,
            log,
            now,
            operator,
            operator.inputs,
            operator.hook,
            operator.hook.get_conn(),
            result,
        )
        assert operator.inputs == {"a": 1}

    @pytest.mark.parametrize(
        ("fault", "error"),
        [
            ({"kind": "reject", "status": 400}, RejectedError),
            ({"kind": "busy", "retry_after": 1}, BusyError),
            ({"kind": "response", "status": 500}, OutcomeUnknownError),
            ({"kind": "response", "status": 200}, None),
        ],
    )
    def test_that_the_service_echoes(
        self, service, store, context, endpoint, waits, log, monkeypatch, fault, error
    ):
        """In the error's words, and in a response without a run_id."""
        token = TOKEN
        url = f"{endpoint.url}/workflow-automation/callback?token={token}"
        endpoint.urls.append(url)
        monkeypatch.setattr("workflow_automation_provider.execution.callback_url.new_token", lambda _: token)
        service.faults.add(
            fault["kind"],
            body={"detail": f"inputs.callback_url {url} is not there"},
            **{name: value for name, value in fault.items() if name not in ("kind",)},
        )
        operator, now = waits(completion_timeout=timedelta(seconds=0.1)), context(store)
        with pytest.raises(error or RunTimeoutError) as caught:
            operator.execute(now)
        self.expect_nowhere(endpoint, store, log, now, operator, caught.value)
        if error is None:
            assert store.entries[KEY]["result"]["response"] == WITHHELD

    def test_in_the_run_link(self, service, store, context, endpoint, waits, log, monkeypatch):
        token = TOKEN
        endpoint.urls.append(f"/?token={token}")
        monkeypatch.setattr("workflow_automation_provider.execution.callback_url.new_token", lambda _: token)
        service.faults.add("response", body={"run_id": "7", "run_link": f"http://there/runs/7?token={token}"})
        operator, now = waits(completion_timeout=timedelta(seconds=0.1)), context(store)
        with pytest.raises(RunTimeoutError) as caught:
            operator.execute(now)
        self.expect_nowhere(endpoint, store, log, now, caught.value)
        assert "run_link" not in store.entries[KEY]["result"]
        assert now["ti"].pushed == {}

    def test_in_the_result(self, service, store, context, endpoint, waits, log, monkeypatch):
        token = TOKEN
        monkeypatch.setattr("workflow_automation_provider.execution.callback_url.new_token", lambda _: token)
        service.callbacks.add(result={"called": f"/?token={token}"}, message=f"by {token}")
        operator, now = waits(), context(store)
        assert operator.execute(now)["result"] == WITHHELD
        assert token not in log()

    def test_in_the_result_is_kept_nowhere(self, service, store, context, endpoint, waits, log):
        """The endpoint, which knows no secret, has stored it; a later try finds the answer without it."""
        key = "a-key-of-the-service"
        service.callbacks.add(result={"key": key}, message="Done")
        operator = waits()
        operator.hook.redact_also(key)
        result = operator.execute(context(store))
        assert result["result"] == WITHHELD
        assert key not in repr(store.entries)
        assert tokens(store) == set()
        assert waits().execute(context(store, try_number=2)) == result
        assert endpoint.statuses == [200]

    def test_in_the_response_to_an_upload(self, service, store, context, endpoint, waits, monkeypatch, log):
        token = TOKEN
        endpoint.urls.append(f"/?token={token}")
        monkeypatch.setattr("workflow_automation_provider.execution.callback_url.new_token", lambda _: token)
        service.faults.add("response", operation="upload", body={"of": token})
        operator, now = (
            waits(files=[{"name": "a"}], completion_timeout=timedelta(seconds=0.1)),
            context(store),
        )
        with pytest.raises(RunTimeoutError) as caught:
            operator.execute(now)
        assert "workflow_automation_upload_0" in store.entries
        self.expect_nowhere(endpoint, store, log, now, caught.value)

    def test_in_the_response_to_an_upload_of_a_later_try(
        self, service, store, context, endpoint, waits, parked, monkeypatch, log
    ):
        """Which does not know the token."""
        url = f"{endpoint.url}{PATH}?token={TOKEN}"
        endpoint.urls.append(url)
        monkeypatch.setattr("workflow_automation_provider.execution.callback_url.new_token", lambda _: TOKEN)
        service.faults.add("busy", operation="upload")
        with pytest.raises(BusyError):
            waits(files=[{"name": "a"}]).execute(context(store))
        service.faults.add("response", operation="upload", body={"run": {"callback_url": url}})
        now = context(store, try_number=2)
        parked(waits(files=[{"name": "a"}]), now)
        assert store.entries["workflow_automation_upload_0"]["request"]["response"] == WITHHELD
        self.expect_nowhere(endpoint, store, log, now)

    def test_each_run_has_its_own(self, service, store, context, endpoint, waits):
        service.callbacks.add()
        waits().execute(context(store))
        endpoint.max_tries = 7
        waits().execute(context(store, try_number=5, max_tries=7))
        assert len(service.runs) == 2
        assert len({*endpoint.urls}) == 2


class TestResultWithTheKey:
    def test_is_withheld(self, service, store, context, endpoint, waits, log):
        key = service.keys[0].value
        service.callbacks.add(result={"key": key}, message=f"with {key}")
        assert waits().execute(context(store))["result"] == WITHHELD
        assert key not in log()
        assert key not in repr(store.entries)
        # Also found by a later try.
        assert waits().execute(context(store, try_number=2))["result"] == WITHHELD

    def test_of_a_failed_run_as_well(self, service, store, context, endpoint, waits):
        key = service.keys[0].value
        service.callbacks.add("failed", result=[key], message=f"with {key}")
        with pytest.raises(RunFailedError) as caught:
            waits().execute(context(store))
        assert caught.value.result == WITHHELD
        assert key not in str(caught.value)


class TestBaseUrl:
    @pytest.fixture(autouse=True)
    def _none(self, monkeypatch):
        monkeypatch.delenv("AIRFLOW__API__BASE_URL", raising=False)

    def rejected(self, service, store, now, operator, match):
        with pytest.raises(InvalidRequestError, match=match) as caught:
            operator.execute(now)
        assert isinstance(caught.value, AirflowFailException)
        assert "callback_base_url" in caught.value.next_step
        assert requests(service) == 0
        assert store.entries == {}

    def test_none(self, service, store, context, waits, monkeypatch):
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", "")
        self.rejected(service, store, context(store), waits(), r"\[api\] base_url is empty")

    @pytest.mark.parametrize(
        ("url", "match"),
        [
            ("ftp://airflow.example", "has the scheme 'ftp'"),
            ("http://airflow.example", "plain http to airflow.example"),
            ("https://ada:secret@airflow.example", "contains a user name"),
            ("https://airflow.example?a=1", "has a query"),
            ("https://[airflow", "not a valid URL"),
        ],
    )
    def test_of_airflow_is_not_usable(self, service, store, context, waits, monkeypatch, url, match):
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", url)
        self.rejected(service, store, context(store), waits(), rf"\[api\] base_url .*{match}")

    def test_of_airflow(
        self, service, store, context, endpoint, waits, monkeypatch, workflow_automation_connect
    ):
        workflow_automation_connect()
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", f"{endpoint.url}/")
        service.callbacks.add(result=1)
        assert waits().execute(context(store))["result"] == 1

    @pytest.mark.parametrize("by", ["connection", "airflow"])
    def test_loopback_for_a_service_elsewhere(self, service, store, context, waits, monkeypatch, by):
        connection = service.airflow_connection(service.keys[0], {})
        connection["host"] = "https://service.example/api"
        if by == "connection":
            connection["extra"]["callback_base_url"] = "http://localhost:8080"
        else:
            monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://127.0.0.1:8080")
        monkeypatch.setenv("AIRFLOW_CONN_ELSEWHERE", json.dumps(connection))
        operator = waits(workflow_automation_conn_id="elsewhere")
        self.rejected(service, store, context(store), operator, "only this machine")


class TestInputs:
    def test_with_the_name_of_the_url(self, service, store, context, endpoint, waits):
        with pytest.raises(InvalidRequestError, match=r"inputs .*'callback_url'.* callback_input"):
            waits(inputs={"callback_url": "mine"}).execute(context(store))
        assert (requests(service), store.entries) == (0, {})

    def test_of_another_kind(self, service, store, context, endpoint, waits):
        operator = waits()
        operator.inputs = ["a"]
        with pytest.raises(InvalidRequestError, match="inputs is a list"):
            operator.execute(context(store))
        assert (requests(service), store.entries) == (0, {})

    def test_a_mapping(self, service, store, context, endpoint, waits):
        service.callbacks.add()
        waits(inputs=MappingProxyType({"b": 2})).execute(context(store))
        assert service.runs[0].inputs["b"] == 2

    def test_that_cannot_be_sent_open_nothing(self, service, store, context, endpoint, waits):
        with pytest.raises(InvalidRequestError, match=r"inputs\.a is a set"):
            waits(inputs={"a": {1}}).execute(context(store))
        assert (requests(service), store.entries) == (0, {})

    @pytest.mark.parametrize("name", ["", " ", None, 7])
    def test_a_name_of_the_url_that_is_none(self, waits, name):
        with pytest.raises(ValueError, match=f"callback_input is {name!r}"):
            waits(callback_input=name)

    @pytest.mark.parametrize("value", ["no", 1, None])
    def test_a_wait_that_is_neither_true_nor_false(self, value):
        with pytest.raises(ValueError, match=f"wait_for_completion is {value!r}"):
            trigger(wait_for_completion=value)


def test_a_clear_after_the_task_continued_starts_another_run(
    service, store, context, endpoint, waits, parked, log
):
    then, _ = parked(waits(), context(store))
    then, _ = parked(waits(), context(store, try_number=2, max_tries=4), TIMEOUT, **then)
    assert then["run"]["run_id"] == "1002"
    assert mentions(log(), "cleared", "starting over")


def test_the_order_of_what_is_written(service, store, context, endpoint, waits):
    """The token's hash is there before the flow can know the token, and the run before anybody waits."""
    service.callbacks.add(delay=0.3)
    waits().execute(context(store))
    digest = store.entries[KEY]["token"]
    assert [(key, state, sent) for key, state, sent in store.writes][:4] == [
        (token_key(digest, 3), None, 0),
        (KEY, "starting", 0),
        (KEY, "started", 1),
        (WAIT, None, 1),
    ]


def test_a_token_that_cannot_be_recorded(service, store, context, endpoint, waits):
    store.failures["set"] = 1
    with pytest.raises(RuntimeError, match="store"):
        waits().execute(context(store))
    assert requests(service) == 0


class TestPark:
    def test_a_run_id_is_shown_as_it_is(self, service, store, context, endpoint, waits, parked, supervisor):
        body = {"run_id": "`[here](http://evil)`", "run_link": "http://a> [here](http://evil) <http://b"}
        service.faults.add("response", body=body)
        parked(waits(), context(store))
        (question,) = supervisor.questions
        assert question.body.splitlines()[1] == "- Run: `` `[here](http://evil)` ``"

    def test_it_asks_and_parks(self, service, store, context, endpoint, waits, parked, supervisor, log):
        now = context(store)
        then, timeout = parked(waits(), now)
        ti_id = str(now["ti"].id)
        assert then == {"run": the_run(service), "checks": 1, "timeout": 86400.0, "ti_id": ti_id}
        assert timeout == timedelta(seconds=15)
        (question,) = supervisor.questions
        assert question.ti_id == now["ti"].id
        assert "run 1001 " in question.subject
        assert question.options == [SUCCEEDED, FAILED]
        assert set(question.params) == {"result", "message"}
        assert question.body.splitlines()[1:] == [
            f"- Run: `1001` <{service.url}/runs/1001>",
            "- Connection: `workflow_automation_default`",
            "- Flow: `demo-flow`",
        ]
        assert mentions(log(), "run 1001", "until 20")

    def test_the_checks_become_rarer(self, service, store, context, endpoint, waits, parked, supervisor):
        now, found = context(store), []
        then, timeout = parked(waits(), now)
        for _ in range(12):
            found.append(timeout)
            then, timeout = parked(waits(), now, TIMEOUT, **then)
        minutes = [1 / 4, 1, 4, 16, 64, 256, *[360] * 6]
        assert found == [timedelta(minutes=number) for number in minutes]
        assert len(supervisor.questions) == 1, "asking again would delete an answer"
        assert requests(service) == 1

    def test_no_longer_than_the_time_that_is_left(self, service, store, context, endpoint, waits, parked):
        now = context(store)
        operator = waits(completion_timeout=timedelta(seconds=90))
        then, _ = parked(operator, now)
        later(store, seconds=60)
        _, timeout = parked(operator, now, TIMEOUT, **then)
        assert timedelta(seconds=25) < timeout <= timedelta(seconds=30)

    def test_the_time_is_up(self, service, store, context, endpoint, waits, parked, resume):
        now = context(store)
        then, _ = parked(waits(), now)
        later(store, days=1)
        with pytest.raises(RunTimeoutError, match=r"within completion_timeout \(1 day, 0:00:00\)"):
            resume(waits(), now, event=TIMEOUT, **then)

    def test_once_the_time_is_up_a_flow_is_told_that_nobody_waits(
        self, service, store, context, endpoint, waits, parked, resume, monkeypatch
    ):
        tokens = []

        def new(ti_id):
            tokens.append(new_token(ti_id))
            return tokens[-1]

        monkeypatch.setattr("workflow_automation_provider.execution.callback_url.new_token", new)
        now = context(store)
        then, _ = parked(waits(), now)
        (token,) = tokens
        later(store, days=1)
        with pytest.raises(RunTimeoutError):
            resume(waits(), now, event=TIMEOUT, **then)
        assert endpoint.answer(f"/team{PATH}?token={token}", b'{"status": "success"}') == 404

    @pytest.mark.parametrize("supervised", [False, True])
    def test_an_answer_in_the_last_moment_counts(
        self, service, store, context, endpoint, waits, supervised, request, monkeypatch
    ):
        """It comes after the task has found none, and the flow is told 200: the task must not miss it."""
        if supervised:
            request.getfixturevalue("supervisor")
        close = WaitRecord.close

        def answer_and_close(record, digest):
            answer(store, {"status": "success", "result": 1})
            return close(record, digest)

        monkeypatch.setattr(WaitRecord, "close", answer_and_close)
        operator = waits(completion_timeout=timedelta(microseconds=1))
        assert operator.execute(context(store)) == the_run(service, result=1)

    def test_the_answer_counts_even_after_the_time(
        self, service, store, context, endpoint, waits, parked, resume
    ):
        now = context(store)
        then, _ = parked(waits(), now)
        later(store, days=2)
        answer(store, {"status": "success"})
        assert resume(waits(), now, event=woken(SUCCEEDED), **then) == the_run(service)

    @pytest.mark.parametrize("event", [woken(SUCCEEDED), woken(), TIMEOUT, None])
    def test_woken_with_the_flows_answer(
        self, service, store, context, endpoint, waits, parked, event, resume
    ):
        """Whatever Airflow says, the row is what the flow said."""
        now = context(store)
        then, _ = parked(waits(), now)
        answer(store, {"status": "success", "result": [1]})
        assert resume(waits(), now, event, **then) == the_run(service, result=[1])
        assert now["ti"].pushed == {"_link_FlowRunLink": f"{service.url}/runs/1001"}

    def test_the_flow_is_believed_rather_than_a_person(
        self, service, store, context, endpoint, waits, parked, resume
    ):
        now = context(store)
        then, _ = parked(waits(), now)
        answer(store, {"status": "success", "result": 1})
        assert resume(waits(), now, event=person(FAILED), **then)["result"] == 1

    def test_the_flow_is_believed_until_its_token_is_deleted(
        self, service, store, context, endpoint, waits, parked, resume
    ):
        now = context(store)
        then, _ = parked(waits(), now)
        answer_before_the_token_is_deleted(store, {"status": "failed", "message": "rows lost"})
        with pytest.raises(RunFailedError, match=r"The flow .*: rows lost"):
            resume(waits(), now, event=person(SUCCEEDED), **then)

    def test_woken_without_an_answer_it_asks_again(
        self, service, store, context, endpoint, waits, parked, supervisor
    ):
        """The endpoint closed the question: a task whose question is answered could not park."""
        now = context(store)
        then, _ = parked(waits(), now)
        then, _ = parked(waits(), now, woken(SUCCEEDED), **then)
        assert len(supervisor.questions) == 2
        parked(waits(), now, TIMEOUT, **then)
        assert len(supervisor.questions) == 2

    def test_another_option_of_a_person_asks_again(
        self, service, store, context, endpoint, waits, parked, supervisor
    ):
        now = context(store)
        then, _ = parked(waits(), now)
        parked(waits(), now, person("A run was started"), **then)
        assert len(supervisor.questions) == 2

    def test_answered_before_it_parks(self, service, store, context, endpoint, waits, supervisor):
        real = supervisor.send

        def send(msg):
            real(msg)
            if type(msg).__name__ == "CreateHITLDetailPayload":
                answer(store, {"status": "success", "result": 2})

        supervisor.send = send
        assert waits().execute(context(store))["result"] == 2

    def test_a_question_that_cannot_be_stored_is_asked_at_the_next_check(
        self, service, store, context, endpoint, waits, parked, supervisor, log
    ):
        supervisor.failures.append(RuntimeError("No database"))
        now = context(store)
        then, _ = parked(waits(), now)
        assert mentions(log(), "not be listed", "Required Actions")
        assert supervisor.questions == []
        parked(waits(), now, TIMEOUT, **then)
        assert len(supervisor.questions) == 1

    def test_a_later_try_asks_anew_and_goes_on_waiting(
        self, service, store, context, endpoint, waits, parked, supervisor
    ):
        """The question is that of the killed try."""
        parked(waits(), context(store))
        later(store, hours=1)
        since = store.entries[WAIT]["since"]
        parked(waits(), context(store, try_number=2))
        assert len({question.ti_id for question in supervisor.questions}) == 2
        assert store.entries[WAIT]["since"] == since
        assert requests(service) == 1

    def test_it_never_starts_a_run_once_it_was_parked_with_one(
        self, service, store, context, endpoint, waits, parked
    ):
        """A Clear on Airflow 3.4 deletes the record, but the process may be older."""
        now = context(store)
        then, _ = parked(waits(), now)
        store.entries.clear()
        parked(waits(), now, TIMEOUT, **then)
        assert requests(service) == 1

    def test_a_run_without_an_id(
        self, service, store, context, endpoint, waits, parked, supervisor, log, resume
    ):
        service.faults.add("response", body={"run_link": "javascript:alert(1)"})
        now = context(store)
        then, _ = parked(waits(), now)
        (question,) = supervisor.questions
        assert question.options == [SUCCEEDED, FAILED]
        assert "- Run: unknown\n" in question.body
        assert "javascript" not in question.body
        later(store, days=1)
        with pytest.raises(RunTimeoutError, match=r"Look at .*"):
            resume(waits(), now, event=TIMEOUT, **then)

    def test_a_link_is_not_shown_by_another_try(self, service, store, context, endpoint, waits, parked):
        now = context(store)
        parked(waits(), now)
        assert now["ti"].pushed == {"_link_FlowRunLink": f"{service.url}/runs/1001"}


class TestBrokenConnection:
    """The connection breaks while the task is parked: what the flow said is neither shown unredacted nor lost."""

    @pytest.fixture(params=["invalid", "missing"])
    def broken(self, request, workflow_automation_connect, monkeypatch):
        """Return a function that breaks the connection, and what the error then says of it."""

        def break_it():
            if request.param == "invalid":
                workflow_automation_connect(extra={"typo": 1})
                return "'typo'"
            monkeypatch.delenv("AIRFLOW_CONN_WORKFLOW_AUTOMATION_DEFAULT")
            return "`workflow_automation_default`"

        return break_it

    @pytest.mark.parametrize(
        "body", [{"status": "success", "result": 3}, {"status": "failed", "message": "x"}]
    )
    def test_the_error_names_the_run_and_airflow_retries(
        self, service, store, context, endpoint, waits, parked, resume, broken, body
    ):
        now = context(store)
        then, _ = parked(waits(), now)
        answer(store, body)
        words = broken()
        with pytest.raises(InvalidRequestError) as caught:
            resume(waits(), now, woken(SUCCEEDED), **then)
        assert not isinstance(caught.value, AirflowFailException)
        ended = "succeeded" if body["status"] == "success" else "failed"
        assert mentions(caught.value.message, ended, words)
        assert "Run 1001" in caught.value.consequence
        assert "(try 2 of 4)" in caught.value.next_step
        assert (caught.value.flow_id, caught.value.run_id) == ("demo-flow", "1001")

    def test_the_error_mentions_a_run_without_an_id(
        self, service, store, context, endpoint, waits, parked, resume, broken
    ):
        service.faults.add("response", body={})
        now = context(store)
        then, _ = parked(waits(), now)
        answer(store, {"status": "success", "result": 3})
        broken()
        with pytest.raises(InvalidRequestError) as caught:
            resume(waits(), now, woken(SUCCEEDED), **then)
        assert caught.value.consequence == run_started("")

    @pytest.mark.parametrize("by", ["flow", "person"])
    def test_a_retry_returns_it_once_the_connection_works(
        self,
        service,
        store,
        context,
        endpoint,
        waits,
        parked,
        resume,
        broken,
        by,
        workflow_automation_connect,
    ):
        now = context(store)
        then, _ = parked(waits(), now)
        event = woken(SUCCEEDED)
        if by == "flow":
            answer(store, {"status": "success", "result": 3})
        else:
            event = person(SUCCEEDED, result="3", message=None)
        broken()
        with pytest.raises(InvalidRequestError):
            resume(waits(), now, event, **then)
        workflow_automation_connect(extra={"callback_base_url": endpoint.url})
        assert waits().execute(context(store, try_number=2)) == the_run(service, result=3)

    def test_after_the_last_try_a_person_can_enter_the_run(
        self, service, store, context, endpoint, waits, parked, resume, broken, workflow_automation_connect
    ):
        now = context(store, try_number=4)
        then, _ = parked(waits(), now)
        answer(store, {"status": "success", "result": 3})
        broken()
        with pytest.raises(InvalidRequestError) as caught:
            resume(waits(), now, woken(SUCCEEDED), **then)
        assert SUPPLIED_RUN_KEY in caught.value.next_step
        workflow_automation_connect(extra={"callback_base_url": endpoint.url})
        store.entries[SUPPLIED_RUN_KEY] = "1001"
        cleared = context(store, try_number=5, max_tries=7)
        assert waits().execute(cleared) == {"run_id": "1001", "result": 3}


class TestEditedDag:
    """The DAG is edited to wait no longer, while a task waits or asks: its run is waited for all the same."""

    @pytest.fixture
    def edited(self, waits):
        return waits(wait_for_completion=False)

    def test_the_flow_says_failed(self, store, context, endpoint, waits, parked, resume, edited):
        now = context(store)
        then, _ = parked(waits(), now)
        answer(store, {"status": "failed", "message": "No rows"})
        with pytest.raises(RunFailedError, match="No rows"):
            resume(edited, now, woken(FAILED), **then)

    def test_a_retry_after_the_wait_has_begun(self, store, context, endpoint, waits, parked, edited):
        """As where the task is killed once it was woken."""
        parked(waits(), context(store))
        answer(store, {"status": "failed"})
        with pytest.raises(RunFailedError):
            edited.execute(context(store, try_number=2))

    def test_nobody_has_said_yet(self, service, store, context, endpoint, waits, parked, resume, edited):
        now = context(store)
        then, _ = parked(waits(completion_timeout=timedelta(days=7)), now)
        later(store, days=2)
        then, _ = parked(edited, now, TIMEOUT, **then)
        later(store, days=6)
        then, _ = parked(edited, now, TIMEOUT, **then)
        answer(store, {"status": "success", "result": 1})
        assert resume(edited, now, woken(SUCCEEDED), **then) == the_run(service, result=1)

    def test_a_person_says_that_a_run_in_doubt_failed(
        self, service, store, context, endpoint, waits, parked, resume
    ):
        service.faults.add("drop_after")
        now = context(store)
        then, _ = parked(waits(on_unknown_start="ask"), now)
        with pytest.raises(RunFailedError, match="ada said"):
            resume(waits(wait_for_completion=False), now, person(FAILED, run_id="1001"), **then)

    def test_a_clear_starts_a_run_as_the_dag_says_now(
        self, service, store, context, endpoint, waits, parked, edited
    ):
        parked(waits(), context(store))
        assert edited.execute(context(store, try_number=2, max_tries=4))["run_id"] == "1002"
        assert "callback_url" not in service.runs[1].inputs

    def test_that_waits_only_now(
        self, service, store, context, endpoint, waits, parked, supervisor, resume, edited, log
    ):
        """The run was started without a URL."""
        edited.execute(context(store))
        now = context(store, try_number=2)
        then, _ = parked(waits(), now)
        assert "no callback URL" in log()
        (question,) = supervisor.questions
        assert "no callback URL" in question.body.splitlines()[0]
        later(store, days=1)
        with pytest.raises(RunTimeoutError) as caught:
            resume(waits(), now, TIMEOUT, **then)
        assert "no callback URL" in caught.value.next_step
        assert "callback_base_url" not in str(caught.value)

    def test_a_run_that_never_waited_is_not_waited_for(self, service, store, context, endpoint, waits):
        service.faults.add("busy", operation="upload")
        with pytest.raises(BusyError):
            waits(wait_for_completion=False, files=[{"name": "a"}]).execute(context(store))
        assert waits(wait_for_completion=False).execute(context(store, try_number=2)) == the_run(service)


class TestPerson:
    @pytest.fixture
    def now(self, store, context):
        return context(store)

    @pytest.fixture
    def then(self, service, store, endpoint, waits, parked, now):
        return parked(waits(), now)[0]

    @pytest.mark.parametrize(
        ("given", "result"),
        [
            ('{"rows": 3}', {"rows": 3}),
            ("7", 7),
            ("all there", "all there"),
            ('"text"', "text"),
            ("NaN", "NaN"),
            ("{", "{"),
            ("[" * 60 + "]" * 60, "[" * 60 + "]" * 60),
            ("9" * 30, "9" * 30),
            ('{"__type": 1}', '{"__type": 1}'),
            ("[" * 100_000, "[" * 100_000),
        ],
    )
    def test_succeeded_with_a_result(self, service, waits, now, then, log, given, result, resume):
        event = person(SUCCEEDED, result=given, message=None)
        assert resume(waits(), now, event, **then) == the_run(service, result=result)
        assert mentions(log(), "ada", "succeeded.")

    @pytest.mark.parametrize("given", [None, "", " ", "null"])
    def test_succeeded_without_a_result(self, service, waits, now, then, given, resume):
        event = person(SUCCEEDED, result=given, message=None)
        assert resume(waits(), now, event, **then) == the_run(service)

    def test_failed(self, waits, now, then, resume):
        event = person(FAILED, result=None, message="disk full")
        with pytest.raises(RunFailedError, match=r"ada .*: disk full\n"):
            resume(waits(), now, event, **then)

    def test_a_message(self, service, waits, now, then, log, resume):
        event = person(SUCCEEDED, result=None, message="looked at it")
        resume(waits(), now, event, **then)
        assert mentions(log(), "ada", "succeeded. looked at it")

    def test_a_later_try_finds_it(self, service, store, context, waits, now, then, resume):
        """As after a kill while the result was stored."""
        resume(waits(), now, event=person(SUCCEEDED, result="7", message="m"), **then)
        assert waits().execute(context(store, try_number=2)) == the_run(service, result=7)


class TestClear:
    def test_starts_another_run_and_the_old_token_is_worthless(
        self, service, store, context, endpoint, waits, parked, supervisor
    ):
        parked(waits(), context(store))
        (old,) = tokens(store)
        answer(store, {"status": "success", "result": "old"})
        parked(waits(), context(store, try_number=2, max_tries=4))
        (new,) = tokens(store)
        assert new.endswith("/4")
        assert old not in store.entries
        assert len(service.runs) == 2

    def test_while_it_continues_starts_another_run(
        self, service, store, context, endpoint, waits, parked, resume
    ):
        """Airflow then continues the next try with what the earlier one was parked with."""
        then, _ = parked(waits(), context(store))
        answer(store, {"status": "success", "result": "old"})
        cleared = context(store, try_number=2, max_tries=4, clear_number=1)
        endpoint.max_tries = 4
        more, _ = parked(waits(), cleared, woken(SUCCEEDED), **then)
        assert more["run"]["run_id"] == "1002"

    def test_by_which_max_tries_stays_as_it_is(self, service, store, context, endpoint, waits, parked):
        """The DAG was edited to fewer retries."""
        parked(waits(), context(store, retries=2))
        answer(store, {"status": "success", "result": "old"})
        now = context(store, try_number=2, retries=2, clear_number=1, started=2)
        parked(waits(retries=2), now)
        assert len(tokens(store)) == 1
        assert len(service.runs) == 2

    def test_that_keeps_the_tasks_state_goes_on_waiting(
        self, service, store, context, endpoint, waits, parked, supervisor, resume
    ):
        """Airflow 3.4: whoever keeps it wants to keep the run."""
        parked(waits(), context(store, region_id=None))
        later(store, days=2)
        now = context(store, try_number=2, max_tries=4, region_id=None)
        then, timeout = parked(waits(), now)
        assert timeout == timedelta(seconds=15), "the wait begins anew"
        assert len(supervisor.questions) == 2
        answer(store, {"status": "success", "result": 1}, max_tries=4)
        assert resume(waits(), now, event=woken(SUCCEEDED), **then) == the_run(service, result=1)
        assert requests(service) == 1

    def test_that_keeps_the_tasks_state_keeps_its_answer(
        self, service, store, context, endpoint, waits, parked
    ):
        parked(waits(), context(store, region_id=None))
        answer(store, {"status": "success", "result": 1})
        now = context(store, try_number=2, max_tries=4, region_id=None)
        assert waits().execute(now) == the_run(service, result=1)


class TestDoubt:
    """The start was lost, but a flow that calls back has told that there is a run, and how it ended."""

    @pytest.mark.parametrize("on_unknown_start", ["fail", "ask", "start_again"])
    def test_the_flows_answer_settles_it(
        self, service, store, context, endpoint, waits, supervisor, log, on_unknown_start
    ):
        service.callbacks.add(result={"rows": 3})
        service.faults.add("hang_after", seconds=2)
        operator = waits(on_unknown_start=on_unknown_start, request_timeout=1)
        assert operator.execute(context(store)) == {"flow_id": "demo-flow", "result": {"rows": 3}}
        assert "run_id is unknown" in log()
        assert supervisor.questions == []
        assert len(service.runs) == 1

    def test_of_a_run_whose_id_is_unknown(self, service, store, context, endpoint, waits, supervisor):
        service.faults.add("garbage")
        with pytest.raises(ResponseUnusableError):
            waits(on_unknown_start="start_again").execute(context(store))
        answer(store, {"status": "success", "result": 1})
        assert waits().execute(context(store, try_number=2)) == {"flow_id": "demo-flow", "result": 1}

    @pytest.mark.parametrize("on_unknown_start", ["fail", "start_again"])
    def test_of_an_earlier_try(self, service, store, context, endpoint, waits, on_unknown_start):
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError):
            waits(on_unknown_start="start_again").execute(context(store))
        answer(store, {"status": "success", "result": 1})
        again = waits(on_unknown_start=on_unknown_start)
        assert again.execute(context(store, try_number=2)) == {"flow_id": "demo-flow", "result": 1}
        assert len(service.runs) == 1

    def test_settled_by_a_person_begins_the_checks(self, service, store, context, endpoint, waits, parked):
        service.faults.add("drop_after")
        operator, now = waits(on_unknown_start="ask"), context(store)
        then, _ = parked(operator, now)
        then, _ = parked(operator, now, person(STARTED, run_id="1001"), **then)
        assert then["checks"] == 1

    def test_that_no_run_may_claim_any_more_asks_for_a_clear_alone(self, service, store, context, claims):
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError) as caught:
            claims(**BRIEF).execute(context(store, max_tries=0))
        assert CLAIM_ADVICE[Accepted.MAYBE] in caught.value.next_step.splitlines()

    def test_before_another_run_is_started(self, service, store, context, endpoint, waits):
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError):
            waits(on_unknown_start="start_again").execute(context(store))
        answer_before_the_token_is_deleted(store, {"status": "success", "result": 1})
        again = waits(on_unknown_start="start_again", completion_timeout=timedelta(seconds=0.1))
        assert again.execute(context(store, try_number=2)) == {"flow_id": "demo-flow", "result": 1}
        assert requests(service) == 1

    def test_before_a_person_said_that_no_run_was_started(
        self, service, store, context, endpoint, waits, parked, resume
    ):
        service.faults.add("drop_after")
        operator, now = waits(on_unknown_start="ask"), context(store)
        then, _ = parked(operator, now)
        answer_before_the_token_is_deleted(store, {"status": "success", "result": 1})
        assert resume(operator, now, person("No run was started"), **then) == {
            "flow_id": "demo-flow",
            "result": 1,
        }
        assert requests(service) == 1

    def test_start_again_makes_the_old_token_worthless(
        self, service, store, context, endpoint, waits, parked
    ):
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError):
            waits(on_unknown_start="start_again").execute(context(store))
        (old,) = tokens(store)
        parked(waits(on_unknown_start="start_again"), context(store, try_number=2))
        assert old not in tokens(store)
        assert len(tokens(store)) == 1
        assert len(service.runs) == 2

    def test_failed(self, service, store, context, endpoint, waits):
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError):
            waits(on_unknown_start="start_again").execute(context(store))
        answer(store, {"status": "failed", "message": "No rows"})
        with pytest.raises(RunFailedError, match="No rows") as caught:
            waits().execute(context(store, try_number=2))
        assert caught.value.run_id is None


class TestGiven:
    """A run that a person entered for a task that failed."""

    def fail(self, service, store, context, waits, fault="drop_after"):
        if fault:
            service.faults.add(fault)
        with pytest.raises(AirflowFailException):
            waits(completion_timeout=timedelta(seconds=0.1)).execute(context(store))

    def test_of_a_start_in_doubt_keeps_its_token(
        self, service, store, context, endpoint, waits, parked, supervisor, resume
    ):
        del supervisor
        self.fail(service, store, context, waits)
        store.entries[SUPPLIED_RUN_KEY] = "77"
        now = context(store, try_number=2, max_tries=4)
        then, _ = parked(waits(), now)
        assert then["run"] == {"run_id": "77"}
        answer(store, {"status": "success", "result": 1}, max_tries=4)
        assert resume(waits(), now, event=woken(SUCCEEDED), **then) == {"run_id": "77", "result": 1}

    def test_of_a_start_in_doubt_keeps_its_answer(self, service, store, context, endpoint, waits):
        service.faults.add("drop_after")
        with pytest.raises(OutcomeUnknownError):
            waits(on_unknown_start="start_again").execute(context(store))
        answer(store, {"status": "success", "result": 1})
        store.entries[SUPPLIED_RUN_KEY] = "77"
        now = context(store, try_number=2, max_tries=4)
        assert waits().execute(now) == {"run_id": "77", "result": 1}

    def test_that_was_started_keeps_its_token(self, service, store, context, endpoint, waits, parked, resume):
        """Nobody said in time how it ended, and it still runs."""
        parked(waits(), context(store))
        later(store, days=2)
        store.entries[SUPPLIED_RUN_KEY] = "1001"
        now = context(store, try_number=2, max_tries=4)
        then, timeout = parked(waits(), now)
        assert timeout == timedelta(seconds=15)
        answer(store, {"status": "success", "result": 1}, max_tries=4)
        assert resume(waits(), now, event=woken(), **then) == {"run_id": "1001", "result": 1}
        assert requests(service) == 1

    @pytest.mark.parametrize("fault", [None, "reject"])
    def test_another_run_has_no_token(
        self, service, store, context, endpoint, waits, parked, supervisor, fault, monkeypatch, resume
    ):
        if fault:
            self.fail(service, store, context, waits, fault)
        else:
            parked(waits(), context(store))
        before = len(service.runs)
        store.entries[SUPPLIED_RUN_KEY] = "77"
        now = context(store, try_number=2, max_tries=4)
        then, _ = parked(waits(), now)
        assert store.entries[WAIT]["digest"] is None
        event = person(SUCCEEDED, result="7", message=None)
        assert resume(waits(), now, event, **then) == {"run_id": "77", "result": 7}
        assert len(service.runs) == before
        later_try = context(store, try_number=3, max_tries=4)
        assert waits().execute(later_try) == {"run_id": "77", "result": 7}

    def test_after_the_time_is_up_is_waited_for_anew_where_a_clear_leaves_max_tries(
        self, service, store, context, endpoint, waits, parked, resume
    ):
        now = context(store)
        then, _ = parked(waits(), now)
        later(store, days=2)
        with pytest.raises(RunTimeoutError):
            resume(waits(), now, event=TIMEOUT, **then)
        store.entries[SUPPLIED_RUN_KEY] = "1001"
        parked(waits(retries=2), context(store, try_number=2, retries=2, clear_number=1))
        assert len(tokens(store)) == 1
        assert requests(service) == 1

    def test_is_used_once(self, service, store, context, endpoint, waits, parked):
        self.fail(service, store, context, waits)
        store.entries[SUPPLIED_RUN_KEY] = "77"
        parked(waits(), context(store, try_number=2, max_tries=4))
        assert SUPPLIED_RUN_KEY not in store.entries
        then, _ = parked(waits(), context(store, try_number=3, max_tries=6))
        assert then["run"]["run_id"] == "1002"


class TestFiles:
    def test_are_uploaded_before_the_wait(self, service, store, context, endpoint, waits, parked):
        then, _ = parked(waits(files=[{"name": "a"}, {"name": "b"}]), context(store))
        assert [upload.files for upload in service.uploads] == [[{"name": "a"}, {"name": "b"}]]
        assert service.uploads[0].run_id == then["run"]["run_id"]

    def test_are_uploaded_once(self, service, store, context, endpoint, waits, parked):
        operator = {"files": [{"name": "a"}]}
        now = context(store)
        then, _ = parked(waits(**operator), now)
        parked(waits(**operator), now, TIMEOUT, **then)
        parked(waits(**operator), context(store, try_number=2))
        assert len(service.uploads) == 1

    def test_of_a_try_that_failed_are_uploaded_by_the_next(
        self, service, store, context, endpoint, waits, parked, supervisor
    ):
        service.faults.add("busy", operation="upload")
        with pytest.raises(BusyError):
            waits(files=[{"name": "a"}]).execute(context(store))
        assert supervisor.questions == []
        parked(waits(files=[{"name": "a"}]), context(store, try_number=2))
        assert (len(service.runs), len(service.uploads)) == (1, 1)

    @pytest.mark.parametrize("supervised", [False, True])
    def test_are_uploaded_also_if_the_flow_calls_back_before(
        self, service, store, context, endpoint, waits, request, supervised
    ):
        if supervised:
            request.getfixturevalue("supervisor")
        answer_once_started(store, {"status": "success", "result": 1})
        assert waits(files=[{"name": "a"}]).execute(context(store)) == the_run(service, result=1)
        assert [upload.files for upload in service.uploads] == [[{"name": "a"}]]

    def test_are_uploaded_by_a_retry_also_if_the_flow_has_called_back(
        self, service, store, context, endpoint, waits
    ):
        service.faults.add("busy", operation="upload")
        with pytest.raises(BusyError):
            waits(files=[{"name": "a"}], completion_timeout=timedelta(seconds=10)).execute(context(store))
        answer(store, {"status": "success", "result": 1})
        assert waits(files=[{"name": "a"}]).execute(context(store, try_number=2)) == the_run(
            service, result=1
        )
        assert len(service.uploads) == 1

    def test_are_uploaded_for_a_run_that_a_person_says_has_succeeded(
        self, service, store, context, endpoint, waits, parked, resume
    ):
        operator, now = {"files": [{"name": "a"}], "on_unknown_start": "ask"}, context(store)
        service.faults.add("drop_after")
        then, _ = parked(waits(**operator), now)
        resume(waits(**operator), now, person(SUCCEEDED, run_id="1001"), **then)
        assert [upload.run_id for upload in service.uploads] == ["1001"]

    def test_of_a_run_whose_end_is_known_but_not_its_id(
        self, service, store, context, endpoint, waits, supervisor
    ):
        """A person enters the run_id: then its files are uploaded, and the flow's answer still counts."""
        service.callbacks.add(result=1)
        service.faults.add("hang_after", seconds=2)
        with pytest.raises(ResponseUnusableError, match="no run_id") as caught:
            waits(files=[{"name": "a"}], request_timeout=1).execute(context(store))
        assert SUPPLIED_RUN_KEY in caught.value.next_step
        store.entries[SUPPLIED_RUN_KEY] = "1001"
        cleared = context(store, try_number=2, max_tries=4)
        assert waits(files=[{"name": "a"}]).execute(cleared) == {"run_id": "1001", "result": 1}
        assert (len(service.runs), len(service.uploads)) == (1, 1)

    def test_that_the_dag_has_only_since_the_task_waits_are_uploaded(
        self, service, store, context, endpoint, waits, parked
    ):
        parked(waits(), context(store))
        answer(store, {"status": "success"})
        waits(files=[{"name": "a"}]).execute(context(store, try_number=2))
        assert (len(service.runs), len(service.uploads)) == (1, 1)

    def test_are_not_uploaded_for_a_run_that_failed(
        self, service, store, context, endpoint, waits, supervisor, log
    ):
        answer_once_started(store, {"status": "failed"})
        with pytest.raises(RunFailedError):
            waits(files=[{"name": "a"}]).execute(context(store))
        assert service.uploads == []
        assert "not uploading" in log()

    def test_are_not_uploaded_for_a_run_that_a_person_says_has_failed(
        self, service, store, context, endpoint, waits, parked, resume
    ):
        operator, now = {"files": [{"name": "a"}], "on_unknown_start": "ask"}, context(store)
        service.faults.add("drop_after")
        then, _ = parked(waits(**operator), now)
        with pytest.raises(RunFailedError):
            resume(waits(**operator), now, person(FAILED, run_id="1001"), **then)
        assert service.uploads == []

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"files": []}, "files is empty"),
            ({"files": "/nowhere/*.csv"}, "matches no file"),
            ({"files": "{{ x }}"}, "a template"),
            ({"files": [{"a": {1}}]}, "a set"),
            ({"files": [{"name": "a"}], "workflow_automation_conn_id": "other"}, "needs a flow_id"),
        ],
    )
    def test_that_cannot_be_uploaded_start_no_run(
        self, service, store, context, endpoint, waits, monkeypatch, options, match
    ):
        connection = service.airflow_connection(service.keys[0], {"callback_base_url": endpoint.url})
        del connection["extra"]["flow_id"]
        monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(connection))
        with pytest.raises(WorkflowAutomationError, match=match) as caught:
            waits(**options).execute(context(store))
        assert caught.value.accepted is Accepted.NO
        assert "was started" not in str(caught.value)
        assert (requests(service), store.entries) == (0, {})

    def test_that_are_rejected_do_not_hide_the_run(self, service, store, context, endpoint, waits):
        service.faults.add("reject", operation="upload")
        with pytest.raises(RejectedError) as caught:
            waits(files=[{"name": "a"}]).execute(context(store))
        assert isinstance(caught.value, AirflowFailException)
        assert caught.value.consequence.startswith("Run 1001 ")
        assert caught.value.accepted is Accepted.NO
        assert run_advice("1001") in caught.value.next_step

    def test_of_a_task_that_is_ended_meanwhile(self, service, store, context):
        operator, now = trigger(files=[{"name": "a"}]), context(store)
        now["ti"].xcom_push = lambda **_: operator.on_kill()
        with pytest.raises(NotSentError) as caught:
            operator.execute(now)
        assert (caught.value.run_id, caught.value.next_step) == ("1001", ""), "only Airflow knows"
        assert service.uploads == []

    def test_are_not_uploaded_again_for_the_recorded_run(
        self, service, store, context, endpoint, waits, parked
    ):
        """A person enters it and clears the task; a retry after that finds the files as well."""
        for attempt in ({}, {"try_number": 2, "max_tries": 4}, {"try_number": 3, "max_tries": 4}):
            parked(waits(files=[{"name": "a"}]), context(store, **attempt))
            store.entries[SUPPLIED_RUN_KEY] = "1001"
        assert (len(service.runs), len(service.uploads)) == (1, 1)

    def test_without_a_wait_are_not_uploaded_again_for_the_recorded_run(self, service, store, context):
        trigger(files=[{"name": "a"}]).execute(context(store))
        store.entries[SUPPLIED_RUN_KEY] = "1001"
        trigger(files=[{"name": "a"}]).execute(context(store, try_number=2, max_tries=4))
        assert (len(service.runs), len(service.uploads)) == (1, 1)

    @pytest.mark.parametrize("before", [{}, {"files": [{"name": "a"}]}])
    def test_of_the_tasks_flow_if_the_entry_names_none(
        self, service, store, context, monkeypatch, endpoint, waits, parked, before
    ):
        connection = service.airflow_connection(service.keys[0], {"callback_base_url": endpoint.url})
        del connection["extra"]["flow_id"]
        monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(connection))
        operator = {"flow_id": "demo-flow", "workflow_automation_conn_id": "other"}
        parked(waits(**operator, **before), context(store))
        store.entries[SUPPLIED_RUN_KEY] = "1001"
        parked(waits(**operator, files=[{"name": "a"}]), context(store, try_number=2, max_tries=4))
        assert [upload.flow_id for upload in service.uploads] == ["demo-flow"]

    def test_of_which_some_are_missing_for_the_recorded_run(
        self, service, store, context, endpoint, waits, parked
    ):
        parked(waits(files=[{"name": "a"}]), context(store))
        store.entries[SUPPLIED_RUN_KEY] = "1001"
        parked(waits(files=[{"name": "a"}, {"name": "b"}]), context(store, try_number=2, max_tries=4))
        assert [upload.files for upload in service.uploads] == [[{"name": "a"}], [{"name": "b"}]]

    @pytest.mark.parametrize("given", [True, False])
    def test_are_uploaded_again_for_another_run(
        self, service, store, context, endpoint, waits, parked, given
    ):
        with WorkflowAutomationHook() as hook:
            other = hook.trigger_flow({}, "demo-flow").run_id
        parked(waits(files=[{"name": "a"}]), context(store))
        if given:
            store.entries[SUPPLIED_RUN_KEY] = other
        then, _ = parked(waits(files=[{"name": "a"}]), context(store, try_number=2, max_tries=4))
        assert [upload.run_id for upload in service.uploads] == ["1002", other if given else "1003"]
        assert then["run"]["run_id"] == service.uploads[1].run_id

    def test_of_unknown_outcome_are_uploaded_by_the_next_try(
        self, service, store, context, endpoint, waits, parked
    ):
        service.faults.add("drop_after", operation="upload")
        with pytest.raises(OutcomeUnknownError) as caught:
            waits(files=[{"name": "a"}]).execute(context(store))
        assert not isinstance(caught.value, AirflowFailException)
        assert caught.value.consequence.startswith("Run 1001 ")
        parked(waits(files=[{"name": "a"}]), context(store, try_number=2))
        assert (len(service.runs), len(service.uploads)) == (1, 2)

    def test_of_the_last_try_do_not_ask_for_a_clear_alone(self, service, store, context, endpoint, waits):
        service.faults.add("busy", operation="upload")
        with pytest.raises(BusyError) as caught:
            waits(files=[{"name": "a"}]).execute(context(store, try_number=4))
        assert caught.value.next_step.splitlines()[1:] == run_advice("1001").splitlines()

    def test_without_a_record_they_never_cause_another_run(self, service, context):
        """Before Airflow 3.3, a retry would not find the run."""
        service.faults.add("busy", operation="upload")
        with pytest.raises(BusyError, match="Run 1001 ") as caught:
            trigger(files=[{"name": "a"}]).execute(context())
        assert isinstance(caught.value, AirflowFailException)
        assert run_advice("1001", has_store=False) in caught.value.next_step

    def test_are_those_that_were_checked_before_the_start(self, service, store, context, tmp_path):
        (folder := tmp_path / "files").mkdir()
        (folder / "checked").write_text("x")
        now = context(store)
        now["ti"].xcom_push = lambda **_: (folder / "later").write_text("x")
        trigger(files=f"{folder}/*").execute(now)
        assert [file["name"] for upload in service.uploads for file in upload.files] == ["checked"]

    def test_are_in_the_lineage_also_if_an_earlier_process_uploaded_them(
        self, service, store, context, endpoint, waits, parked, resume
    ):
        pytest.importorskip("airflow.providers.openlineage")
        operator, now = {"files": ["/data/a", {"name": "b"}]}, context(store)
        then, _ = parked(waits(), now)
        answer(store, {"status": "success"})
        task = waits(**operator)
        resume(task, now, woken(SUCCEEDED), **then)
        facets = task.get_openlineage_facets_on_complete(None)
        assert [dataset.name for dataset in facets.inputs] == ["/data/a"]
        assert facets.outputs[0].facets["documentation"].description == f"{service.url}/runs/1001"

    def test_without_a_wait(self, service, store, context):
        assert trigger(files=[{"name": "a"}]).execute(context(store))["run_id"] == "1001"
        assert len(service.uploads) == 1

    def test_of_a_run_without_an_id(self, service, store, context, endpoint, waits):
        service.faults.add("response", body={})
        with pytest.raises(ResponseUnusableError, match="no run_id"):
            waits(files=[{"name": "a"}]).execute(context(store))
        assert service.uploads == []


class TestVersions:
    def test_before_airflow_3_3_nothing_is_sent(self, service, context, waits):
        with pytest.raises(InvalidRequestError, match=r"wait_for_completion .*3\.3"):
            waits().execute(context())
        assert requests(service) == 0

    def test_without_a_park_nothing_is_sent(self, service, store, context, waits, monkeypatch):
        monkeypatch.delattr("airflow.sdk.exceptions.TaskAwaitingInput")
        with pytest.raises(InvalidRequestError, match=r"wait_for_completion .*3\.3"):
            waits().execute(context(store))
        assert (requests(service), store.entries) == (0, {})


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(codec="ascii", min_codepoint=32)), inner)
    ),
    max_leaves=20,
)


@pytest.fixture
def waiting(service, store, context, endpoint, waits, parked):
    """A parked task: its context, and what Airflow would continue it with."""
    now = context(store)
    return now, parked(waits(), now)[0]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(result=JSON, message=st.none() | st.text(st.characters(codec="ascii", min_codepoint=32), max_size=50))
def test_what_the_flow_says_comes_out_unchanged(store, waits, resume, waiting, result, message):
    body = {"status": "success", "result": result, "message": message}
    assert Answer.read(json.dumps(body).encode()) == Answer(**body)
    store.entries[token_key(store.entries[KEY]["token"], 3)] = {"open": True}
    answer(store, body)
    now, then = waiting
    found = resume(waits(), now, woken(SUCCEEDED), **then)
    assert found.get("result") == result
    assert ("result" in found) is (result is not None)
