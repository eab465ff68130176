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
        name, base = _base_url(hook)
        _check(name, base, hook)
    except InvalidRequestError as error:
        raise error.with_facts(
            next_step=(
                "Set the connection's extra callback_base_url to the URL at which the service "
                f"reaches Airflow's API server, such as {CALLBACK_EXAMPLE}.\n"
                f"If it cannot reach Airflow, set it to a folder, such as {MAILBOX_EXAMPLE}."
            ),
        ) from None

    return f"{base}{CALLBACK_PATH}"


def _base_url(hook: WorkflowAutomationHook) -> tuple[str, str]:
    """Return the URL of Airflow's API server, after the name of the setting that has it."""
    extra = hook.extra
    if extra.callback_base_url:
        return "The connection's callback_base_url", extra.callback_base_url

    name = "[api] base_url"
    base = parse_base_url(
        conf.get("api", "base_url", fallback=None) or "",
        allow_http=extra.allow_http,
        name=name,
        example=CALLBACK_EXAMPLE,
    )
    return name, base


def _check(name: str, base: str, hook: WorkflowAutomationHook) -> None:
    for end in _NO_BASE:
        if base.endswith(end):
            raise InvalidRequestError(
                f"{name} ends in {end}: expected {base.removesuffix(end)}, to which the "
                "provider adds the path."
            )

    host = urlsplit(base).hostname or ""
    service = urlsplit(hook.get_conn().base_url).hostname or ""
    if is_loopback(host) and not is_loopback(service):
        raise InvalidRequestError(
            f"{name} is {host}, which only this machine reaches: the flow could not call back."
        )
