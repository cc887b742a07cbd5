"""An `EmbeddingTable` in a plain script is an `nn.Embedding` without a bound."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import ronde
from ronde.errors import UsageError

IDS = 50


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Model(nn.Module):
    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.top = nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(self.embedding(ids).mean(1))


def pair() -> tuple[Model, Model]:
    """The same model over a table, and over an `nn.Embedding`."""
    torch.manual_seed(0)
    own = Model(ronde.EmbeddingTable(8, optimizer=ronde.table.SGD()))
    plain = Model(nn.Embedding(IDS, 8))
    plain.embedding.weight.data.copy_(own.embedding(torch.arange(IDS)).detach())
    plain.top.load_state_dict(own.top.state_dict())
    return own, plain


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, IDS, (12, 4)), torch.randint(0, 3, (12,))


@torch.no_grad()
def apart(own: Model, plain: Model) -> float:
    rows = own.embedding(torch.arange(IDS)) - plain.embedding(torch.arange(IDS))
    return max(float(rows.abs().max()), float((own.top.weight - plain.top.weight).abs().max()))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_it_takes_the_steps_of_the_scripts_optimizer(set_to_none: bool) -> None:
    """With accumulation, a schedule, and a backward whose gradient is thrown away."""
    models = pair()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in models]
    schedules = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in optimizers]
    for _ in range(5):
        for part in range(3):
            ids, targets = batch()
            for model, optimizer in zip(models, optimizers):
                if part < 2:
                    optimizer.zero_grad(set_to_none)
                nn.functional.cross_entropy(model(ids), targets).backward()
        for optimizer, schedule in zip(optimizers, schedules):
            optimizer.step()
            schedule.step()
    assert apart(*models) < 1e-15


@pytest.mark.parametrize("set_to_none", [True, False])
def test_two_look_ups_of_a_step_both_count(set_to_none: bool) -> None:
    models = pair()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in models]
    for _ in range(3):
        (ids, targets), (others, _) = batch(), batch()
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad(set_to_none)
            loss = nn.functional.cross_entropy(model(ids) * model(others), targets)
            loss.backward()
            optimizer.step()
    assert apart(*models) < 1e-15


def test_the_factor_of_clipping_and_of_a_scaler_reaches_it() -> None:
    models = pair()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in models]
    for step in range(4):
        ids, targets = batch()
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad()
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
            loss = nn.functional.cross_entropy(model(ids), targets)
            scaler.scale(loss * (float("inf") if step == 2 else 1.0)).backward()
            scaler.unscale_(optimizer)
            if model is models[0]:
                norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            else:  # by the norm of the rest, as said
                nn.utils.clip_grads_with_norm_(model.parameters(), 0.01, norm)
            scaler.step(optimizer)
    assert apart(*models) < 1e-15


def test_another_optimizer_leaves_it_and_a_frozen_one_stays() -> None:
    own, plain = pair()
    top = torch.optim.SGD(own.top.parameters(), lr=0.5)
    ids, targets = batch()
    nn.functional.cross_entropy(own(ids), targets).backward()
    top.step()
    assert torch.equal(own.embedding(torch.arange(IDS)), plain.embedding.weight)
    own.embedding.anchor.requires_grad_(False)
    assert not own.embedding(ids).requires_grad


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_bags_are_those_of_embedding_bag(pooling: str) -> None:
    own = ronde.EmbeddingTable(8, pooling=pooling)
    ids, offsets = torch.randint(0, IDS, (20,)), torch.tensor([0, 3, 3, 11])
    bag = nn.EmbeddingBag(IDS, 8, mode=pooling)
    bag.weight.data.copy_(ronde.EmbeddingTable(8)(torch.arange(IDS)).detach())
    assert torch.allclose(own(ids, offsets), bag(ids, offsets), atol=1e-15, rtol=0)


def trained() -> Model:
    model = Model(ronde.EmbeddingTable(8))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        ids, targets = batch()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids), targets).backward()
        optimizer.step()
    return model


def test_rows_are_saved_and_loaded_and_copied() -> None:
    model = trained()
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    saved.seek(0)
    loaded = Model(ronde.EmbeddingTable(8))
    loaded.load_state_dict(torch.load(saved))
    copied: Any = copy.deepcopy(model)
    before = model.embedding(torch.arange(IDS)).detach()
    for other in (loaded, copied):
        assert torch.equal(other.embedding(torch.arange(IDS)), before)
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
        other(batch()[0]).sum().backward()
        optimizer.step()
        assert not torch.equal(other.embedding(torch.arange(IDS)), before)
    assert torch.equal(model.embedding(torch.arange(IDS)), before)


def test_ids_are_any_of_64_bits_and_a_look_up_makes_no_row() -> None:
    own = ronde.EmbeddingTable(4)
    ids = torch.tensor([[0, -1], [2**63 - 1, -(2**63)]])
    assert own(ids).shape == (2, 2, 4)
    assert len(own) == 0
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    own(ids).sum().backward()
    optimizer.step()
    assert len(own) == 4
    assert own(torch.empty(0, 3, dtype=torch.int64)).shape == (0, 3, 4)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            lambda: ronde.EmbeddingTable(4)(torch.ones(3)),
            r"ids are torch.float64; int64 is needed \(ids.long\(\)\)",
        ),
        (lambda: ronde.EmbeddingTable(4, dtype=torch.bfloat16), "choose torch.float32 or torch.float64"),
        (lambda: ronde.EmbeddingTable(4, pooling="max"), 'give "sum", "mean" or None'),
        (
            lambda: ronde.EmbeddingTable(4)(torch.ones(3).long(), torch.tensor([0])),
            "bags need both `offsets`",
        ),
    ],
)
def test_what_is_not_possible_is_said(wrong: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        wrong()


def test_gradients_that_wait_for_a_step_go_on_with_other_ranks() -> None:
    """A step takes the mean over ranks, so those of two ranks count half."""
    ids = torch.tensor([3, 5, 3])
    first, second, both = (ronde.EmbeddingTable(4, optimizer=ronde.table.SGD(lr=0.5)) for _ in range(3))
    for table, factor in ((first, 1.0), (second, 3.0), (both, 2.0)):
        (table(ids) * factor).sum().backward()
    resumed = ronde.EmbeddingTable(4, optimizer=ronde.table.SGD(lr=0.5))
    resumed.keep_gradients([*first.gradients_of_ranks(), *second.gradients_of_ranks()])
    resumed.anchor.grad = first.anchor.grad
    for table in (resumed, both):
        torch.optim.SGD(table.parameters(), lr=0.1).step()
    assert len(resumed) == 2
    assert torch.equal(resumed(ids), both(ids))


def test_a_table_may_be_freed_within_a_step_of_an_optimizer() -> None:
    """Torch iterates over hooks, among them those of the table that is freed."""
    tables = [ronde.EmbeddingTable(2)]

    def free(*_: Any) -> None:
        tables.clear()
        gc.collect()

    hooks = [register_optimizer_step_post_hook(each) for each in (free, lambda *_: None)]
    try:
        model = nn.Linear(1, 1)
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    finally:
        for each in hooks:
            each.remove()
    assert not tables
