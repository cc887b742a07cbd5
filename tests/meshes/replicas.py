"""Replicas of a cut model that train by themselves: the same algorithm in one process, step by step.

The script is run by `ronde run`, as a loader gives each replica its rows. What rank 0 reads is compared with
the first of as many models in this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from meshes.models import MODELS, VOCABULARY
from ronde.batches.slices import share_of
from ronde.plan import Plan, Update
from ronde.runtime.api import active

__all__ = ["SCRIPT", "reference", "run", "script"]

_STEPS, _ROWS, _TOKENS = 10, 17, 9
SCRIPT = "import sys; from meshes.replicas import script; script(*sys.argv[1:])\n"


def _batches() -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(2)
    ids = torch.randint(0, VOCABULARY, (_STEPS * _ROWS, _TOKENS + 1), generator=draw)
    return DataLoader(TensorDataset(ids), batch_size=_ROWS)


def _made(model: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    net = MODELS[model]().double()
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def _backward(net: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    return torch.tensor(loss.item())


def script(model: str, out: str) -> None:
    """Train; on each rank write losses, parameters, and the schedule of averages in the background."""
    net, optimizer = _made(model)
    losses = []
    for (ids,) in _batches():
        losses.append(_backward(net, optimizer, ids))
        optimizer.step()
    session: Any = active()
    session.averaging.finish()
    values = [*losses, *(value.clone() for value in net.state_dict().values())]
    with session.files.unmediated():
        torch.save((values, getattr(session.averaging, "schedule", [])), f"{out}-{session.config.place.rank}")


def run(plan: str, ranks: int, model: str, place: Path) -> list[Any]:
    """What each rank has read, and its schedule."""
    (place / "train.py").write_text(SCRIPT)
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    command = [sys.executable, "-m", "ronde", "run", "--quiet", "--ranks", str(ranks), "--plan", plan]
    done = subprocess.run(
        [*command, "train.py", model, str(place / "told")],
        cwd=place,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [torch.load(place / f"told-{rank}") for rank in range(ranks)]


def reference(plan: str, schedules: Sequence[Any], model: str) -> list[list[torch.Tensor]]:
    """What each of several models reads, whose parameters are averaged as the plan says.

    Args:
        schedules: by replica; empty but for averages in the background.
    """
    replicas = [_Replica(model, place, len(schedules)) for place in range(len(schedules))]
    if any(schedules):
        _in_background(replicas, schedules)
    else:
        _together(replicas, Plan.parse(plan).update)
    return [each.read() for each in replicas]


class _Replica:
    """One of the models, on its rows of each batch."""

    def __init__(self, model: str, place: int, replicas: int) -> None:
        self.net, self._optimizer = _made(model)
        self._rows = [ids[share_of(len(ids), place, replicas)] for (ids,) in _batches()]
        self._losses: list[torch.Tensor] = []

    @property
    def steps(self) -> int:
        return len(self._losses)

    def backward(self) -> None:
        self._losses.append(_backward(self.net, self._optimizer, self._rows[self.steps]))

    def step(self) -> None:
        self._optimizer.step()

    def train_to(self, steps: int) -> None:
        while self.steps < steps:
            self.backward()
            self.step()

    def read(self) -> list[torch.Tensor]:
        return [*self._losses, *(value.clone() for value in self.net.state_dict().values())]


def _together(replicas: Sequence[_Replica], update: Update) -> None:
    for number in range(_STEPS):
        for each in replicas:
            each.backward()
        if update.rule == "decentralized" and number:
            _average([each.net for each in replicas])
        for each in replicas:
            each.step()
        if update.rule == "local" and (number + 1) % (update.every or 1) == 0:
            _average([each.net for each in replicas])


@torch.no_grad()
def _in_background(replicas: Sequence[_Replica], schedules: Sequence[Any]) -> None:
    """w_r += mean of the n-th copies of all - c_r, each taken and added after as many steps as were told."""
    for number in range(len(schedules[0])):
        copies: list[torch.Tensor] = []
        for each, schedule in zip(replicas, schedules, strict=True):
            with torch.enable_grad():
                each.train_to(schedule[number][0])
            copies.append(nn.utils.parameters_to_vector(each.net.parameters()).detach().clone())
        mean = torch.stack(copies).mean(0)
        for each, schedule, copy in zip(replicas, schedules, copies, strict=True):
            with torch.enable_grad():
                each.train_to(schedule[number][1])
            now = nn.utils.parameters_to_vector(each.net.parameters())
            nn.utils.vector_to_parameters(now + mean - copy, each.net.parameters())


@torch.no_grad()
def _average(nets: Sequence[nn.Module]) -> None:
    for values in zip(*(net.parameters() for net in nets), strict=True):
        mean = torch.stack([value.detach() for value in values]).mean(0)
        for value in values:
            value.copy_(mean)
