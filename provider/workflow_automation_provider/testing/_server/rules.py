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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from workflow_automation_provider.testing._server.bodies import BodyError, summarize

if TYPE_CHECKING:
    from workflow_automation_provider.testing._server.calls import Call
    from workflow_automation_provider.testing._server.state import State
    from workflow_automation_provider.testing.keys import Key

__all__ = ["Rejection", "StartRun", "TakeFiles", "Verdict", "judge"]


@dataclass(frozen=True)
class Rejection:
    """
    A request that is not accepted.

    :param error: the reason, for the body of the response
    """

    status: int
    error: str


@dataclass(frozen=True)
class StartRun:
    """
    A request that starts a run.

    :param by: whether the path or the key identifies the flow
    :param key: ``None`` for a trigger by path
    """

    flow_id: str
    inputs: dict[str, Any]
    by: Literal["path", "key"]
    key: Key | None


@dataclass(frozen=True)
class TakeFiles:
    """
    A request that uploads files.

    :param flow_id: as sent; ``None`` if the body is too large to be parsed and does not begin with it
    :param run_id: as sent; ``None`` as for ``flow_id``
    :param files: the elements, long strings summarized; ``None`` if the body is too large to be parsed
    """

    flow_id: str | None
    run_id: str | None
    files: list[Any] | None
    key: Key


Verdict = Rejection | StartRun | TakeFiles
"""The decision about a request."""


class _Rejected(Exception):  # noqa: N818 - ends the checks, not an error
    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.rejection = Rejection(status, error)


def judge(call: Call, state: State) -> Verdict:
    """Decide what to do with a request, without changing anything."""
    try:
        if call.operation is None:
            raise _Rejected(404, "no such path")
        if call.method != "POST":
            raise _Rejected(405, "only POST")
        if not call.is_json:
            raise _Rejected(415, "the Content-Type must be application/json")
        if call.operation == "upload":
            return _judge_upload(call, state)
        return _judge_trigger(call, state)
    except _Rejected as rejected:
        return rejected.rejection


def _judge_trigger(call: Call, state: State) -> StartRun:
    key = None
    if call.operation == "trigger_by_key":
        key = _good_key(call, state)
    flow_id = key.flow_id if key else call.path_flow_id
    if flow_id is None or not state.knows_flow(flow_id):
        raise _Rejected(404, "no such flow")
    if call.body.data is None:
        raise _Rejected(413, "the inputs are too large for the local service")
    inputs = _fields(call, inputs=dict)["inputs"]
    if key and state.exhausted(key):
        raise _Rejected(403, "the key has started its maximum number of runs")
    return StartRun(flow_id, inputs, "key" if key else "path", key)


def _judge_upload(call: Call, state: State) -> TakeFiles:
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
        raise _Rejected(403, "the key belongs to another flow")
    if run_id is not None:
        run = state.runs.get(run_id) if isinstance(run_id, str) else None
        if run is None:
            raise _Rejected(404, "no such run")
        if run.flow_id != key.flow_id:
            raise _Rejected(403, "the run belongs to another flow")
    return TakeFiles(flow_id, run_id, files, key)


def _good_key(call: Call, state: State) -> Key:
    key = state.find_key(call.key_value)
    if key is None:
        raise _Rejected(401, "the key is missing or unknown")
    if key.expired():
        raise _Rejected(403, "the key has expired")
    return key


def _fields(call: Call, **types: type) -> dict[str, Any]:
    try:
        body = call.body.fields
    except BodyError as error:
        raise _Rejected(400, f"the body is {error}") from error
    if body.keys() != types.keys():
        raise _Rejected(400, f"the body must have exactly the fields {', '.join(types)}")
    for name, wanted in types.items():
        if not isinstance(body[name], wanted):
            raise _Rejected(400, f"the field {name} has the wrong type")
    return body
