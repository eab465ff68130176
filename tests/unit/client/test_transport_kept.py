"""Connections that are kept for a batch: when they are used again, and that nothing rests on them."""

from __future__ import annotations

import contextlib
import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from certificates import issue_certificate
from raw_server import Server, response
from workflow_automation_provider.client.flow_client import FlowClient
from workflow_automation_provider.exceptions import (
    OutcomeUnknownError,
    UnidentifiedError,
)
from workflow_automation_provider.testing import Key, LocalService

from .conftest import check, read_request, trigger_flow


@pytest.fixture
def server():
    with contextlib.ExitStack() as stack:

        def make(respond):
            server = Server(respond)
            stack.callback(server.close)
            return server

        yield make


def client_of(server, **options):
    return FlowClient(server.url, api_key="a-key-of-the-tests", timeout=5, **options)


def trigger(client, number=1):
    return trigger_flow(client, {"n": number}).run_id


def test_a_connection_is_used_again_only_within_the_context(server):
    counting = server(lambda number: response(f"r{number}"))
    with client_of(counting) as client:
        assert [trigger(client) for _ in range(2)] == ["r0", "r0"]
        assert counting.connections == 2
        with client.keep_connections():
            assert [trigger(client) for _ in range(3)] == ["r0", "r1", "r2"]
        assert counting.connections == 3
        assert trigger(client) == "r0"
        assert counting.connections == 4


def test_a_connection_that_is_not_kept_is_closed_with_its_response(raw_server, key):
    """Also one that was kept, once the context ends."""
    closed = []

    def answer(connection, _):
        read_request(connection)
        connection.sendall(response("r0"))
        closed.append(connection.recv(1))

    with FlowClient(raw_server(answer).base_url, api_key=key) as client:
        trigger(client)
        with client.keep_connections():
            trigger(client)
        assert _soon(lambda: closed == [b"", b""])


def _soon(happens):
    began = time.monotonic()
    while not (done := happens()) and time.monotonic() < began + 5:
        time.sleep(0.01)
    return done


@pytest.mark.parametrize(("idle", "connections"), [(0.5, 1), (1.1, 2)])
def test_a_connection_that_was_idle_for_a_second_is_not_used_again(server, idle, connections):
    runs = itertools.count()
    counting = server(lambda _: response(f"r{next(runs)}"))
    with client_of(counting) as client, client.keep_connections():
        trigger(client)
        time.sleep(idle)
        trigger(client)
    assert counting.connections == connections


def test_a_connection_that_announced_its_end_is_not_used_again(server):
    runs = itertools.count()
    counting = server(lambda _: response(f"r{next(runs)}", "Connection: close"))
    with client_of(counting) as client, client.keep_connections():
        assert [trigger(client) for _ in range(3)] == ["r0", "r1", "r2"]
    assert counting.connections == counting.requests == 3


def test_a_connection_that_the_server_closed_is_not_used_again(raw_server, key):
    """The server announced nothing, but the client sees the end before it sends."""
    runs = itertools.count()

    def answer(connection, _):
        read_request(connection)
        connection.sendall(response(f"r{next(runs)}"))

    with FlowClient(raw_server(answer).base_url, api_key=key) as client, client.keep_connections():
        for number in range(3):
            assert trigger(client) == f"r{number}"
            time.sleep(0.1)


def test_a_used_connection_that_ends_without_a_response_leaves_a_doubt(server):
    """Never sent again, though the server may not have read it."""
    runs = itertools.count()
    dropping = server(lambda number: response(f"r{next(runs)}") if number == 0 else None)
    with client_of(dropping) as client, client.keep_connections():
        assert trigger(client) == "r0"
        check(trigger_flow(client, {}), OutcomeUnknownError)
        assert dropping.requests == 2
        assert trigger(client) == "r1"
    assert dropping.connections == 2


def test_what_arrives_on_an_idle_connection_is_not_taken_for_the_next_response(server):
    """Least of all its run."""

    def respond(number):
        yield response("wrong" if number else f"r{next(runs)}")
        time.sleep(0.05)
        yield response("wrong")

    runs = itertools.count()
    doubling = server(respond)
    with client_of(doubling) as client, client.keep_connections():
        for number in range(3):
            assert trigger(client) == f"r{number}"
            time.sleep(0.2)
    assert doubling.connections == 3


def test_a_response_that_arrived_before_its_request_leaves_a_doubt(server):
    """It arrives together with the one before it, and does not show until the connection is used again."""
    runs = itertools.count()
    doubling = server(lambda number: response(f"r{next(runs)}") * (1 if number else 2))
    with client_of(doubling) as client, client.keep_connections():
        assert trigger(client) == "r0"
        check(trigger_flow(client, {}), OutcomeUnknownError, "before the request")
        assert doubling.connections == 1
        trigger(client)
    assert doubling.connections == 2


def test_a_repeated_response_leaves_one_doubt_and_ends_its_connection(server):
    """It comes after the next request was sent, so that the connection looks as it should."""
    runs = itertools.count()
    repeated: list[bytes] = []

    def respond(number):
        run = response(f"r{next(runs)}")
        if number == 1 and not repeated:
            repeated.append(run)
            yield response("r0")
        yield run

    repeating = server(respond)
    with client_of(repeating) as client, client.keep_connections():
        assert trigger(client) == "r0"
        check(trigger_flow(client, {}), OutcomeUnknownError, "earlier request", "r0")
        assert [trigger(client) for _ in range(3)] == ["r2", "r3", "r4"]
    assert repeating.connections == 2


@pytest.mark.parametrize("status", ["422 Unprocessable Content", "429 Too Many Requests", "201 Created"])
def test_a_response_without_a_run_ends_its_connection(server, status):
    """If it is sent twice, nothing tells: the response to the next request must not be taken for that of another."""
    late = itertools.count()

    def respond(number):
        if number == 0 and repeating.connections == 1:
            yield f"HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}".encode()
        else:
            yield response(f"r{next(late)}")

    repeating = server(respond)
    with client_of(repeating) as client, client.keep_connections():
        trigger_flow(client, {})
        assert [trigger(client) for _ in range(2)] == ["r0", "r1"]
    assert repeating.connections == 2


def test_a_run_that_was_known_before_leaves_a_doubt(server):
    caching = server(lambda _: response("r7"))
    with client_of(caching) as client:
        with client.keep_connections(["r7"]):
            check(trigger_flow(client, {}), OutcomeUnknownError, "earlier request", "r7")
        assert [trigger(client) for _ in range(2)] == ["r7", "r7"]


def test_a_response_in_chunks_leaves_the_connection_open(server):
    def chunks(number):
        yield (
            b'HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n11\r\n{"run_id": "000%d"\r\n1\r\n}\r\n'
            % number
        )
        time.sleep(0.05)
        yield b"0\r\n\r\n"

    counting = server(chunks)
    with client_of(counting) as client, client.keep_connections():
        assert [trigger(client) for _ in range(3)] == ["0000", "0001", "0002"]
    assert counting.connections == 1


def test_an_incomplete_response_is_not_continued_on_its_connection(server):
    counting = server(
        lambda _: b'HTTP/1.1 201 Created\r\nContent-Length: 3000000\r\n\r\n{"run_id": "' + b"7" * 2_000_000
    )
    with client_of(counting) as client, client.keep_connections():
        for number in (1, 2):
            check(trigger_flow(client, {}), UnidentifiedError, "1024 KiB")
            assert counting.connections == number


def test_each_thread_has_its_own_connection(server):
    def respond(number):
        time.sleep(0.005)
        return response(f"{next(ids)}")

    ids = itertools.count()
    slow = server(respond)
    with client_of(slow) as client, client.keep_connections(), ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda number: trigger(client, number), range(60)))
    assert len(runs) == slow.requests == 60
    assert slow.connections <= 8


def test_connections_are_kept_over_tls(tmp_path):
    certificate, bundle = issue_certificate("127.0.0.1", tmp_path)
    key = Key("a-key-of-the-tests", flow_id="flow")
    with LocalService(keys=[key], certfile=str(certificate)) as service:
        service.faults.add("stale", inputs={"n": 2})
        trusting = FlowClient(service.base_url, api_key=key.value, ca_bundle=str(bundle))
        with trusting as client, client.keep_connections():
            for number in range(3):
                trigger_flow(client, {"n": number})
            # It was the same connection until now: the next request on it is lost.
            check(trigger_flow(client, {"n": 3}), OutcomeUnknownError)
        assert len(service.runs) == 3
