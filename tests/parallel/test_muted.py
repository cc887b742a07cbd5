"""What is computed again prints nothing, and silences nobody else."""

from __future__ import annotations

import sys
import threading

import pytest

from ronde.parallel.muted import muted


def test_only_this_thread_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    other = threading.Thread(target=print, args=("from another thread",))
    with muted():
        print("computed again")
        print("computed again", file=sys.stderr, flush=True)
        other.start()
        other.join()
    print("afterwards")
    told = capsys.readouterr()
    assert (told.out, told.err) == ("from another thread\nafterwards\n", "")
