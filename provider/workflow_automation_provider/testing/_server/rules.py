"""
Which requests are accepted.

From the interface: the paths, the shapes of the bodies, and 400 for an invalid body of a trigger by path.
**Not shown by the interface, chosen here**, because a local service has to return something:

====== ====================================================================================================
Status When
====== ====================================================================================================
400    the body of a trigger by key or of an upload is not exactly the documented object
401    the key is missing or unknown
403    the key has expired, has started its maximum number of runs, or belongs to another flow
404    no such path, no such flow (only where the flows are listed), no such run
405    the method is not POST
413    the inputs are too large to be parsed here
415    the Content-Type is not ``application/json``
====== ====================================================================================================

Error bodies are ``{"error": "…"}``, which is a choice made here as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from workflow_automation_provider.testing._server.calls import BodyError, summarize
from workflow_automation_provider.testing._server.state import now
from workflow_automation_provider.testing.callbacks import withhold_tokens
from workflow_automation_provider.testing.journal import Run, Upload

if TYPE_CHECKING:
    from workflow_automation_provider.testing._server.calls import Call
    from workflow_automation_provider.testing._server.state import State
    from workflow_automation_provider.testing.keys import Key

__all__ = ["judge"]


def judge(call: Call, state: State) -> Run | Upload:
    """
    Return what a request leads to, without changing anything.

    :raises HTTPException: if it is not accepted
    """
    if call.operation is None:
        raise HTTPException(404, "no such path")
    if call.method != "POST":
        raise HTTPException(405, "only POST", {"allow": "POST"})
    if not call.is_json:
        raise HTTPException(415, "the Content-Type must be application/json")
    try:
        return (_judge_upload if call.operation == "upload" else _judge_trigger)(call, state)
    except RecursionError:
        # The JSON parser allows deeper nesting than what follows.
        raise HTTPException(400, "the body is nested too deeply") from None


def _judge_trigger(call: Call, state: State) -> Run:
    key = _good_key(call, state) if call.operation == "trigger_by_key" else None
    flow_id = key.flow_id if key else call.path_flow_id
    if flow_id is None or not state.knows_flow(flow_id):
        raise HTTPException(404, "no such flow")
    if call.body.data is None:
        raise HTTPException(413, "the inputs are too large for the local service")
    inputs = _fields(call, inputs=dict)["inputs"]
    if key and state.exhausted(key):
        raise HTTPException(403, "the key has started its maximum number of runs")
    return Run(
        run_id=state.next_run_id(),
        flow_id=flow_id,
        inputs=withhold_tokens(inputs),
        by="key" if key else "path",
        key=key.name if key else None,
        at=now(),
    )


def _judge_upload(call: Call, state: State) -> Upload:
    key = _good_key(call, state)
    files = None
    if call.body.data is None:
        # Too large to be parsed: only the fields before the files are checked.
        fields = call.body.leading_fields()
    else:
        fields = _fields(call, flow_id=str, run_id=str, files=list)
        files = summarize(fields["files"])
    flow_id, run_id = fields.get("flow_id"), fields.get("run_id")
    if flow_id is not None and flow_id != key.flow_id:
        raise HTTPException(403, "the key belongs to another flow")
    if run_id is not None:
        run = state.runs.get(run_id) if isinstance(run_id, str) else None
        if run is None:
            raise HTTPException(404, "no such run")
        if run.flow_id != key.flow_id:
            raise HTTPException(403, "the run belongs to another flow")
    return Upload(
        run_id=run_id,
        flow_id=flow_id,
        files=files,
        key=key.name,
        size=call.body.size,
        sha256=call.body.sha256,
        at=now(),
    )


def _good_key(call: Call, state: State) -> Key:
    key = state.find_key(call.key_value)
    if key is None:
        raise HTTPException(401, "the key is missing or unknown")
    if key.expired():
        raise HTTPException(403, "the key has expired")
    return key


def _fields(call: Call, **types: type) -> dict[str, Any]:
    try:
        body = call.body.fields
    except BodyError as error:
        raise HTTPException(400, f"the body is {error}") from error
    if body.keys() != types.keys():
        raise HTTPException(400, f"the body must have exactly the fields {', '.join(types)}")
    for name, wanted in types.items():
        if not isinstance(body[name], wanted):
            raise HTTPException(400, f"the field {name} has the wrong type")
    return body
