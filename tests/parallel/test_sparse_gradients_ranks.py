"""Embeddings with sparse gradients under plans that cut other state: a script finds what one device has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ronde
from ronde.comm.lockstep_check import LockstepCheck
from ronde.errors import UsageError
from ronde.sync.parameter_name import parameter_name
from ronde.testing.run_ranks import Rank
from ronde.trace.lockstep_board import LockstepBoard
from world_sizes import WORLD_SIZES

Ranks = Callable[..., list[Any]]
Found = list[torch.Tensor]
BATCH, WORDS, DIM = 12, 50, 4


class Bags(nn.Module):
    """Facebook's DLRM: offsets stacked as [tables, rows], flat ids of each table in a list."""

    def __init__(self, tables: int, sparse: bool) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(WORDS, DIM, mode="sum", sparse=sparse) for _ in range(tables)
        )
        self.top = nn.Linear(DIM * (1 + tables), 1)

    def forward(self, x: torch.Tensor, offsets: Any, ids: Any) -> torch.Tensor:
        found = [bag(each, starts) for bag, each, starts in zip(self.bags, ids, offsets, strict=True)]
        return self.top(torch.cat([x, *found], dim=1))


def stacked_offsets(form: str, tables: int, sparse: bool) -> Found:
    torch.manual_seed(0)
    model = Bags(tables, sparse).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: Found = []
    for _ in range(3):
        lengths = torch.randint(1, 5, (tables, BATCH))
        if form == "of equal lengths":
            lengths = torch.full((tables, BATCH), 3)
        offsets: Any = lengths.cumsum(1) - lengths
        ids: Any = [torch.randint(0, WORDS, (int(each.sum()),)) for each in lengths]
        if form == "in a list":
            offsets = list(offsets)
        if form == "of equal lengths":
            ids = torch.stack(ids)
        loss = model(torch.randn(BATCH, DIM, dtype=torch.float64), offsets, ids).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.detach().clone())
    return [*found, *(each.detach().clone() for each in model.parameters())]


class Rated(nn.Module):
    """Of three tables one is not looked up in every step, and one has a row without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(40, 6, sparse=True)
        self.item = nn.Embedding(60, 6, sparse=True, padding_idx=0)
        self.bag = nn.EmbeddingBag(WORDS, 6, mode="mean", sparse=True)
        self.top = nn.Sequential(nn.Linear(18, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, user: torch.Tensor, item: torch.Tensor, bag: torch.Tensor | None) -> torch.Tensor:
        pooled = self.user(user) * 0 if bag is None else self.bag(bag)
        return self.top(torch.cat([self.user(user), self.item(item), pooled], dim=1)).squeeze(1)


def unused() -> Found:
    torch.manual_seed(25)
    model = Rated().double()
    optimizers = [
        torch.optim.SparseAdam([model.user.weight, model.item.weight], lr=1e-2),
        torch.optim.Adagrad(model.bag.parameters(), lr=1e-2),
        torch.optim.Adam(model.top.parameters(), lr=1e-2),
    ]
    found: Found = []
    for step in range(6):
        user, item = torch.randint(0, 8, (9,)), torch.randint(0, 60, (9,))
        item[:2] = 0
        loss = model(user, item, torch.randint(0, WORDS, (9, 4)) if step % 3 else None).square().mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        given = [each.grad for each in model.parameters()]
        found += [loss.detach().clone(), torch.tensor([each is not None for each in given])]
        found.append(model.user.weight.grad.to_dense().clone())
        for optimizer in optimizers:
            optimizer.step()
    states = [entry for each in optimizers for entry in each.state_dict()["state"].values()]
    found += [value.clone() for entry in states for value in entry.values() if torch.is_tensor(value)]
    return [*found, *(value.clone() for value in model.state_dict().values())]


def checked(rank: Rank, plan: str, piece: Callable[..., Found], *args: Any) -> Found:
    """What a piece of script finds while ranks compare what they do, and on which lines."""
    comm = rank.groups["boundary"]
    name = "-".join(map(str, (plan, piece.__name__, *args)))
    board = LockstepBoard(Path(rank.directory, f"{name}.board"), rank.rank, rank.world_size)
    with rank.session(plan):
        comm.check = LockstepCheck(board, first_rank=0)
        try:
            return piece(*args)
        finally:
            comm.check.close()
            comm.check = None


def compare(ranks: Ranks, world_size: int, plan: str, piece: Callable[..., Found], *args: Any) -> None:
    expected = piece(*args)
    for found in ranks(world_size, checked, plan, piece, *args):
        assert len(found) == len(expected)
        for here, there in zip(found, expected, strict=True):
            torch.testing.assert_close(here, there, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize(("plan", "sparse"), [("hybrid", True), ("zero3", False)])
def test_bags_whose_offsets_are_stacked(ranks: Ranks, world_size: int, plan: str, sparse: bool) -> None:
    """On one rank only offsets do not begin with nought: it leaves the model before the others."""
    compare(ranks, world_size, plan, stacked_offsets, "", 2, sparse)


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["ddp", "hybrid", "zero3", "ps", "ps,servers=2"])
@pytest.mark.parametrize("form", ["", "in a list", "of equal lengths"])
@pytest.mark.parametrize("tables", [1, 2, 3])
@pytest.mark.parametrize("sparse", [True, False])
def test_bags_of_other_forms(ranks: Ranks, plan: str, form: str, tables: int, sparse: bool) -> None:
    compare(ranks, 2, plan, stacked_offsets, form, tables, sparse)


# torch says so once of its own Adagrad.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize(
    "plan",
    ["zero3"]
    + [pytest.param(each, marks=pytest.mark.soak) for each in ("ps", "zero1", "zero2", "central", "hybrid")],
)
def test_tables_that_are_not_used_in_every_step(ranks: Ranks, world_size: int, plan: str) -> None:
    compare(ranks, world_size, plan, unused)


class ByHand(nn.Module):
    """A sparse look-up in a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WORDS, DIM))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self.weight, sparse=True)


class Towers(nn.Module):
    """Sparse embeddings and tables before and between dense parts; one table is looked up twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ronde.EmbeddingTable(DIM, optimizer=ronde.table.Adagrad(lr=0.1), dtype=torch.float64)
        self.late = nn.ModuleList([nn.Linear(DIM, DIM), ronde.EmbeddingTable(DIM, dtype=torch.float64)])
        self.words, self.by_hand = nn.Embedding(WORDS, DIM, sparse=True, padding_idx=0), ByHand()
        self.bag = nn.EmbeddingBag(WORDS, DIM, mode="mean", sparse=True)
        self.bottom = nn.Sequential(nn.Linear(DIM, 16), nn.ReLU(), nn.Linear(16, DIM))
        self.top = nn.Sequential(nn.Linear(3 * DIM, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        rows = self.table(ids[:, :2]).sum(1) * self.table(ids[:, 2:]).sum(1)
        made = self.bottom(x) * rows + self.late[0](self.words(ids).mean(1)) + self.by_hand(ids[:, 0])
        return self.top(torch.cat([made, rows + self.bag(ids), self.late[1](ids[:, 0])], 1)).squeeze(1)


def towers(by_step: bool = False) -> Found:
    torch.manual_seed(1)
    model = Towers().double()
    sparse = [model.words.weight, model.bag.weight]
    rows = torch.optim.SparseAdam(sparse, lr=0.05)
    by_hand = torch.optim.SGD([model.by_hand.weight], lr=0.1)
    known = {id(each) for each in (*sparse, model.by_hand.weight)}
    others = torch.optim.AdamW([each for each in model.parameters() if id(each) not in known], lr=0.01)
    train = ronde.Step(model, others, F.mse_loss)
    if by_step:
        for each in (rows, by_hand):
            others.register_step_pre_hook(lambda *_, each=each: each.step())
    found: Found = []
    for step in range(10):
        ids, x = torch.randint(0, WORDS, (13, 5)), torch.randn(13, DIM, dtype=torch.float64)
        y = torch.randn(13, dtype=torch.float64)
        if step % 3 != 2 or by_step:
            for each in (rows, by_hand, others):
                each.zero_grad()
        if by_step:
            found.append(train(x, ids, target=y).clone())
            continue
        loss = F.mse_loss(model(x, ids), y)
        loss.backward()
        assert model.words.weight.grad.layout is torch.sparse_coo
        found.append(model.words.weight.grad.to_dense().clone())
        found.append(nn.utils.clip_grad_norm_(model.top.parameters(), 0.5).detach().clone())
        for each in (rows, by_hand, others):
            each.step()
        found.append(loss.detach().clone())
    model.eval()
    with torch.no_grad():
        found.append(torch.tensor(model(x, ids).tolist(), dtype=torch.float64))
    tables = [model.table.get_extra_state(), model.late[1].get_extra_state()]
    found += [each.double() for state in tables for each in state.values()]
    return [*found, *(each.detach().clone() for each in model.parameters())]


@pytest.mark.parametrize(
    ("world_size", "plan"),
    [(2, "pipeline=2,micro-batches=3")]
    + [
        pytest.param(ranks, plan, marks=pytest.mark.soak)
        for ranks, plan in [
            (4, "data=2,pipeline=2,sparse=sharded,micro-batches=2"),
            (3, "pipeline=3"),
            (4, "tensor=2,pipeline=2"),
            (4, "data=2,pipeline=2"),
            (4, "data=2,pipeline=2,zero1"),
            (4, "data=2,pipeline=2,zero2"),
            (4, "data=2,pipeline=2,zero3"),
            (4, "data=2,pipeline=2,central"),
            (4, "data=2,pipeline=2,zero1,offload=optimizer"),
            (4, "data=2,pipeline=2,zero3,offload=all,sparse=sharded"),
            (4, "data=2,pipeline=2,recompute=full,sparse=sharded"),
        ]
    ],
)
def test_tables_beside_stages(ranks: Ranks, world_size: int, plan: str) -> None:
    compare(ranks, world_size, plan, towers)


# A step that holds a table runs by the other schedule: its gradients count as they come.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.soak
@pytest.mark.parametrize(("world_size", "plan"), [(2, "pipeline=2"), (4, "data=2,pipeline=2,sparse=sharded")])
@pytest.mark.parametrize("piece", [towers, None])
def test_tables_beside_stages_that_go_by_turns(ranks: Ranks, world_size: int, plan: str, piece: Any) -> None:
    plan += ",micro-batches=3,schedule=1f1b"
    if piece is None:
        compare(ranks, world_size, plan, unused)
    else:
        compare(ranks, world_size, plan, towers, True)


def few_rows() -> Found:
    """Of five rows two ranks have three and two: each looks a table up as often as the other."""
    torch.manual_seed(2)
    model = nn.Sequential(ronde.EmbeddingTable(DIM, dtype=torch.float64), nn.Linear(DIM, 1).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: Found = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randint(0, WORDS, (5,))).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.detach().clone())
    found += [each.double() for each in model[0].get_extra_state().values()]
    return [*found, *(each.detach().clone() for each in model[1].parameters())]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_ranks_cut_their_rows_into_as_many_pieces(ranks: Ranks, world_size: int) -> None:
    compare(ranks, world_size, "micro-batches=3,sparse=sharded", few_rows)


class Computed(nn.Module):
    """Ids of a table that a stage computes."""

    def __init__(self) -> None:
        super().__init__()
        self.choose = nn.Sequential(nn.Linear(DIM, DIM), nn.Linear(DIM, 9))
        self.table = ronde.EmbeddingTable(DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(self.choose(x).argmax(1))


def looks_up_what_a_stage_chose(rank: Rank) -> str:
    with rank.session("pipeline=2"):
        model, x = Computed(), torch.ones(BATCH, DIM)
        with pytest.raises(UsageError) as raised:
            model(x)
    return str(raised.value)


def test_ids_that_one_stage_computes_are_refused(ranks: Ranks) -> None:
    said = ranks(2, looks_up_what_a_stage_chose)
    assert said[0] == said[1]
    assert said[0].startswith("EmbeddingTable is looked up by ids that one stage of pipeline=2 computes")


class Picked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.table = nn.Parameter(torch.ones(6, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.gather(self.inner.table, 0, ids, sparse_grad=True)


def picks(rank: Rank) -> str:
    with rank.session():
        model = Picked()
        model(torch.zeros(4, 1, dtype=torch.int64)).sum().backward()
    return ""


def test_another_sparse_gradient_is_refused_by_its_name(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match=r"inner\.table has a sparse gradient that is not from"):
        ranks(2, picks)


def test_a_parameter_has_the_name_of_its_model() -> None:
    model = nn.Sequential(Picked())
    assert parameter_name(model[0].inner.table) == "0.inner.table"
    assert parameter_name(nn.Parameter(torch.ones(2, 3))) == "a parameter of shape [2, 3]"
