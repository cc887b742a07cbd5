"""Under micro-batches a model runs in pieces, and everything is as on one device in one piece."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alone import alone
from codes import without_codes
from peak_bytes import PeakBytes
from ronde.errors import UsageError
from ronde.tensor.global_tensor import materialize
from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]
_D = torch.float64
_ROWS = 11  # uneven on every number of ranks and pieces


class Net(nn.Module):
    """Dropout, and outputs of several forms."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 6))
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: torch.Tensor, factor: Any = 1.0) -> dict[str, Any]:
        out = self.body(x) * self.scale * factor
        penalty = sum(p.square().sum() for p in self.parameters())
        turned = torch.stack([out, out * 2])  # the batch on the second axis
        return {"out": out, "flat": out.view(-1, 3), "turned": turned, "penalty": penalty, "word": "x"}


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x).mean(1))


class Standardized(nn.Module):
    """Normalizes its weight by a batch norm, which sees nothing of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = F.batch_norm(self.second.weight[None], None, None, training=True)[0]
        return F.linear(self.first(x).tanh(), weight)


class Image(torch.Tensor):
    """A class with torch's own functions."""


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.PReLU(), nn.Linear(6, 2), nn.PReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def _model(kind: Callable[[], nn.Module] = Net) -> nn.Module:
    torch.manual_seed(0)
    return kind().double()


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def outputs_of_all_forms() -> list[Any]:
    model = _model()
    x = torch.randn(_ROWS, 4, dtype=_D, requires_grad=True)
    factor = torch.tensor(1.5, dtype=_D, requires_grad=True)
    found = model(x, factor=factor)
    loss = found["out"].square().mean() + found["flat"].sin().sum() + found["turned"][1].exp().mean()
    (loss + 0.1 * found["penalty"]).backward()
    return [loss + 0, x.grad, factor.grad, *_gradients(model), torch.rand(2), found["word"]]


def attention_with_dropout() -> list[Any]:
    model = _model(Attending)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses: list[Any] = []
    for _ in range(3):
        loss = F.cross_entropy(model(torch.randn(_ROWS, 5, 4, dtype=_D)), torch.randint(2, (_ROWS,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*losses, *(parameter.detach().clone() for parameter in model.parameters())]


def a_loss_that_mixes_rows_twice_backward() -> list[Any]:
    model = _model()
    out = model(torch.randn(_ROWS, 4, dtype=_D))["out"]
    loss = F.cross_entropy(out @ out.t(), torch.arange(_ROWS))
    loss.backward(retain_graph=True)
    loss.backward()
    return [loss.item(), *_gradients(model)]


def gradient_of_a_gradient() -> list[Any]:
    model = _model()
    x = torch.randn(_ROWS, 4, dtype=_D, requires_grad=True)
    out = model(x)["out"]
    (grad,) = torch.autograd.grad(out.pow(3).sum(), x, create_graph=True)
    loss = (grad.norm(dim=1) - 1).square().mean()
    loss.backward()
    return [loss.item(), grad + 0, *_gradients(model)]


def parameters_for_one_call() -> list[Any]:
    model = _model()
    step = torch.ones((), dtype=_D, requires_grad=True)
    own = {name: value * step for name, value in model.named_parameters()}
    out = torch.func.functional_call(model, own, (torch.randn(_ROWS, 4, dtype=_D),))["out"]
    out.sin().sum().backward()
    return [step.grad, *_gradients(model)]


def modes_that_change_before_backward() -> list[Any]:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss = model(torch.randn(_ROWS, 4, dtype=_D))["out"].square().sum()
    model.eval()
    torch.rand(3)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        after = model(torch.randn(_ROWS, 4, dtype=_D))["out"]
    return [loss.item(), after.sum().item(), *_gradients(model)]


def standardized_weights() -> list[Any]:
    model = _model(Standardized)
    model(torch.randn(_ROWS, 4, dtype=_D)).exp().mean().backward()
    return _gradients(model)


def two_batches_one_backward() -> list[Any]:
    model = _model()
    first, second = (model(torch.randn(rows, 4, dtype=_D))["out"] for rows in (_ROWS, 5))
    (first.square().mean() + second.sum()).backward()
    return _gradients(model)


def a_loss_of_a_class_of_its_own() -> list[Any]:
    model = _model(Scaled)
    loss = model(torch.randn(_ROWS, 4, dtype=_D).as_subclass(Image)).square().mean()
    loss.backward()
    return [loss.item(), *_gradients(model)]


SCRIPTS = (
    a_loss_of_a_class_of_its_own,
    outputs_of_all_forms,
    attention_with_dropout,
    a_loss_that_mixes_rows_twice_backward,
    gradient_of_a_gradient,
    parameters_for_one_call,
    modes_that_change_before_backward,
    standardized_weights,
    two_batches_one_backward,
)


def _plain(value: Any) -> Any:
    return torch.as_tensor(value).detach().clone() if isinstance(value, torch.Tensor) else value


def _in_sessions(session_of: Callable[[], Any]) -> list[Any]:
    found: list[Any] = []
    for script in SCRIPTS:
        with session_of() as session:
            torch.manual_seed(1)
            results = [_plain(value) for value in script()]
            found.append((results, without_codes(session.notes), dict(session.tally.sharded)))
    return found


def _on_ranks(rank: Rank, plan: str) -> list[Any]:
    return _in_sessions(lambda: rank.session(plan))


def _compare(found: list[Any], expected: list[Any]) -> None:
    """Of every script what it gives, what was said and what was cut, against plain torch."""
    for script, plain, (values, notes, sharded) in zip(SCRIPTS, expected, found, strict=True):
        assert len(plain) == len(values)
        for place, (a, b) in enumerate(zip(plain, values, strict=True)):
            if isinstance(a, (torch.Tensor, float)):
                torch.testing.assert_close(
                    torch.as_tensor(b), torch.as_tensor(a), rtol=1e-11, atol=1e-12,
                    msg=lambda text, where=(script.__name__, place): f"{where}: {text}",
                )  # fmt: skip
            else:
                assert a == b
        assert not [note for note in notes if "one piece" in note], script.__name__
        assert sharded, script.__name__


def _expected() -> list[Any]:
    found: list[Any] = []
    for script in SCRIPTS:
        torch.manual_seed(1)
        found.append([_plain(value) for value in script()])
    return found


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param("micro-batches=2", marks=pytest.mark.soak),
        "zero3,micro-batches=3,recompute=full",
    ],
)
def test_pieces_give_the_single_device_answer(ranks: Ranks, plan: str) -> None:
    expected = _expected()
    for found in ranks(2, _on_ranks, plan):
        _compare(found, expected)


def test_pieces_of_a_single_rank_draw_what_it_draws_for_the_batch(tmp_path: Path) -> None:
    found = _in_sessions(lambda: alone(tmp_path, "micro-batches=3"))
    _compare(found, _expected())


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Counting(nn.Module):
    """Counts its calls, and makes something for later in the first."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.counts, self.calls, self.table = counts, 0, None
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.ones(2, dtype=_D)
        self.calls += self.counts
        return self.layers(x) * self.table


def _refused(rank: Rank) -> tuple[str, str, list[str], list[str], int]:
    x = torch.randn(_ROWS, 4, dtype=_D)
    with rank.session("micro-batches=2"):
        normed = Normed().double()
        with pytest.raises(UsageError) as batch_norm:
            normed(x)
        normed.eval()(x).sum().backward()  # these statistics are those of any piece

        model = _model()
        loss = model(x)["out"].sum()
        torch.optim.SGD(model.parameters(), 0.1)
        with torch.no_grad():
            next(model.parameters()).add_(1)
        with pytest.raises(UsageError) as changed:
            loss.backward()
    with rank.session("micro-batches=2") as session:
        lazy = Counting(False).double()
        lazy(x).sum().backward()
        unsaid = without_codes(session.notes)
        counting = Counting(True).double()
        counting(x).sum().backward()
        return str(batch_norm.value), str(changed.value), unsaid, without_codes(session.notes), counting.calls


def test_what_pieces_would_change_is_refused_or_said(ranks: Ranks) -> None:
    for batch_norm, changed, unsaid, said, calls in ranks(2, _refused):
        assert batch_norm.startswith(
            "micro-batches cannot give the single-device answer for a model with batch"
        )
        assert "recompute=full" in batch_norm
        assert changed.startswith("parameters or tensors of Net were changed in place between its forward")
        assert not unsaid
        assert [note.split(":")[0] for note in said] == [
            "Counting runs in one piece, without micro-batches=2"
        ]
        assert "(calls)" in said[0]
        assert calls == 1


def _many_calls(rank: Rank) -> int:
    with rank.session("micro-batches=2"):
        counting = Counting(True).double()
        for _ in range(40):
            counting(torch.randn(_ROWS, 4, dtype=_D)).sum().backward()
        return counting.calls


def test_a_count_of_many_calls_is_right(ranks: Ranks) -> None:
    """A number that changes again and again is not observed for ever, and still counted once a call."""
    assert ranks(2, _many_calls) == [40, 40]


class TimeFirst(nn.Module):
    """Joins all rows of the first axis; of the second each by itself, or with what lies 16 places apart."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        kernel, padding = (3, 16) if apart else (1, 0)
        self.across = nn.Conv1d(1, 1, kernel, dilation=16, padding=padding, dtype=_D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.across(x.cumsum(0).unsqueeze(1)).squeeze(1)


@pytest.mark.parametrize(
    ("apart", "said"),
    [
        (False, "TimeFirst: the batch was found on the second axis"),
        (True, "TimeFirst runs in parts, not as one piece: rows of its output depend on other rows"),
    ],
)
def test_a_found_axis_is_tried_at_its_size_by_a_single_rank_too(
    tmp_path: Path, apart: bool, said: str
) -> None:
    """Pieces would break what lies far apart, though nothing is cut over ranks."""
    x, model = torch.randn(6, 40, dtype=_D), TimeFirst(apart)
    expected = model(x).detach()
    with alone(tmp_path, "micro-batches=2") as session:
        found = _plain(materialize(model(x)))
        assert [note[: len(said)] for note in without_codes(session.notes)] == [said]
    torch.testing.assert_close(found, expected)


def _peaks(rank: Rank) -> list[int]:
    layers = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(24)]
    model = nn.Sequential(*layers)
    rows, found = torch.randn(512, 32), []
    for plan in ("ddp", "micro-batches=4", "micro-batches=16"):
        with rank.session(plan):
            model(rows).sum().backward()  # what is made once
            with PeakBytes() as bytes_alive:
                model(rows).sum().backward()
            found.append(bytes_alive.most)
    return found


def test_activations_of_one_piece_live_at_a_time(ranks: Ranks) -> None:
    for whole, four, sixteen in ranks(2, _peaks):
        # 24 layers keep two tensors each; beside them live the rows, the output and the gradients.
        assert four < 0.45 * whole
        assert sixteen < 0.6 * four
