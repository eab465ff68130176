"""TriggerFlowOperator that waits for the end of its run, over HTTP: the URL, the flow's answer, and its token."""

from __future__ import annotations

import json
import pickle
import threading
import time
from datetime import timedelta
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
    OutcomeUnknownError,
    RejectedError,
    RunFailedError,
    RunTimeoutError,
)
from workflow_automation_provider.execution.callback import PATH, TOKEN_LENGTH, Answer, token_key
from workflow_automation_provider.execution.errors import SUPPLIED_RUN_KEY

from ..starts import KEY, TIMEOUT, mentions, requests, trigger
from .conftest import WAIT

TOKEN = "Abc-_123" * 8
BRIEF = timedelta(seconds=0.1)


class TestInThisProcess:
    """Outside a scheduler, as in dag.test(): nobody would wake a parked task."""

    def test_success(self, service, task, endpoint, log):
        """A message forges no line of the log."""
        service.callbacks.add(result={"rows": 3}, message="all there\nRun 9 failed")
        assert task.execute() == task.run(result={"rows": 3})
        assert mentions(log(), "The flow", "succeeded. all there\\nRun 9 failed")
        assert endpoint.statuses == [200]

    @pytest.mark.parametrize("result", [0, False, "", [], {}])
    def test_a_result_that_is_empty_is_a_result(self, service, task, result):
        service.callbacks.add(result=result, body={"status": "success", "result": result})
        assert task.execute()["result"] == result

    def test_another_input(self, service, task):
        service.callbacks.add(input="report_to")
        assert task.execute(callback_input="report_to", inputs=MappingProxyType({"b": 2})) == task.run()
        assert service.runs[0].inputs.keys() == {"b", "report_to"}

    def test_failed(self, service, task):
        service.callbacks.add("failed", message="No rows", result={"at": 7})
        error = task.fail(RunFailedError, retries=3)
        assert (error.result, error.accepted, error.run_id) == ({"at": 7}, Accepted.YES, "1001")
        assert error.code == "run-failed"
        assert pickle.loads(pickle.dumps(error)).result == {"at": 7}
        assert isinstance(error, AirflowFailException)

    def test_failed_without_a_word(self, service, task):
        service.callbacks.add("failed")
        assert task.fail(RunFailedError).message.endswith("failed.")

    def test_nobody_says(self, service, task):
        error = task.fail(RunTimeoutError, completion_timeout=BRIEF)
        assert (error.code, error.run_id) == ("run-overdue", "1001")
        assert f"{service.url}/runs/1001" in error.next_step
        assert f'key {SUPPLIED_RUN_KEY}, value "1001"' in error.next_step
        assert isinstance(error, AirflowFailException)

    def test_ended_by_airflow(self, store, context, endpoint, waits):
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
        assert caught.value.consequence == "Run 1001 was started."

    def test_the_same_run_is_waited_for_again(self, service, task):
        """As the error of a timeout says."""
        task.park()
        task.later(days=1)
        task.fail(RunTimeoutError, TIMEOUT)
        task.enter()
        task.clear()
        assert task.park() == timedelta(seconds=15)
        task.answer(result=1)
        assert task.resume(TIMEOUT) == {"run_id": "1001", "result": 1}
        assert requests(service) == 1


class TestToken:
    """It is in the request alone: what is kept of it is its hash."""

    @pytest.fixture
    def token(self, endpoint, monkeypatch):
        """Have the task give out one token."""
        monkeypatch.setattr("workflow_automation_provider.execution.callback_url.new_token", lambda _: TOKEN)
        endpoint.urls.append(f"{endpoint.url}{PATH}?token={TOKEN}")
        return TOKEN

    @pytest.fixture
    def expect_nowhere(self, task, endpoint, log):
        def expect(*things):
            token = endpoint.token
            assert len(token) == TOKEN_LENGTH
            kept = [task.entries, task.store.writes, task.now["ti"].pushed]
            texts = [log(), *(f"{thing!s}{thing!r}" for thing in (*kept, *things))]
            assert [text for text in texts if token in text] == []

        return expect

    def test_of_a_run_that_succeeds(self, service, task, waits, expect_nowhere):
        service.callbacks.add(result={"rows": 3})
        operator = waits()
        result = operator.execute(task.now)
        expect_nowhere(operator, operator.inputs, operator.hook, operator.hook.get_conn(), result)
        assert operator.inputs == {"a": 1}

    @pytest.mark.parametrize(
        ("kind", "options", "error"),
        [
            ("reject", {"status": 400}, RejectedError),
            ("busy", {"retry_after": 1}, BusyError),
            ("response", {"status": 500}, OutcomeUnknownError),
            ("response", {"status": 200}, RunTimeoutError),
        ],
    )
    def test_that_the_service_echoes(
        self, service, task, endpoint, token, expect_nowhere, kind, options, error
    ):
        """In the error's words, and in a response without a run_id."""
        body = {"detail": f"inputs.callback_url {endpoint.urls[0]} is not there"}
        service.faults.add(kind, body=body, **options)
        expect_nowhere(task.fail(error, completion_timeout=BRIEF))
        if error is RunTimeoutError:
            assert task.entries[KEY]["result"]["response"] == WITHHELD

    def test_in_the_run_link(self, service, task, token, expect_nowhere):
        service.faults.add("response", body={"run_id": "7", "run_link": f"http://there/runs/7?token={token}"})
        expect_nowhere(task.fail(RunTimeoutError, completion_timeout=BRIEF))
        assert "run_link" not in task.entries[KEY]["result"]
        assert task.now["ti"].pushed == {}

    def test_in_the_response_to_an_upload(self, service, task, token, expect_nowhere):
        service.faults.add("response", operation="upload", body={"of": token})
        error = task.fail(RunTimeoutError, files=[{"name": "a"}], completion_timeout=BRIEF)
        assert "workflow_automation_upload" in task.entries
        expect_nowhere(error)

    def test_in_the_response_to_an_upload_of_a_later_try(
        self, service, task, endpoint, token, expect_nowhere
    ):
        """Which does not know the token."""
        service.faults.add("busy", operation="upload")
        task.fail(BusyError, files=[{"name": "a"}])
        service.faults.add("response", operation="upload", body={"run": {"callback_url": endpoint.urls[0]}})
        task.retry()
        task.park(files=[{"name": "a"}])
        assert task.entries["workflow_automation_upload"]["responses"] == [WITHHELD]
        expect_nowhere()

    def test_each_run_has_its_own(self, service, task, endpoint):
        service.callbacks.add()
        task.execute()
        endpoint.max_tries = 7
        task.clear(try_number=5, max_tries=7)
        task.execute()
        assert (len(service.runs), len({*endpoint.urls})) == (2, 2)

    @pytest.mark.parametrize("secret", ["token", "key", "other"])
    def test_a_result_with_a_secret_is_kept_nowhere(self, service, task, endpoint, waits, token, log, secret):
        """The endpoint, which knows no secret, has stored it; a later try finds the answer without it."""
        value = {"token": token, "key": service.keys[0].value, "other": "a-key-of-the-service"}[secret]
        service.callbacks.add(result={"key": f"/?token={value}"}, message=f"by {value}")
        operator = waits()
        operator.hook.redact_also("a-key-of-the-service")
        result = operator.execute(task.now)
        assert result["result"] == WITHHELD
        assert value not in log() + repr(task.entries)
        assert task.tokens == set()
        task.retry()
        assert task.execute() == result
        assert endpoint.statuses == [200]

    def test_a_result_with_the_key_of_a_failed_run(self, service, task):
        key = service.keys[0].value
        service.callbacks.add("failed", result=[key], message=f"with {key}")
        error = task.fail(RunFailedError)
        assert error.result == WITHHELD
        assert key not in str(error)


class TestBaseUrl:
    @pytest.fixture(autouse=True)
    def _none(self, task, workflow_automation_connect, monkeypatch):
        workflow_automation_connect()
        monkeypatch.delenv("AIRFLOW__API__BASE_URL", raising=False)

    def rejected(self, service, task, match, **options):
        error = task.fail(InvalidRequestError, **options)
        assert match in error.message
        assert "callback_base_url" in error.next_step
        assert isinstance(error, AirflowFailException)
        assert (requests(service), task.entries) == (0, {})

    @pytest.mark.parametrize("url", ["", "ftp://airflow.example", "http://airflow.example"])
    def test_of_airflow_is_not_usable(self, service, task, monkeypatch, url):
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", url)
        self.rejected(service, task, "[api] base_url ")

    def test_of_airflow(self, service, task, endpoint, monkeypatch):
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", f"{endpoint.url}/")
        service.callbacks.add(result=1)
        assert task.execute()["result"] == 1

    @pytest.mark.parametrize("by", ["connection", "airflow"])
    def test_loopback_for_a_service_elsewhere(self, service, task, monkeypatch, by):
        connection = service.airflow_connection(service.keys[0], {})
        connection["host"] = "https://service.example/api"
        if by == "connection":
            connection["extra"]["callback_base_url"] = "http://localhost:8080"
        else:
            monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://127.0.0.1:8080")
        monkeypatch.setenv("AIRFLOW_CONN_ELSEWHERE", json.dumps(connection))
        self.rejected(service, task, "only this machine", workflow_automation_conn_id="elsewhere")


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        ({"callback_url": "mine"}, r"inputs .*'callback_url'.* callback_input"),
        (["a"], "inputs is a list"),
        ({"a": {1}}, r"inputs\.a is a set"),
    ],
)
def test_inputs_that_cannot_be_sent_open_nothing(service, task, waits, inputs, match):
    operator = waits()
    operator.inputs = inputs
    with pytest.raises(InvalidRequestError, match=match):
        operator.execute(task.now)
    assert (requests(service), task.entries) == (0, {})


@pytest.mark.parametrize("name", ["", " ", None, 7])
def test_a_name_of_the_url_that_is_none(waits, name):
    with pytest.raises(ValueError, match=f"callback_input is {name!r}"):
        waits(callback_input=name)


@pytest.mark.parametrize("value", ["no", 1, None])
def test_a_wait_that_is_neither_true_nor_false(value):
    with pytest.raises(ValueError, match=f"wait_for_completion is {value!r}"):
        trigger(wait_for_completion=value)


def test_the_order_of_what_is_written(service, task):
    """The token's hash is there before the flow can know the token, and the run before anybody waits."""
    service.callbacks.add(delay=0.3)
    task.execute()
    assert task.store.writes[:4] == [
        (token_key(task.entries[KEY]["token"], 3), None, 0),
        (KEY, "starting", 0),
        (KEY, "started", 1),
        (WAIT, None, 1),
    ]


def test_a_token_that_cannot_be_recorded(service, task):
    task.store.failures["set"] = 1
    task.fail(RuntimeError)
    assert requests(service) == 0


def test_before_airflow_3_3_nothing_is_sent(service, context, waits):
    with pytest.raises(InvalidRequestError, match=r"wait_for_completion .*3\.3"):
        waits().execute(context())
    assert requests(service) == 0


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
def waiting(task):
    task.park()
    return task


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(result=JSON, message=st.none() | st.text(st.characters(codec="ascii", min_codepoint=32), max_size=50))
def test_what_the_flow_says_comes_out_unchanged(waiting, result, message):
    body = {"status": "success", "result": result, "message": message}
    # An empty message is as if it were left out.
    assert Answer.read(json.dumps(body).encode()) == Answer("success", result, message or None)
    waiting.entries[token_key(waiting.entries[KEY]["token"], 3)] = {"open": True}
    waiting.answer(**body)
    found = waiting.resume(TIMEOUT)
    assert found.get("result") == result
    assert ("result" in found) is (result is not None)
