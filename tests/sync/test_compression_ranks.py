"""Compressed updates on ranks equal the same algorithm in one process, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from compressed_reference import REFERENCES, PowerSGD, gradients, net
from ronde.comm.compressors.low_rank import first_factor
from ronde.errors import UsageError
from ronde.sync.compression.corrected import Momentum, _moved
from ronde.tensor.context import Region
from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]
STEPS = 50
RANKS = [pytest.param(2, marks=pytest.mark.soak), 3, pytest.param(4, marks=pytest.mark.soak)]
WITHOUT_MOMENTUM = ("dgc", "onebit", "twobit")


def _sgd(model: nn.Module, momentum: float = 0.9) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)


def _plain_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return _sgd(model, 0.0)


def _flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().reshape(-1) for value in model.parameters()])


def _trained(rank: Rank, plan: str, make: Callable[[nn.Module], torch.optim.Optimizer]) -> Any:
    """Parameters after each step, and which lay in each bucket in it."""
    after: list[torch.Tensor] = []
    orders: list[list[list[int]]] = []
    with rank.session(plan) as session:
        model = net()
        places = {id(value): place for place, value in enumerate(model.parameters())}
        optimizer = make(model)
        for step in range(STEPS):
            optimizer.zero_grad()
            with session.context.enter(Region.SHARDED, 2):
                gradients(model, rank.rank, step)
            buckets = [bucket for group in session.reducer._groups for bucket in group.buckets]
            orders.append([[places[id(leaf.tensor)] for leaf in bucket.leaves] for bucket in buckets])
            optimizer.step()
            after.append(_flat(model))
        account = session.compression.account()
        assert "sent by this rank" in account
    # In its first backward a bucket is in the order of adoption, last first.
    orders[0] = [list(reversed(range(len(places))))]
    return torch.stack(after), orders


def _expected(
    ranks: int, orders: Any, reference: Any, make: Callable[[nn.Module], torch.optim.Optimizer]
) -> torch.Tensor:
    model = net()
    optimizer = make(model)
    after: list[torch.Tensor] = []
    for step in range(STEPS):
        own: list[list[torch.Tensor]] = []
        for rank in range(ranks):
            model.zero_grad()
            gradients(model, rank, step)
            own.append([value.grad.clone() for value in model.parameters() if value.grad is not None])
        for value, given in zip(model.parameters(), reference(own, orders[step], step), strict=True):
            value.grad = given
        optimizer.step()
        after.append(_flat(model))
    return torch.stack(after)


def _compare(found: list[Any], expected: torch.Tensor) -> None:
    for after, _ in found:
        torch.testing.assert_close(after, expected, rtol=0, atol=1e-12)
    moved = (expected[-1] - expected[0]).abs().max()
    assert moved > 1e-3


@pytest.mark.parametrize("world_size", RANKS)
@pytest.mark.parametrize("plan", REFERENCES)
def test_a_compressed_update_is_the_reference_step_by_step(ranks: Ranks, plan: str, world_size: int) -> None:
    if plan == "reduction=adasum" and world_size == 3:
        pytest.skip("Adasum is defined for powers of two")
    found = ranks(world_size, _trained, plan, _sgd)
    without = plan.startswith(WITHOUT_MOMENTUM)
    make = _plain_sgd if without else _sgd
    _compare(found, _expected(world_size, found[0][1], REFERENCES[plan](), make))


@pytest.mark.parametrize("world_size", RANKS)
def test_powersgd_is_the_reference_step_by_step(ranks: Ranks, world_size: int) -> None:
    found = ranks(world_size, _trained, "powersgd,low-rank=2", _plain_sgd)
    shapes = [value.shape for value in net().parameters()]
    # Leaves are numbered as buckets come to them.
    numbers = {place: number for number, place in enumerate(found[0][1][0][0])}
    cut = [place for place in numbers if shapes[place] in ((17, 6), (12, 17))]

    def first(place: int) -> torch.Tensor:
        return first_factor(shapes[place], 2, torch.float64, numbers[place]).T

    _compare(found, _expected(world_size, found[0][1], PowerSGD(2, first, cut), _plain_sgd))


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.01)


@pytest.mark.parametrize("world_size", RANKS)
def test_qadam_is_the_reference_step_by_step(ranks: Ranks, world_size: int) -> None:
    """m_r = b m + (1 - b) g_r; m = C(mean of C(m_r)) by chunks; v / (1 - b2^t) as at the warm-up's end."""
    found = ranks(world_size, _trained, "qadam,warm-up=10", _adam)
    model = net()
    values = list(model.parameters())
    moment = [torch.zeros_like(value) for value in values]
    variance = [torch.zeros_like(value) for value in values]
    chunks = REFERENCES["bytegrad"]()
    after: list[torch.Tensor] = []
    for step in range(STEPS):
        own: list[list[torch.Tensor]] = []
        for rank in range(world_size):
            model.zero_grad()
            gradients(model, rank, step)
            own.append([value.grad.clone() for value in values if value.grad is not None])
        with torch.no_grad():
            if step < 10:
                mean = [torch.stack(each).mean(0) + 0.01 * w for each, w in zip(zip(*own), values)]
                moment = [0.9 * m + 0.1 * g for m, g in zip(moment, mean, strict=True)]
                variance = [0.999 * v + 0.001 * g * g for v, g in zip(variance, mean, strict=True)]
            else:
                sent = [[0.9 * m + 0.1 * g for m, g in zip(moment, each, strict=True)] for each in own]
                averaged = chunks(sent, found[0][1][step], step)
                moment = [m + 0.1 * 0.01 * w for m, w in zip(averaged, values, strict=True)]
            for w, m, v in zip(values, moment, variance, strict=True):
                scale = (v / (1 - 0.999 ** min(step + 1, 10))).sqrt() + 1e-8
                w -= 0.01 * m / (1 - 0.9 ** (step + 1)) / scale
        after.append(_flat(model))
    _compare(found, torch.stack(after))


@pytest.mark.parametrize("momentum", [(0.9, 0.0, False), (0.9, 0.5, False), (0.9, 0.0, True)])
def test_backwards_between_two_steps_count_as_one(momentum: Momentum) -> None:
    """Momentum is applied once to the velocity, and what is added to the accumulated one is the same."""
    before, first, second = (torch.randn(5, dtype=torch.float64) for _ in range(3))
    at_once, in_two = before.clone(), before.clone()
    added = _moved(at_once, first + second, momentum, fresh=True)
    parts = _moved(in_two, first, momentum, fresh=True).clone() + _moved(
        in_two, second, momentum, fresh=False
    )
    torch.testing.assert_close(in_two, at_once, rtol=0, atol=1e-14)
    torch.testing.assert_close(parts, added, rtol=0, atol=1e-14)


def _in_halves(rank: Rank, plan: str, parts: int) -> torch.Tensor:
    """Each rank's loss in one backward, or in parts of it; no momentum."""
    with rank.session(plan) as session:
        model = net()
        optimizer = _sgd(model, 0.0)
        for step in range(6):
            optimizer.zero_grad()
            with session.context.enter(Region.SHARDED, 2):
                draw = torch.Generator().manual_seed(10 * step + rank.rank)
                inputs = torch.randn(4, 6, dtype=torch.float64, generator=draw)
                for piece in inputs.chunk(parts):
                    (model(piece).square().mean() / parts).backward()
            optimizer.step()
        return _flat(model)


def test_what_is_accumulated_is_not_encoded_again(ranks: Ranks) -> None:
    """Where nothing is lost two backwards give what one does."""
    for found, expected in zip(
        ranks(2, _in_halves, "dgc,density=1", 2), ranks(2, _in_halves, "ddp", 1), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def _absent(rank: Rank, plan: str) -> list[Any]:
    """One parameter that rank 1 alone computes, one that nobody does, one that all do every second time."""
    with rank.session(plan) as session:
        values = [nn.Parameter(torch.ones(4, dtype=torch.float64)) for _ in range(3)]
        optimizer = torch.optim.SGD(values, lr=1.0)
        found: list[Any] = []
        for step in range(4):
            optimizer.zero_grad()
            with session.context.enter(Region.SHARDED, 2):
                loss = (values[2] * 2).sum() * (step % 2)
                if rank.rank == 1:
                    loss = loss + (values[0] * 3).sum()
                if step % 2 or rank.rank == 1:
                    loss.backward()
                else:
                    torch.zeros((), requires_grad=True).backward()
            found.append([None if value.grad is None else value.grad.tolist() for value in values])
            optimizer.step()
        return found


@pytest.mark.parametrize("plan", ["onebit", "twobit", "dgc,density=1", "bytegrad", "powersgd"])
def test_a_gradient_that_some_ranks_do_not_compute_counts_as_nought(ranks: Ranks, plan: str) -> None:
    for found in ranks(2, _absent, plan):
        assert all(step[1] is None for step in found)
        assert all(step[0] is not None for step in found)
        if plan != "twobit":
            assert all(value == pytest.approx(1.5, rel=1e-6) for step in found for value in step[0])


def _train(rank: Rank, session: Any, model: nn.Module, optimizer: Any, *, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        with session.context.enter(Region.SHARDED, 2):
            gradients(model, rank.rank, step)
        optimizer.step()


def _held_over_a_pause(rank: Rank, plan: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is held before and after a step in which nothing of the model has a gradient."""
    with rank.session(plan) as session:
        model = net()
        optimizer = _sgd(model)
        _train(rank, session, model, optimizer, steps=3)
        before = session.compression.state_dict()["held"]
        torch.zeros((), requires_grad=True).backward()
        return before, session.compression.state_dict()["held"]


@pytest.mark.parametrize("plan", ["dgc,density=0.1", "onebit", "powersgd"])
def test_what_is_held_waits_for_the_next_gradient(ranks: Ranks, plan: str) -> None:
    for before, after in ranks(2, _held_over_a_pause, plan):
        torch.testing.assert_close(after, before, rtol=0, atol=0)


def _with_optimizer(rank: Rank, late: bool) -> torch.Tensor:
    """Trained by an optimizer that is made after its parameters are known, or before."""
    with rank.session("onebit") as session:
        model = net()
        for value in model.parameters() if late else ():
            session.reducer.adopt(value)
        _train(rank, session, model, _sgd(model), steps=4)
        return _flat(model)


def test_an_optimizer_that_is_made_late_has_its_momentum(ranks: Ranks) -> None:
    late, early = (ranks(2, _with_optimizer, each) for each in (True, False))
    torch.testing.assert_close(late, early, rtol=0, atol=1e-12)


def _saved(rank: Rank, plan: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Six steps at once, and three, what is held saved, and three more by another session."""

    def steps(session: Any, model: nn.Module, optimizer: Any, numbers: range) -> None:
        for step in numbers:
            optimizer.zero_grad()
            with session.context.enter(Region.SHARDED, 2):
                gradients(model, rank.rank, step)
            optimizer.step()

    with rank.session(plan) as session:
        whole = net()
        steps(session, whole, _sgd(whole), range(6))
    with rank.session(plan) as session:
        first = net()
        optimizer = _sgd(first)
        steps(session, first, optimizer, range(3))
        state, held = first.state_dict(), session.compression.state_dict()
        of_optimizer = optimizer.state_dict()
    with rank.session(plan) as session:
        again = net()
        again.load_state_dict(state)
        optimizer = _sgd(again)
        optimizer.load_state_dict(of_optimizer)
        session.compression.load_state_dict(held)
        steps(session, again, optimizer, range(3, 6))
    return _flat(whole), _flat(again)


@pytest.mark.parametrize("plan", ["onebit", "dgc,density=0.1,warm-up=4", "powersgd,warm-up=2"])
def test_what_is_held_back_is_saved_and_loaded(ranks: Ranks, plan: str) -> None:
    for whole, again in ranks(2, _saved, plan):
        torch.testing.assert_close(again, whole, rtol=0, atol=1e-12)


def _scaled(rank: Rank) -> None:
    with rank.session("onebit"):
        model = nn.Linear(2, 2)
        optimizer = _sgd(model)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(model(torch.ones(4, 2)).sum()).backward()
        scaler.step(optimizer)


def _sgd_under_qadam(rank: Rank) -> None:
    with rank.session("qadam,warm-up=1") as session:
        model = net()
        optimizer = _sgd(model)
        for step in range(2):
            with session.context.enter(Region.SHARDED, 2):
                gradients(model, rank.rank, step)
            optimizer.step()


def _twice(rank: Rank) -> None:
    from torch.utils.checkpoint import checkpoint

    with rank.session("onebit") as session:
        inner, outer = nn.Linear(4, 4), nn.Linear(4, 4)
        _sgd(nn.ModuleList([inner, outer]))
        with session.context.enter(Region.SHARDED, 2):
            rows = torch.ones(2, 4, requires_grad=True)
            one: Any = checkpoint(inner, rows, use_reentrant=True)
            two: Any = checkpoint(inner, outer(one), use_reentrant=True)
            two.sum().backward()


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (_scaled, "the loss is scaled"),
        (_sgd_under_qadam, "compressed=momentum averages the first moment of torch.optim.Adam or AdamW"),
        (_twice, "was computed a second time in one backward"),
    ],
)
def test_what_has_no_meaning_is_refused(ranks: Ranks, case: Any, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        ranks(2, case)


def test_three_ranks_have_no_adasum(ranks: Ranks) -> None:
    with pytest.raises(
        AssertionError, match="reduction=adasum adds gradients in pairs of pairs, and 3 ranks"
    ):
        ranks(3, _trained, "reduction=adasum", _sgd)
    assert issubclass(UsageError, Exception)
