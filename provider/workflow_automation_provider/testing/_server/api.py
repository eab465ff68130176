"""
The three operations as an ASGI application: receive, judge, apply a fault, journal, respond.

From the interface: the paths, the shapes of the bodies, and 400 for an invalid body of a trigger by
path. **Not shown by the interface, chosen here**, because a local service has to return something:

====== =============================================================================================
Status When
====== =============================================================================================
400    the body of a trigger by key or of an upload is not exactly the documented object
401    the key is missing or unknown
403    the key has started its maximum number of runs, or belongs to another flow
404    no such path, no such run; no such flow, if the service knows its flows
405    the method is not POST
413    the inputs are larger than 64 MiB
415    the Content-Type is not ``application/json``
====== =============================================================================================

Error bodies are ``{"error": "…"}``, which is a choice made here as well.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from workflow_automation_provider.testing._server.calls import (
    Call,
    read_call,
    receive_body,
    says_json,
    summarize,
)
from workflow_automation_provider.testing._server.responses import (
    Exchange,
    faulty_response,
    json_response,
    send_faulty,
)
from workflow_automation_provider.testing._server.state import State, now
from workflow_automation_provider.testing.callbacks import withhold_tokens
from workflow_automation_provider.testing.faults import Fault, Faults, Target
from workflow_automation_provider.testing.journal import Outcome, Request, Run, Upload

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from workflow_automation_provider.testing._server.callback_sender import CallbackSender
    from workflow_automation_provider.testing.scripted import Key


class Api:
    """
    The operations of the interface.

    :param stopping: set when the service stops
    """

    def __init__(
        self, state: State, faults: Faults, sender: CallbackSender, stopping: asyncio.Event
    ) -> None:
        self._state = state
        self._faults = faults
        self._sender = sender
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        call = read_call(scope, await receive_body(receive))
        if not call.body.is_whole:
            self._state.add(self._request(call, outcome="client left"))
            return

        exchange = Exchange(scope, receive, send, self._stopping)
        verdict = _judge(call, self._state)
        fault = self._take_fault(call, acceptable=not isinstance(verdict, HTTPException))
        if fault is not None and fault.kind == "delay":
            if not await exchange.pause(fault.seconds or 0):
                await exchange.drop()
                return

            # Another request may have used up the key's runs meanwhile, or taken the run's ID.
            verdict = _judge(call, self._state)

        response = self._settle(call, verdict, fault)
        if fault is None:
            await exchange.respond(response)
            return
        if fault.kind == "stale":
            exchange.connection.on_unread = self._closed_unread

        await send_faulty(fault, response, exchange)

    def _settle(
        self, call: Call, verdict: Run | Upload | HTTPException, fault: Fault | None
    ) -> Response:
        """
        Journal the request and what it leads to, and return the response.

        Nothing is awaited here, so no other request can come between the verdict and its effect.
        """
        if fault is not None and fault.accepts is False and not isinstance(verdict, HTTPException):
            verdict = HTTPException(400)
        if fault is not None and fault.kind == "twice" and isinstance(verdict, Run):
            self._settle(call, verdict, fault=None)
            verdict = replace(verdict, run_id=self._state.next_run_id())

        response = self._usual_response(verdict)
        if fault is not None:
            response = faulty_response(fault, call, response)

        request = self._request(call, fault=fault, status=response.status_code)
        if isinstance(verdict, HTTPException):
            self._state.add(request)
            return response

        try:
            self._state.add(verdict, replace(request, run_id=verdict.run_id))
        except RecursionError:
            # The JSON parser allows deeper nesting than the encoder.
            return self._settle(
                call, HTTPException(400, "the body is nested too deeply"), fault=None
            )

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
        if len(verdict.files) == 1:
            return json_response(200, "1 file received")
        return json_response(200, f"{len(verdict.files)} files received")

    def _take_fault(self, call: Call, *, acceptable: bool) -> Fault | None:
        if call.operation is None or call.method != "POST":
            return None
        target = Target(call.operation, self._flow_id(call), self._inputs(call), acceptable)
        return self._faults.take(target)

    def _inputs(self, call: Call) -> Any:
        """Return the inputs of a trigger, or those of the run that files are uploaded for."""
        if call.operation != "upload":
            return _fields(call).get("inputs")
        run = self._state.runs.get(str(_fields(call).get("run_id")))
        return None if run is None else run.inputs

    def _flow_id(self, call: Call) -> str | None:
        if call.operation == "trigger_by_path":
            return call.path_flow_id
        key = self._state.keys.get(call.key_value or b"")
        if key is not None:
            return key.flow_id
        if call.operation != "upload":
            return None
        named = _fields(call).get("flow_id")
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
        self._state.add(
            Request(
                method="",
                path="",
                operation=None,
                flow_id=None,
                run_id=None,
                status=None,
                fault="stale",
                outcome="closed unread",
                key_sent=False,
                size=0,
                at=now(),
            )
        )


def _fields(call: Call) -> dict[str, Any]:
    """Return the fields of the body, none if it is invalid."""
    try:
        return call.body.fields
    except HTTPException:
        return {}


def _judge(call: Call, state: State) -> Run | Upload | HTTPException:
    """Return what a request leads to, or why it is not accepted, without changing anything."""
    try:
        if call.operation is None:
            raise HTTPException(404, "no such path")
        if call.method != "POST":
            raise HTTPException(405, "only POST", {"allow": "POST"})
        if not says_json(call.content_type):
            raise HTTPException(415, "the Content-Type must be application/json")
        if call.operation == "upload":
            return _judge_upload(call, state)

        return _judge_trigger(call, state)
    except HTTPException as rejection:
        return rejection
    except RecursionError:
        # The JSON parser allows deeper nesting than what follows.
        return HTTPException(400, "the body is nested too deeply")


def _judge_trigger(call: Call, state: State) -> Run:
    key = _good_key(call, state) if call.operation == "trigger_by_key" else None
    if key is None and not state.has_flow(call.path_flow_id):
        raise HTTPException(404, "no such flow")

    inputs = _exactly(call, inputs=dict)["inputs"]
    if key and state.exhausted(key):
        raise HTTPException(403, "the key has started its maximum number of runs")

    return Run(
        run_id=state.next_run_id(),
        flow_id=key.flow_id if key else call.path_flow_id or "",
        inputs=withhold_tokens(inputs),
        by="key" if key else "path",
        key=key.name if key else None,
        at=now(),
    )


def _judge_upload(call: Call, state: State) -> Upload:
    key = _good_key(call, state)
    fields: dict[str, Any] = {"flow_id": None, "run_id": None, "files": None}
    # If the body is too large to be parsed, only the key is checked.
    if call.body.data is not None:
        fields = _exactly(call, flow_id=str, run_id=str, files=list)
        if fields["flow_id"] != key.flow_id:
            raise HTTPException(403, "the key belongs to another flow")

        run = state.runs.get(fields["run_id"])
        if run is None:
            raise HTTPException(404, "no such run")
        if run.flow_id != key.flow_id:
            raise HTTPException(403, "the run belongs to another flow")

    return Upload(
        run_id=fields["run_id"],
        flow_id=fields["flow_id"],
        files=summarize(fields["files"]),
        key=key.name,
        size=call.body.size,
        sha256=call.body.sha256,
        at=now(),
    )


def _good_key(call: Call, state: State) -> Key:
    key = state.keys.get(call.key_value)
    if key is None:
        raise HTTPException(401, "the key is missing or unknown")
    return key


def _exactly(call: Call, **types: type) -> dict[str, Any]:
    body = call.body.fields
    if body.keys() != types.keys():
        raise HTTPException(400, f"the body must have exactly the fields {', '.join(types)}")
    for name, wanted in types.items():
        if not isinstance(body[name], wanted):
            raise HTTPException(400, f"the field {name} has the wrong type")
    return body
