"""Rows of torch's sparse embeddings are spread over ranks, and a script finds what one device has."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from codes import without_codes
from ronde.shards.copied_unit import CopiedUnit
from ronde.testing.run_ranks import Rank
from world_sizes import WORLD_SIZES

Ranks = Callable[..., list[Any]]
WORDS, DIM = 23, 4
PER_ROW = DIM * 8
Found = list[torch.Tensor]


class Net(nn.Module):
    def __init__(self, words: int = WORDS, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words = nn.Embedding(words, DIM, padding_idx=0, sparse=True, **options)
        self.bag = nn.EmbeddingBag(words, DIM, mode="mean", sparse=True, padding_idx=2)
        self.top = nn.Linear(2 * DIM, 1)
        self.double()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(torch.cat([self.words(ids).tanh().sum(1), self.bag(ids)], 1))


class Training:
    def __init__(self, model: nn.Module | None = None, **options: Any) -> None:
        self.model: Any = Net() if model is None else model
        self.draw = torch.Generator().manual_seed(2)
        tables = [p for name, p in self.model.named_parameters() if not name.startswith("top")]
        dense = [p for name, p in self.model.named_parameters() if name.startswith("top")]
        kind = options.pop("kind", torch.optim.SparseAdam)
        self.rows = kind(tables, lr=0.05, **options)
        self.others = torch.optim.Adam(dense, lr=0.01)

    def ids(self, rows: int = 12) -> torch.Tensor:
        return torch.randint(0, next(iter(self.model.parameters())).shape[0], (rows, 3), generator=self.draw)

    def backward(self, rows: int = 12) -> None:
        self.model(self.ids(rows)).square().mean().backward()

    def step(self) -> None:
        self.backward()
        self.update()

    def update(self) -> None:
        for optimizer in (self.rows, self.others):
            optimizer.step()
            optimizer.zero_grad()

    def found(self) -> Found:
        states = [self.rows.state_dict()["state"][index] for index in self.rows.state_dict()["state"]]
        state = [value.to_dense() for each in states for value in each.values() if torch.is_tensor(value)]
        return [*(p.detach().clone() for p in self.model.parameters()), *state]


def steps(kind: type[torch.optim.Optimizer], **options: Any) -> Found:
    training = Training(kind=kind, **options)
    for _ in range(4):
        training.step()
    return training.found()


def sparse_adam() -> Found:
    return steps(torch.optim.SparseAdam)


def sgd() -> Found:
    return steps(torch.optim.SGD)


def adagrad() -> Found:
    return steps(torch.optim.Adagrad, initial_accumulator_value=0.1)


def momentum() -> Found:
    return steps(torch.optim.SGD, momentum=0.9)


def accumulated() -> Found:
    training = Training()
    for rows in (12, 5, 2):
        training.backward(rows)
    training.update()
    training.rows.zero_grad(set_to_none=False)
    training.step()
    return training.found()


def gradient_is_read() -> Found:
    training = Training()
    training.backward()
    seen = [training.model.words.weight.grad.to_dense().clone()]
    training.backward()
    seen.append(training.model.words.weight.grad.to_dense().clone())
    training.model.bag.weight.grad = training.model.bag.weight.grad * 2
    training.update()
    training.backward()
    training.model.words.weight.grad = None
    training.update()
    return [*seen, *training.found()]


def saved_and_loaded() -> Found:
    training = Training()
    training.step()
    stream = io.BytesIO()
    torch.save((training.model.state_dict(), training.rows.state_dict()), stream)
    training.step()
    stream.seek(0)
    model, rows = torch.load(stream, weights_only=True)
    before = training.found()
    training.model.load_state_dict(model)
    training.rows.load_state_dict(rows)
    del model, rows
    training.step()
    training.step()
    return [*before, *training.found()]


def written() -> Found:
    training = Training()
    training.step()
    with torch.no_grad():
        training.model.words.weight.mul_(0.5)
        training.model.bag.weight[3] = 7
    view = training.model.words.weight.data
    training.step()
    view[5:9] = 1
    training.step()
    seen = view.clone()
    del view
    training.step()
    return [seen, *training.found()]


def copied() -> Found:
    training = Training()
    training.step()
    other = Training(copy.deepcopy(training.model))
    training.step()
    other.step()
    return [*training.found(), *other.found()]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words = nn.Embedding(WORDS, DIM, sparse=True).double()
        self.top = nn.Linear(DIM, DIM).double()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(self.words(ids).sum(1)) @ self.words.weight.t()


def tied() -> Found:
    training = Training(Tied(), kind=torch.optim.SGD)
    for _ in range(3):
        training.step()
    return training.found()


def once_sparse_then_dense() -> Found:
    training = Training(Tied(), kind=torch.optim.SGD)
    training.step()
    training.model.words(training.ids()).square().mean().backward()
    training.backward()
    training.model.words(training.ids()).square().mean().backward()
    training.update()
    return training.found()


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Embedding(WORDS, DIM, sparse=True, padding_idx=1).double()
        self.second = nn.EmbeddingBag(WORDS, DIM, sparse=True, mode="sum").double()
        self.second.weight = self.first.weight
        self.top = nn.Linear(DIM, 1).double()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        weights = torch.linspace(0.5, 1.5, ids.shape[1], dtype=torch.float64).expand(ids.shape)
        return self.top(self.first(ids).tanh().sum(1) + self.second(ids, per_sample_weights=weights))


def shared() -> Found:
    training = Training(Shared())
    for _ in range(3):
        training.step()
    return training.found()


class Ragged(nn.Module):
    """Bags of several lengths, of what is no cut batch."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.bag = nn.EmbeddingBag(WORDS, DIM, sparse=True, mode=mode, padding_idx=3).double()
        self.top = nn.Linear(DIM, 1).double()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(self.bag(ids.flatten(), torch.tensor([0, 4, 4, 9])))


def ragged() -> Found:
    found: Found = []
    for mode in ("sum", "mean"):
        training = Training(Ragged(mode))
        for _ in range(2):
            training.step()
        found += training.found()
    return found


def past_forward() -> Found:
    """Look-ups by the script itself, of ids that every rank has all of."""
    training = Training()
    training.step()
    weight = training.model.words.weight
    found = F.embedding(training.ids(), weight, padding_idx=0, sparse=True)
    found.square().mean().backward()
    F.embedding_bag(training.ids(), weight, mode="sum", sparse=True).square().mean().backward()
    training.update()
    return training.found()


def few_rows() -> Found:
    training = Training(Net(words=4))
    training.step()
    training.step()
    return training.found()


def moved() -> Found:
    """The weight has another dtype for a time."""
    training = Training()
    training.step()
    training.model.float()
    training.model.double()
    training.backward()
    training.model(training.ids()).sum().backward()
    training.update()
    return training.found()


def renormed() -> Found:
    training = Training(Net(max_norm=0.8))
    for _ in range(3):
        training.step()
    return training.found()


class Mixing(Net):
    """Rows depend on each other, so that the call that is watched is unwound."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out = super().forward(ids)
        return out * (1 + out.mean(0))


def mixing() -> Found:
    training = Training(Mixing())
    for _ in range(3):
        training.step()
    return training.found()


class Checkpointed(Net):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(super().forward, ids, use_reentrant=False)


def checkpointed() -> Found:
    training = Training(Checkpointed())
    for _ in range(3):
        training.step()
    return training.found()


class Weighted(Shared):
    """Weights of the ids in a bag are computed by the model."""

    def __init__(self) -> None:
        super().__init__()
        self.top_weights = nn.Parameter(torch.linspace(0.1, 1, WORDS, dtype=torch.float64))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(self.second(ids, per_sample_weights=self.top_weights[ids]))


def weighted() -> Found:
    training = Training(Weighted())
    for _ in range(3):
        training.step()
    return training.found()


def several_models() -> Found:
    found: Found = []
    for _ in range(2):
        training = Training()
        training.step()
        training.step()
        found += training.found()
    return found


def evaluated() -> Found:
    training = Training()
    training.step()
    training.model.eval()
    with torch.no_grad():
        whole = training.model(training.ids()).clone()
        one = training.model(training.ids(1)).clone()
    training.model.train()
    training.step()
    return [whole.detach(), one.detach(), *training.found()]


def hooked() -> Found:
    """A hook sees the whole gradient."""
    training = Training(kind=torch.optim.SGD)
    training.step()
    seen: Found = []
    weight = training.model.words.weight
    weight.register_post_accumulate_grad_hook(lambda each: seen.append(each.grad.to_dense().clone()))
    training.step()
    return [*seen, *training.found()]


def script_hooks() -> Found:
    """The script packs what autograd saves."""
    training = Training(Tied(), kind=torch.optim.SGD)
    with torch.autograd.graph.saved_tensors_hooks(lambda each: each.clone(), lambda each: each):
        training.step()
        training.backward()
    training.update()
    training.step()
    return training.found()


SITUATIONS = {
    function.__name__: function
    for function in (
        *(sparse_adam, sgd, adagrad, momentum, accumulated, gradient_is_read, saved_and_loaded, written),
        *(mixing, checkpointed, weighted, several_models, evaluated, hooked, script_hooks),
        *(copied, tied, once_sparse_then_dense, shared, ragged, past_forward, few_rows, moved, renormed),
    )
}


def situation(rank: Rank, name: str, mapped: bool, plan: str = "hybrid") -> tuple[Found, list[str]]:
    apart = mock.patch("ronde.shards.unit_table.map_unit", return_value=None)
    with nullcontext() if mapped else apart, rank.session(plan) as session:
        found = SITUATIONS[name]()
        return [each.clone() for each in found], without_codes(session.notes)


# Of each kind of use one: of the optimizer, the call, the gradient, the rows, the files.
EVERY_DAY = {
    *{"sparse_adam", "momentum", "weighted", "accumulated", "gradient_is_read", "written"},
    *{"saved_and_loaded", "few_rows", "mixing", "renormed"},
}


# torch says so once of its own Adagrad.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize(
    "mapped",
    [pytest.param(True, marks=pytest.mark.soak, id="once on the host"), pytest.param(False, id="apart")],
)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in EVERY_DAY else pytest.mark.soak) for each in SITUATIONS]
)
def test_ranks_have_what_one_device_has(ranks: Ranks, world_size: int, name: str, mapped: bool) -> None:
    expected = SITUATIONS[name]()
    for found, _ in ranks(world_size, situation, name, mapped):
        assert len(found) == len(expected)
        for here, there in zip(found, expected, strict=True):
            assert here.dtype == there.dtype
            torch.testing.assert_close(here, there, rtol=1e-11, atol=1e-13)


# Whole steps, batches of unequal rows, and fewer rows than ranks; the others are soaked.
IN_PIECES = {"sparse_adam", "ragged", "few_rows"}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in IN_PIECES else pytest.mark.soak) for each in SITUATIONS]
)
def test_rows_are_spread_where_batches_go_in_pieces(ranks: Ranks, name: str) -> None:
    expected = SITUATIONS[name]()
    for found, _ in ranks(2, situation, name, False, "hybrid,micro-batches=2"):
        for here, there in zip(found, expected, strict=True):
            torch.testing.assert_close(here, there, rtol=1e-11, atol=1e-13)


def held(rank: Rank) -> tuple[list[int], list[int], list[torch.Size], bool]:
    """Rows of weights, gradients and optimizer state that a rank has; whether any weight was whole."""
    apart = mock.patch("ronde.shards.unit_table.map_unit", return_value=None)
    with apart, rank.session("hybrid") as session:
        training = Training()
        training.step()
        with mock.patch.object(CopiedUnit, "gather", side_effect=AssertionError("gathered")):
            training.step()
            training.backward()
        weights = [training.model.words.weight, training.model.bag.weight]
        (parameters,), (gradients,) = session.state.parameters, session.state.gradients
        with torch._C.DisableTorchFunction():
            there = any(each.untyped_storage().nbytes() for each in weights)
        parts = [parameters.own(each).numel() // DIM for each in weights]
        gradients = [gradients.part(each).shape[0] for each in weights]
        states = [
            value.shape
            for entry in vars(training.rows)["state"].local.values()
            for value in entry.values()
            if torch.is_tensor(value)
        ]
        return parts, gradients, states, there


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_rank_has_its_own_rows_only(ranks: Ranks, world_size: int) -> None:
    rows = [0, 0]
    for parts, gradients, states, there in ranks(world_size, held):
        assert not there
        assert parts == gradients
        assert all(abs(each - WORDS / world_size) < 1 for each in parts)
        assert [each[0] for each in states] == [count for count in parts for _ in range(2)]
        rows = [before + new for before, new in zip(rows, parts, strict=True)]
    assert rows == [WORDS, WORDS]


def test_what_stays_whole_is_said(ranks: Ranks) -> None:
    for _, notes in ranks(2, situation, "renormed", True):
        assert any(
            "the rows of words.weight (Embedding) stay whole on every rank: max_norm" in n for n in notes
        )
        assert not any("bag.weight" in note for note in notes)
    for _, notes in ranks(2, situation, "momentum", True):
        assert any("SGD needs whole rows of an embedding on every rank in each step" in n for n in notes)


def out_of_range(rank: Rank) -> str:
    with rank.session("hybrid"):
        net = nn.Sequential(nn.Embedding(WORDS, DIM, sparse=True))
        net(torch.tensor([[1], [2], [3]]))
        try:
            net(torch.tensor([[1], [2], [WORDS]]))
        except IndexError as error:
            return str(error)
    return "did not raise"


def test_an_id_out_of_range_raises_what_torch_raises(ranks: Ranks) -> None:
    assert ranks(2, out_of_range) == ["index out of range in self"] * 2
