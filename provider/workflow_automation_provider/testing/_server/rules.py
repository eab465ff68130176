"""
Which requests are accepted.

From the interface: the paths, the shapes of the bodies, and 400 for an invalid body of a trigger by path.
**Not shown by the interface, chosen here**, because a local service has to return something:

====== ====================================================================================================
Status When
====== ====================================================================================================
400    the body of a trigger by key or of an upload is not exactly the documented object
401    the key is missing or unknown
403    the key has started its maximum number of runs, or belongs to another flow
404    no such path, no such run
405    the method is not POST
413    the inputs are larger than 64 MiB
415    the Content-Type is not ``application/json``
====== ====================================================================================================

Error bodies are ``{"error": "…"}``, which is a choice made here as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from workflow_automation_provider.testing._server.calls import Call, says_json, summarize
from workflow_automation_provider.testing._server.state import State, now
from workflow_automation_provider.testing.callbacks import withhold_tokens
from workflow_automation_provider.testing.journal import Run, Upload

if TYPE_CHECKING:
    from workflow_automation_provider.testing.keys import Key


def judge(call: Call, state: State) -> Run | Upload | HTTPException:
    """Return what a request leads to, or why it is not accepted, without changing anything."""
    try:
        if call.operation is None:
            raise HTTPException(404, "no such path")
        if call.method != "POST":
            raise HTTPException(405, "only POST", {"allow": "POST"})
        if not says_json(call.content_type):
            raise HTTPException(415, "the Content-Type must be application/json")
        return (_judge_upload if call.operation == "upload" else _judge_trigger)(call, state)
    except HTTPException as rejection:
        return rejection
    except RecursionError:
        # The JSON parser allows deeper nesting than what follows.
        return HTTPException(400, "the body is nested too deeply")


def _judge_trigger(call: Call, state: State) -> Run:
    key = _good_key(call, state) if call.operation == "trigger_by_key" else None
    inputs = _fields(call, inputs=dict)["inputs"]
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
    # Of one that is too large to be parsed, the key is all that is checked.
    if call.body.data is not None:
        fields = _fields(call, flow_id=str, run_id=str, files=list)
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
    key = state.keys.get(call.key_value or b"")
    if key is None:
        raise HTTPException(401, "the key is missing or unknown")
    return key


def _fields(call: Call, **types: type) -> dict[str, Any]:
    body = call.body.fields
    if body.keys() != types.keys():
        raise HTTPException(400, f"the body must have exactly the fields {', '.join(types)}")
    for name, wanted in types.items():
        if not isinstance(body[name], wanted):
            raise HTTPException(400, f"the field {name} has the wrong type")
    return body
