"""The URL of Airflow that a run is given among its inputs, with a token for one start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.configuration import conf

from workflow_automation_provider.client.protocol import is_loopback, parse_base_url
from workflow_automation_provider.client.settings import CALLBACK_EXAMPLE
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.execution.callback import PATH, digest_of, new_token

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

_BACKEND = "airflow.state.metastore.MetastoreBackend"


class CallbackUrl:
    """
    Gives the run of a start a URL.

    :param hook: redacts each token, and has the address of Airflow
    :param name: of the input that holds the URL
    :param argument: which needs it, as a user writes it
    """

    def __init__(self, hook: WorkflowAutomationHook, context: Context, *, name: str, argument: str) -> None:
        self._hook = hook
        self._context = context
        self._name = name
        self._argument = argument
        self.digest = ""
        """The hash of the token that was given out."""

    def check(self) -> None:
        """
        Check that Airflow can hear a run, before it is started.

        :raises InvalidRequestError: if it cannot
        """
        if "task_state_store" not in self._context:
            raise InvalidRequestError(
                f"{self._argument} needs Airflow 3.3 or newer, which can park a task and keeps its state.",
                next_step=f"Upgrade Airflow, or leave {self._argument} out.",
            )
        if name := _unsupported():
            raise InvalidRequestError(
                f"{self._argument} needs the task's state in Airflow's database for as long as the task is there, and "
                f"{name} is set.",
                next_step=f"Leave {name} unset, or leave {self._argument} out.",
            )

    def added_to(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """
        Return inputs with a URL that has a new token.

        :raises InvalidRequestError: if there is no usable address of Airflow's API server, or the inputs have
            one of this name already
        """
        if not isinstance(inputs, Mapping):
            return inputs  # the hook says what is wrong with them
        if self._name in inputs:
            raise InvalidRequestError(
                f"inputs already has {self._name!r}, the name of the callback URL: pass another callback_input."
            )
        base = self._base_url()
        token = new_token(self._context["ti"].id)
        self._hook.redact_also(token)
        self.digest = digest_of(token)
        return {**inputs, self._name: f"{base}{PATH}?token={token}"}

    def _base_url(self) -> str:
        extra = self._hook.extra
        try:
            base, name = extra.callback_base_url, "The connection's callback_base_url"
            if not base:
                name = "[api] base_url"
                base = parse_base_url(
                    conf.get("api", "base_url", fallback=None) or "",
                    allow_http=extra.allow_http,
                    name=name,
                    example=CALLBACK_EXAMPLE,
                )
            host = urlsplit(base).hostname or ""
            if is_loopback(host) and not is_loopback(urlsplit(self._hook.get_conn().base_url).hostname or ""):
                raise InvalidRequestError(
                    f"{name} is {host}, which only this machine reaches: the flow could not call back."
                )
        except InvalidRequestError as error:
            raise InvalidRequestError(
                error.message,
                next_step=(
                    "Set the connection's extra callback_base_url to the URL at which the service reaches Airflow's API "
                    f"server, such as {CALLBACK_EXAMPLE}."
                ),
            ) from None
        return base


def _unsupported() -> str:
    """Return the setting with which an entry may be deleted, or only referred to in the database; empty if there is none."""
    if conf.getboolean("state_store", "clear_on_success", fallback=False):
        return "[state_store] clear_on_success"
    if conf.get("state_store", "backend", fallback=_BACKEND) != _BACKEND:
        return "[state_store] backend"
    return "[workers] state_store_backend" if conf.get("workers", "state_store_backend", fallback="") else ""
