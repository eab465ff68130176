"""What a task pushes of its run before it ends: each fact once."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urljoin

from workflow_automation_provider.client.checks import is_relative_link
from workflow_automation_provider.links import FlowRunLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import Logger

    from workflow_automation_provider.execution.starts.entries import RunResult
    from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook


class RunXComs:
    """
    The XComs of one task's run.

    :param hook: has the base URL, against which a relative link is resolved
    :param pushed: the attribute, as the try had it when it was suspended; empty if it was not
    """

    def __init__(
        self, context: Context, hook: WorkflowAutomationHook, log: Logger, pushed: str = ""
    ) -> None:
        self._context = context
        self._hook = hook
        self._log = log
        self._link: str | None = None
        self.pushed = pushed
        """Hash of the run that this try has pushed, empty if it has pushed none."""

    def push_link(self, run_link: str | None, *, at_once: bool = True) -> None:
        """Store the link to the run, unless it was just stored: :meth:`.FlowRunLink.persist`."""
        at_once = at_once and run_link != self._link
        if at_once:
            self._link = run_link
        if run_link and is_relative_link(run_link):
            # If there is no usable connection, the link stays relative, and the log says so.
            with contextlib.suppress(Exception):
                run_link = urljoin(f"{self._hook.get_conn().base_url}/", run_link)
        FlowRunLink.persist(self._context, run_link, at_once=at_once)

    def push(self, run: RunResult, response: RunResult) -> None:
        """
        Push the run as Airflow does once a task has succeeded.

        A task that a person marks as success passes the run on: its XComs are kept.

        :param response: the run as the response had it: what another run has not is taken back
        """
        digest = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()
        if digest == self.pushed:
            return

        link = run.get("run_link")
        if link is None and "run_link" in response:
            link = ""

        self.push_link(link)
        task = cast("BaseOperator", self._context["task"])
        xcoms: dict[str, Any] = {}
        if task.do_xcom_push:
            xcoms["return_value"] = {**run}
        if task.do_xcom_push and task.multiple_outputs:
            xcoms.update(dict.fromkeys(response))
            xcoms.update(run)

        try:
            for key, value in xcoms.items():
                self._context["ti"].xcom_push(key=key, value=value)

            self.pushed = digest
        except Exception:
            self._log.warning(
                "The run could not be pushed as an XCom: if the task is marked as success while it "
                "waits, the next one does not get it.",
                exc_info=True,
            )
