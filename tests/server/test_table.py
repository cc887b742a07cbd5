"""A table against torch's optimizers, and what it admits, gives up, and is made of again."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ronde.errors import UsageError
from ronde.server.table.admission import AdmitAfter, AdmitByBloomFilter, AdmitWithProbability
from ronde.server.table.config import TableConfig
from ronde.server.table.eviction import EvictByAge, EvictByFrequency, EvictByNorm
from ronde.server.table.index import SEGMENTS
from ronde.server.table.initial import Normal, Uniform, Zeros
from ronde.server.table.optimizers import FTRL, SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from ronde.server.table.table import Table, segments_due

DIM, IDS, STEPS = 5, 40, 6


def table(optimizer: RowOptimizer | None = None, **options: Any) -> Table:
    return Table(TableConfig(dim=DIM, optimizer=optimizer or SGD(lr=0.1), dtype="float64", **options))


def seen(rows: Table, *ids: int) -> None:
    """Ids that had a gradient, of noughts."""
    rows.update(np.array(ids, np.int64), np.zeros((len(ids), DIM)))


def batches(seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Ids with repetitions and a gradient for each."""
    rng = np.random.default_rng(seed)
    return [(rng.integers(0, IDS, 30), rng.standard_normal((30, DIM))) for _ in range(STEPS)]


@pytest.mark.parametrize(
    ("own", "torchs"),
    [
        (SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
        (
            Adagrad(lr=0.1, eps=1e-8, initial_accumulator_value=0.2),
            lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-8, initial_accumulator_value=0.2),
        ),
        (
            Adam(lr=0.1, betas=(0.8, 0.95), eps=1e-6),
            lambda p: torch.optim.SparseAdam(p, lr=0.1, betas=(0.8, 0.95), eps=1e-6),
        ),
    ],
    ids=["sgd", "adagrad", "adam"],
)
def test_updates_are_those_of_torch(
    own: RowOptimizer, torchs: Callable[[Any], torch.optim.Optimizer]
) -> None:
    rows = table(own)
    names = np.random.default_rng(1).integers(-(2**62), 2**62, IDS)
    plain = torch.nn.Embedding(IDS, DIM, sparse=True, dtype=torch.float64)
    plain.weight.data.copy_(torch.from_numpy(rows.look_up(names)))
    optimizer = torchs(plain.parameters())
    for ids, gradients in batches():
        rows.update(names[ids], gradients)
        optimizer.zero_grad()
        plain(torch.from_numpy(ids)).backward(torch.from_numpy(gradients))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of torch's own, on its sparse tensors
            optimizer.step()
    assert np.abs(rows.look_up(names) - plain.weight.detach().numpy()).max() < 1e-14


def _rowwise(w: np.ndarray, state: np.ndarray, g: np.ndarray) -> None:
    state[0] += np.mean(g**2)
    w -= 0.1 * g / (np.sqrt(state[0]) + 1e-10)


def _ftrl(w: np.ndarray, state: np.ndarray, g: np.ndarray) -> None:
    lr, beta, l1, l2 = 0.1, 0.5, 0.3, 0.7
    square, linear = state[:DIM], state[DIM:]
    sigma = (np.sqrt(square + g**2) - np.sqrt(square)) / lr
    linear += g - sigma * w
    square += g**2
    shrunk = -(linear - np.sign(linear) * l1) / ((beta + np.sqrt(square)) / lr + l2)
    w[:] = np.where(np.abs(linear) <= l1, 0.0, shrunk)


@pytest.mark.parametrize(
    ("own", "reference"),
    [(RowwiseAdagrad(lr=0.1), _rowwise), (FTRL(lr=0.1, beta=0.5, l1=0.3, l2=0.7), _ftrl)],
    ids=["row-wise adagrad", "ftrl"],
)
def test_updates_are_those_of_the_formula(own: RowOptimizer, reference: Callable[..., None]) -> None:
    rows = table(own)
    weights = rows.look_up(np.arange(IDS))
    states = np.zeros((IDS, own.state(DIM)))
    touched = np.unique(np.concatenate([ids for ids, _ in batches()]))
    for ids, gradients in batches():
        rows.update(ids, gradients)
        for key in np.unique(ids):
            reference(weights[key], states[key], gradients[ids == key].sum(0))
    assert np.abs(rows.look_up(np.arange(IDS)) - weights).max() < 1e-13
    assert np.abs(rows.rows().states - states[touched]).max() < 1e-13


def test_first_values_are_of_id_and_seed_alone_and_as_they_are_said_to_be_spread() -> None:
    ids = np.arange(20_000)
    uniform = Table(TableConfig(dim=4, initial=Uniform(0.5))).look_up(ids)
    assert np.array_equal(Table(TableConfig(dim=4, initial=Uniform(0.5))).look_up(ids[::-1])[::-1], uniform)
    assert not np.array_equal(Table(TableConfig(dim=4, initial=Uniform(0.5), seed=1)).look_up(ids), uniform)
    assert -0.5 <= uniform.min() < -0.499
    assert 0.499 < uniform.max() < 0.5
    assert abs(uniform.var() - 1 / 12) < 1e-3
    normal = Table(TableConfig(dim=4, initial=Normal(2.0, mean=1.0))).look_up(ids)
    assert abs(normal.mean() - 1) < 0.03
    assert abs(normal.std() - 2) < 0.03
    assert abs(np.corrcoef(normal.T) - np.eye(4)).max() < 0.03
    assert not Table(TableConfig(dim=4, initial=Zeros())).look_up(ids).any()


def test_a_look_up_makes_no_row_and_gives_the_values_with_which_one_begins() -> None:
    rows = table()
    before = rows.look_up(np.array([3, 9]))
    assert len(rows) == 0
    seen(rows, 9, 3, 9)
    assert np.array_equal(rows.look_up(np.array([9, 3, 9])), before[[1, 0, 1]])
    assert rows.rows().ids.tolist() == [3, 9]
    assert rows.rows().counts.tolist() == [1, 2]


@pytest.mark.parametrize("admit", [AdmitAfter(3), AdmitByBloomFilter(3, ids=1000, error=1e-4)])
def test_an_id_gets_a_row_when_it_was_seen_often_enough(admit: Any) -> None:
    rows = table(admit=admit)
    first = rows.look_up(np.array([1, 2]))
    rows.update(np.array([1, 2, 2, 2]), np.ones((4, DIM)))
    assert rows.rows().ids.tolist() == [2]
    assert np.abs(rows.look_up(np.array([1, 2])) - first + [[0], [0.3]]).max() < 1e-15  # of 1 it was dropped
    seen(rows, 1)
    assert rows.rows().ids.tolist() == [2]
    seen(rows, 1)
    assert rows.rows().ids.tolist() == [1, 2]
    assert rows.rows().counts.tolist() == [1, 3]  # since they have a row
    again, loaded = table(admit=admit), table(admit=admit)
    seen(again, 5, 5)
    loaded.load(again.state())
    seen(loaded, 5)
    assert loaded.rows().ids.tolist() == [5]


def test_admission_by_chance_is_as_likely_as_said_and_the_same_when_it_is_repeated() -> None:
    rows, again = (table(admit=AdmitWithProbability(0.2)) for _ in range(2))
    for each in (rows, again):
        seen(each, *range(20_000))
    assert abs(len(rows) / 20_000 - 0.2) < 0.01
    assert np.array_equal(rows.rows().ids, again.rows().ids)
    seen(rows, *range(20_000))  # another step, other draws
    assert abs(len(rows) / 20_000 - 0.36) < 0.015


def _age(rows: Table, every: int) -> None:
    for _ in range(every):
        seen(rows, 1)


def test_rows_are_given_up_by_age_norm_and_frequency() -> None:
    old = table(evict=EvictByAge(8, every=4))
    seen(old, 1, 2)
    _age(old, 8)
    assert old.rows().ids.tolist() == [1, 2]
    _age(old, 4)
    assert old.rows().ids.tolist() == [1]
    small = table(evict=EvictByNorm(0.1, every=1))
    seen(small, 1, 2)
    small.update(np.array([2]), small.look_up(np.array([2])) * 9.999)  # at lr 0.1: to nearly nought
    assert small.rows().ids.tolist() == [1]
    seldom = table(evict=EvictByFrequency(2, every=1))
    seen(seldom, 1, 1, 1, 1, 2)
    assert seldom.rows().ids.tolist() == [1]
    seen(seldom)  # its 4 look-ups were halved to 2, and are now to 1
    assert seldom.rows().ids.tolist() == [1]
    seen(seldom)
    assert len(seldom) == 0


def test_a_row_that_comes_again_begins_anew() -> None:
    rows = table(Adagrad(lr=0.1))
    first = rows.look_up(np.array([7]))
    rows.update(np.array([7]), np.ones((1, DIM)))
    rows.remove(np.array([7, 8, 7]))
    assert len(rows) == 0
    seen(rows, 7)
    assert np.array_equal(rows.look_up(np.array([7])), first)
    assert not rows.rows().states.any()


@pytest.mark.parametrize("every", [1, 3, 64, 1000])
def test_every_segment_is_swept_once_in_so_many_steps(every: int) -> None:
    swept = [segment for step in range(every) for segment in segments_due(step + 5, every)]
    assert sorted(swept) == list(range(SEGMENTS))


def test_a_table_becomes_what_another_was() -> None:
    rows = table(Adam(lr=0.1))
    for ids, gradients in batches():
        rows.update(ids, gradients)
    again = table(Adam(lr=0.1))
    seen(again, 1000)
    again.load(rows.state())
    for ids, gradients in batches(1):
        for each in (rows, again):
            each.update(ids, gradients)
    left, right = rows.state(), again.state()
    assert left.keys() == right.keys()
    assert all(np.array_equal(left[name], right[name]) for name in left)
    with pytest.raises(
        UsageError, match="a table of 5 floats and 10 of optimizer state a row cannot be loaded"
    ):
        table(SGD(lr=0.1)).load(rows.state())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            lambda: table(SGD()).update(np.array([1]), np.zeros((1, DIM))),
            r"SGD\(\) of a table has no learning",
        ),
        (lambda: SGD(lr=-1.0), r"SGD\(lr=-1.0\): lr must be at least 0"),
        (
            lambda: Adam(betas=(0.9, 1.0)),
            (r"Adam\(betas=\(0.9, 1.0\)\): each must be at least 0 and less than 1"),
        ),
        (lambda: TableConfig(dim=0), "dim must be at least 1"),
        (lambda: TableConfig(dim=1, dtype="float16"), "choose float32 or float64"),
        (lambda: TableConfig(dim=1, max_rows=0), "max_rows=0: from 1 to 4294967294 are possible"),
        (lambda: AdmitAfter(0), r"AdmitAfter\(count=0\): count must be at least 1"),
        (lambda: AdmitWithProbability(0.0), "a probability above 0, at most 1"),
        (lambda: AdmitByBloomFilter(300), "its counters end at 255"),
        (lambda: AdmitByBloomFilter(3, error=1.0), "a share between 0 and 1"),
        (lambda: EvictByAge(0), r"EvictByAge\(steps=0\): steps must be above 0"),
        (lambda: Uniform(-1.0), "the bound must be at least 0"),
        (lambda: Normal(-1.0), "the standard deviation must be at least 0"),
    ],
)
def test_what_is_not_possible_is_said(wrong: Callable[[], Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        wrong()
