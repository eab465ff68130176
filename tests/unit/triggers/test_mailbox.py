"""The trigger that looks for the end of a run in its mailbox."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from workflow_automation_provider.exceptions import NotSentError
from workflow_automation_provider.hooks.mailbox import Mailbox
from workflow_automation_provider.triggers import mailbox as triggers
from workflow_automation_provider.triggers.mailbox import MailboxFolderTrigger, MailboxTrigger


def in_seconds(seconds):
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


@pytest.fixture
def url(tmp_path):
    return f"{tmp_path.as_uri()}/a.json"


def run(*made):
    """Run triggers side by side; return their events."""

    async def all_of_them():
        return await asyncio.gather(*(anext(aiter(trigger.run())) for trigger in made))

    return [event.payload for event in asyncio.run(asyncio.wait_for(all_of_them(), 20))]


def test_ends_once_the_object_is_there(url, tmp_path):
    threading.Timer(0.2, (tmp_path / "a.json").touch).start()
    began = time.monotonic()
    assert run(MailboxTrigger(url, in_seconds(600), interval=0.05)) == [{}]
    assert time.monotonic() - began >= 0.2


def test_ends_with_the_time(url):
    began = time.monotonic()
    assert run(MailboxTrigger(url, in_seconds(0.3), interval=0.2)) == [{}]
    assert 0.3 <= time.monotonic() - began < 5


@pytest.mark.parametrize("left", [600, 0.1, -5])
def test_looks_no_sooner_than_after_the_interval(url, tmp_path, left):
    """Also where the time is up: the triggerer's clock may be ahead of the worker's."""
    (tmp_path / "a.json").touch()
    began = time.monotonic()
    assert run(MailboxTrigger(url, in_seconds(left), interval=0.3)) == [{}]
    assert time.monotonic() - began >= 0.3
    assert triggers.INTERVAL >= 25


def test_is_made_again_from_what_airflow_stores(url):
    first = MailboxTrigger(url, in_seconds(600), interval=0.05)
    path, kwargs = first.serialize()
    assert path == f"{MailboxTrigger.__module__}.{MailboxTrigger.__qualname__}"
    again = MailboxTrigger(**kwargs)
    assert (again.mailbox, again.until, again.interval) == (url, first.until, 0.05)
    assert again.serialize() == (path, kwargs)
    # Another version may have stored more.
    assert MailboxTrigger(**kwargs, more=1).serialize() == (path, kwargs)


# Of a batch ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    return tmp_path.as_uri()


def of_batch(folder, *, left=600, seen=0, awaited):
    return MailboxFolderTrigger(folder, in_seconds(left), interval=0.05, seen=seen, awaited=awaited)


def test_ends_once_all_runs_have_ended(folder, tmp_path):
    """What has another name is no end."""
    for name in ("0.json", ".mailbox", "1.json.123", "01.json"):
        (tmp_path / name).touch()
    threading.Timer(0.3, (tmp_path / "12.json").touch).start()
    began = time.monotonic()
    assert run(of_batch(folder, awaited=2)) == [{}]
    assert time.monotonic() - began >= 0.3


@pytest.mark.parametrize(("seen", "ends_at"), [(0, 0.3), (1, 1.0)])
def test_ends_for_news_after_a_while_only(folder, tmp_path, monkeypatch, seen, ends_at):
    monkeypatch.setattr(triggers, "_NEWS_INTERVAL", 0.3)
    (tmp_path / "0.json").touch()
    began = time.monotonic()
    assert run(of_batch(folder, left=1.0, seen=seen, awaited=2)) == [{}]
    assert time.monotonic() - began >= ends_at


def test_that_of_a_batch_is_made_again_from_what_airflow_stores(folder):
    first = of_batch(folder, seen=3, awaited=5)
    path, kwargs = first.serialize()
    assert path == f"{MailboxFolderTrigger.__module__}.{MailboxFolderTrigger.__qualname__}"
    again = MailboxFolderTrigger(**kwargs)
    assert (again.folder, again.until, again.interval) == (folder, first.until, 0.05)
    assert (again.seen, again.awaited) == (3, 5)
    assert MailboxFolderTrigger(**kwargs, more=1).serialize() == (path, kwargs)


def test_lists_a_folder_of_a_store(bucket, tmp_path):
    """Also with more objects than a page has."""
    for n in range(1001):
        bucket.write(f"ends/a/{n}.json", b"{}")
    assert run(of_batch(bucket.url("ends/a"), awaited=1001)) == [{}]


# Stores -------------------------------------------------------------------------------------------


class Store:
    """A store that notes how many look at a time."""

    def __init__(self, *errors):
        self.errors = [*errors]
        self.looks = self.at_once = self.most = 0
        self.lock = threading.Lock()

    def exists(self):
        with self.lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        time.sleep(0.02)
        with self.lock:
            self.at_once -= 1
            self.looks += 1
        if self.errors:
            raise self.errors.pop(0)
        return True


def test_looks_again_after_an_error_and_logs_it_once(url, monkeypatch, capsys):
    store = Store(*[NotSentError("The store is down")] * 3, NotSentError("No route"))
    monkeypatch.setattr(triggers, "Mailbox", lambda _: store)
    assert run(MailboxTrigger(url, in_seconds(600), interval=0.01)) == [{}]
    assert store.looks == 5
    log = capsys.readouterr().out
    assert [log.count("The store is down"), log.count("No route")] == [1, 1]


def test_at_most_two_look_by_one_connection(url, monkeypatch):
    store = Store()
    monkeypatch.setattr(triggers, "Mailbox", lambda _: store)
    run(*[MailboxTrigger(url, in_seconds(600), interval=0.01) for _ in range(20)])
    assert (store.looks, store.most) == (20, 2)


def test_a_store_that_hangs_holds_up_no_other(url, tmp_path, monkeypatch):
    (tmp_path / "a.json").touch()
    end = threading.Event()
    hanging = SimpleNamespace(exists=end.wait)
    monkeypatch.setattr(triggers, "Mailbox", lambda at: hanging if "@dead" in at else Mailbox(at))
    many = [MailboxTrigger(f"s3://conn@dead/{n}", in_seconds(1), 0.01) for n in range(20)]
    began = time.monotonic()
    try:

        async def first_of_all():
            waits = [asyncio.ensure_future(anext(aiter(one.run()))) for one in many]
            await anext(aiter(MailboxTrigger(url, in_seconds(600), 0.1).run()))
            assert not any(wait.done() for wait in waits)
            await asyncio.gather(*waits)  # also those that wait for a turn

        asyncio.run(asyncio.wait_for(first_of_all(), 20))
    finally:
        end.set()
    assert time.monotonic() - began < 5


def test_asks_a_store_by_the_connection(bucket):
    url = bucket.url("a.json")
    threading.Timer(0.3, lambda: bucket.write("a.json", b"{}")).start()
    assert run(MailboxTrigger(url, in_seconds(600), interval=0.1)) == [{}]
