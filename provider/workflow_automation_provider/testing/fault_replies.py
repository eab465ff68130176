"""How each kind of fault answers, or does not."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_from_bytes

from workflow_automation_provider.testing.replies import Exchange, Reply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from workflow_automation_provider.testing.calls import Call
    from workflow_automation_provider.testing.faults import Fault

__all__ = ["faulty_reply", "send_faulty"]

_ENDLESS_PART = b" " * 65_536


def faulty_reply(fault: Fault, call: Call, usual: Reply) -> Reply:
    """
    Return what a fault answers, whole and well formed; :func:`send_faulty` may then spoil it.

    :param fault: the fault.
    :param call: the request it strikes.
    :param usual: what would have been answered, if it accepts.
    """
    status = usual.status if fault.status is None else fault.status
    match fault.kind:
        case "delay" | "stale" | "drip" | "truncate":
            return usual
        case "empty" | "endless":
            return Reply(status, b"")
        case "echo_key":
            return _echo(status, call.key_value or b"", usual)
    headers = dict(fault.headers)
    if fault.retry_after is not None:
        headers["retry-after"] = fault.retry_after
    if fault.location is not None:
        headers["location"] = fault.location
    if fault.body is not None:
        body = _encode(fault.body)
    elif fault.kind == "reply":
        body = usual.body
    else:
        body = _encode({"error": f"the fault {fault.kind}"})
    return Reply(status, body, headers)


async def send_faulty(fault: Fault, reply: Reply, exchange: Exchange) -> None:
    """
    Answer the way a fault does.

    :param fault: the fault.
    :param reply: what :func:`faulty_reply` returned.
    :param exchange: the connection.
    """
    spoil = _SPOILED.get(fault.kind)
    if spoil is not None:
        await spoil(fault, reply, exchange)
    elif fault.kind.startswith("drop_"):
        await exchange.drop()
    elif fault.kind.startswith("reset_"):
        await exchange.reset()
    elif fault.kind.startswith("hang_"):
        await exchange.hang(fault.seconds or 0)
    else:
        await exchange.reply(reply)


async def _drip(fault: Fault, reply: Reply, exchange: Exchange) -> None:
    await exchange.start(reply, length=len(reply.body))
    for byte in reply.body:
        if not await exchange.pause((fault.seconds or 0) / len(reply.body)):
            break
        await exchange.send_part(bytes([byte]))
    await exchange.send({"type": "http.response.body", "body": b""})


async def _truncate(_: Fault, reply: Reply, exchange: Exchange) -> None:
    await exchange.start(reply, length=len(reply.body))
    await exchange.send_part(reply.body[: len(reply.body) // 2])
    await exchange.drop()


async def _endless(fault: Fault, reply: Reply, exchange: Exchange) -> None:
    await exchange.start(reply, length=None)
    sent = 0
    while not exchange.connection.closed and sent < (fault.limit or 0):
        await exchange.send_part(_ENDLESS_PART)
        sent += len(_ENDLESS_PART)
        # Gives way to the other requests: sending alone need not.
        await exchange.pause(0)
    await exchange.drop()


_SPOILED: Mapping[str, Callable[[Fault, Reply, Exchange], Awaitable[None]]] = {
    "drip": _drip,
    "truncate": _truncate,
    "endless": _endless,
}


def _echo(status: int, key_value: bytes, usual: Reply) -> Reply:
    raw = key_value.decode("latin-1")
    forms = [raw, quote_from_bytes(key_value, safe=""), base64.b64encode(key_value).decode("ascii")]
    # An accepted run is still answered with its id, so that a client goes on to log or return the reply.
    body: Any = {"echo": forms}
    if status < 300:
        accepted = json.loads(usual.body)
        body = {**accepted, **body} if isinstance(accepted, dict) else f"{accepted} {' '.join(forms)}"
    return Reply(status, json.dumps(body, ensure_ascii=False).encode(), {"x-echo": " ".join(forms)})


def _encode(body: Any) -> bytes:
    # Lone surrogates are valid in JSON escapes, not in UTF-8.
    text = body if isinstance(body, str) else json.dumps(body)
    return text.encode("utf-8", errors="surrogatepass")
