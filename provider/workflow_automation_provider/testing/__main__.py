"""Run the local service in the foreground: ``python -m workflow_automation_provider.testing``."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from workflow_automation_provider.testing import (
    DEMO_FLOW_ID,
    DEMO_KEY,
    JournalError,
    Key,
    LocalService,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_STOP = {signal.SIGINT, signal.SIGTERM}


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Serve until SIGINT or SIGTERM.

    :param arguments: the command line, by default that of the process
    :return: the exit code
    """
    options = _parser().parse_args(arguments)
    # Blocked before any thread starts, so that only sigwait() below receives them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)
    try:
        return _serve(options)
    finally:
        # The processes that the caller starts later inherit the mask: they could not be stopped.
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(options: argparse.Namespace) -> int:
    try:
        service = _make_service(options)
        service.start()
    except OSError as error:
        message = f"Cannot serve on {options.host} port {options.port}: {error.strerror or error}"
        if error.filename:
            message += f" ({error.filename})"
        return _fail(message)
    except (JournalError, ModuleNotFoundError, ValueError) as error:
        return _fail(str(error))

    try:
        _announce(service)
        signal.sigwait(_STOP)
    finally:
        service.stop()

    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workflow_automation_provider.testing",
        description="Run a local service with the interface of the workflow automation service.",
    )
    _add_address(parser)
    _add_behaviour(parser)
    return parser


def _add_address(parser: argparse.ArgumentParser) -> None:
    """Add the options of where the service listens, and of its journal."""
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    port_help = "the port, 0 for any free port (default: %(default)s)"
    add("--port", type=int, default=8070, help=port_help)
    add("--certfile", metavar="PATH", help="a certificate, to serve HTTPS")
    keyfile_help = "the certificate's private key, unless it is in --certfile"
    add("--keyfile", metavar="PATH", help=keyfile_help)
    public_help = "the base of the run links, where clients reach the service by another URL"
    add("--public-url", metavar="URL", help=public_help)
    journal_help = "the journal's file (default: a temporary one)"
    add("--journal", type=Path, metavar="PATH", help=journal_help)


def _add_behaviour(parser: argparse.ArgumentParser) -> None:
    """Add the options of what the service accepts, and of what its runs do."""
    add = parser.add_argument
    add(
        "--key",
        action="append",
        default=[],
        metavar="VALUE[:FLOW_ID]",
        help=f"an API key and its flow, {DEMO_FLOW_ID} if none is given "
        f"(default: {DEMO_KEY.value}:{DEMO_FLOW_ID}); may be repeated",
    )
    add(
        "--flow",
        action="append",
        metavar="FLOW_ID",
        help="a flow that can be started by path, besides those of the keys; may be repeated "
        "(default: any flow)",
    )
    add(
        "--callback",
        action="append",
        nargs="?",
        const="{}",
        default=[],
        metavar="JSON",
        help="have each run call the URL in its input callback_url, as a JSON object of options "
        'such as {"result": {"rows": 3}, "delay": 5} (without one: at once, with success); may be '
        "repeated",
    )


def _make_service(options: argparse.Namespace) -> LocalService:
    service = LocalService(
        keys=_make_keys(options.key),
        journal=options.journal,
        host=options.host,
        port=options.port,
        certfile=options.certfile,
        keyfile=options.keyfile,
        public_url=options.public_url,
        flows=options.flow,
    )

    for number, text in enumerate(options.callback, start=1):
        try:
            scripted = json.loads(text)
        except ValueError as error:
            raise ValueError(f"--callback number {number} is not JSON: {error}") from None

        if not isinstance(scripted, dict):
            raise ValueError(f"--callback number {number} is not a JSON object of options")
        service.callbacks.add(**scripted)

    return service


def _make_keys(given: Sequence[str]) -> list[Key]:
    if not given:
        return [DEMO_KEY]

    keys = []
    for number, text in enumerate(given, start=1):
        value, _, flow_id = text.partition(":")
        if not value:
            raise ValueError(f"--key number {number} has no value; expected VALUE or VALUE:FLOW_ID")
        keys.append(Key(value, flow_id or DEMO_FLOW_ID, name=f"key {number}"))

    return keys


def _announce(service: LocalService) -> None:
    print(f"Base URL: {service.base_url}")
    print(f"Pages:    {service.url}/")
    print(f"Journal:  {service.journal.path}")
    for key in service.keys:
        value = f", value {key.value}" if key is DEMO_KEY else ""
        print(f"Key:      {key.name} of the flow {key.flow_id}{value}")

    print("\nAirflow connections, one per key, to paste into a shell:")
    for number, key in enumerate(service.keys, start=1):
        print(_connection_line(service, key, number))

    print("\nTo make the next request fail, script a fault:")
    print(_fault_line(service))
    sys.stdout.flush()


def _connection_line(service: LocalService, key: Key, number: int) -> str:
    connection = service.airflow_connection(key)
    if key is not DEMO_KEY:
        connection["password"] = f"VALUE OF {key.name.upper()}"
    conn_id = "WORKFLOW_AUTOMATION_DEFAULT" if number == 1 else f"WORKFLOW_AUTOMATION_{number}"
    return f"export AIRFLOW_CONN_{conn_id}={shlex.quote(json.dumps(connection))}"


def _fault_line(service: LocalService) -> str:
    command = ["curl", "-X", "POST", f"{service.url}/_control/faults"]
    if service.url.startswith("https:"):
        command.append("--insecure")
    command += ["-H", "Content-Type: application/json"]
    command += ["-d", json.dumps({"kind": "busy", "retry_after": 5})]
    return shlex.join(command)


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
