"""Attention around a ring: one device's numbers and gradients, of parts that each rank works out alike."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from codes import without_code
from parallel.cut_models import Ranks
from ronde.errors import UsageError
from ronde.parallel.context.blockwise_attention import seen
from ronde.parallel.context.ring_attention import Ring, attend
from ronde.tensor.layout import Layout, memory_order
from ronde.testing.run_ranks import Rank

D = torch.float64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    tokens: int = 13
    keys: int = 13
    key_heads: int = 4
    causal: bool = False
    mask: str = ""
    dropout_p: float = 0.0
    scale: float | None = None
    dtype: torch.dtype = D
    mirrored: bool = False


CASES = {
    "both ways": Case(),
    "causal": Case(causal=True),
    "causal, fewer tokens than pieces": Case(causal=True, tokens=5, keys=5, mirrored=True),
    "causal, mirrored": Case(causal=True, mirrored=True),
    "grouped": Case(causal=True, key_heads=2, tokens=16, keys=16, mirrored=True),
    "some masked": Case(mask="some", mirrored=True),
    "a mask of keys": Case(mask="keys", key_heads=2),
    "a mask of queries": Case(mask="queries", mirrored=True),
    "added": Case(mask="added", scale=0.3),
    "much is added": Case(mask="lowest", mirrored=True),
    "dropout": Case(causal=True, dropout_p=0.3, mirrored=True),
    "dropout, grouped": Case(causal=True, dropout_p=0.3, key_heads=1),
    "dropout, masked": Case(dropout_p=0.3, mask="some", mirrored=True),
    "other keys": Case(tokens=9, keys=17),
    "more causal keys": Case(causal=True, tokens=11, keys=17, mirrored=True),
    "fewer causal keys": Case(causal=True, tokens=17, keys=9, mirrored=True),
    "float32": Case(causal=True, key_heads=2, dtype=torch.float32, mirrored=True),
    "bfloat16": Case(causal=True, dtype=torch.bfloat16, mirrored=True),
}
DAILY = ("grouped", "some masked", "much is added", "dropout, masked", "bfloat16")


def masked(kind: str, case: Case) -> torch.Tensor | None:
    shapes = {"some": (2, 1, case.tokens, case.keys), "keys": (2, 1, 1, case.keys)}
    if kind in ("some", "keys"):
        mask = torch.rand(shapes[kind]) > 0.3
        mask[0, 0, 0] = kind == "keys"  # the first query sees nothing
        return mask
    if kind == "queries":
        return torch.rand(2, 1, case.tokens, 1) > 0.2
    if kind == "added":
        return torch.randn(case.tokens, case.keys, dtype=case.dtype)
    if kind == "lowest":
        mask = torch.zeros(2, 1, case.tokens, case.keys, dtype=case.dtype)
        mask[..., 2:] = mask[0, 0, 1] = torch.finfo(case.dtype).min
        return mask
    return None


def differences(rank: Rank, case: Case) -> list[list[float]]:
    """Of this rank's result and gradients from its part of one device's."""
    comm = rank.groups["boundary"]
    torch.manual_seed(1)
    heads = (4, case.key_heads, case.key_heads)
    lengths = (case.tokens, case.keys, case.keys)
    # They lie in memory as a model's do.
    whole = [
        torch.randn(2, length, each, 8, dtype=case.dtype).transpose(1, 2).requires_grad_()
        for each, length in zip(heads, lengths, strict=True)
    ]
    mask = masked(case.mask, case)
    torch.manual_seed(3)
    wanted = F.scaled_dot_product_attention(
        *whole, mask, case.dropout_p, case.causal, scale=case.scale, enable_gqa=case.key_heads != 4
    )
    gradient = torch.randn(wanted.shape, dtype=case.dtype)
    expected = [wanted, *torch.autograd.grad(wanted, whole, gradient)]

    queries, keys = (
        Layout(2, length, comm.world_size, mirrored=case.mirrored) for length in (case.tokens, case.keys)
    )
    layouts = queries, keys, keys
    kept = None
    if case.dropout_p:
        torch.manual_seed(3)
        drawn = torch.empty(2, 4, case.tokens, case.keys, dtype=torch.bool).bernoulli_(1 - case.dropout_p)
        kept = queries.take(drawn, comm.rank)
    if mask is not None and mask.shape[-2] != 1:
        mask = queries.at(mask.dim() - 2).take(mask, comm.rank)
    ring = Ring(
        comm=comm,
        queries=queries.ranges(comm.rank),
        keys=[keys.ranges(each) for each in range(comm.world_size)],
        causal=case.causal,
        scale=8**-0.5 if case.scale is None else case.scale,
        dropout_p=case.dropout_p,
    )
    mine = [
        layout.take(each, comm.rank).detach().requires_grad_()
        for each, layout in zip(whole, layouts, strict=True)
    ]
    made = attend(ring, *mine, mask, kept)
    found = [made, *torch.autograd.grad(made, mine, queries.take(gradient, comm.rank))]
    assert memory_order(made) == memory_order(wanted)
    return [
        (each - layout.take(whole, comm.rank)).abs().flatten().tolist()
        for each, whole, layout in zip(found, expected, (queries, *layouts), strict=True)
    ]


def check(ranks: Ranks, count: int, case: Case) -> None:
    allowed = {D: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05}[case.dtype]
    for found in ranks(count, differences, case):
        assert all(each <= allowed for differences in found for each in differences), found


@pytest.mark.parametrize("name", DAILY)
def test_two_ranks_have_one_devices_numbers(ranks: Ranks, name: str):
    check(ranks, 2, CASES[name])


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [2, 3])
def test_every_case(ranks: Ranks, count: int, name: str):
    check(ranks, count, CASES[name])


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_four_ranks(four: Ranks, name: str):
    check(lambda _, *words: four(*words), 4, CASES[name])


def second_derivative(rank: Rank) -> str:
    comm = rank.groups["boundary"]
    layout = Layout(2, 6, comm.world_size)
    ranges = [layout.ranges(each) for each in range(comm.world_size)]
    ring = Ring(comm=comm, queries=ranges[comm.rank], keys=ranges, causal=True, scale=0.5)
    q, k, v = (torch.randn(1, 2, 3, 4, requires_grad=True) for _ in range(3))
    made = attend(ring, q, k, v)
    (first,) = torch.autograd.grad(made.square().sum(), q, create_graph=True)
    assert first.isfinite().all()
    try:
        first.sum().backward()
    except UsageError as error:
        return str(error)
    return ""


def test_a_second_derivative_is_refused(ranks: Ranks):
    for said in ranks(2, second_derivative):
        assert without_code(said).endswith("has no second derivative; take context-attention=gather")


def pairs(parts: Any, queries: Any, keys: Any) -> dict[tuple[int, int], int]:
    """How often each pair of a query's and a key's position is computed and seen."""
    rows, columns = ([at for a, b in pieces for at in range(a, b)] for pieces in (queries, keys))
    found: dict[tuple[int, int], int] = {}
    for part in parts:
        block = [(row, column) for row in rows[part.queries] for column in columns[part.keys]]
        mask = [True] * len(block) if part.mask is None else part.mask.flatten().tolist()
        for pair, is_seen in zip(block, mask, strict=True):
            if is_seen and (not part.diagonal or pair[1] <= pair[0]):
                found[pair] = found.get(pair, 0) + 1
    return found


@pytest.mark.parametrize("ranks_of_ring", [1, 2, 3, 4])
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("lengths", [(16, 16), (11, 11), (9, 17), (17, 9), (3, 3)])
def test_each_pair_that_is_seen_is_computed_once(
    ranks_of_ring: int, mirrored: bool, lengths: tuple[int, int]
):
    queries, keys = (Layout(0, length, ranks_of_ring, mirrored=mirrored) for length in lengths)
    found: dict[tuple[int, int], int] = {}
    for mine in range(ranks_of_ring):
        for theirs in range(ranks_of_ring):
            own, block = queries.ranges(mine), keys.ranges(theirs)
            found |= pairs(seen(own, block, causal=True), own, block)
    assert found == {(row, key): 1 for row in range(lengths[0]) for key in range(lengths[1]) if key <= row}


def test_mirrored_pieces_give_each_rank_as_much_to_do():
    ring = 4
    work: dict[bool, list[int]] = {}
    for mirrored in (False, True):
        layout = Layout(0, 64, ring, mirrored=mirrored)
        work[mirrored] = [
            sum(
                len(pairs(seen(layout.ranges(mine), block, causal=True), layout.ranges(mine), block))
                for block in map(layout.ranges, range(ring))
            )
            for mine in range(ring)
        ]
    assert len(set(work[True])) == 1
    assert max(work[False]) > 6 * min(work[False])
