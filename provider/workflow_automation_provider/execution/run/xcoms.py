"""What a task pushes of its run before it ends: each fact once."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, cast

from workflow_automation_provider.client.urls import web_link
from workflow_automation_provider.links import FlowRunLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import Logger

    from workflow_automation_provider.execution.record.entries import RunResult


class RunXComs:
    """
    The XComs of one task's run.

    :param pushed: the attribute, as the task was suspended with it; None if it was not
    """

    def __init__(self, context: Context, log: Logger, pushed: str | None) -> None:
        self._context = context
        self._log = log
        self._stored = "" if pushed is None else None
        self.link = self._stored
        """The link, empty if there is none; None if the stored one counts."""
        self.pushed = pushed or ""
        """Hash of the run that this try has pushed, empty if it has pushed none."""

    def keep_link(self, run: RunResult) -> None:
        """Keep the link to a run, which Airflow stores at the end of the task."""
        run_link = run.get("run_link")
        self.link = web_link(run_link)
        if run_link and not self.link:
            self._log.warning(
                "The Open run button will be missing: the run_link is not a plain URL of a web "
                "page (https:// or http://, without a password or a blank, not too long)."
            )

    def push_link(self) -> None:
        """Store the link now, because the task goes on. A failure is only logged."""
        if self.link == self._stored:
            return
        try:
            self._context["ti"].xcom_push(key=FlowRunLink().xcom_key, value=self.link)
            self._stored = self.link
        except Exception:
            self._log.warning(
                "The link to the run could not be stored: the Open run button will be missing.",
                exc_info=True,
            )

    def push(self, run: RunResult, response: RunResult) -> None:
        """
        Push the run as Airflow does once a task has succeeded.

        A task that a person marks as success passes the run on: its XComs are kept.

        :param response: the run as the response had it: what another run has not is taken back
        """
        digest = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()
        if digest == self.pushed:
            return

        self.keep_link(run)
        self.push_link()
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
