"""
Answers to the questions that tasks ask under **Required Actions**, for tests with ``dag.test()``.

``answers.add(…)`` queues an answer. The first one in the queue that a question offers as an option, and whose
``task_id`` and ``map_index`` match, answers that question, once. A question whether a run was started that no
answer is left for is answered with *Fail the task*, so that the test ends.

=========================  =================================================================================
Option                     Offered where
=========================  =================================================================================
``"A run was started"``    it is unknown whether a run was started; fill in its ``run_id``
``"No run was started"``   it is unknown whether a run was started
``"Fail the task"``        it is unknown whether a run was started
``"The run succeeded"``    the same, and the task waits for the end of the run; fill in its ``run_id``
``"The run failed"``       the same
=========================  =================================================================================

A task whose run was started waits in ``dag.test()`` for the flow's callback alone.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["Answers", "Question"]

# Imported only when it starts, and by their names: they import Airflow.
_QUESTIONS = "workflow_automation_provider.plugins.metadata_questions"
_SESSION = "workflow_automation_provider.plugins.metadata_session"

_FAIL = "Fail the task"
_OPTIONS = ("A run was started", "No run was started", _FAIL, "The run succeeded", "The run failed")

_USER = "workflow_automation_answers"
_EVERY = 0.1  # seconds


@dataclass(frozen=True)
class Question:
    """
    A question that was answered.

    :param map_index: -1 if the task is not mapped
    :param answer: the option that was chosen
    """

    task_id: str
    map_index: int
    subject: str
    body: str
    options: Sequence[str]
    answer: str


@dataclass(frozen=True)
class _Answer:
    option: str
    task_id: str | None
    map_index: int | None
    fields: dict[str, str | Callable[[], object]]

    def fits(self, question: Any) -> bool:
        return (
            self.option in question.options
            and self.task_id in (None, question.task_id)
            and self.map_index in (None, question.map_index)
        )


class Answers:
    """Answers questions of tasks, in the metadata database of this process; a context manager."""

    def __init__(self) -> None:
        self._queue: list[_Answer] = []
        self._asked: list[Question] = []
        self._lock = threading.Lock()
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def asked(self) -> Sequence[Question]:
        """The questions that were answered, oldest first."""
        with self._lock:
            return [*self._asked]

    def add(
        self,
        option: str,
        *,
        task_id: str | None = None,
        map_index: int | None = None,
        **fields: str | Callable[[], object],
    ) -> None:
        """
        Queue an answer.

        :param option: what to choose
        :param task_id: the task that asks, with its task groups; by default any
        :param map_index: by default any
        :param fields: what to fill in, such as ``run_id``: text, or a function that returns it once it is needed
        :raises ValueError: if no question has the option
        """
        if option not in _OPTIONS:
            raise ValueError(f"option {option!r} is not supported; expected one of {', '.join(_OPTIONS)}")
        with self._lock:
            self._queue.append(_Answer(option, task_id, map_index, fields))

    def start(self) -> None:
        """
        Start answering, but not what was asked before.

        :raises RuntimeError: if this Airflow cannot park a task
        """
        questions, session = (importlib.import_module(name) for name in (_QUESTIONS, _SESSION))
        if session.missing():
            raise RuntimeError("A task can ask a person in dag.test() only in Airflow 3.3 or newer")
        earlier = {question.ti_id for question in questions.open_questions()}
        self._is_stopped.clear()
        self._thread = threading.Thread(
            target=self._run,
            args=(questions, session, earlier),
            name="workflow-automation-answers",
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> None:
        """
        Stop answering; does nothing if that has not begun.

        :raises Exception: what a function among the fields raised
        """
        if self._thread is not None:
            self._is_stopped.set()
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, questions: Any, session: Any, earlier: set[Any]) -> None:
        while not self._is_stopped.wait(_EVERY):
            try:
                for question in questions.open_questions():
                    if question.ti_id in earlier:
                        continue
                    if question.is_answered:
                        # dag.test() has parked it once more: it notes a task's state only after it has looked at it.
                        questions.resume(question.ti_id)
                    else:
                        self._answer(questions, question)
            except session.UnavailableError:
                continue  # the database is locked for a moment

    def _answer(self, questions: Any, question: Any) -> None:
        with self._lock:
            answer = next((one for one in self._queue if one.fits(question)), None)
        if answer is None and _FAIL not in question.options:
            return  # the flow may answer
        option = answer.option if answer else _FAIL
        fields = answer.fields if answer else {}
        try:
            entered = {name: str(value() if callable(value) else value) for name, value in fields.items()}
        except Exception as error:
            self._error = self._error or error
            option, entered = _FAIL if _FAIL in question.options else "The run failed", {}
        if not questions.respond(question.ti_id, option, entered, _USER):
            return
        with self._lock:
            if answer:
                self._queue.remove(answer)
            self._asked.append(
                Question(
                    question.task_id,
                    question.map_index,
                    question.subject,
                    question.body,
                    question.options,
                    option,
                )
            )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
