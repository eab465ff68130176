"""The "Flow run" button of a task instance."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, Context, TaskInstanceKey

__all__ = ["FlowRunLink"]


_log = logging.getLogger(__name__)


class FlowRunLink(BaseOperatorLink):
    """Leads to the run in the application; works as soon as the run is known, while the task still runs."""

    name = "Flow run"

    @property
    def xcom_key(self) -> str:
        """The XCom that holds the link, for the UI of Airflow 3 to read."""
        return "_link_FlowRunLink"

    @classmethod
    def persist(cls, context: Context, run_link: str | None) -> None:
        """
        Store the link of a run that was started. A link that cannot be stored is logged: it is not worth a run.

        :param context: the task's context
        :param run_link: URL as the service gave it; anything but http or https is left out, for a browser
            would run a ``javascript:`` link
        """
        if run_link and _is_web_address(run_link):
            try:
                context["ti"].xcom_push(key=cls().xcom_key, value=run_link)
            except Exception:
                _log.warning("The link to the run could not be stored; the button is missing.", exc_info=True)

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """
        Return the link that was stored, or an empty text.

        Airflow 3 also calls this at the end of the task and overwrites the stored link with its answer.
        """
        link: Any = XCom.get_value(key=self.xcom_key, ti_key=ti_key)
        return link or ""


def _is_web_address(link: str) -> bool:
    try:
        return urlsplit(link).scheme in ("http", "https")
    except ValueError:
        return False
