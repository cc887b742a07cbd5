"""Hazards: pieces of script that a wrong cut of the batch would answer wrongly, and how they are to end.

A script here is a generator: it trains something small and yields what its user would read. It runs once in
plain torch and once on ranks, and every value that it yields must be the same.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import email.message
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from both_ways import differences, flat
from codes import without_codes
from ronde.errors import RondeError
from ronde.tensor.deferred import DeferredScalar
from ronde.tensor.global_tensor import GlobalTensor, materialize
from ronde.testing.run_ranks import Rank

__all__ = [
    "Hazard",
    "Lambda",
    "Outcome",
    "check",
    "data",
    "loader",
    "modelled",
    "outcome",
    "through",
    "train",
    "unwatched",
]

Mode = Callable[[], contextlib.AbstractContextManager[Any]]

ROWS = 22
_FOUND = "the batch was found on the second axis of its arguments (batch-dim=1)"
D = torch.float64


@dataclasses.dataclass(frozen=True, slots=True)
class Hazard:
    """One piece of script, and how it must end.

    Attributes:
        script: yields what is compared with a plain run; a fresh one at every call.
        end: "whole" (cut in one piece), "found" (so on an axis that was looked for), "parts" (said in a note,
            and right), "refused" (with the fix), or "right" (no matter how).
        words: what the note or the refusal must contain.
    """

    script: Callable[[], Iterator[Any]]
    end: str
    words: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a hazard ended on a rank.

    Attributes:
        refusal: the sentence that ended it; then there is nothing else.
        cut: calls as one piece by class of module.
        notes: what was noted while it ran.
        told: what its user is told at the end.
        problems: in what its values differ from those in plain torch.
    """

    refusal: str = ""
    cut: Mapping[str, int] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()
    told: Sequence[str] = ()
    problems: Sequence[str] = ()


def unwatched() -> Any:
    """An object of a library, which may be appended to and of whose length nobody knows."""
    headers: Any = email.message.Message()
    headers.append = lambda value: headers.add_header("value", str(value))
    return headers


class Lambda(nn.Module):
    """A module with some layers, whose forward is a function of it and its arguments."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def data(*shape: int, rows: int = ROWS) -> TensorDataset:
    """Rows of numbers (of 4 each where no shape is given) and a class of 3 for each."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, *(shape or (4,)), generator=generator, dtype=D)
    return TensorDataset(x, torch.randint(0, 3, (rows,), generator=generator))


def loader(batch: int = 8, dataset: Any = None, **options: Any) -> DataLoader[Any]:
    return DataLoader(data() if dataset is None else dataset, batch, shuffle=True, **options)


def _logits(out: Any) -> torch.Tensor:
    found = (
        out if isinstance(out, torch.Tensor) else next(v for v in flat(out) if isinstance(v, torch.Tensor))
    )
    return found.flatten(1)


def train(
    model: nn.Module,
    *,
    loss: Callable[[Any, torch.Tensor], Any] | None = None,
    batches: Any = None,
    call: Callable[[Any, torch.Tensor, torch.Tensor], Any] | None = None,
    before: Callable[[Any, int], Any] | None = None,
    epochs: int = 2,
    seen: Callable[[], Any] = lambda: None,
) -> Iterator[Any]:
    """Train with momentum, evaluate on another batch size; yield losses, outputs and the model's state."""
    model = model.double()
    optimizer: Any = None
    loss = loss or (lambda out, y: F.cross_entropy(_logits(out), y))
    call = call or (lambda model, x, y: model(x))
    batches = loader() if batches is None else batches
    step = 0
    for _ in range(epochs):
        for x, y in batches:
            if before is not None:
                before(model, step)
            value = loss(call(model, x, y), y)
            if optimizer is None:  # behind the first call: some parameters are made by it
                optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            step += 1
            yield value.item()
            yield seen()
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(batches.dataset, 11):
            yield call(model, x, y)
    yield [value.detach().clone() for value in (*model.parameters(), *model.buffers())]
    yield torch.get_rng_state(), random.getstate()[1], np.random.get_state()[1]


def through(change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A function that changes nothing but the gradient."""

    class Through(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            return change(grads[0])

    return Through


def modelled(model: Callable[[], nn.Module], **options: Any) -> Callable[[], Iterator[Any]]:
    """The script that trains this model."""
    return lambda: train(model(), **options)


def _values(script: Callable[[], Iterator[Any]], mode: Mode) -> list[Any]:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    found = []
    with mode():
        for value in script():
            found += [_plain(item) for item in flat(value)]
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, (GlobalTensor, DeferredScalar)):
        value = materialize(value)
    if isinstance(value, torch.Tensor):
        return (value.to_dense() if value.is_sparse else value).detach().clone()
    return value.tolist() if isinstance(value, np.ndarray) else copy.copy(value)


def outcome(rank: Rank, hazard: Hazard, plan: str = "ddp", mode: Mode = contextlib.nullcontext) -> Outcome:
    """Run it plainly and on this rank, with such a mode of torch around the script."""
    expected = _values(hazard.script, mode)
    with rank.session(plan) as session:
        try:
            found = _values(hazard.script, mode)
        except RondeError as error:
            return Outcome(refusal=str(error))
        notes = without_codes(session.notes)
        problems = [
            f"value {place} {text}"
            for place, (a, b) in enumerate(zip(expected, found, strict=False))
            for text in differences(a, b, 1e-10)
        ]
        if len(expected) != len(found):
            problems.append(f"{len(found)} values instead of {len(expected)}")
        summary = session.summary()
        return Outcome(cut=dict(summary.sharded), notes=notes, told=summary.notes, problems=problems)


def check(rank: Rank, hazard: Hazard, plan: str = "ddp", mode: Mode = contextlib.nullcontext) -> list[str]:
    """What is wrong with how the hazard ends on this rank, with such a mode of torch around the script."""
    found = outcome(rank, hazard, plan, mode)
    if found.refusal:
        fine = hazard.end == "refused" and hazard.words in found.refusal
        return [] if fine else [f"refused: {found.refusal}"]
    problems, notes, cut = list(found.problems), found.notes, sum(found.cut.values())
    if hazard.end == "refused":
        problems.append("was not refused")
    if hazard.end == "whole" and (notes or not cut):
        problems.append(f"{cut} calls were cut")
    if hazard.end == "found" and [note.partition(": ")[2] for note in notes] != [_FOUND]:
        problems.append("its batch was not found on the second axis")
    if hazard.end == "parts" and not any(hazard.words in note for note in notes):
        problems.append(f"no note says {hazard.words!r}")
    return [*problems[:6], f"notes: {notes}"] if problems else []
