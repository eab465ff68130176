"""The "Open run" button of a task instance."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import XCom
from airflow.sdk import BaseOperatorLink

from workflow_automation_provider.client.checks import browser_link

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import TaskInstanceKey

__all__ = ["FlowRunLink"]


_log = logging.getLogger(__name__)


class FlowRunLink(BaseOperatorLink):
    """Link to the run in the application; it is there while the task is still running."""

    name = "Open run"
    _last: ClassVar[tuple[object, str] | None] = None
    """The task instance that this process executed last, and its link, empty if it has none."""

    @property
    def xcom_key(self) -> str:
        """The key of the XCom that holds the link; the UI of Airflow 3 reads it."""
        return "_link_FlowRunLink"

    @classmethod
    def persist(cls, context: Context, run_link: str | None, *, at_once: bool = True) -> None:
        """
        Store the link to a run. A failure is only logged, because the run was started.

        :param run_link: URL as the service gave it, but not relative; None if there is none yet;
            empty to remove one that was stored
        :param at_once: whether to store it now. Otherwise, Airflow does so at the end of the task
        """
        link = _browser_link(run_link) if run_link else ""
        cls._last = context["ti"], link
        if at_once and (link or run_link == ""):
            try:
                context["ti"].xcom_push(key=cls().xcom_key, value=link)
            except Exception:
                _log.warning(
                    "The link to the run could not be stored: the Open run button will be missing.",
                    exc_info=True,
                )

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """
        Return the link that was stored, or an empty string.

        Airflow 3 also calls this at the end of the task, with the task instance itself as
        ``ti_key``, and overwrites the stored link with the result.
        """
        if self._last and self._last[0] is ti_key:
            return self._last[1]
        link: Any = XCom.get_value(key=self.xcom_key, ti_key=ti_key)
        return link or ""


def _browser_link(run_link: str) -> str:
    """Return a link as a browser opens it, empty if there is none: the log says why."""
    try:
        return browser_link(run_link)
    except ValueError as error:
        _log.warning("The Open run button will be missing: the run_link %s.", error)
        return ""
