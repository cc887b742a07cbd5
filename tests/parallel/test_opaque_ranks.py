"""What takes a tensor's memory without asking its class gives the elements of a parameter in parts too."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
import torch.utils.dlpack
from torch import nn

from ronde.comm.process_group import Comm
from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]
SOAK = pytest.mark.soak
WIDTH = 24


def plain() -> torch.Tensor:
    return torch.zeros(WIDTH, dtype=torch.float64)


def laid(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    target.data = source
    return target


def as_gradient(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    target.grad = source
    assert target.grad is not None
    return target.grad.detach()


def diagonal(kind: Callable[..., torch.Tensor], p: torch.Tensor, *places: torch.Tensor) -> torch.Tensor:
    return kind(*places, p, (WIDTH, WIDTH)).to_dense()


PLACES = torch.arange(WIDTH)
ENDS = torch.arange(WIDTH + 1)


class Labelled(torch.Tensor):
    """As torchvision's, MONAI's and fastai's images are."""


WAYS: dict[str, Callable[[nn.Parameter], torch.Tensor]] = {
    "Tensor": torch.Tensor,
    "new": lambda p: plain().new(p),
    "DoubleTensor of several": lambda p: torch.DoubleTensor([*p]),
    "new_tensor": lambda p: plain().new_tensor(p),
    "new_tensor of another": lambda p: p.new_tensor(p),
    "tensor": lambda p: torch.tensor(data=p),
    "Variable": torch.autograd.Variable,
    "make_subclass": lambda p: torch.Tensor._make_subclass(nn.Parameter, p),  # pyright: ignore[reportAttributeAccessIssue]
    "as_subclass": lambda p: p.as_subclass(Labelled),
    "as_subclass of another": lambda p: plain().as_subclass(Labelled) * p,
    "a class": Labelled,
    "a class of another": lambda p: Labelled(plain()) * p,
    "set_": lambda p: plain().set_(p).detach(),  # pyright: ignore[reportArgumentType]
    "data of a parameter": lambda p: laid(nn.Parameter(plain()), p),
    "data of a tensor": lambda p: laid(plain(), p),
    "gradient of a tensor": lambda p: as_gradient(plain(), p),
    "gradient of a parameter": lambda p: as_gradient(nn.Parameter(plain()), p),
    "dlpack": lambda p: torch.from_dlpack(torch.utils.dlpack.to_dlpack(p)),  # pyright: ignore[reportPrivateImportUsage]
    "nested": lambda p: torch.nested.nested_tensor([p, p])[1],
    "sparse_coo": lambda p: diagonal(torch.sparse_coo_tensor, p, torch.stack([PLACES, PLACES])),
    "sparse_csr": lambda p: diagonal(torch.sparse_csr_tensor, p, ENDS, PLACES),
    "sparse_csc": lambda p: diagonal(torch.sparse_csc_tensor, p, ENDS, PLACES),
    "sparse_compressed": lambda p: torch.sparse_compressed_tensor(
        ENDS, PLACES, p, (WIDTH, WIDTH), layout=torch.sparse_csr
    ).to_dense(),
}


def trained(way: Callable[[nn.Parameter], torch.Tensor]) -> list[torch.Tensor]:
    """What a way of reading gives between steps, what its gradient is, and what comes of both."""
    torch.manual_seed(5)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    model = nn.Sequential(*layers).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    found: list[torch.Tensor] = []
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.full((8, WIDTH), 0.1 * step, dtype=torch.float64)).square().mean()
        if step:
            read = way(layers[1].bias)
            found.append(read.detach().clone())
            if read.grad_fn is not None:
                loss = loss + (read * 2).sum()
        loss.backward()
        optimizer.step()
    return [*found, *(each.detach().clone() for each in model.parameters())]


def differing(rank: Rank, copied: bool, plan: str) -> list[str]:
    problems: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of nested and of compressed tensors
        for name, way in WAYS.items():
            expected = trained(way)
            apart = mock.patch.object(Comm, "shares_host", False) if copied else nullcontext()
            with apart, rank.session(plan):
                found = trained(way)
            if not all(map(torch.allclose, found, expected)):
                problems.append(name)
    return problems


@pytest.mark.soak
@pytest.mark.parametrize(("copied", "plan"), [(False, "zero3"), (True, "zero3"), (False, "central")])
def test_memory_that_is_taken_has_all_elements(ranks: Ranks, copied: bool, plan: str) -> None:
    assert ranks(2, differing, copied, plan) == [[]] * 2


def followed(use: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """What was laid elsewhere is the parameter itself, so it follows updates."""
    torch.manual_seed(5)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    model = nn.Sequential(*layers).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    other = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))
    beside = torch.optim.SGD([other], lr=0.5, momentum=0.5)
    found: list[torch.Tensor] = []
    kept = other
    for step in range(4):
        optimizer.zero_grad()
        model(torch.full((8, WIDTH), 0.1 * step, dtype=torch.float64)).square().mean().backward()
        if step == 1:
            kept = use(other, layers[1].bias)
        optimizer.step()
        if step > 1:
            beside.step()
        found += [kept.detach().clone(), other.detach().clone()]
    return found


def laid_in_a_tensor(_: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return laid(plain(), p)


def laid_as_gradient(other: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    other.grad = p
    return p


def differing_later(rank: Rank, copied: bool) -> list[str]:
    problems: list[str] = []
    for use in (laid_in_a_tensor, laid_as_gradient):
        expected = followed(use)
        apart = mock.patch.object(Comm, "shares_host", False) if copied else nullcontext()
        with apart, rank.session("zero3"):
            found = followed(use)
        if not all(map(torch.allclose, found, expected)):
            problems.append(use.__name__)
    return problems


@pytest.mark.parametrize("copied", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_what_was_laid_elsewhere_follows_updates(ranks: Ranks, copied: bool) -> None:
    assert ranks(2, differing_later, copied) == [[]] * 2


def rows_of_outputs(rank: Rank) -> list[float]:
    """`.data` of an output is an output's, also where the attribute is replaced."""
    with rank.session("zero3"):
        torch.manual_seed(5)
        model = nn.Linear(WIDTH, WIDTH).double()
        output = model(torch.ones(8, WIDTH, dtype=torch.float64))
        data = output.data
        assert type(data) is type(output)
        assert not data.requires_grad
        with torch.no_grad():
            output.mul_(2)
        return [float(output.sum()), float(data.sum())]


def test_data_of_an_output_shares_its_memory(ranks: Ranks) -> None:
    for output, data in ranks(2, rows_of_outputs):
        assert output == data != 0
