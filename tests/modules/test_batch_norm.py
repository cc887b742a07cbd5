"""Batch norm over ranks in every layout and precision: threads stand for ranks, which costs no process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ronde.modules import batch_norm

Arrange = Callable[[torch.Tensor], torch.Tensor]


class ThreadComm:
    """The two collectives that batch norm needs, among threads."""

    def __init__(self, rank: int, barrier: threading.Barrier, slots: list[Any]) -> None:
        self.rank, self.barrier, self.slots = rank, barrier, slots
        self.calls: list[str] = []

    def _exchange(self, name: str, tensor: torch.Tensor) -> list[torch.Tensor]:
        self.calls.append(name)
        self.slots[self.rank] = tensor.clone()
        self.barrier.wait(60)
        found = list(self.slots)
        self.barrier.wait(60)
        return found

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._exchange("all_gather", tensor))

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.copy_(torch.stack(self._exchange("all_reduce", tensor)).sum(0))


def _as_it_is(value: torch.Tensor) -> torch.Tensor:
    return value


def _channels_last(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous(memory_format=torch.channels_last)


def _transposed(value: torch.Tensor) -> torch.Tensor:
    return value.transpose(1, -1).contiguous().transpose(1, -1)


@dataclass(frozen=True, slots=True)
class Case:
    rows: tuple[int, ...] = (4, 3)
    shape: tuple[int, ...] = (5, 6, 4)
    dtype: torch.dtype = torch.float64
    parameters: torch.dtype | None = torch.float64
    bias: bool = True
    input: Arrange = _as_it_is
    gradient: Arrange = _as_it_is
    input_gradient: bool = True
    tolerance: float = 1e-13


CASES: dict[str, Case] = {
    "images": Case(),
    "features": Case(shape=(5,)),
    "volumes, one row on a rank": Case(rows=(6, 1), shape=(5, 3, 2, 2)),
    "three ranks": Case(rows=(3, 2, 2)),
    "a rank without rows": Case(rows=(4, 0, 3)),
    "features, a rank without rows": Case(rows=(0, 7), shape=(5,)),
    "channels last": Case(input=_channels_last, gradient=_channels_last),
    "input channels last, gradient not": Case(input=_channels_last),
    "gradient channels last, input not": Case(gradient=_channels_last),
    "transposed": Case(shape=(5, 6), input=_transposed),
    "expanded gradient": Case(gradient=lambda value: value[..., :1, :1].expand(value.shape)),
    "without parameters": Case(parameters=None),
    "weight alone": Case(bias=False),
    "input without gradient": Case(input_gradient=False),
    "float32": Case(dtype=torch.float32, parameters=torch.float32, tolerance=1e-6),
    "float32, channels last": Case(
        dtype=torch.float32, parameters=torch.float32, input=_channels_last, tolerance=1e-6
    ),
    "bfloat16 under autocast": Case(dtype=torch.bfloat16, parameters=torch.float32, tolerance=2e-2),
    "float16 under autocast": Case(dtype=torch.float16, parameters=torch.float32, tolerance=2e-3),
    "bfloat16": Case(dtype=torch.bfloat16, parameters=torch.bfloat16, tolerance=2e-2),
    "bfloat16 without parameters": Case(dtype=torch.bfloat16, parameters=None, tolerance=2e-2),
}


@dataclass(slots=True)
class Outcome:
    output: torch.Tensor
    input_gradient: Any
    of_parameters: list[Any]
    running: list[torch.Tensor]
    calls: list[str] = field(default_factory=list)


def _run(case: Case, normalize: Callable[..., torch.Tensor], rows: slice) -> Outcome:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    value, gradient = (draw(sum(case.rows), *case.shape) for _ in range(2))
    channels = case.shape[0]
    value = case.input((value * 2 + 3).to(case.dtype)[rows]).requires_grad_(case.input_gradient)
    weight, bias = (draw(channels).to(case.parameters).requires_grad_() for _ in range(2))
    if case.parameters is None:
        weight = bias = None
    elif not case.bias:
        bias = None
    kept = case.parameters or torch.promote_types(case.dtype, torch.float32)
    running = [torch.zeros(channels, dtype=kept), torch.ones(channels, dtype=kept)]
    out = normalize(value, *running, weight, bias, 0.3, 1e-5)
    out.backward(case.gradient(gradient.to(case.dtype)[rows]))
    return Outcome(
        out.detach(), value.grad, [None if of is None else of.grad for of in (weight, bias)], running
    )


def _plain(value: Any, mean: Any, var: Any, weight: Any, bias: Any, momentum: float, eps: float) -> Any:
    return torch.nn.functional.batch_norm(value, mean, var, weight, bias, True, momentum, eps)


def _on_ranks(case: Case) -> list[Outcome]:
    world_size = len(case.rows)
    barrier, slots = threading.Barrier(world_size), [None] * world_size

    def on(rank: int) -> Outcome:
        comm = ThreadComm(rank, barrier, slots)
        context: Any = SimpleNamespace(comm=comm, rank=rank, world_size=world_size)
        begin = sum(case.rows[:rank])
        try:
            outcome = _run(
                case,
                lambda *inputs: batch_norm._global_batch_norm(context, *inputs),
                slice(begin, begin + case.rows[rank]),
            )
        except BaseException:
            barrier.abort()
            raise
        outcome.calls = comm.calls
        return outcome

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(on, range(world_size)))


@pytest.mark.parametrize("name", CASES)
def test_answer_and_gradients_are_those_of_the_whole_batch(name: str) -> None:
    case = CASES[name]
    expected = _run(case, _plain, slice(None))
    found = _on_ranks(case)

    def agree(ours: Any, theirs: Any) -> None:
        torch.testing.assert_close(ours, theirs, rtol=case.tolerance, atol=case.tolerance)

    agree(torch.cat([outcome.output for outcome in found]), expected.output)
    if case.input_gradient:
        agree(torch.cat([outcome.input_gradient for outcome in found]), expected.input_gradient)
    for place, of in enumerate(expected.of_parameters):
        if of is not None:  # the reducer makes one of the local ones
            agree(sum(outcome.of_parameters[place] for outcome in found), of)
    for outcome in found:
        agree(outcome.running, expected.running)
        assert all(torch.equal(*both) for both in zip(outcome.running, found[0].running, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_one_collective_for_each_direction(name: str) -> None:
    backward = ["all_reduce"] if CASES[name].input_gradient else []
    assert all(outcome.calls == ["all_gather", *backward] for outcome in _on_ranks(CASES[name]))
