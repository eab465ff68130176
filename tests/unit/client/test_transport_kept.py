"""Connections that are kept for a batch: when they are used again, and when not."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from raw_server import Server, response
from workflow_automation_provider.exceptions import OutcomeUnknownError, UnidentifiedError
from workflow_automation_provider.testing import Key, LocalService

from .conftest import KEY, check, client_of, read_request, trigger_flow


@pytest.fixture
def runs():
    """The run_ids that a server gives to all its connections: ``r0``, ``r1``, …"""
    return (f"r{number}" for number in itertools.count())


@pytest.fixture
def serve():
    """Start a server, and return it and a client of it."""
    servers = []

    def start(respond):
        servers.append(Server(respond))
        return servers[-1], client_of(servers[-1].url)

    yield start
    for server in servers:
        server.close()


def trigger(client, number=1):
    return trigger_flow(client, {"n": number}).run_id


def test_a_connection_is_used_again_only_within_the_context(serve):
    server, client = serve(lambda number: response(f"r{number}"))
    assert [trigger(client) for _ in range(2)] == ["r0", "r0"]
    assert server.connections == 2
    with client.keep_connections():
        assert [trigger(client) for _ in range(3)] == ["r0", "r1", "r2"]
    assert server.connections == 3
    assert trigger(client) == "r0"
    assert server.connections == 4


def test_a_connection_that_is_not_kept_is_closed_with_its_response(raw_server):
    """Also one that was kept, once the context ends."""
    closed = []

    def answer(connection, _):
        read_request(connection)
        connection.sendall(response("r0"))
        closed.append(connection.recv(1))

    client = client_of(raw_server(answer))
    trigger(client)
    with client.keep_connections():
        trigger(client)
    began = time.monotonic()
    while len(closed) < 2 and time.monotonic() < began + 5:
        time.sleep(0.01)
    assert closed == [b"", b""]


@pytest.mark.parametrize(("idle", "connections"), [(0.2, 1), (1.1, 2)])
def test_a_connection_that_was_idle_for_a_second_is_not_used_again(serve, runs, idle, connections):
    server, client = serve(lambda _: response(next(runs)))
    with client.keep_connections():
        trigger(client)
        time.sleep(idle)
        trigger(client)
    assert server.connections == connections


def test_a_connection_that_the_server_closed_is_not_used_again(raw_server, runs):
    """The server announced nothing, but the client sees the end before it sends."""

    def answer(connection, _):
        read_request(connection)
        connection.sendall(response(next(runs)))

    client = client_of(raw_server(answer))
    with client.keep_connections():
        for number in range(3):
            assert trigger(client) == f"r{number}"
            time.sleep(0.1)


def test_what_arrives_on_an_idle_connection_is_not_taken_for_the_next_response(serve, runs):
    """Least of all its run."""

    def respond(number):
        yield response("wrong" if number else next(runs))
        time.sleep(0.05)
        yield response("wrong")

    server, client = serve(respond)
    with client.keep_connections():
        for number in range(3):
            assert trigger(client) == f"r{number}"
            time.sleep(0.2)
    assert server.connections == 3


def lost(number, runs):
    """It is never sent again, though the server may not have read it."""
    return response(next(runs)) if number == 0 else None


def arrived_before(number, runs):
    """It comes with the one before it, and does not show until the connection is used again."""
    return response(next(runs)) * (1 if number else 2)


def repeated(number, runs):
    """It comes after the next request was sent, so that the connection looks as it should."""
    run = response(next(runs))
    return run if number == 0 else response("r0") + run


@pytest.mark.parametrize(
    ("respond", "words"),
    [
        (lost, ["no response"]),
        (arrived_before, ["before the request"]),
        (repeated, ["earlier request", "r0"]),
    ],
)
def test_a_response_that_is_not_of_its_request_leaves_a_doubt_and_ends_its_connection(
    serve, runs, respond, words
):
    server, client = serve(lambda number: respond(number, runs))
    with client.keep_connections():
        assert trigger(client) == "r0"
        check(trigger_flow(client, {}), OutcomeUnknownError, *words)
        while (
            server.requests < 2
        ):  # the server may see the second one later than the client its response
            time.sleep(0.01)
        assert (server.connections, server.requests) == (1, 2)
        assert trigger(client) in ("r1", "r2")
    assert server.connections == 2


def test_no_connection_is_kept_once_one_that_was_used_again_ended_without_a_response(serve, runs):
    """Some servers close each connection after its response, and do not announce it."""

    def respond(number):
        if number:
            return None
        together.wait(10)
        return response(next(runs))

    together = threading.Barrier(3)
    server, client = serve(respond)
    with client.keep_connections(), ThreadPoolExecutor(3) as pool:
        # Three connections are open then, and idle.
        assert {*pool.map(lambda number: trigger(client, number), range(3))} == {"r0", "r1", "r2"}
        together = threading.Barrier(1)
        check(trigger_flow(client, {}), OutcomeUnknownError, "no response")
        assert [trigger(client) for _ in range(3)] == ["r3", "r4", "r5"]
    assert server.connections == 6

    with client.keep_connections():
        assert [trigger(client) for _ in range(2)] == ["r6", "r7"]
    assert server.connections == 8


def test_connections_are_kept_after_a_new_one_ended_without_a_response(serve, runs):
    def respond(_):
        return None if server.connections == 1 else response(next(runs))

    server, client = serve(respond)
    with client.keep_connections():
        check(trigger_flow(client, {}), OutcomeUnknownError, "no response")
        assert [trigger(client) for _ in range(3)] == ["r0", "r1", "r2"]
    assert server.connections == 2


@pytest.mark.parametrize(
    "status", ["422 Unprocessable Content", "429 Too Many Requests", "201 Created"]
)
def test_a_response_without_a_run_ends_its_connection(serve, runs, status):
    """If it is sent twice, nothing tells: it would be taken for the response to the next one."""

    def respond(number):
        if number == 0 and server.connections == 1:
            return f"HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}".encode()
        return response(next(runs))

    server, client = serve(respond)
    with client.keep_connections():
        trigger_flow(client, {})
        assert [trigger(client) for _ in range(2)] == ["r0", "r1"]
    assert server.connections == 2


def test_a_run_that_was_known_before_leaves_a_doubt(serve):
    _, client = serve(lambda _: response("r7"))
    with client.keep_connections(["r7"]):
        check(trigger_flow(client, {}), OutcomeUnknownError, "earlier request", "r7")
    assert [trigger(client) for _ in range(2)] == ["r7", "r7"]


def test_an_incomplete_response_is_not_continued_on_its_connection(serve):
    head = b"HTTP/1.1 201 Created\r\nContent-Length: 3000000\r\n\r\n"
    server, client = serve(lambda _: head + b'{"run_id": "' + b"7" * 2_000_000)
    with client.keep_connections():
        for number in (1, 2):
            check(trigger_flow(client, {}), UnidentifiedError, "1024 KiB")
            assert server.connections == number


def test_connections_are_kept_over_tls(issued):
    with LocalService(keys=[Key(KEY, flow_id="flow")], certfile=str(issued.certfile)) as service:
        service.faults.add("stale", inputs={"n": 2})
        client = client_of(service, ca_bundle=str(issued.ca_bundle))
        with client.keep_connections():
            for number in range(3):
                trigger_flow(client, {"n": number})
            # It was the same connection until now: the next request on it is lost.
            check(trigger_flow(client, {"n": 3}), OutcomeUnknownError)
        assert len(service.runs) == 3
