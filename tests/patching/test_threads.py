"""What another thread of the script does leaves the main one where it stands."""

from __future__ import annotations

import os
import threading
from multiprocessing import resource_sharer
from pathlib import Path
from typing import Any

import torch

from alone import alone
from ronde.patching.other_threads import is_of_script
from ronde.tensor.context import Region


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


def test_what_hands_memory_to_processes_is_no_thread_of_the_scripts() -> None:
    with open(os.devnull) as file:
        resource_sharer.DupFd(file.fileno())  # to which a thread answers
    try:
        began = [thread for thread in threading.enumerate() if "_serve" in thread.name]
        assert began
        assert not any(map(is_of_script, began))
    finally:
        resource_sharer.stop()
