"""Bytes that travel in a step of a small GPT under each mesh, beside those of Megatron-LM's formulas.

A collective's bytes are those that a rank sends by a ring: `2 (n - 1) / n` of a tensor that is summed,
`(n - 1) / n` of one that is summed and scattered, `n - 1` times its share of one that is gathered.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from meshes.models import MODELS, VOCABULARY, WIDTH
from parallel.cut_models import D, Ranks
from ronde.comm.process_group import Comm
from ronde.testing.run_ranks import Rank

# The model has ten positions; of eight tokens two and four ranks have as many each.
ROWS, LENGTH, POSITIONS, LAYERS, MICRO_BATCHES = 64, 8, 10, 2, 4
# Called, as the schedule of comparisons has it, in steps 1, 2, 4, 8, 16: this one is a usual one.
WARM_UP = 10

RING: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: n - 1,
    "share": lambda n: n - 1,
}


@dataclasses.dataclass
class Sent:
    """Bytes that a rank sends, by operation."""

    by: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def add(self, operation: str, ranks: int, nbytes: int) -> None:
        self.by[operation] += int(nbytes * RING.get(operation, lambda n: 1)(ranks))


@contextmanager
def counted() -> Iterator[Sent]:
    """Inside, count what is sent."""
    sent, announce, send = Sent(), Comm.announce, Comm.send

    def announced(comm: Comm, operation: str, tensor: torch.Tensor, nbytes: int | None = None) -> int:
        sent.add(operation, comm.world_size, tensor.nbytes if nbytes is None else nbytes)
        return announce(comm, operation, tensor, nbytes)

    def sending(comm: Comm, tensor: torch.Tensor, to: int) -> Any:
        sent.add("send", comm.world_size, tensor.nbytes)
        return send(comm, tensor, to)

    with mock.patch.object(Comm, "announce", announced), mock.patch.object(Comm, "send", sending):
        yield sent


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    ids = torch.randint(0, VOCABULARY, (ROWS, LENGTH))
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.roll(-1, 1).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def on_rank(rank: Rank, plan: str) -> dict[str, int]:
    """Bytes that a usual step sends, by operation."""
    torch.manual_seed(1)
    with rank.session(plan):
        model = MODELS["gpt"]().to(D)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(WARM_UP):
            step(model, optimizer)
        with counted() as sent:
            step(model, optimizer)
    return dict(sent.by)


@dataclasses.dataclass(frozen=True)
class Mesh:
    """The degrees of a plan's axes."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1

    @property
    def plan(self) -> str:
        axes = [f"{axis}={degree}" for axis, degree in dataclasses.asdict(self).items() if degree > 1]
        return ",".join([*axes, f"micro-batches={MICRO_BATCHES}"] if self.pipeline > 1 else axes)

    def bytes_sent(self) -> float:
        """The most that a rank sends in a step.

        Of a tensor group four sums of activations a layer (Shoeybi et al. 2019, section 3), one of the
        embedding's output and one of the head's input, and three numbers a token of the loss. Of a context
        group keys and values are gathered, and their gradients summed and scattered. A stage sends a
        micro-batch's activations, or their gradients; those of a tied embedding are summed over stages.
        Gradients of the parameters that a rank has are averaged over data and context.
        """
        item, tokens = 8, ROWS * LENGTH / (self.data * self.context)
        activations, layers = item * tokens * WIDTH, LAYERS / self.pipeline
        summed = 2 * (self.tensor - 1) / self.tensor
        total = summed * activations * 4 * layers
        ends = 2 if self.pipeline == 1 else 1
        total += summed * (activations * ends + 3 * item * tokens)
        # Keys, values and their gradients: those of the tokens of all others.
        total += 4 * activations / self.tensor * (self.context - 1) * layers
        if self.pipeline > 1:
            # One in the middle sends both.
            total += activations * min(self.pipeline - 1, 2)
            total += 2 * (self.pipeline - 1) / self.pipeline * self._tied() * item
        replicas = self.data * self.context
        total += 2 * (replicas - 1) / replicas * self._parameters() * item
        return total

    def _parameters(self) -> float:
        matrices = 12 * WIDTH * WIDTH / self.tensor
        others = POSITIONS * WIDTH + 16 * WIDTH * LAYERS / self.pipeline
        return LAYERS / self.pipeline * matrices + self._tied() + others

    def _tied(self) -> float:
        """The numbers of an embedding that is the head too: it lies on every stage, cut by a tensor group."""
        return VOCABULARY * WIDTH / self.tensor


def test_a_step_sends_what_the_formulas_say(two: Ranks):
    for mesh in (Mesh(data=2), Mesh(tensor=2), Mesh(pipeline=2), Mesh(context=2)):
        _compare(two, mesh)


@pytest.mark.soak
@pytest.mark.parametrize(
    "mesh",
    [
        Mesh(data=2, tensor=2),
        Mesh(data=2, pipeline=2),
        Mesh(data=2, context=2),
        Mesh(pipeline=2, context=2),
        Mesh(tensor=2, pipeline=2),
        Mesh(tensor=2, context=2),
        Mesh(tensor=4),
        Mesh(context=4),
    ],
    ids=lambda mesh: mesh.plan,
)
def test_two_axes_send_what_the_formulas_say(four: Ranks, mesh: Mesh):
    _compare(four, mesh)


def _compare(ranks: Ranks, mesh: Mesh) -> None:
    sent = ranks(on_rank, mesh.plan)
    most = max(sum(each.values()) for each in sent)
    assert most <= 1.05 * mesh.bytes_sent(), (mesh, most / mesh.bytes_sent(), sent)
