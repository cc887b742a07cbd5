"""`ronde.Step` gives one device's numbers, and its micro-batches go back as they come."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from codes import without_codes
from parallel.cut_models import D, Ranks
from peak_bytes import PhasePeaks
from ronde import Step
from ronde.plan.compute import Schedule
from ronde.plan.schedule import chunks_of, most_under_way, turns
from ronde.runtime.api import activate
from ronde.testing.run_ranks import Rank

IGNORED = -100
ALL_FORWARD, BY_TURNS = "FFFFBBBB", "FFBFBFBB"
# What each of two ranks sends ("F") and receives ("B") of tensors in a turn of one of two chunks.
MESSAGES = {("F", 0): ("F", "BF"), ("F", 1): ("BF", "B"), ("B", 0): ("", ""), ("B", 1): ("", "")}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear, self.dropout = nn.LayerNorm(16), nn.Linear(16, 16), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.linear(self.norm(x)).relu())


class Tied(nn.Module):
    """The table is used by its weight too, so every rank has it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return F.linear(x, self.embed.weight)


def of_tokens(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=IGNORED)


def contrastive(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    rows = output.mean(1)
    return F.cross_entropy(rows @ rows.T, target[:, 0].abs() % len(rows))


def trained(loss: Callable[..., torch.Tensor]) -> list[Any]:
    """Losses and parameters; from the third step on targets are ignored, and the last batch is smaller."""
    torch.manual_seed(1)
    model = Tied().to(D)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer.register_step_pre_hook(lambda *_: [nn.utils.clip_grad_norm_(model.parameters(), 0.5), None][1])
    step, draw = Step(model, optimizer, loss), torch.Generator().manual_seed(2)
    told: list[Any] = []
    for number, rows in enumerate([8, 8, 8, 8, 8, 5]):
        ids = torch.randint(0, 20, (rows, 6), generator=draw)
        target = ids.roll(-1, 1)
        if number >= 2:
            target[: rows // 2, 2:] = IGNORED
        told.append(step(ids, target=target).item())
    return [*told, *(each.detach().clone() for each in model.state_dict().values()), torch.randn(3)]


def on_rank(
    rank: Rank, plan: str, what: Callable[..., torch.Tensor] | str
) -> tuple[list[Any], str, list[str]]:
    """What was trained, the order of what the first stage sends and is sent back, and what is said."""
    order: list[str] = []
    with rank.session(plan) as session:
        strategies = session.strategies
        if strategies.sends_gradients:
            stages = strategies.ordered[0]._stages
            for name, turn in [("send", "F"), ("receive", "B")]:
                setattr(stages, name, saying(getattr(stages, name), order, turn))
        activate(session)
        try:
            found = odd(what) if isinstance(what, str) else trained(what)
        finally:
            activate(None)
        said = [*without_codes(session.notes), *without_codes(session.strategies.notes())]
        return found, "".join(order), [each for each in said if "schedule=" in each]


def saying(plain: Callable[..., Any], order: list[str], turn: str) -> Callable[..., Any]:
    def called(*args: Any) -> Any:
        order.append(turn)
        return plain(*args)

    return called


def compare(ranks: Ranks, plan: str, loss: Callable[..., torch.Tensor]) -> list[tuple[str, list[str]]]:
    expected, found = trained(loss), ranks(on_rank, plan, loss)
    for got, _, _ in found:
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)
    return [(said, notes) for _, said, notes in found]


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_micro_batches_go_back_as_they_come(two: Ranks, schedule: str):
    (said, notes), _ = compare(two, f"pipeline=2,micro-batches=4,schedule={schedule}", of_tokens)
    # Ranks learn the way of a micro-batch by one, find that all want the table, and begin anew. The third
    # step finds that targets are ignored; the last has micro-batches of unlike sizes.
    assert said == "FF" + BY_TURNS * 6 + "FF" + BY_TURNS
    assert notes == []


def test_chunks_of_a_rank_go_by_turns(two: Ranks):
    ran = compare(two, "pipeline=2,micro-batches=4,schedule=interleaved", of_tokens)
    for stage, (said, notes) in enumerate(ran):
        order = turns("interleaved", stage, 2, 4, 2)
        messages = "".join(MESSAGES[kind, chunk][stage] for kind, _, chunk in order)
        assert said.endswith(messages)
        assert messages in said[: len(said) // 2]
        assert notes == []


@pytest.mark.soak
def test_a_loss_that_does_not_come_apart_runs_as_gpipe(two: Ranks):
    (said, notes), _ = compare(two, "pipeline=2,micro-batches=4,schedule=1f1b", contrastive)
    assert said == "FF" + BY_TURNS + ALL_FORWARD * 6
    assert [each.split(":")[0] for each in notes] == ["steps run schedule=gpipe"]


class HeadFirst(nn.Module):
    """Its head is the first stage's, and comes last."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.blocks = nn.Linear(16, 4), nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Blocks(nn.Module):
    def __init__(self, *, flat: bool = False, frozen: int = 0) -> None:
        super().__init__()
        self.blocks, self.flat = nn.ModuleList([Block() for _ in range(4)]), flat
        for parameter in self.blocks[:frozen].parameters():
            parameter.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.view(-1, 8) if self.flat else x


class Between(nn.Module):
    """Code between blocks adds and draws; with `skips` it uses what several stages have made."""

    def __init__(self, *, skips: bool = False, in_place: bool = False) -> None:
        super().__init__()
        self.blocks, self.norm = nn.ModuleList([Block() for _ in range(7)]), nn.LayerNorm(16)
        self.skips, self.in_place = skips, in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, _ = x, torch.rand(3)
        for place, block in enumerate(self.blocks):
            more = F.dropout(block(x), 0.3, self.training)
            if self.in_place:
                x = block(more).add_(x)
            else:
                x = x + more
            first = x if place == 0 else first
            if self.skips and place == 2:
                x = x + first
        return self.norm(x + first if self.skips else x)


def distance(output: torch.Tensor, target: torch.Tensor, model: nn.Module) -> torch.Tensor:
    return F.mse_loss(output.reshape(-1)[: target.numel()], target.reshape(-1)[: output.numel()])


def penalized(output: torch.Tensor, target: torch.Tensor, model: nn.Module) -> torch.Tensor:
    return distance(output, target, model) + sum(each.square().sum() for each in model.parameters())


def in_place(output: torch.Tensor, target: torch.Tensor, model: nn.Module) -> torch.Tensor:
    return distance(output.div_(2), target, model)


def summed(output: torch.Tensor, target: torch.Tensor, model: nn.Module) -> torch.Tensor:
    return (output - target).square().sum()


ODD: dict[str, tuple[Callable[[], nn.Module], Callable[..., torch.Tensor], str]] = {
    "a sum": (Blocks, summed, "FFBFBFBB"),
    "a frozen stage": (functools.partial(Blocks, frozen=2), distance, "FFFF"),
    "a head that is defined first": (HeadFirst, distance, ""),
    "no rows in front": (functools.partial(Blocks, flat=True), distance, "FFFFBBBB"),
    "a loss of parameters": (Blocks, penalized, "FFFFBBBB"),
    "a loss in place": (Blocks, in_place, "FFFFBBBB"),
    "code between": (Between, distance, ""),
    "skips": (functools.partial(Between, skips=True), distance, ""),
    "code in place": (functools.partial(Between, in_place=True), distance, ""),
}


def odd(name: str) -> list[Any]:
    torch.manual_seed(1)
    kind, loss, _ = ODD[name]
    model = kind().to(D)
    trained = [each for each in model.parameters() if each.requires_grad]
    step = Step(model, torch.optim.SGD(trained, lr=0.01), lambda output, target: loss(output, target, model))
    draw, told = torch.Generator().manual_seed(2), list[Any]()
    for _ in range(3):
        x = torch.randn(8, 16, generator=draw, dtype=D)
        told.append(step(x, target=x.flip(0)).item())
    return [*told, *(each.detach().clone() for each in model.state_dict().values())]


SOAK = pytest.mark.soak


# Each daily under one schedule, in turn.
@pytest.mark.parametrize(
    ("schedule", "name"),
    [
        pytest.param(schedule, name, marks=() if number == place % 2 else SOAK)
        for place, name in enumerate(ODD)
        for number, schedule in enumerate(("1f1b", "interleaved", "zero-bubble"))
    ],
)
def test_what_is_odd_gives_the_same_numbers(two: Ranks, name: str, schedule: str):
    expected, found = odd(name), two(on_rank, f"pipeline=2,micro-batches=4,schedule={schedule}", name)
    for got, _order, _ in found:
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)
    if ODD[name][2] and schedule == "1f1b":
        assert found[0][1].endswith(ODD[name][2]), found[0][1]


@pytest.mark.parametrize("plan", ["ddp", "pipeline=2,micro-batches=2"])
def test_under_other_plans_a_step_is_what_the_script_would_call(two: Ranks, plan: str):
    compare(two, plan, of_tokens)


PIECES, ROWS, WIDTH, DEPTH = 8, 2048, 32, 64


def held(rank: Rank, schedule: Schedule) -> float:
    """The peak of a step on this rank, in micro-batches' activations of one chunk of the model."""
    stages = rank.world_size
    torch.manual_seed(1)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(DEPTH * stages)]
    with rank.session(f"pipeline={stages},micro-batches={PIECES},schedule={schedule}") as session:
        activate(session)
        try:
            model = nn.Sequential(nn.Linear(1, WIDTH), *blocks, nn.Linear(WIDTH, 1))
            step = Step(model, torch.optim.SGD(model.parameters(), lr=0.1), F.mse_loss)
            x = torch.randn(PIECES * ROWS, 1)
            for _ in range(2):
                step(x, target=x)
            with PhasePeaks() as peaks, peaks.phase("step"):
                step(x, target=x)
        finally:
            activate(None)
    return peaks.most()["step"] * chunks_of(schedule) / (DEPTH * ROWS * WIDTH * 4)


# Where weights wait, the gradients that came to their products are kept too.
@pytest.mark.parametrize(
    ("schedule", "share"),
    [
        ("1f1b", 1.1),
        pytest.param("interleaved", 1.1, marks=pytest.mark.soak),
        pytest.param("zero-bubble", 2.1, marks=pytest.mark.soak),
    ],
)
def test_a_stage_holds_as_many_micro_batches_as_its_formula_says(
    two: Ranks, schedule: Schedule, share: float
):
    for stage, most in enumerate(two(held, schedule)):
        formula = most_under_way(turns(schedule, stage, 2, PIECES, chunks_of(schedule)))
        assert formula <= most <= share * formula


@pytest.mark.soak
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zero-bubble"])
@pytest.mark.parametrize(
    "mesh", ["pipeline=4", "data=2,pipeline=2", "tensor=2,pipeline=2", "data=2,pipeline=2,zero1"]
)
def test_schedules_on_four_ranks(four: Ranks, mesh: str, schedule: str):
    compare(four, f"{mesh},micro-batches=4,schedule={schedule}", of_tokens)


@pytest.mark.soak
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_schedules_with_recomputation(two: Ranks, schedule: str, recompute: str):
    compare(two, f"pipeline=2,micro-batches=4,schedule={schedule},recompute={recompute}", of_tokens)
