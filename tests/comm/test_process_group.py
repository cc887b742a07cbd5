"""A group of one rank: what needs no peers."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from ronde.comm.joining import join
from ronde.comm.place import Place
from ronde.comm.process_group import Comm


def one_rank(place: Path) -> Comm:
    return join(
        f"file://{place / 'store'}",
        name="test",
        place=Place(0, 1, 0, 1),
        device="cpu",
        timeout=timedelta(seconds=30),
        host="127.0.0.1",
    )


def gloo_threads() -> int:
    names = [task.read_text() for task in Path("/proc/self/task").glob("*/comm")]
    return sum("gloo" in name for name in names)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the threads' names from /proc")
def test_a_closed_group_has_no_threads(tmp_path: Path) -> None:
    before = gloo_threads()
    comm = one_rank(tmp_path)
    comm.all_reduce(torch.ones(3))
    assert gloo_threads() > before
    comm.close()
    assert gloo_threads() == before


def test_a_group_may_be_closed_twice(tmp_path: Path) -> None:
    comm = one_rank(tmp_path)
    comm.close()
    comm.close()
