from __future__ import annotations

import os
import sys
import time

import psutil
import pytest

from ronde.bench import process_set
from ronde.bench.process_set import Process, run_together
from ronde.errors import BenchError


def python(code: str, **variables: str) -> Process:
    return Process(command=(sys.executable, "-c", code), environment={**os.environ, **variables})


def test_the_first_ones_output_and_the_time_of_all() -> None:
    output, wall = run_together(
        [python("print('first')"), python("import time; time.sleep(0.5); print('second')")], timeout=60
    )
    assert output == "first\n"
    assert wall >= 0.5


def test_each_has_its_own_environment() -> None:
    output, _ = run_together([python("import os; print(os.environ['RANK'])", RANK="7")], timeout=60)
    assert output == "7\n"


def test_one_that_fails_ends_the_others_and_is_quoted() -> None:
    begun, before = time.perf_counter(), psutil.Process().children()
    with pytest.raises(BenchError, match=r"(?s)exit code 3.*no luck"):
        run_together(
            [
                python("import time; time.sleep(60)"),
                python("import sys; print('no luck', file=sys.stderr); sys.exit(3)"),
            ],
            timeout=60,
        )
    assert time.perf_counter() - begun < 30
    assert psutil.Process().children() == before


def test_one_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_set, "_GRACE", 0.5)
    before = psutil.Process().children()
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    with pytest.raises(BenchError, match="did not end in time"):
        run_together([python(stubborn)], timeout=1)
    assert psutil.Process().children() == before
