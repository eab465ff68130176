"""The three operations as an ASGI application: receive, judge, perhaps strike with a fault, journal, reply."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from workflow_automation_provider.testing.bodies import (
    Body,
    BodyError,
    ClientLeftError,
    receive_body,
)
from workflow_automation_provider.testing.calls import Call, read_call
from workflow_automation_provider.testing.connection import Connection
from workflow_automation_provider.testing.fault_replies import faulty_reply, send_faulty
from workflow_automation_provider.testing.faults import Target
from workflow_automation_provider.testing.journal import Request, Run, Upload
from workflow_automation_provider.testing.replies import Exchange, Reply, json_reply
from workflow_automation_provider.testing.rules import Refusal, StartRun, TakeFiles, Verdict, judge

if TYPE_CHECKING:
    import asyncio

    from starlette.types import Receive, Scope, Send

    from workflow_automation_provider.testing.faults import Fault, Faults
    from workflow_automation_provider.testing.journal import Outcome
    from workflow_automation_provider.testing.journal_writer import JournalWriter
    from workflow_automation_provider.testing.state import State

__all__ = ["Api"]


class Api:
    """
    The operations of the interface.

    :param state: what the service knows.
    :param faults: the faults to strike with.
    :param journal: where to write what was accepted.
    :param stopping: set when the service stops.
    :param parse_limit: bodies of more bytes are not parsed.
    """

    def __init__(
        self, state: State, faults: Faults, journal: JournalWriter, stopping: asyncio.Event, parse_limit: int
    ) -> None:
        self._state = state
        self._faults = faults
        self._journal = journal
        self._stopping = stopping
        self._parse_limit = parse_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """
        Answer one request.

        :param scope: the ASGI scope.
        :param receive: the ASGI callable.
        :param send: the ASGI callable.
        """
        try:
            call = read_call(scope, await receive_body(receive, self._parse_limit))
        except ClientLeftError as left:
            call = read_call(scope, Body(left.size, "", None, b""))
            self._journal.write(self._request(call, outcome="client left"))
            return
        exchange = Exchange(receive, send, Connection.of(scope), self._stopping)
        verdict = judge(call, self._state)
        fault = self._take_fault(call, acceptable=not isinstance(verdict, Refusal))
        if fault is not None and fault.kind == "delay":
            if not await exchange.pause(fault.seconds or 0):
                await exchange.drop()
                return
            # Another request may have used up the key meanwhile.
            verdict = judge(call, self._state)
        reply = self._settle(call, verdict, fault)
        if fault is None:
            await exchange.reply(reply)
            return
        if fault.kind == "stale":
            exchange.connection.close_next_unread(self._closed_unread)
        await send_faulty(fault, reply, exchange)

    def _settle(self, call: Call, verdict: Verdict, fault: Fault | None) -> Reply:
        """
        Journal the request and what it leads to, and return the reply.

        Nothing is awaited here, so that no other request comes between judging and remembering.
        """
        if isinstance(verdict, Refusal) or (fault is not None and fault.accepts is False):
            usual = _refused(verdict) if isinstance(verdict, Refusal) else Reply(400, b"")
            reply = usual if fault is None else faulty_reply(fault, call, usual)
            self._journal.write(self._request(call, fault=fault, status=reply.status))
            return reply
        record, usual = self._accept(call, verdict)
        reply = usual if fault is None else faulty_reply(fault, call, usual)
        request = self._request(call, run_id=record.run_id, fault=fault, status=reply.status)
        try:
            self._journal.write(record, request)
        except RecursionError:
            # Parsing goes a little deeper than writing.
            return self._settle(call, Refusal(400, "the body is nested too deeply"), fault=None)
        if isinstance(record, Run):
            self._state.add_run(record)
        else:
            self._state.add_upload(record)
        return reply

    def _accept(self, call: Call, verdict: StartRun | TakeFiles) -> tuple[Run | Upload, Reply]:
        if isinstance(verdict, StartRun):
            run_id = self._state.next_run_id()
            key_name = verdict.key.name if verdict.key else None
            run = Run(run_id, verdict.flow_id, verdict.inputs, verdict.by, key_name, _now())
            return run, json_reply(201, {"run_id": run_id, "run_link": self._state.run_link(run_id)})
        upload = Upload(
            run_id=verdict.run_id,
            flow_id=verdict.flow_id,
            files=verdict.files,
            key=verdict.key.name,
            size=call.body.size,
            sha256=call.body.sha256,
            at=_now(),
        )
        if verdict.files is None:
            return upload, json_reply(200, "files received")
        count = len(verdict.files)
        return upload, json_reply(200, f"{count} file{'' if count == 1 else 's'} received")

    def _take_fault(self, call: Call, *, acceptable: bool) -> Fault | None:
        if call.operation is None or call.method != "POST":
            return None
        target = Target(call.operation, self._flow_id(call), self._inputs(call), acceptable)
        return self._faults.take(target)

    def _flow_id(self, call: Call) -> str | None:
        if call.operation == "trigger_by_path":
            return call.path_flow_id
        key = self._state.find_key(call.key_value)
        if key is not None:
            return key.flow_id
        named = _fields(call).get("flow_id") if call.operation == "upload" else None
        return named if isinstance(named, str) else None

    def _inputs(self, call: Call) -> Any:
        fields = _fields(call)
        if call.operation != "upload":
            return fields.get("inputs")
        run = self._state.runs.get(str(fields.get("run_id")))
        return None if run is None else run.inputs

    def _request(
        self,
        call: Call,
        *,
        run_id: str | int | None = None,
        fault: Fault | None = None,
        status: int | None = None,
        outcome: Outcome = "replied",
    ) -> Request:
        if fault is not None and not fault.replies:
            status, outcome = None, "not replied"
        return Request(
            method=call.method,
            path=call.path,
            operation=call.operation,
            flow_id=self._flow_id(call),
            run_id=run_id,
            status=status,
            fault=None if fault is None else fault.kind,
            outcome=outcome,
            key_sent=call.key_value is not None,
            size=call.body.size,
            at=_now(),
        )

    def _closed_unread(self) -> None:
        self._journal.write(
            Request(
                "", "", None, None, None, None, "stale", "closed unread", key_sent=False, size=0, at=_now()
            )
        )


def _fields(call: Call) -> dict[str, Any]:
    """Return what can be read of the body's fields, however wrong the body may be."""
    if call.body.data is None:
        return call.body.leading_fields()
    try:
        return call.body.fields
    except BodyError:
        return {}


def _refused(refusal: Refusal) -> Reply:
    headers = {"allow": "POST"} if refusal.status == 405 else None
    return json_reply(refusal.status, {"error": refusal.error}, headers)


def _now() -> str:
    return datetime.now(UTC).isoformat()
