"""Where ranks of these tests compute: on CUDA devices, dealt to them in turn, or on the CPU with Gloo.

The tests are the same, so that a machine without devices shows that they are right.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest
import torch

from ronde.launch.shared_devices import deal

__all__ = ["CPU", "CUDA", "Where", "places"]


@dataclasses.dataclass(frozen=True, slots=True)
class Where:
    """A kind of device.

    Attributes:
        items: what a plan has there beside its own: draws that one device makes, or Gloo.
    """

    name: str
    items: str

    def __str__(self) -> str:
        return self.name

    def devices(self, ranks: int) -> tuple[str, ...]:
        """A device for each rank, as `CUDA_VISIBLE_DEVICES` names it; () on the CPU."""
        count = torch.cuda.device_count() if self.name == "cuda" else 0
        return deal([str(number) for number in range(count)], ranks) if count else ()

    def plan(self, plan: str) -> str:
        return f"{plan},{self.items}"

    def environment(self, ranks: int) -> dict[str, str]:
        """Variables of `ronde run`; sums of cuBLAS have a fixed order."""
        devices = ",".join(self.devices(ranks))
        return {**os.environ, "CUDA_VISIBLE_DEVICES": devices, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


CUDA = Where("cuda", "rng=global")
CPU = Where("cpu", "algorithm=tree")


def places(rows: Iterable[tuple[Any, ...]], daily: Collection[tuple[Any, ...]] = ()) -> list[Any]:
    """Each row on a device, and on the CPU: those in `daily` in `make test`, others in `make soak`."""
    found: list[Any] = []
    for row in rows:
        name = "-".join(map(str, row))
        soak = () if row in daily else (pytest.mark.soak,)
        found.append(pytest.param(*row, CUDA, id=f"{name}-cuda", marks=pytest.mark.gpu))
        found.append(pytest.param(*row, CPU, id=f"{name}-cpu", marks=soak))
    return found
