"""``@task.trigger_flow``: a function returns the inputs, and its task starts a run with them."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Never, ParamSpec, TypeVar, cast, overload

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from workflow_automation_provider.exceptions import InvalidRequestError, WorkflowAutomationError
from workflow_automation_provider.operators.base import UNSET
from workflow_automation_provider.operators.flows import TriggerFlowOperator
from workflow_automation_provider.wording import kind_of

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import Task, determine_kwargs

    from workflow_automation_provider.execution.run.start import OnUnknownStart
    from workflow_automation_provider.hooks.files.sources import FileSource
    from workflow_automation_provider.operators.templates import Resolvable
else:
    try:
        from airflow.sdk.bases.decorator import determine_kwargs
    except ImportError:  # before Airflow 3.2
        from airflow.utils.operator_helpers import determine_kwargs

__all__ = ["trigger_flow_task"]

_Params = ParamSpec("_Params")
_Inputs = TypeVar("_Inputs", bound="Mapping[str, Any]")


class _TriggerFlowDecoratedOperator(DecoratedOperator, TriggerFlowOperator):
    """
    Start a run of a flow, once, with the inputs that a function returns.

    :param python_callable: returns the inputs, which are not templated; called only if a run is to
        be started
    :param op_args: the function's positional arguments (templated)
    :param op_kwargs: the function's keyword arguments (templated)
    """

    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *TriggerFlowOperator.template_fields,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **TriggerFlowOperator.template_fields_renderers,
    }
    custom_operator_name = "@task.trigger_flow"
    _ti: Any = None
    """The task instance for which the function returned the inputs."""
    _own_error: WorkflowAutomationError | None = None
    """An error that the function raised, with which the task fails."""

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            # Airflow's words for what only the task knows.
            inputs="DYNAMIC (set during execution)",
            **kwargs,
        )

    @property
    def overwrite_rtif_after_execution(self) -> bool:  # type: ignore[override]  # Airflow only reads it
        """Whether Airflow, after the try, shows what the function returned."""
        # By then, Airflow has made another task instance for the next try, and logs an error for
        # this one's.
        return self._ti is not None and getattr(self._ti, "state", None) != "up_for_retry"

    def _request_digest(self) -> str | None:
        return None

    def _make_inputs(self, context: Context) -> Mapping[str, Any]:
        """Call the function. Its result is not rendered: it may contain text from outside."""
        # Arguments override the context's values of the same name, and do not change the context.
        known: Mapping[str, Any] = ChainMap({**self.op_kwargs}, cast("dict[str, Any]", context))
        try:
            kwargs = determine_kwargs(self.python_callable, self.op_args, known)
            inputs = self.python_callable(*self.op_args, **kwargs)
        except WorkflowAutomationError as error:
            self._own_error = error
            raise

        if not isinstance(inputs, Mapping):
            raise InvalidRequestError(
                f"The function {self.python_callable.__name__} returned {kind_of(inputs)}: "
                "expected a dict of input names and values.",
                next_step="Return {} to start a run without inputs.",
            )

        self.inputs, self._ti = inputs, context["ti"]
        return inputs

    def _failure(self, context: Context, error: WorkflowAutomationError) -> WorkflowAutomationError:
        # Of a start within the function: the task itself must not continue with its run.
        own, self._own_error = self._own_error, None
        return own or super()._failure(context, error)


@overload
def trigger_flow_task(python_callable: Callable[_Params, _Inputs], /) -> Task[_Params, _Inputs]: ...


@overload
def trigger_flow_task(
    python_callable: None = None,
    *,
    flow_id: str | Resolvable = UNSET,
    workflow_automation_conn_id: str | Resolvable = "workflow_automation_default",
    wait_for_completion: bool = False,
    callback_input: str = "callback_url",
    completion_timeout: timedelta | float = timedelta(days=1),
    files: FileSource | Sequence[FileSource | Resolvable] | Resolvable | None = None,
    heartbeat_timeout: timedelta | float | None = None,
    on_run_failed: Literal["fail", "start_again"] = "fail",
    on_unknown_start: OnUnknownStart | Literal["claim"] = "fail",
    claim_timeout: timedelta | float = timedelta(seconds=60),
    send_retry_timeout: timedelta | float = timedelta(seconds=60),
    multiple_outputs: bool = True,
    inputs: Never = ...,
    **kwargs: Any,
) -> Callable[[Callable[_Params, _Inputs]], Task[_Params, _Inputs]]: ...


def trigger_flow_task(
    python_callable: Callable[..., Any] | None = None,
    *,
    multiple_outputs: bool = True,
    **kwargs: Any,
) -> Any:
    """
    Turn a function that returns inputs into a task that starts a run with them, once.

    Also available as ``@task.trigger_flow``. The arguments are those of
    :class:`~workflow_automation_provider.operators.flows.TriggerFlowOperator` except ``inputs``;
    the task does and returns the same.

    .. code-block:: python

        @task.trigger_flow(flow_id="reports", retries=3)
        def trigger(customer: str, dag_run=None) -> dict:
            return {"customer": customer, "dag_run": dag_run.run_id}


        trigger.expand(customer=["Ada", "Grace"])

    The function is called only if a run is to be started: not by a retry that returns the run of an
    earlier try, nor when a task that waits for the end of its run continues. The arguments of its
    call are templated; what it returns is not.

    :param python_callable: the function; parameters named like variables of the context get these
    :param multiple_outputs: whether each key of the result is also pushed as a separate XCom
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_TriggerFlowDecoratedOperator,
        **kwargs,
    )
