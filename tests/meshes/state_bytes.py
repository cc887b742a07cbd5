"""Bytes of parameters, gradients and optimizer state on each rank, beside the formula of the plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from meshes import models
from meshes.models import MODELS
from ronde.cluster.mesh import MeshOfRanks
from ronde.patching.patches import Patches
from ronde.plan import expand
from ronde.runtime.api import activate
from ronde.testing.run_ranks import Rank
from ronde.trace.resident import Kind

__all__ = ["STATES", "formula", "on_rank", "sized"]

STATES = ("zero1", "zero2", "zero3", "central")
"""Values of the plan's axis `state` that divide something."""

_VOCABULARY, _WIDTH, _LAYERS = 256, 64, 8
_ITEM = 4
# The first backward and the second are compared with one device's, the third is not.
_STEPS = 3


def sized(model: str) -> nn.Module:
    """A model of which matrices are the most, and a layer a small part."""
    sizes = Patches()
    for name, value in (("VOCABULARY", _VOCABULARY), ("WIDTH", _WIDTH)):
        sizes.set(models, name, value)
    try:
        return MODELS[model](_LAYERS)
    finally:
        sizes.restore()


def on_rank(rank: Rank, plan: str, model: str) -> Mapping[Kind, int]:
    """Train, and count before and behind backward and behind the step: the peaks by kind, in bytes."""
    peaks: dict[Kind, int] = {}
    with rank.session(plan) as session:
        activate(session)
        try:
            torch.manual_seed(1)
            net = sized(model)
            optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

            def look() -> None:
                for kind, nbytes in session.memory.count().bytes.items():
                    peaks[kind] = max(nbytes, peaks.get(kind, 0))

            for _ in range(_STEPS):
                ids = torch.randint(0, _VOCABULARY, (8, 9))
                loss = F.cross_entropy(net(ids).flatten(0, 1), ids.flatten())
                optimizer.zero_grad()
                look()
                loss.backward()
                look()
                optimizer.step()
                look()
        finally:
            activate(None)
    return peaks


def formula(plan: str, ranks: int, rank: int, model: str) -> dict[Kind, float]:
    """The bytes that this rank has to hold.

    A matrix is cut by `tensor`, a layer is on one stage, an expert on one rank of its group. ZeRO divides
    what a rank has of the model by the ranks that have the same. Where parameters are cut, two units are
    whole at a time.
    """
    placement = expand(plan).state.placement
    parameters = gradients = optimizer = 0.0
    units: dict[str, float] = {}
    for each in _shares(sized(model), plan, ranks, rank):
        divided, owned = each.numel / each.replicas, each.numel * each.is_first
        parameters += {"zero3": divided, "central": owned}.get(placement, each.numel)
        gradients += {"zero2": divided, "zero3": divided, "central": owned}.get(placement, each.numel)
        optimizer += 2 * {"replicated": each.numel, "central": owned}.get(placement, divided)
        units[each.unit] = units.get(each.unit, 0.0) + each.numel
    if placement in ("zero3", "central"):
        parameters += 2 * max(units.values())
    return {"parameters": parameters * _ITEM, "gradients": gradients * _ITEM, "optimizer": optimizer * _ITEM}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Share:
    """A rank's share of a parameter, as the mesh cuts it.

    Attributes:
        unit: its layer, with which it is gathered.
        numel: elements that this rank has.
        replicas: how many ranks have the same.
        is_first: this rank is the first of these.
    """

    unit: str
    numel: float
    replicas: int
    is_first: bool


def _shares(net: nn.Module, plan: str, ranks: int, rank: int) -> Iterator[_Share]:
    described = expand(plan).for_ranks(ranks)
    mesh, experts = MeshOfRanks.of(described.mesh), described.mesh.expert
    stages, stage = mesh.degree("pipeline"), mesh.coordinate(rank, "pipeline")
    rows = ranks // stages // mesh.degree("tensor")
    row = mesh.coordinate(rank, "data") * mesh.degree("context") + mesh.coordinate(rank, "context")
    for name, parameter in net.named_parameters():
        words = name.split(".")
        is_expert = "experts" in words
        cut = mesh.degree("tensor") if parameter.dim() == 2 else 1
        of_expert = experts if is_expert else 1
        on_stage = stages == 1 or stage in _stages_of(words, stages)
        yield _Share(
            unit=".".join(words[:2]) if words[0] in ("h", "layers") else words[0],
            numel=parameter.numel() / cut / of_expert if on_stage else 0.0,
            replicas=rows // of_expert,
            is_first=row < of_expert,
        )


def _stages_of(words: Sequence[str], stages: int) -> tuple[int, ...]:
    if words[0] in ("h", "layers"):
        return (int(words[1]) * stages // _LAYERS,)
    if words[0] == "wte":  # the head too
        return (0, stages - 1)
    return (0,) if words[0] in ("wpe", "embed_tokens") else (stages - 1,)
