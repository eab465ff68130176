"""The three operations as an ASGI application: receive, judge, apply a fault, journal, respond."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from workflow_automation_provider.testing._server.calls import (
    Body,
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
from workflow_automation_provider.testing._server.state import State, now
from workflow_automation_provider.testing.faults import Fault, Faults, Target
from workflow_automation_provider.testing.journal import Outcome, Request, Run, Upload

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from workflow_automation_provider.testing._server.callback_sender import CallbackSender


class Api:
    """
    The operations of the interface.

    :param stopping: set when the service stops
    """

    def __init__(self, state: State, faults: Faults, sender: CallbackSender, stopping: asyncio.Event) -> None:
        self._state = state
        self._faults = faults
        self._sender = sender
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        try:
            call = read_call(scope, await receive_body(receive))
        except ClientLeftError as left:
            call = read_call(scope, Body(left.size, "", None))
            self._state.add(self._request(call, outcome="client left"))
            return
        exchange = Exchange(scope, receive, send, self._stopping)
        verdict = judge(call, self._state)
        fault = self._take_fault(call, acceptable=not isinstance(verdict, HTTPException))
        if fault is not None and fault.kind == "delay":
            if not await exchange.pause(fault.seconds or 0):
                await exchange.drop()
                return
            # Another request may have used up the key's runs meanwhile, or taken the run's ID.
            verdict = judge(call, self._state)
        response = self._settle(call, verdict, fault)
        if fault is None:
            await exchange.respond(response)
            return
        if fault.kind == "stale":
            exchange.connection.on_unread = self._closed_unread
        await send_faulty(fault, response, exchange)

    def _settle(self, call: Call, verdict: Run | Upload | HTTPException, fault: Fault | None) -> Response:
        """
        Journal the request and what it leads to, and return the response.

        Nothing is awaited here, so no other request can come between the verdict and its effect.
        """
        if fault is not None and fault.accepts is False and not isinstance(verdict, HTTPException):
            verdict = HTTPException(400)
        if fault is not None and fault.kind == "twice" and isinstance(verdict, Run):
            self._settle(call, verdict, fault=None)
            verdict = replace(verdict, run_id=self._state.next_run_id())
        usual = self._usual_response(verdict)
        response = usual if fault is None else faulty_response(fault, call, usual)
        request = self._request(call, fault=fault, status=response.status_code)
        if isinstance(verdict, HTTPException):
            self._state.add(request)
            return response
        try:
            self._state.add(verdict, replace(request, run_id=verdict.run_id))
        except RecursionError:
            # The JSON parser allows deeper nesting than the encoder.
            return self._settle(call, HTTPException(400, "the body is nested too deeply"), fault=None)
        if isinstance(verdict, Run):
            self._sender.begin(verdict, call.body.fields["inputs"])
        return response

    def _usual_response(self, verdict: Run | Upload | HTTPException) -> Response:
        if isinstance(verdict, HTTPException):
            return json_response(verdict.status_code, {"error": verdict.detail}, verdict.headers)
        if isinstance(verdict, Run):
            link = self._state.run_link(verdict.run_id)
            return json_response(201, {"run_id": verdict.run_id, "run_link": link})
        if verdict.files is None:
            return json_response(200, "files received")
        count = len(verdict.files)
        return json_response(200, f"{count} file{'' if count == 1 else 's'} received")

    def _take_fault(self, call: Call, *, acceptable: bool) -> Fault | None:
        if call.operation is None or call.method != "POST":
            return None
        inputs = _fields(call).get("inputs")
        if call.operation == "upload":
            run = self._state.runs.get(str(_fields(call).get("run_id")))
            inputs = None if run is None else run.inputs
        return self._faults.take(Target(call.operation, self._flow_id(call), inputs, acceptable))

    def _flow_id(self, call: Call) -> str | None:
        if call.operation == "trigger_by_path":
            return call.path_flow_id
        key = self._state.keys.get(call.key_value or b"")
        if key is not None:
            return key.flow_id
        named = _fields(call).get("flow_id") if call.operation == "upload" else None
        return named if isinstance(named, str) else None

    def _request(
        self,
        call: Call,
        *,
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
            run_id=None,
            status=status,
            fault=None if fault is None else fault.kind,
            outcome=outcome,
            key_sent=call.key_value is not None,
            size=call.body.size,
            at=now(),
        )

    def _closed_unread(self) -> None:
        nothing = (None, None, None, None)
        self._state.add(Request("", "", *nothing, "stale", "closed unread", key_sent=False, size=0, at=now()))


def _fields(call: Call) -> dict[str, Any]:
    """Return the fields of the body, none if it is invalid."""
    try:
        return call.body.fields
    except HTTPException:
        return {}
