from __future__ import annotations

import os

import pytest

from workflow_automation_provider.testing import Journal, JournalError, LocalService
from workflow_automation_provider.testing._server.journal_writer import JournalWriter
from workflow_automation_provider.testing.journal import Run

RUN = Run("1001", "f", {"é": "\ud800"}, "path", None, "2024-05-01T12:00:00+00:00")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "written.jsonl"


@pytest.mark.parametrize("kept", [0, 1, 20, -1])
def test_a_half_written_last_line_is_passed_over_and_dropped(path, kept):
    writer = JournalWriter(path)
    writer.write(RUN)
    writer.close()
    line = path.read_bytes()
    path.write_bytes(line + line[:kept])
    assert Journal(path).runs() == [RUN]
    writer = JournalWriter(path)
    writer.write(RUN)
    writer.close()
    assert path.read_bytes() == line * 2


@pytest.mark.parametrize("content", [b"hello\n", b"hello", b"[]\n", b'{"event": "other"}\n', b"\n"])
def test_another_file_is_rejected_and_left_alone(path, content):
    path.write_bytes(content)
    with pytest.raises(JournalError):
        JournalWriter(path)
    assert path.read_bytes() == content


def test_one_writer_only(service):
    with pytest.raises(JournalError, match="Another service"):
        LocalService(journal=service.journal.path).start()


def test_a_failed_write_leaves_no_half_line(path, monkeypatch):
    writer = JournalWriter(path)
    writer.write(RUN)
    whole = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: whole(fd, data[:10]))
    with pytest.raises(OSError, match="could not be written"):
        writer.write(RUN)
    monkeypatch.undo()
    writer.write(RUN)
    assert Journal(path).runs() == [RUN, RUN]
    writer.close()


def test_it_is_synced_before_the_response(service, call, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(fd))
    call.by_path()
    assert len(synced) == 1
