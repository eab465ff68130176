"""Where a run reaches Airflow: the address of its API server, as the service sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow.configuration import conf

from workflow_automation_provider.client.redaction import CALLBACK_PATH
from workflow_automation_provider.client.setting_kinds import CALLBACK_EXAMPLE, MAILBOX_EXAMPLE
from workflow_automation_provider.client.urls import is_loopback, parse_base_url
from workflow_automation_provider.exceptions import InvalidRequestError

if TYPE_CHECKING:
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

# What is copied with another URL of Airflow.
_NO_BASE = (CALLBACK_PATH, CALLBACK_PATH.rpartition("/")[0], "/api/v2")


def callback_url(hook: WorkflowAutomationHook) -> str:
    """
    Return the URL of the callback endpoint, as the service reaches it, without a token.

    :raises InvalidRequestError: if there is none that it can reach
    """
    try:
        base = _base_url(hook)
        host = urlsplit(base).hostname or ""
        service = urlsplit(hook.get_conn().base_url).hostname or ""

        for end in _NO_BASE:
            if base.endswith(end):
                raise InvalidRequestError(
                    f"{base} ends in {end}: expected {base.removesuffix(end)}."
                )
        if is_loopback(host) and not is_loopback(service):
            raise InvalidRequestError(
                f"Only this machine reaches {base}: the flow could not call back."
            )
    except InvalidRequestError as error:
        raise error.with_facts(
            next_step=(
                "Set the connection's extra callback_base_url to the URL at which the service "
                f"reaches Airflow's API server, such as {CALLBACK_EXAMPLE}.\n"
                f"If it cannot reach Airflow, set it to a folder, such as {MAILBOX_EXAMPLE}."
            ),
        ) from None

    return f"{base}{CALLBACK_PATH}"


def _base_url(hook: WorkflowAutomationHook) -> str:
    """Return the URL of Airflow's API server, of the connection or as Airflow is configured."""
    name, url = "The connection's callback_base_url", hook.extra.callback_base_url
    if not url:
        name, url = "[api] base_url", conf.get("api", "base_url", fallback=None) or ""

    return parse_base_url(
        url, allow_http=hook.extra.allow_http, name=name, example=CALLBACK_EXAMPLE
    )
