"""What another thread of the script does leaves the main one where it stands."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch

from alone import alone
from ronde.boundary.context import Region


class Waiting(torch.autograd.Function):
    begun, goes_on = threading.Event(), threading.Event()

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        Waiting.begun.set()
        assert Waiting.goes_on.wait(60)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 2


def test_a_function_in_another_thread(tmp_path: Path) -> None:
    with alone(tmp_path, "micro-batches=2") as session:
        other = threading.Thread(target=Waiting.apply, args=(torch.ones(2),))
        other.start()
        assert Waiting.begun.wait(60)
        region = session.context.region
        Waiting.goes_on.set()
        other.join()
    assert region is Region.SCRIPT
