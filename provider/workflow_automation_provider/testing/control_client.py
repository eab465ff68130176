"""A client for the control endpoints of a local service in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from workflow_automation_provider.testing.scripted import is_url

if TYPE_CHECKING:
    from typing import Self

__all__ = ["ControlClient"]


class ControlClient:
    """
    Script faults and callbacks of a local service and read its journal, over HTTP.

    :param url: the address of the service, or its base URL, which ends in ``/api``
    :param verify: as for :class:`httpx.Client`; for a service with its own certificate
    :raises ValueError: if the address is no URL
    """

    def __init__(self, url: str, verify: Any = True) -> None:
        url = url.strip().rstrip("/").removesuffix("/api")
        if not is_url(url):
            raise ValueError(f"url is {url!r}; expected a URL, such as 'http://127.0.0.1:8070'")
        # A proxy from the environment cannot reach the loopback address of this machine.
        self._http = httpx.Client(base_url=f"{url}/_control", verify=verify, trust_env=False)

    def add_fault(self, kind: str, **options: Any) -> dict[str, Any]:
        """
        Queue a fault and return it.

        :param options: the other fields of :class:`.faults.Fault`
        :raises ValueError: if the service rejects the fault
        """
        return self._request("POST", "/faults", {"kind": kind, **options})

    def faults(self) -> list[dict[str, Any]]:
        """Return all faults since the last :meth:`clear_faults`."""
        return [*self._request("GET", "/faults")["faults"]]

    def clear_faults(self) -> None:
        """Remove all faults."""
        self._request("DELETE", "/faults")

    def add_callback(self, **options: Any) -> dict[str, Any]:
        """
        Queue a callback and return it.

        :param options: the fields of :class:`.callbacks.Callback`; ``result`` is a JSON value, not
            a function
        :raises ValueError: if the service rejects the callback
        """
        return self._request("POST", "/callbacks", options)

    def callbacks(self) -> list[dict[str, Any]]:
        """Return all callbacks since the last :meth:`clear_callbacks`."""
        return [*self._request("GET", "/callbacks")["callbacks"]]

    def clear_callbacks(self) -> None:
        """Remove all callbacks; runs that were started before still call back."""
        self._request("DELETE", "/callbacks")

    def journal(self) -> dict[str, Any]:
        """Return ``runs``, ``uploads``, ``requests``, ``callbacks`` and ``worked``."""
        return self._request("GET", "/journal")

    def healthy(self) -> bool:
        """Return whether the service is up."""
        try:
            return self._request("GET", "/health") == {"status": "ok"}
        except (httpx.HTTPError, ValueError):  # the second where something else responds
            return False

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        response = self._http.request(method, path, json=body)
        if response.status_code == 400:
            raise ValueError(response.json()["error"])
        response.raise_for_status()
        result: dict[str, Any] = response.json()
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
