"""The time to a line that a command prints."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from benchmarks import first_step
from ronde.errors import BenchError


def test_what_comes_behind_the_line_is_not_timed(tmp_path: Path) -> None:
    code = "import time; print('made', flush=True); print('bench-line', flush=True); time.sleep(0.5)"
    begun = time.perf_counter()
    seconds = first_step.seconds_to(b"bench-line", (sys.executable, "-c", code), tmp_path)
    assert 0 < seconds <= time.perf_counter() - begun - 0.5


@pytest.mark.parametrize("code", ["print('other')", "import sys; print('bench-line'); sys.exit('lost')"])
def test_a_command_that_fails_is_no_measurement(code: str, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="ended with exit code"):
        first_step.seconds_to(b"bench-line", (sys.executable, "-c", code), tmp_path)


@pytest.mark.soak
def test_both_are_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["first_step", "--pairs", "1"])
    assert first_step.main() in (0, 1)
    assert "longer than torchrun" in capsys.readouterr().out
