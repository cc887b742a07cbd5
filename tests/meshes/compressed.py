"""Compressors on the gradients of a cut model: the same algorithm in one process, step by step.

Ranks that have the same blocks and other rows encode the gradients of these blocks to one another. So the
reference has the whole gradient of each replica, takes the blocks of each rank from it, and gives these to
the equations of `compressed_reference`. Ranks tell which leaves lie in which bucket.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from compressed_reference import (
    REFERENCES,
    DeepGradientCompression,
    Gradients,
    Order,
    PowerSGD,
    _mean,
)
from ronde.cluster.mesh import MeshOfRanks
from ronde.comm.compressors.low_rank import first_factor, pays
from ronde.comm.compressors.sparse import RandomK
from ronde.comm.split import even_part
from ronde.plan import Plan
from ronde.sync.compression.bucket import CompressedBucket

__all__ = ["Buckets", "Encoded", "Key", "OfRows", "has_own_momentum", "reduced", "replicas_of"]

_LOW_RANK = 2
OfRows = Callable[[int, int, float], None]
"""Given the first and the end row and a factor, adds the gradient of their part of the loss, times that."""


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """A leaf: a parameter, or this rank's block of it.

    Attributes:
        first: the first element of the block in the parameter, by which blocks are told apart.
    """

    name: str
    shape: tuple[int, ...]
    first: int


@dataclasses.dataclass(frozen=True, slots=True)
class Encoded:
    """The gradients that a rank encodes.

    Attributes:
        of_steps: by backward, by bucket, its leaves in order. No buckets where they had no gradient: in a
            model's first call all ranks have the whole parameters, whose gradients travel as they are.
        first: all leaves, in the order of the first backward.
        elements: which elements of its parameter a leaf has.
    """

    of_steps: list[list[list[Key]]] = dataclasses.field(default_factory=list)
    first: list[Key] = dataclasses.field(default_factory=list)
    elements: dict[Key, torch.Tensor] = dataclasses.field(default_factory=dict)


class Buckets:
    """Looks at the buckets of a session; `told` is what it has seen."""

    def __init__(self, session: Any) -> None:
        self.told = Encoded()
        self._session = session
        self._names: dict[int, str] = {}
        plain = session.reducer._finish

        def finish() -> None:
            groups = session.reducer._groups
            encoded = [each for group in groups for each in group.buckets if type(each) is CompressedBucket]
            buckets = [[self._key(leaf.tensor) for leaf in each.leaves] for each in encoded]
            if not self.told.of_steps:
                self.told.first.extend(key for bucket in buckets for key in bucket)
            self.told.of_steps.append(buckets if any(each._ready for each in encoded) else [])
            plain()

        session.reducer._finish = finish

    def know(self, model: nn.Module) -> None:
        """The script's model is made."""
        self._names = {id(each): name for name, each in model.named_parameters()}

    def _key(self, leaf: torch.Tensor) -> Key:
        blocks = self._session.state.blocks
        found = [] if blocks is None else blocks.blocks
        block = next((each for each in found if each.leaf is leaf), None)
        parameter = leaf if block is None else block.parameter.tensor
        with torch.no_grad():
            every = torch.arange(parameter.shape.numel()).view(parameter.shape)
        elements = every if block is None else block.spec.own(every, blocks._comm.rank)
        key = Key(self._names[id(parameter)], tuple(leaf.shape), int(elements.flatten()[0]))
        self.told.elements[key] = elements.flatten()
        return key


def replicas_of(plan: str, ranks: int) -> tuple[int, list[int]]:
    """How many replicas of the model there are, and the ranks of the first."""
    mesh = MeshOfRanks.of(Plan.parse(plan).for_ranks(ranks).mesh)
    return mesh.degree("data"), [rank for rank in range(ranks) if mesh.coordinate(rank, "data") == 0]


class _Randomly:
    """g = mean of C(g), with places drawn anew for each message."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers

    def __call__(self, all_gradients: Gradients, order: Order, step: int) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for place, own in enumerate(zip(*all_gradients, strict=True)):
            key = self._numbers[place] << 48 | step << 16 | 1  # one message between two steps
            codec = RandomK(0.5, key=key, unbiased=True)
            found.append(_mean([_through(codec, each) for each in own]))
        return found


def _through(codec: RandomK, values: torch.Tensor) -> torch.Tensor:
    flat, made = values.reshape(-1), torch.zeros(values.numel(), dtype=values.dtype)
    codec.add(codec.encode(flat), made)
    return made.view_as(values)


def _reference(value: str, keys: Sequence[Key], first: Sequence[Key]) -> Any:
    """The equations of a value.

    Args:
        keys: the leaves, in the order in which gradients are given.
        first: the same, as the first backward had them.
    """
    numbers = [first.index(key) for key in keys]
    if value.startswith("powersgd"):
        shapes = [torch.Size(key.shape) for key in keys]
        cut = [place for place, shape in enumerate(shapes) if pays(shape, _LOW_RANK)]

        def factor(place: int) -> torch.Tensor:
            return first_factor(shapes[place], _LOW_RANK, torch.float64, numbers[place]).T

        return PowerSGD(_LOW_RANK, factor, cut)
    if "randomk" in value:
        return _Randomly(numbers)
    if value.startswith("dgc"):
        return DeepGradientCompression(0.1, 0.9)
    return REFERENCES[value]()


def has_own_momentum(value: str) -> bool:
    """Whether the compressor applies the optimizer's momentum, which has none then."""
    return value.startswith(("onebit", "twobit", "dgc"))


def reduced(
    value: str, replicas: int, told: Sequence[Encoded], rows: int
) -> Callable[[nn.Module, OfRows, int], None]:
    """A backward that gives parameters the gradients on which the optimizer steps.

    Args:
        replicas: of the model.
        told: by each rank of one replica.
    """
    keys = [sorted(each.elements, key=lambda key: (key.name, key.first, key.shape)) for each in told]
    references = [_reference(value, own, each.first) for own, each in zip(keys, told, strict=True)]

    def backward(model: nn.Module, of_rows: OfRows, step: int) -> None:
        named = dict(model.named_parameters())
        whole: list[dict[str, torch.Tensor]] = []
        for replica in range(replicas):
            model.zero_grad()
            of_rows(*even_part(rows, replicas, replica), replicas)
            whole.append({name: each.grad.clone() for name, each in named.items() if each.grad is not None})
        result = {name: _mean([each[name] for each in whole]) for name in whole[0]}
        for own, reference, buckets in zip(keys, references, told, strict=True):
            if not buckets.of_steps[step]:
                continue
            gradients = [
                [each[key.name].view(-1)[buckets.elements[key]].view(key.shape) for key in own]
                for each in whole
            ]
            order = [[own.index(key) for key in bucket] for bucket in buckets.of_steps[step]]
            for key, made in zip(own, reference(gradients, order, step), strict=True):
                result[key.name].view(-1)[buckets.elements[key]] = made.reshape(-1)
        for name, each in named.items():
            each.grad = result.get(name)

    return backward
