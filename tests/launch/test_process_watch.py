"""How processes end that others have started, seen from beside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ronde.launch.process_watch import ProcessWatch, ended_with
from ronde.launch.signal_inbox import SignalInbox

from .conftest import wait_until


@pytest.mark.parametrize(("code", "ended"), [("exit 3", 3), ("kill -9 $$", -9), ("kill -15 $$", -15)])
def test_a_process_that_nobody_has_asked_about_yet(code: str, ended: int) -> None:
    process = subprocess.Popen(["sh", "-c", code])
    with SignalInbox():
        watch = ProcessWatch()
        watch.add(process.pid)
        wait_until(lambda: watch.has_ended(process.pid), "the end")
        assert watch.code(process.pid) == ended
    process.wait()


def test_a_process_that_its_parent_has_asked_about() -> None:
    """Since 6.15 Linux tells its status to whoever has held a pidfd before."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    descriptor = os.pidfd_open(process.pid)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    release = tuple(int(number) for number in os.uname().release.split(".")[:2])
    assert ended_with(process.pid, descriptor) == (-9 if release >= (6, 15) else None)
    os.close(descriptor)


def test_a_process_that_was_gone_before() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    watch = ProcessWatch()
    watch.add(process.pid)
    assert watch.has_ended(process.pid)
    assert watch.code(process.pid) is None
