"""What a local service is started with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from workflow_automation_provider.testing.keys import Key

__all__ = ["PARSE_LIMIT", "RunIdType", "Settings"]

PARSE_LIMIT = 64 * 1024 * 1024
"""Bytes; larger bodies are counted and hashed, not parsed."""

RunIdType = Literal["string", "number"]
"""The JSON type of the run IDs in responses."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The checked arguments of :class:`~workflow_automation_provider.testing.service.LocalService`."""

    keys: tuple[Key, ...]
    flows: tuple[str, ...] | None
    host: str
    certfile: str | None
    keyfile: str | None
    run_id_type: RunIdType
    first_run_id: int
    public_url: str | None
    parse_limit: int

    def url(self, port: int) -> str:
        """Return the address of the service, without ``/api``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        # Clients cannot connect to the unspecified address on every system.
        host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 - only compared
        return f"{'https' if self.certfile else 'http'}://{host}:{port}"
