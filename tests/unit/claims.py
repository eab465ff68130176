"""What the tests of claims share: the tokens that were issued, and a flow whose first step claims its start."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from workflow_automation_provider.execution.callback import claim_key, digest_of, token_keys

BRIEF = {"claim_timeout": timedelta(seconds=0.2)}

ISSUED: list[str] = []
"""The tokens that the task has made, in order: the service's journal withholds them."""


def now():
    return datetime.now(UTC).isoformat()


def first_step(store, token, run_id=None, max_tries=3):
    """Claim as the endpoint lets a run: 200, 404 or 409."""
    digest, key = digest_of(token), claim_key(max_tries)
    if not any(opened in store.entries for opened in token_keys(digest, max_tries)):
        return 404
    claim = {"digest": digest, **({"run_id": run_id} if run_id else {})}
    if store.entries.get(key, {}).get("stopped"):
        del store.entries[key]
    known = store.entries.setdefault(key, {**claim, "at": now()})
    return 200 if {name: known.get(name) for name in claim} == claim else 409


def token_of(run):
    return ISSUED[int(run.run_id) - 1001]


@contextmanager
def flow(service, store, *, after=0.0, name=lambda run: run.run_id):
    """Have each run claim its start, some seconds after it was started; yield what each was told, in order."""
    told: dict[str, int] = {}
    done = threading.Event()

    def work():
        began: dict[str, float] = {}
        while not done.wait(0.01):
            for run in list(service.runs):
                if time.monotonic() - began.setdefault(run.run_id, time.monotonic()) >= after:
                    told.setdefault(run.run_id, first_step(store, token_of(run), name(run)))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield told
        deadline = time.monotonic() + 20
        while len(told) < len(service.runs) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        done.set()
        thread.join()


def claim_at_deletion(store, token=None):
    """Have a run claim its start just before its token is deleted, by default that of the first send."""
    delete = store.delete

    def claim_and_delete(key):
        claiming = token or ISSUED[0]
        if "_token/" in key and digest_of(claiming) in key:
            store.delete = delete
            assert first_step(store, claiming, "1001") == 200
        delete(key)

    store.delete = claim_and_delete
