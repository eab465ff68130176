"""A notifier that starts a run when something happens to a task or a DAG run."""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from airflow.providers.common.compat.sdk import BaseNotifier

from workflow_automation_provider.client.checks import check_seconds
from workflow_automation_provider.operators.base import rendered

if TYPE_CHECKING:
    import jinja2
    from airflow.providers.common.compat.sdk import DAG, Context

__all__ = ["FlowNotifier"]


class FlowNotifier(BaseNotifier):
    """
    Start a run of a flow from a callback: ``on_failure_callback``, ``on_success_callback``, a deadline alert.

    A callback must not change what it reports on. So this raises no errors, but logs them, and sends nothing
    after ``timeout``.

    **Airflow may call a callback twice, or not at all**, if a process is killed. Unlike a task, a callback has
    no record: each call starts a run. Within one call, the request is retried only if no run can have been
    started. Give the flow an input by which it can tell that it was started twice. If a second
    run would do harm, use a task with a ``trigger_rule`` instead.

    .. code-block:: python

        on_failure_callback = FlowNotifier({"task": "{{ ti.task_id }}", "event": "{{ ti.task_id }}/{{ run_id }}"})

    Follows sections 4.1 and 4.2 of the interface.

    :param inputs: input names, as the flow defines them, and JSON values (templated, including nested values, with the
        callback's context)
    :param flow_id: the flow to start; None for the one that the connection's API key identifies (templated)
    :param workflow_automation_conn_id: connection with the base URL and the API key (templated)
    :param timeout: seconds that one call may take, retries included. Rendering the templates does not count.
        Reading the connection does, but is not interrupted: if it takes longer, nothing is sent
    """

    template_fields: Sequence[str] = ("inputs", "flow_id", "workflow_automation_conn_id")

    def __init__(
        self,
        inputs: Mapping[str, Any],
        flow_id: str | None = None,
        workflow_automation_conn_id: str = "workflow_automation_default",
        *,
        timeout: float = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if inputs is None:
            raise ValueError("inputs is None: pass a dict of input names and values, {} for none.")
        check_seconds("timeout", timeout)
        self.inputs = inputs
        self.flow_id = flow_id
        self.workflow_automation_conn_id = workflow_automation_conn_id
        self.timeout = timeout
        self._is_flow_given = flow_id is not None

    def __call__(self, *args: Any) -> None:
        """
        Start a run, and log an error rather than raise it.

        :param args: the callback's context, or what Airflow 2 passes to an ``sla_miss_callback``
        """
        # Rendering replaces the templates, and the same notifier may be called again with another context.
        notifier = copy.copy(self)
        try:
            # Airflow adds the notifier's arguments to the context, which the task may be given next.
            given = args if len(args) != 1 else (copy.copy(args[0]),)
            super(FlowNotifier, notifier).__call__(*given)
        except Exception as error:
            notifier._log_failure(error)

    def get_template_env(self, dag: DAG | None = None) -> jinja2.Environment:
        """
        Return the environment that renders the templates.

        :param dag: may have other filters and macros
        """
        # On Airflow 3, dag.test() passes the callbacks of a DAG its serialized form, which has no environment.
        return super().get_template_env(dag if hasattr(dag, "get_template_env") else None)

    def __await__(self) -> Generator[Any, None, None]:
        """Start a run with the context that the notifier was made with, and log an error rather than raise it."""
        return self._call_async().__await__()

    async def _call_async(self) -> None:
        notifier = copy.copy(self)
        context = copy.copy(getattr(self, "context", None) or cast("Context", {}))  # Airflow 3.1+
        try:
            notifier._update_context(context)
            notifier.render_template_fields(context)
        except Exception as error:
            notifier._log_failure(error)
        else:
            await notifier.async_notify(context)

    def notify(self, context: Context) -> None:
        """
        Start a run with the rendered arguments, and log an error rather than raise it.

        :param context: the callback's context
        """
        from workflow_automation_provider.execution.notifier_start import NotifierStart
        from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

        try:
            flow_id = rendered("flow_id", self.flow_id) if self._is_flow_given else None
            hook = WorkflowAutomationHook(self.workflow_automation_conn_id)
            NotifierStart(hook, self.timeout, self.log).run(self.inputs, flow_id)
        except Exception as error:
            self._log_failure(error)

    async def async_notify(self, context: Context) -> None:
        """
        Start a run with the rendered arguments in another thread, and log an error rather than raise it.

        :param context: the callback's context
        """
        # Not asyncio's: in the triggerer, Airflow reads connections through asgiref's event loop.
        from asgiref.sync import sync_to_async

        await sync_to_async(self.notify, thread_sensitive=False)(context)

    def _log_failure(self, error: Exception) -> None:
        from workflow_automation_provider.execution.notifier_start import log_failure

        log_failure(self.log, error)
