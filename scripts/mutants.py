"""
Change the code that the promise rests on, one small change at a time.

And see whether a unit test notices.

mutmut makes the changes and runs the tests. A change that no test notices must be explained in
tests/mutants.toml.
"""

from __future__ import annotations

import contextlib
import fnmatch
import multiprocessing
import re
import shutil
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import libcst as cst
import libcst.matchers as m
from mutmut.configuration import config
from mutmut.mutation import mutators
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.runners.harness import PytestRunner
from mutmut.stats import status_by_exit_code
from mutmut.utils.format_utils import orig_function_and_class_names_from_key

PROJECT = Path(__file__).resolve().parent.parent
WORKSPACE = PROJECT / ".mutants"
PACKAGE = Path("src", "workflow_automation_provider")
EXPLANATIONS = PROJECT / "tests" / "mutants.toml"

# Files of the package, and the tests below tests/unit that must notice every change to them.
GROUPS = {
    """
    client/responses/body.py client/responses/cause.py client/responses/no_response.py client/responses/results.py
    client/responses/retry_after.py client/responses/statuses.py
    """: "client test_promise.py test_request_errors.py",
    "client/redaction.py": """
        client/test_redaction.py client/test_flow_client_redaction.py hooks/test_connection.py
    """,
    "execution/record/entries.py execution/record/start_decision.py": """
        execution/record execution/run execution/test_words.py operators/test_flows_given.py test_budgets.py
        test_promise_runs.py
    """,
    """
    execution/record/start_record.py execution/run/send.py execution/run/claim_wait.py execution/run/start.py
    execution/record/state_store.py execution/run/completion.py execution/run/mailbox.py
    """: """
        execution/record execution/run execution/test_upload.py execution/test_words.py notifications
        operators/test_asset_events.py operators/test_batch_tries.py operators/test_flows_*.py test_budgets.py
        test_every_kill.py test_promise_runs.py
    """,
    "execution/retry.py": "execution/test_retry.py",
    "execution/upload.py": """
        execution/test_upload.py execution/run execution/test_words.py test_lineage.py
    """,
    "operators/base.py operators/flows.py": """
        decorators/test_flows.py execution/test_upload.py execution/run execution/test_words.py test_lineage.py
        operators/test_arguments_without_effect.py operators/test_asset_events.py operators/test_flows*.py
        operators/test_references.py operators/test_rendered.py operators/test_templates.py
        test_argument_errors.py test_promise_runs.py
    """,
    "execution/record/callback_decision.py": "execution/record/test_callback_decision.py",
    "plugins/actions.py plugins/advice.py plugins/task_starts.py": "plugins/test_advice.py",
    "hooks/mailbox.py hooks/mailboxes/store.py": "hooks/test_mailbox*.py",
    "triggers/mailbox.py": "triggers",
    """
    execution/batch/batch_record.py execution/batch/ends.py execution/batch/failures.py
    execution/batch/item_results.py
    """: """
        execution/batch/test_record.py operators/test_batch.py operators/test_batch_interruptions.py
        operators/test_batch_tries.py operators/test_batch_waits.py test_task_errors.py
    """,
}

NOTICED = {"killed", "timeout", "segfault"}


class Mutant(NamedTuple):
    """One change, told by what it changes: line numbers and mutmut's own numbers do not last."""

    file: str
    function: str
    was: str
    becomes: str


def swallow_nothing(node: cst.ExceptHandler) -> Iterator[cst.CSTNode]:
    """Raise again, whatever is done about an exception."""
    reraise = cst.IndentedBlock([cst.SimpleStatementLine([cst.Raise()])])
    if not node.body.deep_equals(reraise):
        yield node.with_changes(body=reraise)


def drop_element(node: cst.Tuple | cst.List | cst.Set | cst.Dict) -> Iterator[cst.CSTNode]:
    """Leave out each element in turn."""
    if len(node.elements) > 1:
        for i in range(len(node.elements)):
            yield node.with_changes(elements=[*node.elements[:i], *node.elements[i + 1 :]])


def change_string(node: cst.BaseString) -> Iterator[cst.CSTNode]:
    """Change a string as mutmut does, but for prose: its wording is no promise."""
    if not (isinstance(node, cst.SimpleString) and " " in node.raw_value.strip()):
        yield from mutators.operator_string(node)


def add_operators() -> None:
    """
    Have mutmut make these changes beside its own.

    Go on without a call or a raise, return None, and those above.
    """
    operators = cast("list[Any]", mutators.mutation_operators)
    # None in place of nothing, or of False, changes nothing but the type, which mypy checks.
    nothing = m.Return(value=None) | m.Return(value=m.Name("None") | m.Name("False"))
    operators[:] = [
        *((kind, change) for kind, change in operators if change is not mutators.operator_string),
        (cst.BaseString, change_string),
        (cst.Expr, lambda node: [cst.Pass()] if isinstance(node.value, cst.Call) else []),
        (cst.Raise, lambda _: [cst.Pass()]),
        (
            cst.Return,
            lambda node: [] if m.matches(node, nothing) else [cst.Return(cst.Name("None"))],
        ),
        (cst.ExceptHandler, swallow_nothing),
        *((kind, drop_element) for kind in (cst.Tuple, cst.List, cst.Set, cst.Dict)),
    ]


def prepare_workspace() -> None:
    """
    Copy what mutmut needs, in the layout that it knows.

    Each run is then whole, and the code stays untouched.
    """
    shutil.rmtree(WORKSPACE, ignore_errors=True)
    for source, target in (
        ("provider", "src"),
        *((folder, folder) for folder in ("tests/unit", "tests/support", "docs", "example_dags")),
    ):
        shutil.copytree(
            PROJECT / source, WORKSPACE / target, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in ("tests/conftest.py", "pyproject.toml"):
        shutil.copy(PROJECT / file, WORKSPACE / file)


class NoticingTests:
    """Which tests have noticed a mutant: they are likely to notice the next one of a function."""

    def __init__(self) -> None:
        self._path = WORKSPACE / "noticed.txt"

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep a test that fails, for the processes that test the other mutants."""
        if report.failed:
            with self._path.open("a") as file:
                file.write(f"{report.nodeid}\n")

    def first(self, tests: Iterable[str]) -> list[str]:
        """Return some tests, those first that noticed the last fifty mutants."""
        if not self._path.exists():
            return [*tests]
        ranks = {test: rank for rank, test in enumerate(self._path.read_text().split("\n")[-50:])}
        return sorted(tests, key=lambda test: -ranks.get(test, -1))


def run_likely_tests_first() -> None:
    """Have mutmut begin with the tests that are likely to notice a mutant."""

    def run_tests(self: PytestRunner, *, tests: Iterable[str], **_: object) -> int:
        noticing = NoticingTests()
        arguments = self._pytest_args_regular_run(noticing.first(tests))
        with contextlib.chdir("mutants"):
            return int(self.execute_pytest(arguments, plugins=[noticing]))

    PytestRunner.run_tests = run_tests


def run_mutmut(files: list[str], tests: list[str]) -> None:
    """Make and test the mutants of some files, in the workspace that is the working directory."""
    from mutmut.__main__ import cli

    add_operators()
    run_likely_tests_first()
    settings = config()
    settings.only_mutate = files
    settings.pytest_add_cli_args_test_selection = tests
    cli(["run"])


def read_results(file: str) -> Iterator[tuple[Mutant, str]]:
    """Return the mutants of one file, each with its result."""
    path = PACKAGE / file
    data = SourceFileMutationData(path=path)
    data.load()
    for name, exit_code in data.exit_code_by_key.items():
        status = status_by_exit_code[exit_code]
        function, class_name = orig_function_and_class_names_from_key(name)
        lines = [] if status in NOTICED else get_diff_for_mutant(name, path=path).splitlines()[2:]
        was, becomes = (
            " ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+"
        )
        yield (
            Mutant(file, f"{class_name}.{function}" if class_name else function, was, becomes),
            status,
        )


def test_group(files: list[str], patterns: Iterable[str]) -> list[tuple[Mutant, str]]:
    """
    Test the mutants of some files with some tests, in a process of its own.

    It returns the results.
    """
    prepare_workspace()
    with contextlib.chdir(WORKSPACE):
        tests = sorted(str(path) for one in patterns for path in Path("tests", "unit").glob(one))
        paths = [str(PACKAGE / file) for file in files]
        process = multiprocessing.get_context("fork").Process(
            target=run_mutmut, args=(paths, tests)
        )
        process.start()
        process.join()
        if process.exitcode:
            sys.exit("mutmut could not test the mutants: its output says why.")
        return [result for file in files for result in read_results(file)]


def without_casts(line: str) -> str:
    """Return a line of code without the types of its casts."""
    return re.sub(r"\bcast\([^,]*,", "cast(", line)


def report(results: list[tuple[Mutant, str]]) -> bool:
    """Print the results of the mutants; return whether each was noticed or is explained."""
    explained = tomllib.loads(EXPLANATIONS.read_text())["survivor"]
    explanations = {
        Mutant(*(one[field] for field in Mutant._fields)) for one in explained if one["reason"]
    }
    survivors = {
        mutant: status
        for mutant, status in results
        # The type of a cast has no effect.
        if status not in NOTICED and without_casts(mutant.was) != without_casts(mutant.becomes)
    }
    tested = {mutant.file for mutant, _ in results}
    unexplained = survivors.keys() - explanations
    gone = {mutant for mutant in explanations - survivors.keys() if mutant.file in tested}
    for mutant in sorted(unexplained | gone):
        status = survivors.get(mutant, "explained, but gone")
        print(f"{status}: {mutant.file}, {mutant.function}\n  - {mutant.was}\n  + {mutant.becomes}")
    for file in sorted(tested):
        counts = Counter(status for mutant, status in results if mutant.file == file)
        print(
            f"{file}: "
            + ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
        )
    print(
        f"{len(results)} mutants: {len(survivors)} survived, {len(unexplained)} of them unexplained"
    )
    return not unexplained


def main() -> int:
    """
    Test the mutants of all files, or of those that are named.

    Return 1 if a survivor is unexplained.
    """
    patterns = sys.argv[1:] or ["*"]
    results = []
    for files, tests in GROUPS.items():
        chosen = [
            file for file in files.split() if any(fnmatch.fnmatch(file, one) for one in patterns)
        ]
        if chosen:
            results += test_group(chosen, tests.split())
    if not results:
        sys.exit(f"There is none of {patterns} among {' '.join(GROUPS)}.")
    return 0 if report(results) else 1


if __name__ == "__main__":
    sys.exit(main())
