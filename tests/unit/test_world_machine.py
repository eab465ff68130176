"""The promise of one task instance, whatever happens to it: a machine that makes it up."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from sentences import MAYBE_STARTED, WAS_STARTED
from workflow_automation_provider.exceptions import Code, WorkflowAutomationError

from .starts import trigger

pytest.importorskip("airflow.models.task_state_store", reason="Before Airflow 3.3 there is none")

from world import KEY, World, airflow

SECONDS = float(os.environ.get("FUZZ_SECONDS", "2"))
"""Of the processor's time; ``make fuzz``, which is part of ``.ci/run``, takes a minute."""

IS_LONG = "FUZZ_SECONDS" in os.environ
SHRINKS = "FUZZ_SEED" in os.environ
"""Shrinking takes minutes: a round that failed is repeated with the seed that its error names."""

READY = (None, "up_for_retry", "awaiting_input", "up_for_reschedule")

# What the service, or what is between, makes of one request to start a run.
HONEST = [
    None,
    ("drop_before", {}),
    ("drop_after", {}),
    ("status_after", {"status": 503}),
    ("busy", {}),
    ("busy", {"retry_after": 3600}),
    ("reject", {}),
    ("empty", {}),
    ("garbage", {}),
    ("echo_key", {"status": 400}),
    ("echo_key", {"status": 201}),
]
# Gateways that lie: a run was started.
LIES = [("status_after", {"status": status}) for status in (400, 401, 429)]

# Most often around the request and what is written, where most is at stake.
AT = st.sampled_from(
    [
        *[("after send", 0), ("after set", 0)] * 6,
        *[("send", 0)] * 3,
        *[("set", number) for number in (0, 1, 2, 3, None)],
        *[("get", number) for number in range(6)],
        *[("any", number) for number in range(0, 21, 3)],
        ("delete", 0),
    ]
)
# What others do may fall between any two calls; most often, where a retry decides.
BETWEEN = st.tuples(st.just("any"), st.sampled_from([*range(15), *[*range(3, 10)] * 2]))
# Most often the response arrives, or is lost.
FAULT = st.sampled_from([*range(20), *[0] * 4, *[2, 3] * 6])
REPORTS = st.tuples(
    st.just("report"),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.sampled_from(["started", "started", "started", "started", "running", "success", "failed"]),
)
PERSON = st.sampled_from(
    [("clear", True), ("clear", False), ("mark", "failed"), ("mark", "success")]
)
LATE = st.tuples(st.just("late"), st.integers(0, 3))
OTHERS = st.one_of(REPORTS, REPORTS, REPORTS, LATE, PERSON)
FAULTY = st.sampled_from(
    ["kill", "kill", "kill after", "kill after", "lost", "fail after", "slow", "slow"]
)
INNER = st.lists(st.tuples(AT, FAULTY | OTHERS), max_size=1)
# Airflow takes the process for dead, and others do something before it goes on.
ORPHANED = st.tuples(
    st.just("lose"), st.lists(st.tuples(st.just("try"), FAULT, INNER) | OTHERS, max_size=3)
)
CLAIM = st.just(("report", 0, "started"))
SCRIPT = st.lists(
    st.one_of(
        st.tuples(AT, FAULTY),
        *[st.tuples(BETWEEN, act) for act in (FAULTY | ORPHANED, CLAIM, CLAIM, OTHERS)],
    ),
    min_size=1,
    max_size=2,
)
TRY = st.tuples(st.just("try"), FAULT, SCRIPT)
# From here on, most is at stake: a run may have been started.
DOUBT: Any = st.tuples(st.just("try"), st.sampled_from([2, 3]), st.just([]))
ADOPT = st.tuples(st.just("adopt"), st.integers(0, 2))
STEP = st.one_of(*[TRY] * 5, REPORTS, REPORTS, st.just(("ask", None)), PERSON, ADOPT, LATE)


def at(script, do):
    """Return what happens at each call, as a script says."""
    seen: dict[str, Any] = {}

    def choose(call):
        found = None
        numbers = [(call.kind, seen.get(call.kind, 0)), ("any", call.number), (seen.get("last"), 0)]
        for kind, number in numbers:
            for (which, nth), act in script:
                if which == kind and nth in (None, number):
                    found = found or act
        seen[call.kind] = seen.get(call.kind, 0) + 1
        seen["last"] = f"after {call.kind}"
        return found if found is None or isinstance(found, str) else lambda: do(found)

    return choose


SETTINGS = settings(
    max_examples=40 if IS_LONG else 8,
    stateful_step_count=5,
    deadline=None,
    database=None,
    derandomize=False,
    report_multiple_bugs=False,
    suppress_health_check=[*HealthCheck],
    phases=[Phase.generate, *([Phase.shrink] if SHRINKS else [])],
)


def is_mentioned(run, text):
    mentions = (run.run_id, MAYBE_STARTED, WAS_STARTED)
    return any(mention.lower() in text.lower() for mention in mentions)


class Task(RuleBasedStateMachine):
    @initialize(
        policy=st.sampled_from(["fail", "fail", "claim", "claim", "claim", "start_again"]),
        waits=st.booleans(),
        asks=st.booleans(),
        names=st.booleans(),
        again=st.booleans(),
        first=TRY | DOUBT,
    )
    def begin(self, policy, waits, asks, names, again, first):
        self.has_url = waits or policy == "claim"
        self.can_call = policy == "claim" or (self.has_url and asks)
        self.names, self.waits, self.policy = names, waits, policy
        self.faults = [*HONEST, *(LIES if self.can_call else [])]
        # A task that does not wait has its run once it is green: it hears of no other that claims
        # later.
        if names and self.can_call and waits:
            self.faults += [("twice", {})] * 4
        options = {"on_run_failed": "start_again"} if waits and again else {}
        operator = trigger(on_unknown_start=policy, wait_for_completion=waits, **options)
        self.world = World(operator)
        self.is_marked = False
        self.breach: Exception | None = None
        self.do(first)

    # What happens.

    def do(self, step):
        """Take a step, unless it is not possible now."""
        kind, *values = step
        getattr(self, f"_{kind}")(*values)
        self.check()

    def meanwhile(self, step):
        """Take a step while a process makes a call, which would log what is raised."""
        try:
            self.do(step)
        except Exception as error:
            self.breach = self.breach or error

    def _try(self, fault, script):
        if self.world.state not in READY:
            return
        chosen = self.faults[fault % len(self.faults)]
        if chosen:
            self.world.faults.add(chosen[0], **chosen[1])
        self.world.try_(at(script, self.meanwhile))
        self.world.faults.clear()
        if self.breach:
            raise self.breach

    def _report(self, which, status):
        runs = self.world.flow.runs
        if which >= len(runs) or not self.has_url:
            return
        run = runs[-1 - which]
        decided = run.last_response(self.world.clears)
        if status in ("started", "running"):
            if not self.can_call or run.end or (status == "running" and decided != 200):
                return
        elif (
            self.can_call
            and decided != 200
            and not (self.names and status == "failed" and decided == 409)
        ):
            return
        is_lost = decided == 409 and status == "failed"
        response = self.world.flow.reports(status, run, **({} if is_lost else self.named(run)))
        assert status in ("success", "failed") or response != 200 or decided in (None, 200), (
            "It goes on after a stop"
        )

    def named(self, run):
        return {"run_id": run.run_id} if self.names else {}

    def _late(self, which):
        if self.world.late:
            self.world.late.pop(which % len(self.world.late))()

    def _clear(self, keep):
        if self.world.processes:
            self.world.clear(keep=keep)
            self.is_marked = False

    def _mark(self, state):
        if self.world.processes:
            self.world.mark(state)
            self.is_marked = True

    def _lose(self, steps):
        self.world.lose(self.world.current)
        for step in steps:
            self.do(step)

    def _adopt(self, which):
        runs = self.world.flow.runs
        if which >= len(runs) or self.world.state != "failed":
            return
        run = runs[-1 - which]
        others = {other.run_id for other in self.works()} - {run.run_id}
        if (
            not others
            and run.last_response(self.world.clears) not in (404, 409)
            and run.end != "failed"
        ):
            self.world.adopt(run.run_id)
            self._clear(True)

    def _ask(self, _):
        for which in range(len(self.world.flow.runs)):
            self.do(("report", which, "started"))

    # One rule, not one of each: of several, Hypothesis leaves some out of each example.
    @rule(step=STEP)
    def a_step(self, step):
        self.do(step)

    # What must hold.

    def result(self):
        """Return the run of a green task, None if it has not ended so by itself."""
        world = self.world
        if world.state != "success" or self.is_marked:
            return None
        run_id = (world.xcoms.get("return_value") or {}).get("run_id")
        return next((run for run in world.flow.runs if run.run_id == run_id), None)

    def works(self):
        """Return the runs that work, of those since the last Clear."""
        clears, result = self.world.clears, self.result()
        return [
            run
            for run in self.world.flow.runs
            if not run.end
            and (
                run is result
                or (run.last_response(clears) == 200 if self.can_call else run.clears == clears)
            )
        ]

    def check(self):
        world, result = self.world, self.result()
        works = [run.run_id for run in self.works()]
        assert len(works) <= 1 or self.policy == "start_again", f"Runs {works} work"
        if result is not None:
            assert result.last_response(world.clears) in (None, 200) or result.end == "success", (
                "It was told to stop"
            )
            assert result.end == "success" or not self.waits, "It has not ended"
        for process in world.processes:
            # Of two runs that a proxy has made of one request, nobody knows the other.
            for run in {run.url: run for run in process.runs}.values():
                assert is_mentioned(run, process.output), (
                    f"Run {run.run_id} goes unmentioned: {process.output}"
                )
            allowed = isinstance(
                process.error, WorkflowAutomationError | AirflowRuntimeError | None
            )
            assert allowed or type(process.error) is RuntimeError, repr(process.error)
        self.check_ends()
        self.check_secrets()

    def check_ends(self):
        """
        Check that no process sends another run, or has sent one.

        Where a run of an earlier one has succeeded.
        """
        world = self.world
        for number, process in enumerate(world.processes):
            if any(run.end == "success" for run in process.runs):
                later = [
                    later.runs
                    for later in world.processes[number + 1 :]
                    if later.clears == process.clears
                ]
                assert not any(later), "A successful end is lost"

    def check_secrets(self):
        world = self.world
        shown = "".join(process.output for process in world.processes)
        shown += f"{world.rows.entries}{world.xcoms}{world.responses}"
        assert KEY.value not in shown
        for run in world.flow.runs:
            assert run.url is None or run.url.partition("token=")[2] not in shown

    def teardown(self):
        if not hasattr(self, "world"):
            return
        world = self.world
        for _ in range(12):
            if world.state not in READY or world.state == "awaiting_input":
                break
            world.try_()
            self.check()
        self._ask(None)
        self.check_end()

    def check_end(self):
        """Check what no retry can make good any more."""
        world = self.world
        if world.state == "awaiting_input":
            if any(run.end and run.clears == world.clears for run in world.flow.runs):
                world.try_()
                self.check()
            return
        assert world.state in ("success", "failed"), world.state
        last = world.last
        if (
            self.is_marked
            or world.state == "success"
            or not isinstance(last.error, WorkflowAutomationError)
        ):
            return
        shown = "".join(
            process.output for process in world.processes if process.try_number == last.try_number
        )
        for run in world.flow.runs:
            may_work = run.clears == world.clears and run.last_response(world.clears) not in (
                404,
                409,
            )
            is_said = last.error.code in (Code.START_UNKNOWN, Code.UNIDENTIFIED)
            if may_work and not (run.end or is_said or is_mentioned(run, shown)):
                # A gateway has lied: no run was started. This one is told to stop.
                assert self.can_call, f"Run {run.run_id} goes unmentioned: {last.error}"
                assert world.flow.reports("started", run, **self.named(run)) in (404, 409), (
                    last.error
                )


@pytest.fixture(scope="module", autouse=True)
def _airflow(airflow_home):
    with airflow(airflow_home):
        yield


ACTS: list[Any] = [
    ("report", 0, "started"),
    ("report", 0, "success"),
    ("clear", True),
    ("lose", [("try", 0, [])]),
    "lost",
]
WHERE = [("claim", True), ("start_again", True), ("fail", True), ("claim", False), ("fail", False)]


def happens(policy, waits, act, number, *, in_a_retry):
    """
    Have something happen at a call of a try that is in doubt, or of one after a kill.

    Return whether there was such a call.
    """
    script = [(("any", number), act)]
    task = Task()
    first = ("try", HONEST.index(("drop_after", {})), script)
    if in_a_retry:
        first = ("try", HONEST.index(None), [(("after send", 0), "kill")])
    task.begin(policy=policy, waits=waits, asks=True, names=True, again=False, first=first)
    if in_a_retry:
        task.do(("try", HONEST.index(None), script))
    task.teardown()
    return number < len(task.world.processes[in_a_retry].calls)


@pytest.mark.no_cover
@pytest.mark.parametrize("waits", [False, True] if IS_LONG else [False])
@pytest.mark.parametrize(("policy", "in_a_retry"), WHERE if IS_LONG else WHERE[:1])
@pytest.mark.parametrize("act", ACTS if IS_LONG else ACTS[:1], ids=str)
def test_it_happens_at_each_call_around_a_doubt(policy, in_a_retry, waits, act):
    """What chance finds too seldom: a run that claims its start just when the task decides."""
    numbers = itertools.count()
    while happens(policy, waits, act, next(numbers), in_a_retry=in_a_retry):
        pass


@pytest.mark.no_cover
@pytest.mark.timeout(3600)
def test_whatever_happens():
    seed, end = int(os.environ.get("FUZZ_SEED", "0")), time.process_time() + SECONDS
    while time.process_time() < end:
        machine = type("Task", (Task,), {"_hypothesis_internal_use_seed": seed})
        try:
            run_state_machine_as_test(machine, settings=SETTINGS)
        except BaseException as error:
            error.add_note(f"To repeat it, and see less of it: make fuzz FUZZ_SEED={seed}")
            raise
        seed += 1
