"""
Which calls are accepted.

From the interface: the paths, the shapes of the bodies, 400 for a bad body of a trigger by path. **Not shown by
the interface, chosen here**, because a local service has to answer something:

====== ====================================================================================================
Status When
====== ====================================================================================================
400    the body of a trigger by key or of an upload is not exactly the documented object
401    the key is missing or unknown
403    the key has expired, or has started all its runs, or belongs to another flow than the upload names
404    no such path, no such flow (only with a list of flows), no such run
405    the method is not POST
413    the inputs are too large to be parsed here
415    the Content-Type is not ``application/json``
====== ====================================================================================================

Error bodies are ``{"error": "…"}``; that too is a choice made here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from workflow_automation_provider.testing.bodies import BodyError, describe

if TYPE_CHECKING:
    from workflow_automation_provider.testing.calls import Call
    from workflow_automation_provider.testing.keys import Key
    from workflow_automation_provider.testing.state import State

__all__ = ["Refusal", "StartRun", "TakeFiles", "Verdict", "judge"]


@dataclass(frozen=True)
class Refusal:
    """
    A call that is not accepted.

    :param status: the status to answer.
    :param error: why.
    """

    status: int
    error: str


@dataclass(frozen=True)
class StartRun:
    """
    A call that starts a run.

    :param flow_id: the flow to start.
    :param inputs: its inputs.
    :param by: whether the flow is named by the path or by the key.
    :param key: the key, if any.
    """

    flow_id: str
    inputs: dict[str, Any]
    by: Literal["path", "key"]
    key: Key | None


@dataclass(frozen=True)
class TakeFiles:
    """
    A call that uploads files.

    :param flow_id: the flow as sent, ``None`` if the body is too large to know.
    :param run_id: the run as sent, likewise.
    :param files: the described elements, ``None`` if the body is too large to be parsed.
    :param key: the key.
    """

    flow_id: str | None
    run_id: str | None
    files: list[Any] | None
    key: Key


Verdict = Refusal | StartRun | TakeFiles
"""What a call leads to."""


class _Refused(Exception):  # noqa: N818 - a way out of the checks, not an error
    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.refusal = Refusal(status, error)


def judge(call: Call, state: State) -> Verdict:
    """
    Decide what a call leads to; nothing is changed.

    :param call: the call.
    :param state: what the service knows.
    """
    try:
        if call.operation is None:
            raise _Refused(404, "no such path")
        if call.method != "POST":
            raise _Refused(405, "only POST")
        if not call.is_json:
            raise _Refused(415, "the Content-Type must be application/json")
        if call.operation == "upload":
            return _judge_upload(call, state)
        return _judge_trigger(call, state)
    except _Refused as refused:
        return refused.refusal


def _judge_trigger(call: Call, state: State) -> StartRun:
    key = None
    if call.operation == "trigger_by_key":
        key = _good_key(call, state)
    flow_id = key.flow_id if key else call.path_flow_id
    if flow_id is None or not state.knows_flow(flow_id):
        raise _Refused(404, "no such flow")
    if call.body.data is None:
        raise _Refused(413, "the inputs are too large for the local service")
    inputs = _fields(call, inputs=dict)["inputs"]
    if key and state.exhausted(key):
        raise _Refused(403, "the key has started all the runs it may")
    return StartRun(flow_id, inputs, "key" if key else "path", key)


def _judge_upload(call: Call, state: State) -> TakeFiles:
    key = _good_key(call, state)
    files = None
    if call.body.data is None:
        # Too large to be parsed: judged by what comes before the files, as far as that goes.
        fields = call.body.leading_fields()
    else:
        fields = _fields(call, flow_id=str, run_id=str, files=list)
        files = describe(fields["files"])
    flow_id, run_id = fields.get("flow_id"), fields.get("run_id")
    if flow_id is not None and flow_id != key.flow_id:
        raise _Refused(403, "the key belongs to another flow")
    if run_id is not None:
        run = state.runs.get(run_id) if isinstance(run_id, str) else None
        if run is None:
            raise _Refused(404, "no such run")
        if run.flow_id != key.flow_id:
            raise _Refused(403, "the run belongs to another flow")
    return TakeFiles(flow_id, run_id, files, key)


def _good_key(call: Call, state: State) -> Key:
    key = state.find_key(call.key_value)
    if key is None:
        raise _Refused(401, "the key is missing or unknown")
    if key.expired():
        raise _Refused(403, "the key has expired")
    return key


def _fields(call: Call, **types: type) -> dict[str, Any]:
    try:
        body = call.body.fields
    except BodyError as error:
        raise _Refused(400, f"the body is {error}") from error
    if body.keys() != types.keys():
        raise _Refused(400, f"the body must have exactly the fields {', '.join(types)}")
    for name, wanted in types.items():
        if not isinstance(body[name], wanted):
            raise _Refused(400, f"the field {name} has the wrong type")
    return body
