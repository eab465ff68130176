"""The response of each kind of fault, and how it is sent or withheld."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_from_bytes

from workflow_automation_provider.testing._server.responses import Exchange, Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from workflow_automation_provider.testing._server.calls import Call
    from workflow_automation_provider.testing.faults import Fault

__all__ = ["faulty_response", "send_faulty"]

_ENDLESS_PART = b" " * 65_536


def faulty_response(fault: Fault, call: Call, usual: Response) -> Response:
    """
    Return the complete, well-formed response of a fault; :func:`send_faulty` may then send it incompletely.

    :param call: the request that the fault strikes
    :param usual: the response without the fault
    """
    status = usual.status if fault.status is None else fault.status
    match fault.kind:
        case "delay" | "stale" | "twice" | "drip" | "truncate":
            return usual
        case "empty" | "endless":
            return Response(status, b"")
        case "echo_key":
            return _echo(status, call.key_value or b"", usual)
    headers = dict(fault.headers)
    if fault.retry_after is not None:
        headers["retry-after"] = str(fault.retry_after)
    if fault.location is not None:
        headers["location"] = fault.location
    if fault.body is not None:
        body = _encode(fault.body)
    elif fault.kind == "response":
        body = usual.body
    else:
        body = _encode({"error": f"the fault {fault.kind}"})
    return Response(status, body, headers)


async def send_faulty(fault: Fault, response: Response, exchange: Exchange) -> None:
    """
    Send a response, or fail to, as the fault specifies.

    :param response: what :func:`faulty_response` returned
    """
    spoil = _SPOILED.get(fault.kind)
    if spoil is not None:
        await spoil(fault, response, exchange)
    elif fault.kind.startswith("drop_"):
        await exchange.drop()
    elif fault.kind.startswith("reset_"):
        await exchange.reset()
    elif fault.kind.startswith("hang_"):
        await exchange.hang(fault.seconds or 0)
    else:
        await exchange.respond(response)


async def _drip(fault: Fault, response: Response, exchange: Exchange) -> None:
    await exchange.start(response, length=len(response.body))
    for byte in response.body:
        if not await exchange.pause((fault.seconds or 0) / len(response.body)):
            break
        await exchange.send_part(bytes([byte]))
    await exchange.send({"type": "http.response.body", "body": b""})


async def _truncate(_: Fault, response: Response, exchange: Exchange) -> None:
    await exchange.start(response, length=len(response.body))
    await exchange.send_part(response.body[: len(response.body) // 2])
    await exchange.drop()


async def _endless(fault: Fault, response: Response, exchange: Exchange) -> None:
    await exchange.start(response, length=None)
    sent = 0
    while not exchange.connection.closed and sent < (fault.limit or 0):
        await exchange.send_part(_ENDLESS_PART)
        sent += len(_ENDLESS_PART)
        # Lets other requests run: sending alone may never yield.
        await exchange.pause(0)
    await exchange.drop()


_SPOILED: Mapping[str, Callable[[Fault, Response, Exchange], Awaitable[None]]] = {
    "drip": _drip,
    "truncate": _truncate,
    "endless": _endless,
}


def _echo(status: int, key_value: bytes, usual: Response) -> Response:
    raw = key_value.decode("latin-1")
    forms = [raw, quote_from_bytes(key_value, safe=""), base64.b64encode(key_value).decode("ascii")]
    # An accepted run keeps its ID in the response, so that a client logs or returns that response.
    body: Any = {"echo": forms}
    if status < 300:
        accepted = json.loads(usual.body)
        body = {**accepted, **body} if isinstance(accepted, dict) else f"{accepted} {' '.join(forms)}"
    return Response(status, json.dumps(body, ensure_ascii=False).encode(), {"x-echo": " ".join(forms)})


def _encode(body: Any) -> bytes:
    # Lone surrogates are valid in JSON escapes, not in UTF-8.
    text = body if isinstance(body, str) else json.dumps(body)
    return text.encode("utf-8", errors="surrogatepass")
