"""The three operations as an ASGI application: receive, judge, apply a fault, journal, respond."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from workflow_automation_provider.testing._server.calls import (
    Body,
    BodyError,
    Call,
    ClientLeftError,
    read_call,
    receive_body,
)
from workflow_automation_provider.testing._server.responses import (
    Exchange,
    faulty_response,
    json_response,
    send_faulty,
)
from workflow_automation_provider.testing._server.rules import judge
from workflow_automation_provider.testing._server.state import now
from workflow_automation_provider.testing.faults import Target
from workflow_automation_provider.testing.journal import Request, Run, Upload

if TYPE_CHECKING:
    import asyncio

    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from workflow_automation_provider.testing._server.callback_sender import CallbackSender
    from workflow_automation_provider.testing._server.state import State
    from workflow_automation_provider.testing.faults import Fault, Faults
    from workflow_automation_provider.testing.journal import Outcome

__all__ = ["Api"]


class Api:
    """
    The operations of the interface.

    :param stopping: set when the service stops
    :param parse_limit: bytes; larger bodies are counted and hashed, not parsed
    """

    def __init__(
        self,
        state: State,
        faults: Faults,
        sender: CallbackSender,
        stopping: asyncio.Event,
        parse_limit: int,
    ) -> None:
        self._state = state
        self._faults = faults
        self._sender = sender
        self._stopping = stopping
        self._parse_limit = parse_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        try:
            call = read_call(scope, await receive_body(receive, self._parse_limit))
        except ClientLeftError as left:
            call = read_call(scope, Body(left.size, "", None, b""))
            self._state.add(self._request(call, outcome="client left"))
            return
        exchange = Exchange(scope, receive, send, self._stopping)
        verdict = self._judge(call)
        fault = self._take_fault(call, acceptable=not isinstance(verdict, HTTPException))
        if fault is not None and fault.kind == "delay":
            if not await exchange.pause(fault.seconds or 0):
                await exchange.drop()
                return
            # Another request may have used up the key's runs meanwhile, or taken the run's ID.
            verdict = self._judge(call)
        response = self._settle(call, verdict, fault)
        if fault is None:
            await exchange.respond(response)
            return
        if fault.kind == "stale":
            exchange.connection.on_unread = self._closed_unread
        await send_faulty(fault, response, exchange)

    def _judge(self, call: Call) -> Run | Upload | HTTPException:
        try:
            return judge(call, self._state)
        except HTTPException as rejection:
            return rejection

    def _settle(self, call: Call, verdict: Run | Upload | HTTPException, fault: Fault | None) -> Response:
        """
        Journal the request and what it leads to, and return the response.

        Nothing is awaited here, so no other request can come between the verdict and its effect.
        """
        if isinstance(verdict, HTTPException) or (fault is not None and fault.accepts is False):
            rejection = verdict if isinstance(verdict, HTTPException) else HTTPException(400)
            usual = json_response(rejection.status_code, {"error": rejection.detail}, rejection.headers)
            response = usual if fault is None else faulty_response(fault, call, usual)
            self._state.add(self._request(call, fault=fault, status=response.status_code))
            return response
        if fault is not None and fault.kind == "twice" and isinstance(verdict, Run):
            self._settle(call, verdict, fault=None)
            verdict = replace(verdict, run_id=self._state.next_run_id())
        usual = self._accepted(verdict)
        response = usual if fault is None else faulty_response(fault, call, usual)
        request = self._request(call, run_id=verdict.run_id, fault=fault, status=response.status_code)
        try:
            self._state.add(verdict, request)
        except RecursionError:
            # The JSON parser allows deeper nesting than the encoder.
            return self._settle(call, HTTPException(400, "the body is nested too deeply"), fault=None)
        if isinstance(verdict, Run):
            self._sender.begin(verdict, call.body.fields["inputs"])
        return response

    def _accepted(self, record: Run | Upload) -> Response:
        if isinstance(record, Run):
            link = self._state.run_link(record.run_id)
            return json_response(201, {"run_id": record.run_id, "run_link": link})
        if record.files is None:
            return json_response(200, "files received")
        count = len(record.files)
        return json_response(200, f"{count} file{'' if count == 1 else 's'} received")

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
        outcome: Outcome = "responded",
    ) -> Request:
        if fault is not None and not fault.responds:
            status, outcome = None, "no response"
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
            at=now(),
        )

    def _closed_unread(self) -> None:
        self._state.add(
            Request(
                "", "", None, None, None, None, "stale", "closed unread", key_sent=False, size=0, at=now()
            )
        )


def _fields(call: Call) -> dict[str, Any]:
    """Return the fields that can be read from the body, even if it is invalid."""
    if call.body.data is None:
        return call.body.leading_fields()
    try:
        return call.body.fields
    except BodyError:
        return {}
