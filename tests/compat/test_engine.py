"""The engine of one rank, without others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ronde.compat.engine import Engine, HorovodInternalError, Options, SubmittedTensor
from ronde.compat.negotiation import TensorRequest
from ronde.compat.place import JobPlace
from ronde.errors import PeerLost


def test_who_waits_hears_of_a_rank_that_dies_inside_of_a_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(JobPlace(), Options())

    def lose(*_: Any) -> None:
        raise PeerLost("rank 1 was lost")

    monkeypatch.setattr(engine, "_exchange", lose)
    entry = SubmittedTensor(
        TensorRequest(name="x", kind="allreduce", shape=(1,), dtype="float32"), torch.ones(1)
    )
    with pytest.raises(PeerLost):
        engine.submit(entry)
    assert entry.is_done
    with pytest.raises(HorovodInternalError, match="'x' has failed: rank 1 was lost"):
        entry.wait()
    engine.shutdown()


def test_a_name_comes_again_when_its_entry_has_been_waited_for_or_given_up() -> None:
    engine = Engine(JobPlace(), Options())

    def submitted() -> SubmittedTensor:
        request = TensorRequest(name="x", kind="allreduce", shape=(1,), dtype="float32", operation="sum")
        entry = SubmittedTensor(request, torch.ones(1))
        engine.submit(entry)
        return entry

    first = submitted()
    assert first.is_done
    with pytest.raises(ValueError, match="'x' was submitted before, and its handle has not been waited for"):
        submitted()
    first.wait()
    second = submitted()
    first.wait()
    with pytest.raises(ValueError, match="not been waited for"):
        submitted()
    second.let_go()
    submitted()
    engine.shutdown()
