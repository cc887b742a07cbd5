"""Gradients lie in the reducer's buffers, and a script never notices: neither when it keeps them nor when
it brings its own."""

from __future__ import annotations

import copy
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import nn

from ronde.testing.run_ranks import Rank
from world_sizes import WORLD_SIZES

D = torch.float64


@contextmanager
def reducer(rank: Rank, backend: str) -> Iterator[Any]:
    """A reducer of small buckets, on shared memory or on Gloo, as between hosts.

    "in place": what this rank alone sums is left where backward put it, as is done with large gradients.
    """
    from ronde.comm.rendezvous import join
    from ronde.comm.topology import RankPosition
    from ronde.sync import bucket
    from ronde.sync.reducer import Reducer

    backend, _, in_place = backend.partition(", ")
    here = rank.world_size if backend == "shared memory" else 1
    comm = join(
        "file://" + os.path.join(rank.directory, f"{backend.replace(' ', '-')}.store"),
        name=f"memory-{_turn()}",
        place=RankPosition(rank.rank, rank.world_size, rank.rank % here, here),
        device="cpu",
        timeout=timedelta(seconds=30),
        host="127.0.0.1",
    )
    assert comm.backend.name == backend
    large = bucket._LARGE
    bucket._LARGE = 8 if in_place else large
    try:
        yield Reducer(comm, 200)
    finally:
        bucket._LARGE = large
        comm.close()


class _Turns:
    count = 0


def _turn() -> int:
    _Turns.count += 1
    return _Turns.count


class Case:
    """A small model, other rows on each rank, and what the mean of the gradients is."""

    def __init__(self, rank: Rank, backend: str) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
        self.rank = rank
        self.rows = [torch.arange(8, dtype=D).view(2, 4) / 7 + each for each in range(rank.world_size)]

    def expected(self, scale: float = 1.0) -> list[torch.Tensor]:
        losses = [self.net(rows).square().sum() * scale for rows in self.rows]
        gradients = torch.autograd.grad(sum(losses) / len(losses), list(self.net.parameters()))
        return [gradient.detach() for gradient in gradients]

    def backward(self, reducer: Any, scale: float = 1.0) -> None:
        for parameter in self.net.parameters():
            reducer.adopt(parameter)
        with reducer.backward():
            (self.net(self.rows[self.rank.rank]).square().sum() * scale).backward()

    def forget(self) -> None:
        for parameter in self.net.parameters():
            parameter.grad = None

    @property
    def gradients(self) -> list[torch.Tensor]:
        return [parameter.grad for parameter in self.net.parameters() if parameter.grad is not None]

    def are(self, expected: list[torch.Tensor]) -> bool:
        return all(
            torch.allclose(a, b, rtol=1e-13, atol=1e-13)
            for a, b in zip(self.gradients, expected, strict=True)
        )


def kept(rank: Rank, backend: str) -> bool:
    """Gradients of earlier steps, and views of them, keep their values."""
    case = Case(rank, backend)
    with reducer(rank, backend) as reduce:
        steps: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
        right = True
        for step in range(6):
            case.forget()
            case.backward(reduce, 1.0 + step)
            right &= case.are(case.expected(1.0 + step))
            # Whole tensors, views of their memory, and the last of all on one rank only.
            held = {0: case.gradients, 2: [each.data.view(-1) for each in case.gradients]}.get(step, [])
            if step == 4 and rank.rank == 0:
                held = case.gradients[:1]
            steps.append((held, [each.clone() for each in held]))
        return right and all(
            torch.equal(a, b) for held, copies in steps for a, b in zip(held, copies, strict=True)
        )


def zeroed_in_place(rank: Rank, backend: str) -> bool:
    """`zero_grad(set_to_none=False)`: the same tensors hold the gradients of every step."""
    case = Case(rank, backend)
    with reducer(rank, backend) as reduce:
        right, first = True, []
        for step in range(4):
            case.backward(reduce, 1.0 + step)
            first = first or case.gradients
            right &= case.are(case.expected(1.0 + step))
            right &= all(a is b for a, b in zip(first, case.gradients, strict=True))
            for gradient in case.gradients:
                gradient.detach_()
                gradient.zero_()
        return right


def accumulated(rank: Rank, backend: str) -> bool:
    """A second backward adds to the tensors that the script has got after the first."""
    case = Case(rank, backend)
    with reducer(rank, backend) as reduce:
        right = True
        for _ in range(3):
            case.forget()
            case.backward(reduce)
            seen = case.gradients
            case.backward(reduce, 2.0)
            right &= case.are(case.expected(3.0))
            right &= all(a is b for a, b in zip(seen, case.gradients, strict=True))
        return right


def own_memory(rank: Rank, backend: str) -> bool:
    """Gradients that the script lets lie in one flat tensor of its own are found there."""
    case = Case(rank, backend)
    flat = torch.zeros(sum(parameter.numel() for parameter in case.net.parameters()), dtype=D)
    begin = 0
    for parameter in case.net.parameters():
        parameter.grad = flat[begin : begin + parameter.numel()].view_as(parameter)
        begin += parameter.numel()
    with reducer(rank, backend) as reduce:
        right = True
        for step in range(3):
            flat.zero_()
            case.backward(reduce, 1.0 + step)
            expected = torch.cat([each.view(-1) for each in case.expected(1.0 + step)])
            right &= torch.allclose(flat, expected, rtol=1e-13, atol=1e-13)
        return right


def changed_hands(rank: Rank, backend: str) -> bool:
    """A gradient given to another parameter is accumulated there."""
    left, right_one = nn.Parameter(torch.ones(3, dtype=D)), nn.Parameter(torch.ones(3, dtype=D))
    with reducer(rank, backend) as reduce:
        for leaf in (left, right_one):
            reduce.adopt(leaf)
        for _ in range(2):
            left.grad = right_one.grad = None
            with reduce.backward():
                (left * (1.0 + rank.rank)).sum().add((right_one * 10.0).sum()).backward()
        left.grad, right_one.grad = right_one.grad, left.grad
        with reduce.backward():
            (left * 100.0).sum().add((right_one * 1000.0).sum()).backward()
        mean = 1.0 + (rank.world_size - 1) / 2
        assert left.grad is not None
        assert right_one.grad is not None
        return left.grad.tolist() == [110.0] * 3 and right_one.grad.tolist() == [1000.0 + mean] * 3


def clipped(rank: Rank, backend: str) -> bool:
    """What one rank does to its gradients, at once, reaches no other rank's."""
    case = Case(rank, backend)
    with reducer(rank, backend) as reduce:
        right = True
        for _ in range(50):
            case.forget()
            case.backward(reduce)
            if rank.rank == 0:
                for gradient in case.gradients:
                    gradient.mul_(0)
            else:
                right &= case.are(case.expected())
        return right


def lie_in_buffers(rank: Rank, backend: str) -> bool:
    """Nothing is copied back: gradients that backward makes anew lie in the buffers."""
    case = Case(rank, backend)
    with reducer(rank, backend) as reduce:
        for _ in range(3):
            case.forget()
            case.backward(reduce)
        memories = {gradient.untyped_storage().data_ptr() for gradient in case.gradients}
        addresses = {bucket._buffer.address for group in reduce._groups for bucket in group.buckets}
        return memories <= addresses


CASES = [kept, zeroed_in_place, accumulated, own_memory, changed_hands, clipped, lie_in_buffers]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("backend", ["shared memory", "shared memory, in place", "Gloo"])
@pytest.mark.parametrize("case", CASES)
def test_scripts_find_gradients_as_ever(
    ranks: Callable[..., list[Any]], case: Callable[..., bool], backend: str, world_size: int
) -> None:
    assert ranks(world_size, case, backend) == [True] * world_size


def saved_alone(rank: Rank) -> set[str]:
    """What is wrong with a file that holds one gradient of many."""
    from ronde.patching.patches import Patches
    from ronde.runtime import saved_gradients

    case, patches = Case(rank, "shared memory"), Patches()
    wrong: set[str] = set()
    with reducer(rank, "shared memory") as reduce:
        saved_gradients.install(patches, reduce.memory.holds)
        try:
            held: list[torch.Tensor] = []  # so that the later ones lie in other memory
            for step in range(3):
                case.forget()
                case.backward(reduce, 1.0 + step)
                held.append(case.gradients[2])
                file = io.BytesIO()
                torch.save({"last": held[-1], "all": held}, file)
                file.seek(0)
                again = torch.load(file)
                wrong |= {"value" for a, b in zip(again["all"], held, strict=True) if not torch.equal(a, b)}
                wrong |= {"size" for a in again["all"] if a.untyped_storage().nbytes() != a.nbytes}
                wrong |= set() if again["last"] is again["all"][-1] else {"twice"}
                wrong |= set() if copy.copy(held[-1]).data_ptr() == held[-1].data_ptr() else {"copy.copy"}
        finally:
            patches.restore()
    return wrong


def test_a_gradient_is_saved_without_its_neighbours(ranks: Callable[..., list[Any]]) -> None:
    assert ranks(2, saved_alone) == [set(), set()]
