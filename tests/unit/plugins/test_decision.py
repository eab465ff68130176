"""What the endpoint says to a run, whatever it has seen."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_automation_provider.execution.callback import Answer, Running, Started
from workflow_automation_provider.plugins.decision import Receipt, Seen, Verdict, decide

RUN_IDS = [None, "7", "8"]
ENDS = [Answer(status, {"rows": 3}, None, run_id) for status in ("success", "failed") for run_id in RUN_IDS]
SAID = [
    *(Started(run_id) for run_id in RUN_IDS),
    *(Running("half", 0.5, run_id) for run_id in RUN_IDS),
    *ENDS,
]
TOKENS = ["a", "b"]


def claims_with(*tokens):
    """Return all claims that count, or that a token has."""
    for token, run_id, stopped in product(tokens, RUN_IDS, [None, "2"]):
        fields = {"digest": token, "at": "1", "run_id": run_id, "stopped": stopped}
        yield {name: value for name, value in fields.items() if value is not None}


def all_seen():
    for claim in (None, *claims_with(*TOKENS)):
        owns = [claim] if claim and claim["digest"] == "a" else [None, *claims_with("a")]
        for own, end, is_wanted in product(owns, (None, *ENDS), (True, False)):
            yield Seen(is_wanted, claim, own, Receipt(end.status, "1", end.fingerprint("a")) if end else None)


@pytest.mark.parametrize("said", SAID, ids=str)
def test_each_verdict(said):
    for seen in all_seen():
        check_verdict(said, seen)


def check_verdict(said, seen):
    verdict = decide(said, "a", "a", seen)
    is_end, is_stopped = isinstance(said, Answer), bool(seen.own) and "stopped" in seen.own
    claim, run_id = seen.claim, said.run_id
    is_same = is_end and seen.receipt is not None and seen.receipt.fingerprint == said.fingerprint("a")
    is_own = claim is not None and claim["digest"] == "a"
    is_named = run_id is not None and claim is not None and "run_id" in claim
    assert (verdict is Verdict.SAME_END) == is_same
    assert (verdict is Verdict.OTHER_END) == (is_end and seen.receipt is not None and not is_same)
    if is_end and seen.receipt is not None:
        return
    assert (verdict is Verdict.STOP) == (not seen.is_wanted or is_stopped)
    if verdict is Verdict.STOP:
        return
    assert (verdict is Verdict.CLAIM) == (claim is None and isinstance(said, Started))
    assert (verdict is Verdict.CLAIM_FIRST) == (
        claim is None and not is_end and not isinstance(said, Started)
    )
    assert (verdict is Verdict.OTHER_RUN) >= (claim is not None and not is_own)
    assert (verdict is Verdict.OTHER_RUN) >= (is_named and run_id != claim["run_id"])
    assert (verdict in {Verdict.GO_ON, Verdict.END}) <= (is_own or (is_end and claim is None))
    if is_end and claim is None:
        assert verdict is Verdict.END
    if is_own and isinstance(said, Started):
        assert (verdict is Verdict.GO_ON) == (run_id == claim.get("run_id"))
    elif is_own and is_end:
        assert (verdict is Verdict.END) == (claim.get("run_id") in (None, run_id))
    elif is_own:
        assert (verdict is Verdict.GO_ON) == (run_id in (None, claim.get("run_id")))


EVENTS = st.tuples(
    st.sampled_from(TOKENS),
    st.sampled_from(["open", "close", "clear", "mark", "call"]),
    st.sampled_from(SAID),
)


@given(st.lists(EVENTS, max_size=30))
def test_one_run_works(events):
    """Of two tokens one is told to go on at most until a Clear, and never after it was told to stop."""
    generation, is_marked = 0, False
    claims: dict[Any, Any] = {}
    tokens: set[Any]
    gone_on: set[Any]
    tokens, gone_on, stopped = set(), set(), set()
    for token, what, said in events:
        if what == "open":
            tokens.add(token)
        elif what == "close":
            tokens.discard(token)
        elif what == "clear":
            generation, is_marked, tokens, gone_on = generation + 1, False, set(), set()
        elif what == "mark":
            is_marked = True
        else:
            own = next((c for c in reversed([*claims.values()]) if c["digest"] == token), None)
            at = Seen(token in tokens and not is_marked, claims.get(generation), own)
            verdict = decide(said, token, token, at)
            if verdict is Verdict.CLAIM:
                assert generation not in claims
                claims[generation] = said.row(token, "now")
            if verdict in {Verdict.CLAIM, Verdict.GO_ON}:
                assert (generation, token) not in stopped
                gone_on.add((token, claims[generation].get("run_id")))
            if verdict is Verdict.STOP and own:
                key = next(n for n, c in claims.items() if c is own)
                claims[key] = {**own, "stopped": "now"}
                stopped.add((generation, token))
            assert len(gone_on) <= 1


def test_the_end_of_a_run_that_did_not_name_itself_first():
    claimed = Seen(is_wanted=True, claim={"digest": "a", "at": "1"}, own={"digest": "a", "at": "1"})
    assert decide(Answer("success", run_id="7"), "a", "a", claimed) is Verdict.END
    assert decide(Running(run_id="7"), "a", "a", claimed) is Verdict.OTHER_RUN
    assert decide(Answer("success"), "a", "a", replace(claimed, is_wanted=False)) is Verdict.STOP
