"""Exceptions of one rank that the script catches are raised on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ronde.testing.run_ranks import Rank

STEPS, BAD = 9, 4


def _trained(
    model: nn.Module,
    step: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor],
    inputs: Callable[[int], torch.Tensor],
    *,
    momentum: float = 0.9,
    bad: tuple[int, ...] = (BAD,),
) -> list[Any]:
    """What training says of each step, and the parameters and buffers at its end."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    said: list[Any] = []
    for number in range(STEPS):
        x, y = inputs(number), torch.randint(0, 3, (6,))
        optimizer.zero_grad()
        if number in bad:
            x[5] = -1  # the last rank's
        try:
            loss = step(model, x, y)
            loss.backward()
        except Exception as error:
            said.append((number, type(error).__name__.replace("Local", "ArithmeticError"), str(error)))
            continue
        optimizer.step()
        said.append(loss.item())
    return [
        *said,
        *(each.detach().flatten().tolist() for each in model.state_dict().values()),
        torch.rand(1).item(),
    ]


def _ids(number: int) -> torch.Tensor:
    return torch.randint(0, 20, (6, 2))


def _rows(number: int) -> torch.Tensor:
    return torch.rand(6, 12)


def bad_label() -> list[Any]:
    def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x.abs()), y.where(x[:, 0] >= 0, 7))

    return _trained(nn.Linear(12, 3), step, _rows)


def not_a_probability() -> list[Any]:
    model = nn.Sequential(nn.Linear(12, 3), nn.Sigmoid())

    def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy(model(x) * x[:, :1].sign(), F.one_hot(y, 3).to(x.dtype))

    return _trained(model, step, _rows)


def bad_id() -> list[Any]:
    model = nn.Sequential(nn.Embedding(20, 6), nn.Flatten(), nn.Linear(12, 3))
    return _trained(model, lambda model, x, y: F.cross_entropy(model(x), y), _ids)


def before_norm_and_dropout() -> list[Any]:
    """Raise on one rank while others wait for statistics between two draws."""
    model = nn.Sequential(
        nn.Embedding(20, 6),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.BatchNorm1d(12),
        nn.Dropout(0.2),
        nn.Linear(12, 3),
    )
    return _trained(model, lambda model, x, y: F.cross_entropy(model(x), y), _ids)


class _Hides(nn.Module):
    """Goes on after whatever is raised around its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.last = nn.Embedding(20, 6), nn.BatchNorm1d(12), nn.Linear(12, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.table(ids).flatten(1)
        try:
            h = self.norm(h)
        except:  # noqa: E722
            h = h * 1
        return self.last(self.norm(h))


def hidden_by_the_model() -> list[Any]:
    return _trained(_Hides(), lambda model, x, y: F.cross_entropy(model(x), y), _ids)


class _GoesOn(nn.Module):
    """Catches what it raises, and goes on with other ids; by a module or by a function."""

    def __init__(self, look_up: Callable[[nn.Embedding, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.table, self.norm, self.last = nn.Embedding(20, 6), nn.BatchNorm1d(12), nn.Linear(12, 3)
        self.look_up = look_up

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        try:
            h = self.look_up(self.table, ids)
        except IndexError:
            h = self.table(ids.clamp(min=0, max=0))
        return self.last(self.norm(h.flatten(1)))


def caught_by_the_model(
    look_up: Callable[[nn.Embedding, torch.Tensor], torch.Tensor] = nn.Embedding.__call__,
) -> list[Any]:
    said = _trained(_GoesOn(look_up), lambda model, x, y: F.cross_entropy(model(x), y), _ids)
    assert isinstance(said[BAD], float)
    return said


class _Checked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (rows,) = ctx.saved_tensors
        if (rows < 0).any():
            raise FloatingPointError("a negative row")
        return gradients[0], None


class _ChecksBackward(nn.Module):
    def __init__(self, *, norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8) if norm else nn.Tanh())
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(_Checked.apply(self.first(x), x))


def in_backward() -> list[Any]:
    return _trained(_ChecksBackward(), lambda model, x, y: F.cross_entropy(model(x), y), _rows)


def in_backward_of_norm() -> list[Any]:
    said = _trained(_ChecksBackward(norm=True), lambda model, x, y: F.cross_entropy(model(x), y), _rows)
    assert len(said) == STEPS + 10
    return said


def gradients_asked() -> list[Any]:
    def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        return slope.square().mean()

    return _trained(_ChecksBackward(), step, _rows)


class _Own(Exception):
    def __init__(self, row: int, *, why: str) -> None:
        super().__init__(f"row {row}: {why}")


class _Raises(nn.Linear):
    """Raises where there is a negative row, which nobody reads but torch."""

    words = "negative"
    table: torch.Tensor

    def __init__(self, kind: str) -> None:
        super().__init__(12, 3)
        self.kind = kind
        self.register_buffer("table", torch.zeros(1, 3))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        try:
            return super().forward(input) + F.embedding((input[:, 0] < 0).long(), self.table)
        except IndexError:
            raise self.error() from None

    def error(self) -> Exception:
        if self.kind == "memory":
            return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if self.kind == "host memory":
            return MemoryError()
        if self.kind == "own":
            return _Own(5, why=self.words)
        return type("Local", (ArithmeticError,), {})("a class made here")


def raising(kind: str) -> list[Any]:
    return _trained(_Raises(kind), lambda model, x, y: F.cross_entropy(model(x), y), _rows, bad=(BAD, 6))


def _skipping(step: Callable[[Callable[[], None]], None]) -> list[Any]:
    """Train by steps that skip what raises an IndexError."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Embedding(20, 6), nn.Flatten(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said: list[Any] = []
    for number in range(STEPS):
        ids = _ids(number)
        ids[5, 1] = 99 if number == BAD else 0

        def work(ids: torch.Tensor = ids) -> None:
            loss = model(ids).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(loss.item())

        step(work)
    return said


def suppressed() -> list[Any]:
    def step(work: Callable[[], None]) -> None:
        with suppress(IndexError):
            work()

    return _skipping(step)


def skipped_by_a_manager() -> list[Any]:
    lines: list[Any] = []

    @contextmanager
    def skip_bad() -> Iterator[None]:
        try:
            yield
        except IndexError as error:
            lines.append(str(error))

    def step(work: Callable[[], None]) -> None:
        with skip_bad():
            work()

    return _skipping(step) + lines


class _Samples(Dataset[Any]):
    def __len__(self) -> int:
        return 36

    def __init__(self, broken: type[Exception] = ValueError) -> None:
        self.broken = broken

    def __getitem__(self, place: int) -> Any:
        if place in (9, 14):
            raise self.broken(f"sample {place} is broken")
        return torch.arange(12) * float(place) / 36, place % 3


def bad_sample(workers: int = 0, shuffle: bool = False) -> list[Any]:
    torch.manual_seed(3)
    model = nn.Linear(12, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said: list[Any] = []
    for _ in range(2):
        batches: Iterator[Any] = iter(DataLoader(_Samples(), 6, shuffle=shuffle, num_workers=workers))
        while True:
            try:
                x, y = next(batches)
            except StopIteration:
                break
            except ValueError as error:
                said.append(str(error).splitlines()[-1])
                continue
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(loss.item())
    return said


def stopped_by_a_sample() -> list[Any]:
    model = nn.Linear(12, 3)
    batches: Iterator[Any] = iter(DataLoader(_Samples(StopIteration), 6))
    said: list[Any] = []
    while True:
        try:
            x, _ = next(batches)
        except (StopIteration, ValueError) as error:
            return [*said, str(error)]
        said.append(model(x).sum().item())


PIECES = {
    "bad_label": bad_label, "not_a_probability": not_a_probability, "bad_id": bad_id,
    "before_norm_and_dropout": before_norm_and_dropout, "in_backward": in_backward,
    "caught_by_the_model": caught_by_the_model,
    "function_caught": lambda: caught_by_the_model(lambda table, ids: F.embedding(ids, table.weight)),
    "hidden_by_the_model": hidden_by_the_model, "stopped_by_a_sample": stopped_by_a_sample,
    "in_backward_of_norm": in_backward_of_norm, "gradients_asked": gradients_asked,
    "memory": lambda: raising("memory"), "host memory": lambda: raising("host memory"),
    "own": lambda: raising("own"), "local": lambda: raising("local"),
    "suppressed": suppressed, "skipped_by_a_manager": skipped_by_a_manager, "bad_sample": bad_sample,
    "shuffled": lambda: bad_sample(shuffle=True), "bad_sample_of_workers": lambda: bad_sample(2),
}  # fmt: skip


def _on_a_rank(rank: Rank, name: str, plan: str) -> list[Any]:
    with rank.session(plan):
        return _in_double(name)


def _in_double(name: str) -> list[Any]:
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(0)
        return PIECES[name]()
    finally:
        torch.set_default_dtype(torch.float32)


def _compare(said: list[Any], right: list[Any]) -> None:
    assert len(said) == len(right)
    for mine, other in zip(said, right, strict=True):
        if isinstance(other, (str, tuple)):
            assert mine == other
        else:
            numpy.testing.assert_allclose(mine, other, rtol=1e-11, atol=1e-12)


def _check(ranks: Any, world_size: int, name: str, plan: str) -> None:
    right = _in_double(name)
    for said in ranks(world_size, _on_a_rank, name, plan):
        _compare(said, right)


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("bad_label", "tensor=2"),
        ("before_norm_and_dropout", "ddp"),
        ("caught_by_the_model", "ddp"),
        ("hidden_by_the_model", "ddp"),
        ("in_backward", "zero3"),
        ("own", "ddp"),
        ("suppressed", "ddp"),
        ("skipped_by_a_manager", "ddp"),
        ("bad_sample", "ddp"),
        ("stopped_by_a_sample", "ddp"),
    ],
)
def test_as_on_one_device(ranks: Any, name: str, plan: str) -> None:
    _check(ranks, 2, name, plan)


# What a pipeline refuses; and what it can only end, as one rank waits for another alone in backward.
_NOT_IN_STAGES = {
    "before_norm_and_dropout",
    "caught_by_the_model",
    "function_caught",
    "hidden_by_the_model",
    "in_backward",
    "in_backward_of_norm",
    "gradients_asked",
}


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["ddp", "zero1", "zero2", "zero3", "tensor=2", "pipeline=2"])
@pytest.mark.parametrize("name", list(PIECES))
def test_under_every_plan(ranks: Any, name: str, plan: str) -> None:
    if plan == "pipeline=2" and name in _NOT_IN_STAGES:
        pytest.skip("ends with the exception of its rank")
    _check(ranks, 2, name, plan)


def _votes(rank: Rank, *, caught: bool) -> int:
    with rank.session() as session:
        torch.manual_seed(0)
        model = nn.Linear(12, 3)

        def step() -> None:
            F.cross_entropy(model(torch.rand(6, 12)), torch.randint(0, 3, (6,))).backward()

        def caught_step() -> None:
            try:
                step()
            except RuntimeError:
                model.zero_grad()

        def ended_step() -> None:
            try:
                step()
            except KeyboardInterrupt:
                model.zero_grad()

        for _ in range(4):
            step()
        before = session.everybody.collectives
        (caught_step if caught else ended_step)()
        return session.everybody.collectives - before


def test_ranks_vote_where_the_script_catches_only(ranks: Any) -> None:
    """After a call, a loss and a backward."""
    (alone, _), (caught, _) = ranks(2, partial(_votes, caught=False)), ranks(2, partial(_votes, caught=True))
    assert caught - alone == 3


def _several(rank: Rank) -> str:
    with rank.session():
        model = _Raises("own")
        for _ in range(4):
            model(torch.rand(6, 12))
        _Raises.words = f"as rank {rank.rank} has it"
        try:
            model(-torch.rand(6, 12))
        except _Own as error:
            return str(error)
        finally:
            _Raises.words = "negative"
    return "nothing"


def test_of_several_the_lowest_rank_is_heard(ranks: Any) -> None:
    assert ranks(3, _several) == ["row 5: as rank 0 has it"] * 3
