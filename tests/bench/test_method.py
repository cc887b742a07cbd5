from __future__ import annotations

import pytest

from ronde.bench.method import METHODS
from ronde.errors import UsageError

GLOBAL, DLPERF = METHODS["global"], METHODS["dlperf"]


def test_the_global_batch_stays_and_workloads_keep_their_steps() -> None:
    assert GLOBAL.arguments(ranks=4, steps=None) == []
    assert GLOBAL.arguments(ranks=2, steps=3) == ["--steps", "3"]


def test_dlperf_fixes_the_batch_of_a_device_and_the_steps() -> None:
    words = DLPERF.arguments(ranks=4, steps=None)
    assert words == ["--steps", "100", "--warm-up", "20", "--scale", "4"]
    assert DLPERF.rounds == 7


def test_dlperf_has_a_row_for_one_device() -> None:
    assert DLPERF.arguments(ranks=1, steps=None)[-2:] == ["--scale", "1"]
    with pytest.raises(UsageError, match=r"--ranks 1 has nothing to compare.*--ranks 2 or more"):
        GLOBAL.arguments(ranks=1, steps=None)


def test_dlperfs_steps_are_not_changed() -> None:
    with pytest.raises(UsageError, match="dlperf times 100 steps; leave out --steps 3"):
        DLPERF.arguments(ranks=2, steps=3)
