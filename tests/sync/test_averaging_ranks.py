"""Protocols that average parameters equal the same algorithm in one process, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from compressed_reference import _int8, gradients, net
from ronde.errors import UsageError
from ronde.plan import Plan
from ronde.runtime.update_axis import of_plan
from ronde.sync.averaging.decentralized import peer_of
from ronde.sync.averaging.local_steps import next_interval
from ronde.sync.averaging.protocol import average_gradients
from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]
STEPS = 50
RANKS = [pytest.param(2, marks=pytest.mark.soak), 3, pytest.param(4, marks=pytest.mark.soak)]


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def _flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def _set(model: nn.Module, flat: torch.Tensor) -> None:
    nn.utils.vector_to_parameters(flat.clone(), model.parameters())


def _loss(model: nn.Module, rank: int, step: int) -> float:
    draw = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(5, 6, dtype=torch.float64, generator=draw)
    targets = torch.randn(5, 3, dtype=torch.float64, generator=draw)
    return nn.functional.mse_loss(model(inputs), targets).item()


def _trained(rank: Rank, plan: str, steps: int = STEPS) -> Any:
    """This rank's parameters after each step, and the protocol's schedule where it has one."""
    averaging = of_plan(Plan.parse(plan), rank.groups["reducer"])
    model = net()
    if rank.rank:
        _set(model, torch.zeros_like(_flat(model)))  # all begin with rank 0's
        _set(model, _flat(net()))
    optimizer = _optimizer(model)
    after: list[torch.Tensor] = []
    for step in range(steps):
        optimizer.zero_grad()
        averaging.last_loss = torch.tensor(_loss(model, rank.rank, step))
        gradients(model, rank.rank, step)
        averaging.before_step(optimizer)
        optimizer.step()
        averaging.after_step(optimizer)
        after.append(_flat(model))
    before_end = averaging.averages
    averaging.finish()
    return torch.stack(after), getattr(averaging, "schedule", None), before_end


class Reference:
    """All ranks' models in this process."""

    def __init__(self, ranks: int) -> None:
        self.models = [net() for _ in range(ranks)]
        self.optimizers = [_optimizer(model) for model in self.models]

    def gradients(self, step: int) -> None:
        for rank, model in enumerate(self.models):
            model.zero_grad()
            gradients(model, rank, step)

    def average_gradients(self) -> None:
        for values in zip(*(model.parameters() for model in self.models), strict=True):
            mean = torch.stack([value.grad for value in values if value.grad is not None]).mean(0)
            for value in values:
                value.grad = mean.clone()

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    @property
    def flats(self) -> list[torch.Tensor]:
        return [_flat(model) for model in self.models]

    def set(self, flats: Sequence[torch.Tensor]) -> None:
        for model, flat in zip(self.models, flats, strict=True):
            _set(model, flat)

    def sizes(self) -> list[int]:
        return [value.numel() for value in self.models[0].parameters()]


def _compare(found: Sequence[Any], expected: Sequence[Sequence[torch.Tensor]]) -> None:
    for rank, each in enumerate(found):
        own = torch.stack([flats[rank] for flats in expected])
        torch.testing.assert_close(each[0], own, rtol=0, atol=1e-12)


@pytest.mark.parametrize("world_size", RANKS)
@pytest.mark.parametrize(("plan", "every", "warm_up"), [
    ("local-sgd,every=1", 1, 0), ("local-sgd", 8, 0), ("local-sgd,every=5,warm-up=12", 5, 12),
])  # fmt: skip
def test_local_steps(ranks: Ranks, plan: str, every: int, warm_up: int, world_size: int) -> None:
    reference, expected = Reference(world_size), []
    for step in range(STEPS):
        reference.gradients(step)
        if step < warm_up:
            reference.average_gradients()
        reference.step()
        if step >= warm_up and (step + 1 - warm_up) % every == 0:
            reference.set([torch.stack(reference.flats).mean(0)] * world_size)
        expected.append(reference.flats)
    _compare(ranks(world_size, _trained, plan), expected)


@pytest.mark.parametrize("world_size", RANKS)
def test_adaptive_local_steps(ranks: Ranks, world_size: int) -> None:
    reference, expected = Reference(world_size), []
    last, interval, first = 0, 6, None
    for step in range(STEPS):
        losses = [_loss(model, rank, step) for rank, model in enumerate(reference.models)]
        reference.gradients(step)
        reference.step()
        if step + 1 - last >= interval:
            reference.set([torch.stack(reference.flats).mean(0)] * world_size)
            loss = sum(losses) / world_size
            first = loss if first is None else first
            last, interval = step + 1, min(16, max(1, math.ceil(math.sqrt(loss / first * 6))))
        expected.append(reference.flats)
    found = ranks(world_size, _trained, "local-sgd,every=6,adaptive=true")
    _compare(found, expected)
    assert found[0][2] > STEPS // 6  # intervals have become shorter


def test_intervals_follow_loss_and_rate() -> None:
    assert next_interval(8, 0.1, 0.1, 2.0, 2.0) == 3
    assert next_interval(64, 0.1, 0.1, 2.0, 2.0) == 8
    assert next_interval(1, 0.1, 0.01, 2.0, 1.0) == 3
    assert next_interval(64, 0.1, 0.001, 2.0, 2.0) == 16
    assert next_interval(4, 0.1, 0.1, 2.0, 1e-9) == 1
    assert next_interval(4, 0.1, 0.1, 2.0, math.nan) == 4


@pytest.mark.parametrize("world_size", RANKS)
@pytest.mark.parametrize("peers", ["all", "shift-one"])
def test_decentralized(ranks: Ranks, peers: str, world_size: int) -> None:
    if peers == "shift-one" and world_size % 2:
        with pytest.raises(AssertionError, match="peers=shift-one pairs ranks, and 3 is odd"):
            ranks(world_size, _trained, "decentralized,peers=shift-one")
        return
    reference, expected = Reference(world_size), []
    for step in range(STEPS):
        reference.gradients(step)
        if step:
            flats = reference.flats
            mean = torch.stack(flats).mean(0)
            pairs = [(flats[r] + flats[peer_of(r, step - 1, world_size)]) / 2 for r in range(world_size)] \
                if peers == "shift-one" else [mean] * world_size  # fmt: skip
            reference.set(pairs)
        reference.step()
        expected.append(reference.flats)
    _compare(ranks(world_size, _trained, f"decentralized,peers={peers}"), expected)


@pytest.mark.parametrize("ranks", [2, 4, 6])
def test_peers_are_each_others_and_all_of_the_other_half_come(ranks: int) -> None:
    for step in range(ranks):
        assert all(peer_of(peer_of(rank, step, ranks), step, ranks) == rank for rank in range(ranks))
    assert {peer_of(0, step, ranks) for step in range(ranks)} == set(range(ranks // 2, ranks))


@pytest.mark.parametrize("world_size", RANKS)
def test_low_precision(ranks: Ranks, world_size: int) -> None:
    reference, expected = Reference(world_size), []
    sizes, own = reference.sizes(), reference.flats
    for step in range(STEPS):
        reference.gradients(step)
        reference.step()
        sent = []
        for rank, x in enumerate(reference.flats):
            left, right = own[(rank - 1) % world_size], own[(rank + 1) % world_size]
            difference = x + left / 3 + right / 3 - own[rank] * 5 / 3
            sent.append(torch.cat([_int8(part) for part in difference.split(sizes)]))
        own = [w + d for w, d in zip(own, sent, strict=True)]
        reference.set(own)
        expected.append(reference.flats)
    _compare(ranks(world_size, _trained, "decentralized-lowprec"), expected)


@pytest.mark.parametrize("world_size", RANKS)
@pytest.mark.parametrize("warm_up", [0, 7])
def test_async_average_by_the_schedule_that_it_had(ranks: Ranks, warm_up: int, world_size: int) -> None:
    plan = f"async-average,warm-up={warm_up}" if warm_up else "async-average"
    found = ranks(world_size, _trained, plan)
    schedules = [each[1] for each in found]
    rounds = len(schedules[0])
    assert rounds > 1
    assert all(len(each) == rounds for each in schedules)
    _compare(found, _by_schedule(world_size, schedules, [each[2] for each in found], warm_up))


def _by_schedule(ranks: int, schedules: Any, counts: Sequence[int], warm_up: int) -> list[list[torch.Tensor]]:
    """Each rank as far as the copies that it needs are there, until all are at their end.

    Args:
        counts: of each rank, how many averages it added before the end of its script.
    """
    reference = Reference(ranks)
    after: list[list[torch.Tensor]] = [[] for _ in range(ranks)]
    for step in range(warm_up):
        reference.gradients(step)
        reference.average_gradients()
        reference.step()
        for rank, flat in enumerate(reference.flats):
            after[rank].append(flat)
    copies: list[dict[int, torch.Tensor]] = [{} for _ in range(ranks)]
    at, turn = [warm_up] * ranks, [0] * ranks

    def settle(rank: int) -> bool:
        """Copies and sums between this step and the next; whether the next may come."""
        model = reference.models[rank]
        while turn[rank] < len(schedules[rank]) and schedules[rank][turn[rank]][0] <= at[rank]:
            number = turn[rank]
            copies[rank].setdefault(number, _flat(model))
            if schedules[rank][number][1] > at[rank]:
                return True
            if not all(number in each for each in copies):
                return False
            if number == counts[rank] and len(after[rank]) < STEPS:
                after[rank].append(_flat(model))
            mean = torch.stack([each[number] for each in copies]).mean(0)
            _set(model, _flat(model) + (mean - copies[rank][number]))
            turn[rank] += 1
        return True

    seen = [False] * ranks
    while not all(len(each) == STEPS for each in after) or not all(seen):
        for rank, model in enumerate(reference.models):
            ready = at[rank] == 0 or settle(rank)
            if not ready:
                continue
            if at[rank] > warm_up and len(after[rank]) < at[rank]:
                after[rank].append(_flat(model))
            if at[rank] == STEPS:
                seen[rank] = len(after[rank]) == STEPS
                continue
            model.zero_grad()
            gradients(model, rank, at[rank])
            reference.optimizers[rank].step()
            at[rank] += 1
    return [[after[rank][step] for rank in range(ranks)] for step in range(STEPS)]


def _late(rank: Rank) -> None:
    averaging = of_plan(Plan.parse("async-average"), rank.groups["reducer"])
    model = net()
    first, second = _optimizer(model), _optimizer(model)
    for optimizer in (first, first, first, second):
        gradients(model, rank.rank, 0)
        averaging.before_step(optimizer)
        optimizer.step()
        averaging.after_step(optimizer)


def test_an_optimizer_that_comes_late_is_refused(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match="one optimizer first stepped later than others"):
        ranks(2, _late)
    assert issubclass(UsageError, Exception)


def _averaged(rank: Rank) -> tuple[list[torch.Tensor], list[int]]:
    """Gradients of several dtypes, one of which rank 1 has not computed; and how large messages were."""
    comm: Any = rank.groups["reducer"]
    plain, sizes = comm.all_reduce, list[int]()

    def all_reduce(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.nbytes)
        return plain(tensor)

    sizes_of = [3, 1 << 19, 1 << 19, 1 << 20, 5]
    members = [nn.Parameter(torch.zeros(size)) for size in sizes_of]
    members.append(nn.Parameter(torch.zeros(2, dtype=torch.float64)))
    for place, each in enumerate(members):
        if (rank.rank, place) != (1, 0):
            each.grad = torch.full_like(each, float(rank.rank + place))
    comm.all_reduce = all_reduce
    try:
        average_gradients(comm, members)
    finally:
        del comm.all_reduce
    return [
        torch.stack((each.grad.min(), each.grad.max())) for each in members if each.grad is not None
    ], sizes


def test_gradients_are_averaged_some_at_a_time(ranks: Ranks):
    for means, sizes in ranks(2, _averaged):
        assert [each.tolist() for each in means] == [
            [0.0] * 2,
            [1.5] * 2,
            [2.5] * 2,
            [3.5] * 2,
            [4.5] * 2,
            [5.5] * 2,
        ]
        assert max(sizes) <= 1 << 22
        assert len(sizes) > 3
