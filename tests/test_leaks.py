"""The leak fixture itself: what it must see, and what it must overlook."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from multiprocessing import resource_tracker, shared_memory

import pytest

import leaks


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> leaks.Snapshot:
    monkeypatch.setattr(leaks, "GRACE_SECONDS", 0.05)
    resource_tracker.ensure_running()  # shared memory starts it, and it has no name until it runs
    return leaks.Snapshot.take()


def test_a_thread_is_seen(before: leaks.Snapshot) -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="stray")
    thread.start()
    found = leaks.leaks_since(before)
    go.set()
    thread.join()
    assert found == ["thread stray"]
    assert leaks.leaks_since(before) == []


def test_a_process_is_seen(before: leaks.Snapshot) -> None:
    command = [sys.executable, "-c", "print(flush=True); input()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()  # until it runs its command line may be another from one look to the next
    found = leaks.leaks_since(before)
    child.communicate(b"\n")
    assert len(found) == 1
    assert found[0].startswith(f"process {child.pid}")
    assert leaks.leaks_since(before) == []


def test_shared_memory_is_seen(before: leaks.Snapshot) -> None:
    segment = shared_memory.SharedMemory(create=True, size=16)
    found = leaks.leaks_since(before)
    segment.close()
    segment.unlink()
    assert found == [f"/dev/shm/{segment.name}"]
    assert leaks.leaks_since(before) == []


def test_shared_memory_of_another_run_is_overlooked(
    before: leaks.Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "_belongs_to_others", lambda name: True)
    segment = shared_memory.SharedMemory(create=True, size=16)
    found = leaks.leaks_since(before)
    segment.close()
    segment.unlink()
    assert found == []


def test_an_environment_variable_is_seen(before: leaks.Snapshot) -> None:
    os.environ["RONDE_STRAY"] = "1"
    found = leaks.leaks_since(before)
    del os.environ["RONDE_STRAY"]
    assert found == ["environment variable RONDE_STRAY"]
