"""The "Open run" button of a task instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import XCom
from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

__all__ = ["FlowRunLink"]


class FlowRunLink(BaseOperatorLink):
    """Link to the run in the application; it is there while the task is still running."""

    name = "Open run"

    @property
    def xcom_key(self) -> str:
        """The key of the XCom that holds the link; the UI of Airflow 3 reads it."""
        return "_link_FlowRunLink"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """
        Return the link to the run that an operator has executed, or an empty string.

        Airflow 3 also calls this at the end of the task, and overwrites the stored link with the
        result: so of an operator that knows no better, it is the stored one.
        """
        link: Any = getattr(operator, "_run_link", None)
        if link is None:
            link = XCom.get_value(key=self.xcom_key, ti_key=ti_key)
        return link or ""
