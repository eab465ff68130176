"""The URL of Airflow that a run is given among its inputs, with a token for one send of the request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.configuration import conf

from workflow_automation_provider.client.protocol import OF_CALLBACK, is_loopback, parse_base_url
from workflow_automation_provider.exceptions import InvalidRequestError
from workflow_automation_provider.execution.callback import PATH, digest_of, new_token

if TYPE_CHECKING:
    from airflow.sdk import Context

    from workflow_automation_provider.client.protocol import Request
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook


class CallbackUrl:
    """
    Makes the request of a start with a URL for its run.

    :param hook: redacts each token, and has the address of Airflow
    :param name: of the input that holds the URL
    :param argument: which needs it, as a user writes it
    """

    def __init__(self, hook: WorkflowAutomationHook, context: Context, *, name: str, argument: str) -> None:
        self._hook = hook
        self._context = context
        self._name = name
        self._argument = argument
        self._base = ""
        self._build: Callable[[str], Request]
        self.digest = ""
        """The hash of the token of the last request."""

    def check(self) -> None:
        """
        Check that Airflow can hear a run, before anything else is done.

        :raises InvalidRequestError: if it cannot
        """
        if "task_state_store" not in self._context:
            raise InvalidRequestError(
                f"{self._argument} needs Airflow 3.3 or newer, which can park a task and keeps its state.",
                next_step=f"Upgrade Airflow, or leave {self._argument} out.",
            )
        if conf.getboolean("state_store", "clear_on_success", fallback=False):
            raise InvalidRequestError(
                f"{self._argument} needs the task's state, which [state_store] clear_on_success deletes when the task "
                "succeeds.",
                next_step=f"Set clear_on_success to False, or leave {self._argument} out.",
            )

    def first(self, inputs: Mapping[str, Any], prepare: Callable[[Mapping[str, Any]], Request]) -> Request:
        """
        Build the request with a URL.

        :param prepare: builds a request, given its inputs
        :raises InvalidRequestError: if there is no usable address of Airflow's API server, or the inputs have
            one of this name already
        """
        if not isinstance(inputs, Mapping):
            return prepare(inputs)  # which says what is wrong with them
        if self._name in inputs:
            raise InvalidRequestError(
                f"inputs already has {self._name!r}, the name of the callback URL: pass another callback_input."
            )
        self._base = self._base_url()
        self._build = lambda url: prepare({**inputs, self._name: url})
        return self.next()

    def next(self) -> Request:
        """Build the same request with another token."""
        token = new_token(self._context["ti"].id)
        self._hook.redact_also(token)
        self.digest = digest_of(token)
        return self._build(f"{self._base}{PATH}?token={token}")

    def _base_url(self) -> str:
        extra = self._hook.extra
        try:
            base, name = extra.callback_base_url, "The connection's callback_base_url"
            if not base:
                name = "[api] base_url"
                base = parse_base_url(
                    conf.get("api", "base_url", fallback=None) or "",
                    allow_http=extra.allow_http,
                    kind=OF_CALLBACK._replace(name=name),
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
                    f"server, such as {OF_CALLBACK.example}."
                ),
            ) from None
        return base
