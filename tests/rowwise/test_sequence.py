"""Later calls are compared with the observed one, and end before anything that differs is carried out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from ronde.rowwise.comparison import ComparisonMode
from ronde.rowwise.sequence import Sequence
from rowwise.models import MODELS
from rowwise.one_rank import OneRank, joining, observe
from rowwise.rowwise_cases import CASES, Written, linear, table


def compared(
    module: nn.Module,
    args: tuple[Any, ...],
    steps: Sequence,
    rows: int,
    elsewhere: dict[int, str] | None = None,
    axes: Iterable[int] | None = None,
) -> tuple[Any, str]:
    ranks = OneRank(4 * rows, rows, elsewhere=elsewhere or {})
    with joining():
        return ComparisonMode(module, (args, {}), axes or [0] * len(args), ranks, steps).run(
            lambda: module(*args)
        )


# TorchScript changes its operations as it learns.
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("name", [*(name for name in CASES if name != "TorchScript"), *MODELS])
def test_other_rows_make_no_difference(name: str) -> None:
    if name in MODELS:
        module, args = MODELS[name](8)
        axes = [0] * len(args)
    else:
        case = CASES[name]()
        module, args, axes = case.module, case.args, case.axes or [0] * len(case.args)
    steps = observe(module, args, axes=axes).steps
    for rows in (8, 4):
        few = tuple(
            each.narrow(axis, 0, rows).clone(memory_format=torch.preserve_format)
            for each, axis in zip(args, axes, strict=True)
            if axis is not None
        )
        output, problem = compared(module, few, steps, rows, axes=[each for each in axes if each is not None])
        assert not problem
        assert output is not None


CHANGING: dict[str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], str]] = {
    "factor": (lambda self, x: self.layer(x) * (1 - self.n / 10), "mul.Tensor is another"),
    "branch": (
        lambda self, x: self.layer(x) if self.n < 2 else self.layer(x).relu(),
        "relu.default is another",
    ),
    "less": (
        lambda self, x: self.layer(x).relu() if self.n < 2 else self.layer(x),
        "relu.default is missing",
    ),
    "slice": (
        lambda self, x: F.pad(self.layer(x)[:, : self.n], (0, 6 - self.n)),
        "slice.Tensor is another",
    ),
    "shift": (lambda self, x: self.layer(x).roll(self.n, 1), "roll.default is another"),
    "dropout": (lambda self, x: F.dropout(self.layer(x), 0.1 * self.n), "bernoulli_.float is another"),
    "top": (lambda self, x: self.layer(x).topk(self.n, 1)[0].sum(1), "topk.default is another"),
    "feature": (lambda self, x: self.layer(x) * x[:, self.n % 6, None], "select.int is another"),
    "shape": (
        lambda self, x: self.layer(x).view(-1, (2, 3)[self.n % 2], (3, 2)[self.n % 2]).sum(1).sum(1),
        "view.default is another",
    ),
    "tensor": (lambda self, x: self.layer(x) * torch.tensor(self.n), "lift_fresh.default is another"),
    "places": (lambda self, x: self.layer(x)[:, [self.n % 6, 0]], "lift_fresh.default is another"),
}


@pytest.mark.parametrize("name", CHANGING)
def test_a_number_that_changes_is_found(name: str) -> None:
    function, said = CHANGING[name]

    def counted(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return function(self, x)

    module, args = Written(counted, layer=linear(), n=0), (table(),)
    observed = observe(module, args)
    assert observed.verdict.sharded, observed.verdict.reason
    state = torch.get_rng_state()
    output, problem = compared(module, args, observed.steps, 8)
    assert output is None
    assert said in problem
    assert module.n == 1  # as it was
    assert torch.equal(state, torch.get_rng_state())


ROWLESS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "slice that takes all": lambda self, x: self.layer(x) + self.mask[: 1 + 5 * (self.n % 2), :6].mean(0),
    "grid that is made anew": lambda self, x: (
        self.layer(x) + (torch.linspace(0, 1, 6).square() if self.n % 2 else self.mask[0])
    ),
    "copy of a weight": lambda self, x: F.linear(
        x, self.layer.weight if self.n % 2 else self.layer.weight * 2
    ),
}


@pytest.mark.parametrize("name", ROWLESS)
def test_operations_without_rows_may_differ(name: str) -> None:
    def counted(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return ROWLESS[name](self, x)

    module, args = Written(counted, layer=linear(), mask=torch.ones(6, 6), n=0), (table(),)
    steps = observe(module, args).steps
    output, problem = compared(module, args, steps, 8)
    assert not problem
    module.n = 1
    torch.testing.assert_close(output, module(*args))


def test_what_was_written_is_put_back() -> None:
    def counted(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return self.norm(self.layer(x)) * self.n

    module, args = Written(counted, layer=linear(), norm=nn.BatchNorm1d(6), n=0), (table(),)
    steps = observe(module, args).steps
    before = {key: value.clone() for key, value in module.state_dict().items()}
    assert compared(module, args, steps, 8)[1]
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key])


def _names_compared(monkeypatch: pytest.MonkeyPatch, module: nn.Module) -> list[str]:
    """Compare a second call, train on its output, and return the operations that were watched."""
    args, names = (table(),), list[str]()
    plain = ComparisonMode._compare

    def compare(self: ComparisonMode, func: Any, given: Any, kwargs: Any) -> None:
        names.append(str(func))
        plain(self, func, given, kwargs)

    monkeypatch.setattr(ComparisonMode, "_compare", compare)
    output, problem = compared(module, args, observe(module, args).steps, 8)
    assert not problem
    output.sum().backward()
    return names


def test_a_batch_norm_is_compared_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    names = _names_compared(monkeypatch, nn.Sequential(linear(), nn.BatchNorm1d(6), nn.ReLU()))
    assert "aten.relu.default" in names
    assert not any("batch_norm" in name or "mean" in name for name in names)


def test_a_selective_checkpoint_sees_the_batch_norm_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = nn.Sequential(linear(), nn.BatchNorm1d(6))
    kept = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])

    def checkpointed(self: Any, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=False, context_fn=kept)

    assert any(
        "batch_norm" in name for name in _names_compared(monkeypatch, Written(checkpointed, inner=inner))
    )


def test_a_difference_on_another_rank_ends_the_call_here_too() -> None:
    module, args = nn.Sequential(linear(), nn.BatchNorm1d(6)), (table(),)
    observed = observe(module, args)
    state = {key: value.clone() for key, value in module.state_dict().items()}
    for vote in (0, 1):  # before the batch norm, at the end
        output, problem = compared(module, args, observed.steps, 8, elsewhere={vote: "relu is new"})
        assert (output, problem) == (None, "relu is new")
        assert all(torch.equal(state[key], value) for key, value in module.state_dict().items())


def test_a_branch_on_the_number_of_rows_is_remembered() -> None:
    module = Written(lambda self, x: self.layer(x) if len(x) > 5 else x, layer=linear())
    steps = observe(module, (table(),)).steps
    assert steps.fits(32, 8)
    assert not steps.fits(20, 5)  # all rows would go one way, and a rank's another
    assert not steps.fits(4, 2)  # both go a way that was not observed
