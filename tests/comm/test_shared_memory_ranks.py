"""Collectives through shared memory against what they are defined to give, on 2 and 3 ranks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from world_sizes import WORLD_SIZES

# Below, at and above what travels whole, and more than one chunk; with odd ends.
SIZES = (1, 3, 1000, 8192, 8193, 262_147, 600_001)
DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
)


def values(numel: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Small whole numbers, whose sums are exact in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 4, (numel,), generator=generator).to(dtype)


def sums(rank: Any) -> list[str]:
    wrong: list[str] = []
    shared = rank.groups["boundary"].backend.shared
    for dtype in DTYPES:
        for numel in SIZES:
            parts = [values(numel, dtype, seed) for seed in range(rank.world_size)]
            mine = parts[rank.rank].clone()
            shared.all_reduce(mine)
            expected = parts[0]
            for part in parts[1:]:
                expected = expected + part
            if not torch.equal(mine, expected):
                wrong.append(f"all_reduce {dtype} {numel}")
    return wrong


def moves(rank: Any) -> list[str]:
    wrong: list[str] = []
    shared = rank.groups["boundary"].backend.shared
    for dtype in DTYPES:
        for numel in SIZES:
            parts = [values(numel, dtype, seed) for seed in range(rank.world_size)]
            out = torch.empty(rank.world_size, numel, dtype=dtype)
            shared.all_gather(out, parts[rank.rank])
            if not torch.equal(out, torch.stack(parts)):
                wrong.append(f"all_gather {dtype} {numel}")
            root = numel % rank.world_size
            mine = parts[rank.rank].clone()
            shared.broadcast(mine, root)
            if not torch.equal(mine, parts[root]):
                wrong.append(f"broadcast {dtype} {numel}")
    return wrong


def exchanges(rank: Any) -> list[str]:
    """reduce_scatter, and all_to_all of sizes that differ between any two ranks, nought included."""
    wrong: list[str] = []
    shared = rank.groups["boundary"].backend.shared
    ranks = range(rank.world_size)
    for numel in SIZES:
        pieces = {(a, b): values(numel, torch.float64, 10 * a + b) for a in ranks for b in ranks}
        out = torch.empty(numel, dtype=torch.float64)
        shared.reduce_scatter(out, [pieces[rank.rank, each] for each in ranks])
        if not torch.equal(out, torch.stack([pieces[each, rank.rank] for each in ranks]).sum(0)):
            wrong.append(f"reduce_scatter {numel}")
        uneven = {(a, b): pieces[a, b][: numel * (a + 2 * b) // 7] for a in ranks for b in ranks}
        outs = [torch.empty_like(uneven[each, rank.rank]) for each in ranks]
        shared.all_to_all(outs, [uneven[rank.rank, each] for each in ranks])
        if not all(torch.equal(outs[each], uneven[each, rank.rank]) for each in ranks):
            wrong.append(f"all_to_all {numel}")
    return wrong


def reductions(rank: Any) -> list[str]:
    shared = rank.groups["boundary"].backend.shared
    parts = [values(1000, torch.int32, seed) for seed in range(rank.world_size)]
    expected = {
        "product": lambda a, b: a * b,
        "min": torch.minimum,
        "max": torch.maximum,
        "band": torch.bitwise_and,
        "bor": torch.bitwise_or,
        "bxor": torch.bitwise_xor,
    }
    wrong: list[str] = []
    for op, join in expected.items():
        mine = parts[rank.rank].clone()
        shared.all_reduce(mine, op)
        joined = parts[0]
        for part in parts[1:]:
            joined = join(joined, part)
        if not torch.equal(mine, joined):
            wrong.append(op)
    return wrong


def halves_are_rounded_once(rank: Any) -> bool:
    """The sum of bf16 values of many ranks is that of fp32, rounded."""
    shared = rank.groups["boundary"].backend.shared
    parts = [torch.full((100_000,), 1.0 + seed / 128, dtype=torch.bfloat16) for seed in range(3)]
    mine = parts[rank.rank].clone()
    shared.all_reduce(mine)
    exact = sum(part.float() for part in parts[: rank.world_size])
    return bool(torch.equal(mine, torch.as_tensor(exact).bfloat16()))


def many(rank: Any, rounds: int, seed: int) -> list[str]:
    """Collectives of random kind, size and dtype one after the other, checked to the bit."""
    shared = rank.groups["boundary"].backend.shared
    draw = random.Random(seed)
    ranks = range(rank.world_size)
    for turn in range(rounds):
        kind = draw.choice(("sum", "gather", "broadcast", "exchange", "barrier"))
        numel = draw.choice((draw.randrange(1, 64), draw.randrange(1, 20_000), draw.randrange(1, 400_000)))
        if draw.random() < 0.9:
            numel = min(numel, 20_000)
        dtype = draw.choice(DTYPES)
        parts = [values(numel, dtype, turn + each) for each in ranks]
        mine, root = parts[rank.rank].clone(), draw.randrange(rank.world_size)
        right = True
        if kind == "sum":
            shared.all_reduce(mine)
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            right = torch.equal(mine, total)
        elif kind == "gather":
            out = torch.empty(rank.world_size, numel, dtype=dtype)
            shared.all_gather(out, mine)
            right = torch.equal(out, torch.stack(parts))
        elif kind == "broadcast":
            shared.broadcast(mine, root)
            right = torch.equal(mine, parts[root])
        elif kind == "exchange":
            outs = [torch.empty(numel // (each + 1), dtype=dtype) for each in ranks]
            shared.all_to_all(outs, [mine[: numel // (rank.rank + 1)]] * rank.world_size)
            right = all(torch.equal(outs[each], parts[each][: numel // (each + 1)]) for each in ranks)
        else:
            shared.barrier()
        if not right:
            return [f"{turn}: {kind} of {numel} {dtype}"]
    return []


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("check", [sums, moves, exchanges, reductions])
def test_a_collective_gives_what_it_is_defined_to(
    ranks: Callable[..., list[Any]], check: Callable[..., Any], world_size: int
) -> None:
    assert ranks(world_size, check) == [[]] * world_size


def test_half_precision_sums_are_rounded_once(ranks: Callable[..., list[Any]]) -> None:
    assert ranks(3, halves_are_rounded_once) == [True] * 3


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_one_after_the_other(ranks: Callable[..., list[Any]], world_size: int) -> None:
    assert ranks(world_size, many, 1000, 5) == [[]] * world_size


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(50))
def test_a_hundred_thousand_one_after_the_other(ranks: Callable[..., list[Any]], seed: int) -> None:
    assert ranks(2 + seed % 2, many, 2000, seed) == [[]] * (2 + seed % 2)


def under_modes(rank: Any) -> list[float]:
    """What a script has switched on changes no collective, and no collective is seen by it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    comm = rank.groups["boundary"]
    totals: list[float] = []
    with torch.inference_mode():
        totals.append(comm.all_reduce(torch.ones(1001)).sum().item())
        gathered, _ = comm.all_gather_async(torch.ones(1001))
    totals.append(comm.all_reduce(torch.ones(1001)).sum().item())
    leaf = torch.ones(1001, requires_grad=True)
    totals.append(comm.all_reduce(leaf * 1).sum().item())
    ones = torch.ones(1001)
    with Watch(), torch.device("meta"):
        comm.all_reduce(ones)
        comm.barrier()
    totals.append(ones.sum().item())
    totals.append(gathered.sum().item())
    return [*totals, float(len([name for name in seen if "add" in name or "copy" in name]))]


def test_modes_of_the_script_do_not_matter(ranks: Callable[..., list[Any]]) -> None:
    assert ranks(2, under_modes) == [[2002.0] * 5 + [0.0]] * 2


def read_late(rank: Any) -> list[float]:
    """Sums, and what is gathered, read later, out of order, and after others have been begun."""
    comm = rank.groups["boundary"]
    totals: list[float] = []
    for turn in range(50):
        first, second, third = (torch.full((turn + 1,), float(each + rank.rank)) for each in range(3))
        gathered, last = comm.all_gather_async(third)
        pending = [comm.all_reduce_async(each) for each in (first, second, third)]
        pending.insert(turn % 4, last)
        third_of_all = gathered[:, 0]
        if turn % 3 == 0:
            comm.barrier()
        if turn % 3 == 1:
            comm.all_gather(torch.ones(100_000))
        for each in pending if turn % 2 else reversed(pending):
            each.wait()
        totals += [float(each.sum()) / (turn + 1) for each in (first, second, third)]
        assert third_of_all.tolist() == [2.0 + each for each in range(rank.world_size)]
    return sorted(set(totals))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_results_may_be_read_late(ranks: Callable[..., list[Any]], world_size: int) -> None:
    base = sum(range(world_size))
    expected = [float(base + world_size * each) for each in range(3)]
    assert ranks(world_size, read_late) == [expected] * world_size
