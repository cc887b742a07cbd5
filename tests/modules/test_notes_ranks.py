"""What is said of modules that run in parts: one sentence for a cause, none in vain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from alone import alone
from codes import without_codes
from ronde.messages import lift
from ronde.testing.run_ranks import Rank

ROWS = 8
_READS = "its forward reads a value of the batch on the host"
_READS_DRAW = "its forward reads a random draw on the host"
_MEET = "rows of its output depend on other rows, or on their number"
_READS_FLAG = "its forward reads its buffer done on the host"


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if x.sum().item() < 1e9 else x


class ReadsToo(Reads):
    pass


class Initialized(Reads):
    """Looks at a flag that it keeps in a buffer, as data-dependent initialization does."""

    done: torch.Tensor
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("done", torch.tensor(True))
        self.register_buffer("calls", torch.tensor(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if self.done else x


class Counts(Initialized):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if (self.calls + 1)[None].tolist()[0] > 2 else x


class Normalizes(Reads):
    """Looks at numbers of its own that stand in the code."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.as_tensor((2.0, 4.0), dtype=x.dtype)
        if (scale == 0).any() or torch.arange(3).sum().item() > 3 or torch.full((2,), 1).tolist() == [0, 0]:
            raise ValueError(scale)
        return self.layer(x / scale.repeat(2))


class Drops(Reads):
    """Drops a layer at random, as stochastic depth does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if torch.rand(1) < 2 else x


class Fills(Reads):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = torch.empty(3).uniform_().max() + torch.tensor(0.0)
        return self.layer(x) if chosen.item() < 2 else x


class Permutes(Reads):
    """What it reads depends on the batch, if only by a constant's place among its values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if (torch.ones(4, dtype=x.dtype) * x[:1]).sum().item() < 1e9 else x


class Looks(Reads):
    """Looks at a grid that it is given."""

    def forward(self, x: torch.Tensor, grid: torch.Tensor | None = None) -> torch.Tensor:
        if grid is None:
            raise ValueError
        return self.layer(x) * (2 if (grid[1:] > grid[:-1]).all() else 1)


class Grid(Reads):
    """Looks at a grid of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.grid = torch.linspace(0, 1, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * (2 if (self.grid[1:] > self.grid[:-1]).all() else 1)


class FollowsTheBatch(Initialized):
    """The buffer comes to hold a value of the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(x.detach().sum().long())
        return self.layer(x) if self.calls > 2 else x


class Around(nn.Module):
    def __init__(self, *inside: nn.Module) -> None:
        super().__init__()
        self.inside = nn.ModuleList(inside)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in self.inside:
            x = each(x)
        return x


class Model(Around):
    pass


class Criterion(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.scale * x @ x.t(), torch.eye(len(x), dtype=x.dtype))


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.loss = nn.Linear(4, 4), Criterion()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(self.layer(x))


def _notes(rank: Rank, make: Callable[[], nn.Module]) -> list[str]:
    with rank.session() as session:
        torch.manual_seed(0)
        module = make().double()
        for training in (True, False, True):
            module.train(training)
            module(torch.ones(ROWS, 4, dtype=torch.float64)).sum().backward()
        return without_codes(session.notes)


class Flattens(nn.Module):
    """Its code names a size, so whether a number of rows decides is looked for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.view(x.size(0), -1))


def _notes_under_autocast(rank: Rank) -> list[str]:
    with rank.session() as session, torch.autocast("cpu", torch.bfloat16):
        Flattens()(torch.ones(ROWS, 2, 2)).sum().backward()
        return without_codes(session.notes)


def test_parameters_that_autocast_keeps_in_16_bits_decide_nothing(ranks: Any) -> None:
    assert ranks(2, _notes_under_autocast) == [[]] * 2


def _notes_beside(rank: Rank) -> list[str]:
    with rank.session() as session:
        Looks().double()(torch.ones(ROWS, 4, dtype=torch.float64), torch.linspace(0, 1, 7)).sum().backward()
        return without_codes(session.notes)


def test_what_is_read_of_another_argument_is_called_so(ranks: Any) -> None:
    said = "Looks runs in parts, not as one piece: its forward reads its argument on the host"
    assert ranks(2, _notes_beside) == [[said]] * 2


class Views(nn.Module):
    """Two views of the batch end to end through one encoder, as BYOL and SimSiam have them, and a table."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(channels, 4, 1), nn.BatchNorm1d(4), nn.Flatten())
        self.codes = nn.Linear(3, 4)
        self.register_buffer("table", torch.linspace(-1, 1, 2 * ROWS * 3).view(2 * ROWS, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.encoder(torch.cat((x, x.flip(2)), 0)).chunk(2)
        return F.mse_loss(first, second) + self.codes(self.table).std(0).sum()


def _views(rank: Rank, channels: int) -> tuple[list[str], dict[str, int], float]:
    torch.manual_seed(0)
    model, x = Views(channels).double(), torch.randn(ROWS, channels, 2, dtype=torch.float64)
    expected = model.train()(x).item()
    model.encoder[1].reset_running_stats()
    with rank.session() as session:
        found = model(x).item()
        return without_codes(session.notes), dict(session.tally.sharded), abs(found / expected - 1)


@pytest.mark.parametrize("channels", [3, ROWS])
def test_what_is_twice_as_long_as_the_batch_is_tried_inside(ranks: Any, channels: int) -> None:
    for notes, cut, difference in ranks(2, _views, channels):
        assert notes == ["Views runs in parts, not as one piece: its output has no batch axis"]
        assert cut == {"Sequential": 1, "Linear": 1}
        assert difference < 1e-12


class SetsItselfUp(Reads):
    """Makes some of what it is in its first call, by means that a copy of it does not have."""

    def __init__(self, *, grows: bool = True) -> None:
        super().__init__()
        self._made = id(self)
        self.grows = grows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "scale"):
            if self._made != id(self):
                raise TypeError("a copy has no source")
            if self.grows:
                self.scale = 2.0
        return self.layer(x)


def _set_up(rank: Rank, grow: list[bool]) -> tuple[list[str], dict[str, int]]:
    with rank.session() as session:
        models = [SetsItselfUp(grows=grows) for grows in grow]
        for _ in range(3):
            for model in models:
                model(torch.ones(ROWS, 4)).sum().backward()
        return without_codes(session.notes), dict(session.tally.sharded)


@pytest.mark.parametrize("grow", [[True], [False], [True, True], [True, False]])
def test_what_cannot_be_copied_is_cut_from_its_first_call_on(ranks: Any, grow: list[bool]) -> None:
    assert ranks(2, _set_up, grow) == [([], {"SetsItselfUp": 3 * len(grow)})] * 2


class Doubles(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class Expert(nn.Module):
    """As wide in the middle as the batch is long."""

    def __init__(self, kernel: int | None) -> None:
        super().__init__()
        self.into = nn.Linear(4, ROWS) if kernel is None else nn.Conv1d(4, ROWS, kernel)
        self.out = nn.Linear(ROWS, 4) if kernel is None else nn.Conv1d(ROWS, 4, kernel)
        self.twice, self.softmax = Doubles(), nn.Softmax(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = self.twice(self.into(x))
        return self.out(middle) * self.softmax(middle).amax(1, keepdim=True)


class Chooses(nn.Module):
    """A mixture of experts: which rows an expert is given, the batch decides."""

    def __init__(self, kernel: int | None) -> None:
        super().__init__()
        self.expert, self.kernel = Expert(kernel), kernel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = torch.nonzero(x.flatten(1)[:, 0] > 0).flatten()
        return x.index_add(0, chosen, self.expert(x[chosen]))


def _chooses(rank: Rank, kernel: int | None) -> tuple[list[str], float]:
    torch.manual_seed(0)
    shape = (ROWS, 4) if kernel is None else (ROWS, 4, 3)
    model, x = Chooses(kernel).double(), torch.randn(shape, dtype=torch.float64)
    expected = model(x).square().sum().item()
    with rank.session() as session:
        found = model(x).square().sum().item()
        return without_codes(session.notes), abs(found / expected - 1)


@pytest.mark.parametrize("kernel", [None, 1])
def test_what_happens_to_be_as_wide_as_the_batch_is_long_is_not_blamed(
    ranks: Any, kernel: int | None
) -> None:
    for notes, difference in ranks(2, _chooses, kernel):
        assert [lift(note)[1] for note in notes] == [f"Chooses runs in parts, not as one piece: {_READS}"]
        assert difference < 1e-12


def _nested() -> nn.Module:
    return Model(Around(Reads()))


def _flagged() -> nn.Module:
    return Model(Initialized())


def _beside() -> nn.Module:
    return Model(Reads(), ReadsToo())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Reads, [f"Reads runs in parts, not as one piece: {_READS}"]),
        (Initialized, [f"Initialized runs in parts, not as one piece: {_READS_FLAG}"]),
        (Counts, ["Counts runs in parts, not as one piece: its forward reads its buffer calls on the host"]),
        (
            FollowsTheBatch,
            [
                "FollowsTheBatch runs in parts, not as one piece: it keeps calls, which depends on the "
                "batch, on itself"
            ],
        ),
        (
            _flagged,
            ["Model runs in parts, not as one piece, because of Initialized inside it: " + _READS_FLAG],
        ),
        (_nested, [f"Model runs in parts, not as one piece, because of Reads inside it: {_READS}"]),
        (_beside, [f"Model runs in parts, not as one piece, because of Reads, ReadsToo inside it: {_READS}"]),
        (Normalizes, []),
        (Grid, ["Grid runs in parts, not as one piece: its forward reads its tensor grid on the host"]),
        (Drops, [f"Drops runs in parts, not as one piece: {_READS_DRAW}"]),
        (Fills, [f"Fills runs in parts, not as one piece: {_READS_DRAW}"]),
        (Permutes, [f"Permutes runs in parts, not as one piece: {_MEET} (slice)"]),
        (Criterion, [f"Criterion runs in parts, not as one piece: {_MEET} (mm)"]),
        (
            WithLoss,
            [f"WithLoss runs in parts, not as one piece, because of Criterion inside it: {_MEET} (mm)"],
        ),
    ],
)
def test_one_sentence_for_a_cause(ranks: Any, make: Callable[[], nn.Module], said: list[str]) -> None:
    assert ranks(2, _notes, make) == [said] * 2


def _notes_of_one_sequence(rank: Rank) -> list[list[str]]:
    """A language model whose places do not see each other is right in pieces of one sequence as well."""
    with rank.session() as session:
        model = nn.Embedding(8, 8)
        said: list[list[str]] = []
        for shape in ((1, 12), (12, 8)):
            model(torch.ones(shape, dtype=torch.int64)).sum().backward()
            said.append(without_codes(session.notes))
        return said


def test_one_sequence_is_no_batch_on_the_second_axis(ranks: Any) -> None:
    assert ranks(2, _notes_of_one_sequence) == [[[], []]] * 2


class NeedsRows(Reads):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not len(x):
            raise ValueError("no rows")
        return self.layer(x)


def test_nothing_is_tried_on_half_a_row(tmp_path: Path) -> None:
    """A single rank could compute one row as its part, and has nothing to cut it into."""
    with alone(tmp_path, "micro-batches=2") as session:
        model = NeedsRows()
        for rows in (1, 4, 1):
            model(torch.ones(rows, 4)).sum().backward()
        assert without_codes(session.notes) == []


class Joins(nn.Module):
    def forward(self, levels: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(levels, 1)


class Levels(nn.Module):
    """Feature maps of several levels, as object detectors have them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 1), nn.Conv2d(8, 4, 1)
        self.halve, self.grow = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
        self.joins = nn.ModuleList([Joins(), Joins()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        second = self.second(first)
        return self.joins[0]([first, second]) + self.joins[1]([self.grow(self.halve(first)), second])


class Places(nn.Module):
    """A transformer with a mask of its places."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm = nn.Linear(1, 4), nn.LayerNorm(4)
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
        return self.encoder(self.norm(self.into(x)), src_mask=mask)


def _notes_of_one_row(rank: Rank, make: Callable[[], nn.Module], shape: tuple[int, ...]) -> list[str]:
    with rank.session() as session:
        torch.manual_seed(0)
        model = make()
        model.forward(torch.ones(1, *shape))  # not called: what is inside is called by the script
        model(torch.ones(ROWS, *shape)).sum().backward()
        return without_codes(session.notes)


@pytest.mark.parametrize(("make", "shape"), [(Levels, (1, 8, 8)), (Places, (6, 1))])
def test_of_one_row_nothing_is_said(
    ranks: Any, make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    assert ranks(2, _notes_of_one_row, make, shape) == [[]] * 2


class PlacesFirst(nn.Module):
    """A transformer whose batch is on the second axis, beside the mask of the places that are none."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x, src_key_padding_mask=torch.zeros(x.shape[1], len(x), dtype=torch.bool))


class Pictures(PlacesFirst):
    """Of pixels, which have been cut before, on the first axis."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Conv1d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.into(x.permute(1, 2, 0)).permute(2, 0, 1))


def _notes_of_a_last_batch(rank: Rank, make: Callable[[], nn.Module]) -> list[list[str]]:
    with rank.session() as session:
        torch.manual_seed(0)
        model = make()
        said: list[list[str]] = []
        for rows in (ROWS, 2):
            model.forward(torch.ones(30, rows, 4)).sum().backward()
            said.append(without_codes(session.notes))
        return said


@pytest.mark.parametrize("make", [PlacesFirst, Pictures])
def test_of_a_last_batch_on_the_second_axis_nothing_is_said(
    ranks: Any, make: Callable[[], nn.Module]
) -> None:
    for first, second in ranks(3, _notes_of_a_last_batch, make):
        assert len(first) == (make is PlacesFirst)
        assert second == first


def _notes_of_all_calls(rank: Rank, calls: Callable[[], None]) -> list[str]:
    with rank.session() as session:
        torch.manual_seed(0)
        calls()
        return [note for note in without_codes(session.summary().notes) if "in parts" in note]


def _hooked_at_the_end() -> None:
    model = nn.Linear(4, 4)
    for _ in range(3):
        model(torch.ones(ROWS, 4)).sum().backward()
    model.register_forward_hook(lambda *_: None)
    model(torch.ones(ROWS, 4))


def _hooked_inside() -> None:
    model, other = Around(NeedsRows()), Around(NeedsRows())
    other.inside[0].register_forward_hook(lambda *_: None)
    for each in (model, model, model, other):
        each(torch.ones(ROWS, 4)).sum().backward()


def _always_hooked() -> None:
    model = nn.Linear(4, 4)
    model.register_forward_hook(lambda *_: None)
    model(torch.ones(ROWS, 4))


class Sizes(nn.Module):
    """Finds out by a picture of nothing how many numbers its layers make of one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(5, 2, 3), nn.ReLU(), nn.Flatten(-3))
        self.last = nn.Linear(len(self.layers(torch.zeros(5, 7, 7))), 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layers(x))


def _called_by_itself() -> None:
    model = Sizes()
    for _ in range(2):
        model(torch.ones(ROWS, 5, 7, 7)).sum().backward()


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (
            _hooked_at_the_end,
            (
                "Linear runs in parts in 1 of 4 calls, not as one piece: it has hooks, which must see the "
                "whole batch"
            ),
        ),
        (
            _hooked_inside,
            (
                "Around runs in parts in 1 of 4 calls, not as one piece, because of NeedsRows inside it: "
                "it has hooks, which must see the whole batch"
            ),
        ),
        (
            _always_hooked,
            "Linear runs in parts, not as one piece: it has hooks, which must see the whole batch",
        ),
        (
            _called_by_itself,
            "Sequential runs in parts, not as one piece: it failed on 2 rows",
        ),
    ],
)
def test_how_often_a_module_ran_in_parts_is_said(ranks: Any, calls: Callable[[], None], said: str) -> None:
    for (note,) in ranks(2, _notes_of_all_calls, calls):
        assert note.startswith(said)


def _on_one_sample(rank: Rank) -> tuple[list[str], int, list[float]]:
    with rank.session() as session:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3)).double()
        model(torch.ones(6, dtype=torch.float64)).sum().backward()
        assert isinstance(model[0], nn.Linear)
        assert model[0].weight.grad is not None
        cut = sum(session.tally.sharded.values())
        return without_codes(session.notes), cut, model[0].weight.grad[:3, 0].tolist()


def test_features_of_one_sample_are_no_rows(ranks: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3)).double()
    model(torch.ones(6, dtype=torch.float64)).sum().backward()
    assert isinstance(model[0], nn.Linear)
    assert model[0].weight.grad is not None
    expected = model[0].weight.grad[:3, 0].tolist()
    assert ranks(2, _on_one_sample) == [([], 0, pytest.approx(expected, rel=1e-12))] * 2


def _trained_in_evaluation(rank: Rank) -> int:
    """A validation in the midst of an epoch turns the model to evaluation, and nobody turns it back."""
    torch.manual_seed(0)
    with rank.session() as session:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step, (x,) in enumerate(DataLoader(TensorDataset(torch.ones(6 * ROWS, 4)), ROWS)):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            if step == 1:
                model.eval()
                with torch.no_grad():
                    model(x)
        return session.tally.samples


def test_samples_count_that_are_trained_on_in_evaluation(ranks: Any) -> None:
    assert ranks(2, _trained_in_evaluation) == [6 * ROWS] * 2
