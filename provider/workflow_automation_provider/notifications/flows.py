"""A notifier that starts a run when something happens to a task or a DAG run."""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

from workflow_automation_provider.client.rendered_values import check_names, rendered
from workflow_automation_provider.exceptions import Code, WorkflowAutomationError
from workflow_automation_provider.operators.templates import TextKeeper
from workflow_automation_provider.wording import one_line

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import DAG, Context

__all__ = ["FlowNotifier"]


class FlowNotifier(TextKeeper, BaseNotifier):
    """
    Start a run of a flow from a callback, such as ``on_failure_callback`` or a deadline alert.

    A callback must not change what it reports on. So this raises no errors, but logs them, and
    sends the request once: the connection's ``timeout`` bounds each part of it.

    **Airflow may call a callback twice, or not at all**, if a process is killed. Unlike a task, a
    callback has no record: each call starts a run. Give the flow an input by which it can tell that
    it was started twice. If a second run would do harm, use a task with a ``trigger_rule`` instead.

    .. code-block:: python

        on_failure_callback = FlowNotifier(
            {"task": "{{ ti.task_id }}", "event": "{{ ti.task_id }}/{{ run_id }}"}
        )

    Follows sections 4.1 and 4.2 of the interface.

    :param inputs: input names, as the flow defines them, and JSON values (templated, including
        nested values, with the callback's context)
    :param flow_id: the flow to start; None for the one that the connection's API key identifies
        (templated)
    :param workflow_automation_conn_id: connection with the base URL and the API key (templated)
    """

    template_fields: Sequence[str] = ("inputs", "flow_id", "workflow_automation_conn_id")

    def __init__(
        self,
        inputs: Mapping[str, Any],
        flow_id: str | None = None,
        workflow_automation_conn_id: str = "workflow_automation_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if inputs is None:
            raise ValueError("inputs is None: pass a dict of input names and values, {} for none.")
        self.inputs = inputs
        self.flow_id = flow_id
        self.workflow_automation_conn_id = workflow_automation_conn_id
        self._is_flow_given = flow_id is not None

    def __call__(self, *args: Any) -> None:
        """
        Start a run, and log an error rather than raise it.

        :param args: the callback's context
        """
        # Rendering replaces the templates, and the same notifier may be called again with another
        # context.
        notifier = copy.copy(self)
        try:
            # A copy of the context: Airflow adds the notifier's arguments to it, and may give it to
            # the task next.
            super(FlowNotifier, notifier).__call__(*map(copy.copy, args))
        except Exception as error:
            self._log_failure(error, Code.NOT_SENT)

    def __await__(self) -> Generator[Any, None, None]:
        """Call the notifier in another thread, with the context that it was made with."""
        # Not asyncio's: in the triggerer, Airflow reads connections through asgiref's event loop.
        from asgiref.sync import sync_to_async

        return sync_to_async(self.__call__, thread_sensitive=False)(self.context).__await__()

    def get_template_env(self, dag: DAG | None = None) -> jinja2.Environment:
        """
        Return the environment that renders the templates.

        :param dag: the DAG, with filters and macros of its own
        """
        # dag.test() passes the callbacks of a DAG its serialized form, which has no environment.
        return super().get_template_env(dag if hasattr(dag, "get_template_env") else None)

    def notify(self, context: Context) -> None:
        """
        Start a run with the rendered arguments, and log an error rather than raise it.

        :param context: the callback's context
        """
        from workflow_automation_provider.hooks.workflow_automation import WorkflowAutomationHook

        code = Code.NOT_SENT
        flow = self.flow_id if self._is_flow_given else None
        hook = WorkflowAutomationHook(self.workflow_automation_conn_id)
        try:
            flow_id = rendered("flow_id", self.flow_id) if self._is_flow_given else None
            check_names("inputs", self.inputs)
            client = hook.get_conn()
            flow = client.redactor.text(str(flow_id or hook.extra.flow_id or "that of the API key"))
            named = one_line(f"flow: {flow}")

            self.log.info(
                "If no later line gives its outcome, a run may have been started (%s).", named
            )
            code = Code.START_UNKNOWN
            run = hook.trigger_flow(self.inputs, flow_id)

            started = f"{run.run_id or 'without a run_id'}: {run.run_link or 'no run_link'}"
            self.log.info("Started run %s (%s)", one_line(started), named)
        except WorkflowAutomationError as error:
            self._log_failure(hook.located(error, self.flow_id), code)
        except Exception as error:
            self._log_failure(error, code, flow)

    def _log_failure(self, error: Exception, code: Code, flow: str | None = None) -> None:
        """
        Log an error without secrets, and whether a run may have been started.

        :param code: what to say of the run, if the error itself does not
        """
        from airflow.providers.common.compat.sdk import AirflowNotFoundException

        text = str(error)
        if not isinstance(error, WorkflowAutomationError):
            # Any other error may quote a value that it could not handle, such as a connection.
            is_shown = isinstance(error, AirflowNotFoundException | PermissionError)
            text = f"{type(error).__name__}{f': {error}' if is_shown else '.'}\n{code.consequence}"
            if flow is not None:
                text = f"{text}\nFlow: {one_line(str(flow))}"

        self.log.error("FlowNotifier: %s", text)
