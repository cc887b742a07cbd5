"""Tensors of a class of their own, or with something written on them, are what they are on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from both_ways import differences
from codes import without_codes
from ronde.tensor.global_tensor import GlobalTensor, materialize
from ronde.testing.run_ranks import Rank

_D = torch.float64
Ranks = Callable[..., list[Any]]


class Labelled(torch.Tensor):
    """A class with torch's own functions."""


class Image(torch.Tensor):
    """What is computed of it is a plain tensor, as of torchvision's images."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(issubclass(cls, kind) for kind in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Meta(torch.Tensor):
    """Hands on where it comes from, as MONAI's images do."""

    meta: dict[str, str] | None = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs or {})
        known = [value.meta for value in args if isinstance(value, cls) and value.meta]
        if isinstance(out, cls) and known:
            out.meta = known[0]
        return out

    def new_empty(self, size: tuple[int, ...], **options: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert isinstance(size, tuple)
        return super().new_empty(size, **options)


class Counts(torch.Tensor):
    """Carries out operations itself."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))


class Steered(nn.Linear):
    """Goes by the class of its batch, and by what is written on it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x.as_subclass(torch.Tensor))
        if isinstance(x, Labelled):
            out = out.tanh()
        return out * 3 if getattr(x, "large", False) else out


class Writes(nn.Linear):
    """Writes on its output, on its batch, or where its batch comes from."""

    def __init__(self, what: str) -> None:
        super().__init__(4, 3)
        self.what = what

    def forward(self, x: Any) -> Any:
        out: Any = super().forward(x)
        if self.what == "a number":
            out.scale = 7
        elif self.what == "a number of the batch":
            out.rows = len(x)
        elif self.what == "on the batch":
            x.seen = True
        return out.as_subclass(Counts) if self.what == "a class" else out


def _rows(kind: type, **attributes: Any) -> Any:
    x = torch.randn(6, 4, dtype=_D, generator=torch.Generator().manual_seed(3)).as_subclass(kind)
    vars(x).update(attributes)
    return x


def _meta() -> Any:
    return _rows(Meta, meta={"file": "a.nii"})


def _mlp() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)), nn.Linear(4, 3))


# A model, its batches, and whether the output is cut; None where the model runs in parts.
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], list[Any]], bool | None]] = {
    "plain functions": (_mlp, lambda: [_rows(Labelled)], False),
    "plain results": (_mlp, lambda: [_rows(Image)], True),
    "where it comes from": (_mlp, lambda: [_meta(), _meta()], False),
    "a class after a plain tensor": (_mlp, lambda: [_rows(torch.Tensor), _rows(Labelled)], False),
    "by the class": (lambda: Steered(4, 3), lambda: [_rows(torch.Tensor), _rows(Labelled)], True),
    "by a flag": (
        lambda: Steered(4, 3),
        lambda: [_rows(torch.Tensor), _rows(torch.Tensor, large=True)],
        True,
    ),
    "of a list": (_mlp, lambda: [_rows(Labelled, files=[*"abcdef"])], False),
    "a number": (lambda: Writes("a number"), lambda: [_rows(torch.Tensor)], True),
    "a number of the batch": (lambda: Writes("a number of the batch"), lambda: [_rows(torch.Tensor)], None),
    "a class with operations": (lambda: Writes("a class"), lambda: [_rows(torch.Tensor)], None),
    "on the batch": (lambda: Writes("on the batch"), lambda: [_rows(torch.Tensor)], None),
}


def _seen(make: Callable[[], nn.Module], inputs: list[Any]) -> tuple[list[Any], Any]:
    torch.manual_seed(1)
    model = make().to(_D)
    found: list[Any] = []
    out: Any = None
    for x in inputs:
        out = model(x)
        loss = out.square().mean() + (out - x[:, :3]).abs().sum()
        loss.backward()
        # What is written on a batch, too.
        found += [type(materialize(out)), loss.item(), materialize(out).as_subclass(torch.Tensor)]
        for value in (out, x):
            hidden = GlobalTensor.__annotations__ if isinstance(value, GlobalTensor) else ()
            found.append({name: item for name, item in vars(value).items() if name not in hidden})
    return [*found, *(parameter.grad for parameter in model.parameters())], out


def _differing(rank: Rank, name: str, plan: str) -> list[str]:
    make, inputs, cut = CASES[name]
    expected, _ = _seen(make, inputs())
    with rank.session(plan) as session:
        found, out = _seen(make, inputs())
        problems = [
            f"{place} {text}"
            for place, pair in enumerate(zip(expected, found, strict=True))
            for text in differences(*pair, 1e-11)
        ]
        notes = without_codes(session.notes)
        if cut is not None and isinstance(out, GlobalTensor) != cut:
            problems.append(f"returned a {type(out).__name__}")
        if bool(notes) != (cut is not True) or (not session.tally.sharded) != (cut is None):
            problems.append(f"cut {session.tally.sharded}, said {notes}")
    return problems


@pytest.mark.parametrize("plan", ["ddp", "zero3"])
@pytest.mark.parametrize("name", CASES)
def test_a_class_of_its_own_gives_one_devices_answer(ranks: Ranks, name: str, plan: str) -> None:
    assert ranks(2, _differing, name, plan) == [[]] * 2


@pytest.mark.parametrize("plan", ["micro-batches=3", "recompute=full"])
def test_a_class_of_its_own_is_computed_again(ranks: Ranks, plan: str) -> None:
    assert ranks(2, _differing, "where it comes from", plan) == [[]] * 2


def _made(out: torch.Tensor) -> list[Any]:
    loss = out.square().mean()
    pairs = (out[:, None] - out[None]).as_subclass(Labelled)
    detached: Any = torch.Tensor._make_subclass(Labelled, out.detach())  # pyright: ignore[reportAttributeAccessIssue]
    made = [
        out.as_subclass(Labelled),
        Labelled(out * 2),
        pairs,
        detached,
        loss.as_subclass(Labelled),
        Labelled(loss),
    ]
    return [*map(type, made), *(each.as_subclass(torch.Tensor) for each in made)]


def _trained() -> list[Any]:
    torch.manual_seed(1)
    model = nn.Linear(4, 3).to(_D)
    found = _made(model(_rows(torch.Tensor)))
    sum(each.sum() for each in found if isinstance(each, torch.Tensor) and each.requires_grad).backward()
    with torch.no_grad():
        out = model(_rows(torch.Tensor))
        shared = out.as_subclass(Labelled)
        shared[2] = 5
    return [*found, model.weight.grad, materialize(out)]


def _made_of_outputs(rank: Rank) -> list[str]:
    expected = _trained()
    with rank.session():
        found = _trained()
        return [text for pair in zip(expected, found, strict=True) for text in differences(*pair, 1e-11)]


def test_what_a_model_returns_may_be_given_a_class(ranks: Ranks) -> None:
    assert ranks(2, _made_of_outputs) == [[]] * 2


def _by_its_class(rank: Rank) -> list[Any]:
    """As fastai puts predictions together: what it makes has the class of the first, and its notes."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3).to(_D), torch.ones(6, 4, dtype=_D)
    expected = model(x).detach()
    with rank.session():
        output = model(x).detach()
        loss = model(x).square().mean()
        joined = torch.cat([output, output]).as_subclass(type(output))
        scalar = torch.ones((), dtype=_D).as_subclass(type(loss))
        return [
            [dict(vars(output)), dict(vars(loss))],
            torch.equal(materialize(joined), torch.cat([expected, expected])),
            materialize(scalar).item(),
        ]


def test_what_is_ours_is_not_handed_on(ranks: Ranks) -> None:
    assert ranks(2, _by_its_class) == [[[{}, {}], True, 1.0]] * 2


class Scans(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index)).as_subclass(Labelled)


def _loaded(rank: Rank) -> list[Any]:
    with rank.session() as session:
        batches = [*DataLoader(Scans(), batch_size=4)]
        return [[type(batch).__name__ for batch in batches], *without_codes(session.notes)]


def test_a_loader_hands_out_a_class_of_its_own(ranks: Ranks) -> None:
    for kinds, note in ranks(2, _loaded):
        assert kinds == ["Labelled"] * 2
        assert note.startswith("Scans: every rank loads whole batches, because ")
