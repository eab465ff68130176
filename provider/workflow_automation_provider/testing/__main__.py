"""Run the local service in the foreground: ``python -m workflow_automation_provider.testing``."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from workflow_automation_provider.testing.journal import JournalError
from workflow_automation_provider.testing.keys import DEMO_FLOW_ID, DEMO_KEY, Key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workflow_automation_provider.testing.service import LocalService

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Serve until SIGINT or SIGTERM; return the exit code.

    :param arguments: the command line, the process's own by default.
    """
    options = _parser().parse_args(arguments)
    # Blocked before any thread starts, so that none but the wait below takes them.
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        service = _make_service(options)
        service.start()
    except ModuleNotFoundError as error:
        return _fail(str(error))
    except OSError as error:
        what = f" ({error.filename})" if error.filename else ""
        return _fail(f"Cannot serve on {options.host} port {options.port}: {error.strerror or error}{what}")
    except (JournalError, ValueError, OverflowError) as error:
        return _fail(str(error))
    try:
        _announce(service, options)
        signal.sigwait(signals)
    finally:
        service.stop()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workflow_automation_provider.testing",
        description="A local service that speaks the interface of the workflow automation service.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8070, help="0 for any free port (default: %(default)s)")
    parser.add_argument(
        "--journal", type=Path, metavar="PATH", help="the journal (default: a temporary file)"
    )
    parser.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="VALUE[:FLOW_ID]",
        help=f"a key, and the flow it belongs to (default: {DEMO_KEY.value}:{DEMO_FLOW_ID}); may be repeated",
    )
    parser.add_argument(
        "--flow",
        action="append",
        metavar="FLOW_ID",
        help="a flow that is known (default: any flow is); may be repeated",
    )
    parser.add_argument(
        "--run-ids", choices=["string", "number"], default="string", help="the type of run ids"
    )
    parser.add_argument("--first-run-id", type=int, default=1001, help="(default: %(default)s)")
    parser.add_argument(
        "--public-url", metavar="URL", help="the address in run links, under which the service is reached too"
    )
    parser.add_argument("--certfile", metavar="PATH", help="a certificate, to serve HTTPS")
    parser.add_argument("--keyfile", metavar="PATH", help="the certificate's private key")
    parser.add_argument("--port-file", type=Path, metavar="PATH", help="write the port here once serving")
    return parser


def _make_service(options: argparse.Namespace) -> LocalService:
    # Through the package, whose error says how to install what is missing.
    from workflow_automation_provider import testing

    return testing.LocalService(
        keys=_make_keys(options.key),
        flows=options.flow,
        journal=options.journal,
        host=options.host,
        port=options.port,
        certfile=options.certfile,
        keyfile=options.keyfile,
        run_id_type=options.run_ids,
        first_run_id=options.first_run_id,
        public_url=options.public_url,
    )


def _make_keys(given: Sequence[str]) -> list[Key]:
    if not given:
        return [DEMO_KEY]
    keys = []
    for number, text in enumerate(given, start=1):
        value, _, flow_id = text.partition(":")
        keys.append(Key(value, flow_id or DEMO_FLOW_ID, name=f"key {number}"))
    return keys


def _announce(service: LocalService, options: argparse.Namespace) -> None:
    print(f"Base URL: {service.base_url}")
    print(f"Pages:    {service.url}/")
    print(f"Journal:  {service.journal.path}")
    for key in service.keys:
        value = f", value {key.value}" if key is DEMO_KEY else ""
        print(f"Key:      {key.name} of the flow {key.flow_id}{value}")
    sys.stdout.flush()
    if options.port_file is not None:
        # Renamed into place, so that nobody reads half a number.
        partial = options.port_file.with_name(f"{options.port_file.name}.partial")
        partial.write_text(f"{service.port}\n")
        partial.replace(options.port_file)


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
