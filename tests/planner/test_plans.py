"""Every plan of the table of meshes has a cost or a refusal, and an axis costs what its closed form says."""

from __future__ import annotations

import dataclasses

import pytest

from meshes.axes import MESHES, VALUES, Cell, Standing
from meshes.state_bytes import STATES, formula
from ronde.errors import PlanError
from ronde.plan import expand
from ronde.plan.axes import KEYS
from ronde.planner.candidates import Candidates, Point, point_of
from ronde.planner.cluster import Cluster
from ronde.planner.cluster_file import read_cluster
from ronde.planner.estimate import memory_of, seconds_of, setting_of
from ronde.planner.graph import CostGraph
from ronde.planner.link import Constants, Link
from ronde.planner.memory import MemoryUse, states
from ronde.planner.modelled import NOT_MODELLED, PRICED
from ronde.planner.search import search
from ronde.planner.software import software_of
from ronde.planner.step import StepTime
from ronde.planner.transformer import TransformerSizes, transformer_graph

LAYERS, HIDDEN, TOKENS, BATCH, BYTES = 8, 512, 1024, 32, 4
SIZES = TransformerSizes(
    name="small",
    layers=LAYERS,
    hidden=HIDDEN,
    heads=8,
    vocabulary=1024,
    sequence=TOKENS,
    batch=BATCH,
    tied=False,
)
DENSE = transformer_graph(SIZES)
MIXED = transformer_graph(dataclasses.replace(SIZES, experts=4))
# Bytes/s, so slow that everything else is small.
RATE = 1e6


def link(beta: float) -> Link:
    return Link(usual=Constants(alpha=0.0, beta=beta))


def cluster(ranks: int, beta: float = 1e9, nodes: int = 1) -> Cluster:
    """Processors, on which nothing overlaps."""
    found = read_cluster("2xcpu").resized(ranks)
    groups = (dataclasses.replace(found.groups[0], nodes=nodes, devices=ranks // nodes),)
    return dataclasses.replace(found, groups=groups, node=link(beta), network=link(beta))


def cost(plan: str, ranks: int, beta: float = 1e9, nodes: int = 1) -> tuple[StepTime, MemoryUse]:
    graph = MIXED if "expert" in plan else DENSE
    setting = setting_of(cluster(ranks, beta, nodes), graph, expand(plan))
    one = Candidates.one(point_of(plan, ranks))
    return seconds_of(setting, one), memory_of(setting, one)


def sent(plan: str, ranks: int, nodes: int = 1) -> float:
    """Bytes that the critical path of a step waits for."""
    slow, free = (float(cost(plan, ranks, beta, nodes)[0].total[0]) for beta in (RATE, float("inf")))
    return (slow - free) * RATE


def meshes(*quick: str) -> list[object]:
    """All meshes; those that are not quick are for `make soak`."""
    return [pytest.param(each, marks=() if each in quick else pytest.mark.soak) for each in MESHES]


USUAL = {key: expand().value(key) for key in KEYS}


@pytest.mark.parametrize("mesh", meshes("data=2,tensor=2", "pipeline=2,context=2", "data=4,expert=2"))
def test_a_legal_plan_has_a_cost_and_another_is_refused_by_name(mesh: str) -> None:
    for value in ("", *VALUES):
        cell = Cell(mesh, value)
        plan = expand(cell.plan)
        if cell.standing is Standing.LEGAL:
            seconds, memory = cost(cell.plan, cell.ranks)
            assert 0 < float(seconds.total[0]) < float("inf"), cell.plan
            assert 0 < float(memory.total[0]) < float("inf"), cell.plan
            other = {key for key in KEYS if plan.value(key) != USUAL[key]}
            assert other <= PRICED.keys() | NOT_MODELLED.keys(), cell.plan
        elif cell.standing is Standing.CONTRADICTION:
            with pytest.raises(PlanError):
                search(DENSE, cluster(cell.ranks), plan, keys={"tensor", "pipeline", "context", "expert"})


@pytest.mark.parametrize("mesh", meshes("data=2,tensor=2,expert=2"))
def test_bytes_of_state_are_those_of_the_formula(mesh: str) -> None:
    """Ratios to the mesh without a state, of a model in which matrices are all."""
    ranks, model = MESHES[mesh], "mixtral" if "expert" in mesh else "gpt"
    for state in STATES[:3]:
        here, there = (_states(each, ranks) for each in (f"{mesh},{state}", mesh))
        held, usual = (formula(each, ranks, 0, model) for each in (f"{mesh},{state}", mesh))
        assert here[2] / there[2] == pytest.approx(held["optimizer"] / usual["optimizer"], rel=0.12)
        assert here[1] / there[1] == pytest.approx(held["gradients"] / usual["gradients"], rel=0.12)


def _states(plan: str, ranks: int) -> tuple[float, ...]:
    graph = MIXED if "expert" in plan else DENSE
    one = Candidates.one(point_of(plan, ranks))
    software = software_of(expand(plan), graph, cluster(ranks))
    return tuple(float(each[0]) for each in states(graph, one, software, one.pipeline * 0))


LESS, EQUAL, MORE = -1, 0, 1
DIRECTIONS = [
    # A plan, another, ranks, and how seconds and bytes of the other compare.
    ("ddp", "zero1", 2, None, LESS),
    ("zero1", "zero2", 2, None, LESS),
    ("zero2", "zero3", 2, None, LESS),
    ("tensor=2", "tensor=2,sequence-parallel=on", 2, None, LESS),
    ("ddp", "context=2", 2, MORE, EQUAL),
    ("context=2", "context=2,context-attention=ring", 2, EQUAL, EQUAL),
    ("expert=1", "expert=2", 2, None, LESS),
    ("recompute=none", "recompute=selective", 2, MORE, LESS),
    ("recompute=selective", "recompute=full", 2, MORE, LESS),
    ("precision=fp32", "precision=bf16", 2, None, LESS),
    ("pipeline=2,micro-batches=4", "pipeline=2,micro-batches=4,schedule=1f1b", 2, EQUAL, LESS),
    ("pipeline=2,micro-batches=4", "pipeline=2,micro-batches=4,schedule=interleaved", 2, LESS, None),
    ("pipeline=2,micro-batches=4", "pipeline=2,micro-batches=4,schedule=zero-bubble", 2, LESS, LESS),
    ("pipeline=2,micro-batches=2", "pipeline=2,micro-batches=8", 2, LESS, EQUAL),
    ("ddp", "fp16-allreduce", 2, LESS, EQUAL),
    ("ddp", "local-sgd", 2, LESS, EQUAL),
    ("data=2,tensor=2", "data=2,tensor=2,zero1", 4, None, LESS),
    ("data=2,pipeline=2,micro-batches=4", "data=2,pipeline=2,micro-batches=4,zero2", 4, None, LESS),
    ("data=2,pipeline=2,expert=2", "data=2,pipeline=2,expert=2,zero2", 4, None, LESS),
]  # fmt: skip


@pytest.mark.parametrize(("plan", "other", "ranks", "seconds", "memory"), DIRECTIONS)
def test_an_axis_changes_time_and_memory_in_its_direction(
    plan: str, other: str, ranks: int, seconds: int | None, memory: int | None
) -> None:
    (time, held), (time_other, held_other) = (cost(each, ranks, beta=1e8) for each in (plan, other))
    for expected, before, after in (
        (seconds, float(time.total[0]), float(time_other.total[0])),
        (memory, float(held.total[0]), float(held_other.total[0])),
    ):
        if expected is not None:
            alike = abs(after / before - 1) < 1e-3
            assert (0 if alike else 1 if after > before else -1) == expected, (before, after)


@pytest.mark.parametrize(
    ("schedule", "share"), [("gpipe", 1.0), ("1f1b", 1.0), ("interleaved", 0.5), ("zero-bubble", 1 / 3)]
)
def test_the_bubble_is_that_of_the_schedule(schedule: str, share: float) -> None:
    """(p - 1)/m of the work of alike stages; 1/v and a third of it (Narayanan 2021, Qi 2024)."""
    alike = transformer_graph(dataclasses.replace(SIZES, vocabulary=1))
    plan = expand(f"pipeline=4,micro-batches=8,schedule={schedule}")
    found = seconds_of(
        setting_of(cluster(4, float("inf")), alike, plan), Candidates.one(point_of(str(plan), 4))
    )
    assert float(found.bubble[0]) / float(found.compute[0]) == pytest.approx(share * 3 / 8, rel=0.02)


VALUE = BATCH * TOKENS * HIDDEN * BYTES
"""Bytes of the activations between two layers, of the whole batch."""


def test_tensor_ranks_send_two_sums_a_layer_each_way() -> None:
    """4 B (N - 1)/N forward and backward; a division by tokens gathers half as much again in backward."""
    layers = 4 * VALUE * LAYERS / 2
    ends = 2 * VALUE / 2 * 2
    assert sent("tensor=2", 2) == pytest.approx(2 * layers + ends, rel=1e-3)
    assert sent("tensor=2,sequence-parallel=on", 2) == pytest.approx(2.5 * layers + 1.25 * ends, rel=1e-2)


@pytest.mark.parametrize(("attention", "passes"), [("gather", 3), ("ring", 3)])
def test_context_ranks_send_keys_and_values(attention: str, passes: int) -> None:
    """Keys and values of the other ranks, once more for backward, and their gradients."""
    keys = 2 * VALUE * LAYERS
    gradients = 2 * DENSE.parameters * BYTES
    for ranks in (2, 4):
        part = (ranks - 1) / ranks
        expected = part * (passes * keys + gradients)
        plan = f"context={ranks},context-attention={attention}"
        assert sent(plan, ranks) == pytest.approx(expected, rel=1e-2), plan


def test_experts_exchange_tokens_twice_each_way() -> None:
    exchanged = 4 * VALUE / 2 * LAYERS / 2
    routed = MIXED.block.parameters_routed * LAYERS
    # Under expert=2 each expert is on one of two ranks, so its gradient has nobody to be summed with.
    summed = (MIXED.parameters - routed) * BYTES
    assert sent("expert=2", 2) == pytest.approx(exchanged + summed, rel=1e-2)


def test_zero_sends_what_its_paper_says() -> None:
    """2P(n - 1)/n under stages 1 and 2; 3P(n - 1)/n under stage 3 (Rajbhandari et al. 2020).

    Processors of one host map parameters, and send gradients only.
    """
    whole = DENSE.parameters * BYTES * 3 / 4
    for plan, times in (("ddp", 2), ("zero1", 2), ("zero2", 2), ("zero3", 3)):
        assert sent(plan, 4, nodes=4) == pytest.approx(times * whole, rel=0.02), plan
    assert sent("zero3", 4) == pytest.approx(whole, rel=0.02)


def test_a_captured_graph_starts_once() -> None:
    """Each by itself, one between two products, one for all."""
    small = dataclasses.replace(SIZES, layers=24, batch=8)
    where = read_cluster("dgx-a100").resized(1)
    waits: list[float] = []
    for kernels in ("eager", "fused", "captured"):
        graph: CostGraph = transformer_graph(dataclasses.replace(small, kernels=kernels))
        setting = setting_of(where, graph, expand("precision=bf16"))
        found = seconds_of(setting, Candidates.one(Point(1, micro_batches=8)))
        waits.append(float(found.host[0]))
    assert waits[0] > waits[1] > 0
    assert waits[2] == 0
