"""What lies in host memory gives, to the bit, what it gives on the device.

There need be no device: to host memory, state that comes from the CPU is moved to other memory of the CPU, by
the same ways.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from alone import alone
from codes import without_codes
from ronde.plan import expand
from ronde.shards.cut_state import CutState
from ronde.shards.spec import ShardSpec
from ronde.sync.memory_home import HostMemory
from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]

KIB = 1024

PLANS = (
    *("zero1,offload=optimizer", "zero2,offload=optimizer", "zero3,offload=optimizer"),
    *("zero3,offload=all", "central,offload=optimizer", "central,offload=all"),
)
ON_ONE_RANK = (
    "offload=optimizer",
    pytest.param("zero1,offload=optimizer", marks=pytest.mark.soak),
    pytest.param("zero2,offload=optimizer", marks=pytest.mark.soak),
    "zero3,offload=all",
    pytest.param("central,offload=all", marks=pytest.mark.soak),
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 24)
        self.scale = nn.Parameter(torch.tensor(0.5))  # without dimensions: never in parts, so on the device

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * torch.tanh(self.layer(x))


def made(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(9, 24), *(Block() for _ in range(2)), nn.Linear(24, 5)).to(dtype)


def batches(count: int, dtype: torch.dtype = torch.float32) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(2)
    for _ in range(count):
        yield torch.randn(8, 9, generator=draw).to(dtype), torch.randn(8, 5, generator=draw).to(dtype)


def values(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def adam(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    first, *others = model.children()
    groups = [
        {"params": list(first.parameters()), "lr": 0.03},
        {"params": [each for other in others for each in other.parameters()]},
    ]
    return torch.optim.Adam(groups, **options)


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "adam": adam,
    "adam fused, amsgrad": lambda model: adam(model, fused=True, amsgrad=True),
    "adam, rate in a tensor": lambda model: adam(model, lr=torch.tensor(0.01), foreach=False),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1),
    "asgd": lambda model: torch.optim.ASGD(model.parameters(), lr=0.1),
}


def every_optimizer() -> Any:
    found: list[Any] = []
    for kind in OPTIMIZERS.values():
        model = made()
        optimizer = kind(model)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for place, (x, y) in enumerate(batches(4)):
            optimizer.zero_grad(set_to_none=place % 2 == 0)
            mse_loss(model(x), y).backward()
            optimizer.step()
            schedule.step()
        found.append((values(model), copy.deepcopy(optimizer.state_dict())))
    return found


def accumulated_and_clipped() -> Any:
    model = made(torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    norms: list[Any] = []
    for place, (x, y) in enumerate(batches(6, torch.float64)):
        mse_loss(model(x), y).backward()
        if place == 1:
            norms.append(model[0].weight.grad.clone())  # whole from here on, until it is thrown away
        if place % 2:
            kind = (2.0, torch.inf, 1.0)[place // 2]
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3, norm_type=kind))
            optimizer.step()
            optimizer.zero_grad()
    return norms, values(model), optimizer.state_dict()["state"][2]


def written_behind_every_back() -> Any:
    """Parameters and state that the script changes between steps, by ways that count no version."""
    model = made()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    average = copy.deepcopy(model)
    seen: list[Any] = []
    for place, (x, y) in enumerate(batches(5)):
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(parameter, 0.1)
        if place == 1:
            model[-1].weight.data[1:3].mul_(0.5)
            model[1].layer.bias.data = torch.full((24,), 0.25)
        if place == 2:
            optimizer.state[model[0].weight]["exp_avg"].zero_()
            view = model[2].layer.weight.detach()[3:5]
        if place >= 2:
            seen.append(view.clone())
    return seen, values(model), values(average)


def with_a_closure_and_two_optimizers() -> Any:
    model = made()
    optimizers = [
        torch.optim.SGD(model[:2].parameters(), lr=0.1, momentum=0.9),
        torch.optim.AdamW(model[2:].parameters(), lr=0.01),
    ]
    losses: list[float] = []
    for x, y in batches(4):

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            return loss

        losses.append(optimizers[0].step(closure).item())
        optimizers[1].step()
    return losses, values(model)


def scaled() -> Any:
    """A fused step takes the scale off by itself, and knows by itself whether to step."""
    found: list[Any] = []
    for kind in (OPTIMIZERS["adam fused, amsgrad"], OPTIMIZERS["momentum"]):
        model = made()
        optimizer = kind(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
        for place, (x, y) in enumerate(batches(5)):
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            scaler.scale(loss * (torch.inf if place == 2 else 1)).backward()
            if place == 3:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            found.append([each.grad.clone() for each in model.parameters()])
        found.append((values(model), scaler.get_scale()))
    return found


def saved() -> Any:
    """A checkpoint, made after two steps."""
    model = made()
    optimizer = adam(model)
    for x, y in batches(2):
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    stream = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, stream)
    return stream.getvalue()


def resumed(checkpoint: bytes) -> Any:
    model = made()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    optimizer = adam(model, lr=0.5)
    loaded = torch.load(io.BytesIO(checkpoint), weights_only=True)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    for x, y in batches(2):
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    return values(model), optimizer.state_dict()


BODIES = (
    every_optimizer,
    accumulated_and_clipped,
    written_behind_every_back,
    with_a_closure_and_two_optimizers,
    scaled,
)


def differences(plain: Any, found: Any, path: str, rounding: float = 0.0) -> Iterator[str]:
    if isinstance(plain, torch.Tensor):
        same = (plain.dtype, plain.shape, plain.stride()) == (found.dtype, found.shape, found.stride())
        one, other = plain.nan_to_num().double(), found.nan_to_num().double()
        if not same or not torch.allclose(one, other, rtol=rounding, atol=rounding):
            yield f"{path}: {found} instead of {plain}"
    elif isinstance(plain, (dict, list, tuple)):
        pairs = plain.items() if isinstance(plain, dict) else enumerate(plain)
        if len(plain) != len(found):
            yield f"{path}: {len(found)} instead of {len(plain)}"
        for key, value in pairs:
            yield from differences(value, found[key], f"{path}.{key}", rounding)
    elif plain != found:
        yield f"{path}: {found!r} instead of {plain!r}"


# On one rank there are parts with offload only, and a norm of parts adds up in another order.
_ALONE = {accumulated_and_clipped: 1e-13}
Opened = Callable[[str], Any]


def compared(
    session: Opened, plan: str, rounding: dict[Any, float], bodies: Sequence[Callable[[], Any]] = BODIES
) -> list[str]:
    """Differences between a plan and the same one without offload."""
    moved = expand(plan)
    without = plan.rpartition("offload=")[0].rstrip(",") or "ddp"
    problems: list[str] = []
    for body in bodies:
        with session(without):
            plain = body()
        with session(plan):
            found = body()
        problems += differences(plain, found, f"{body.__name__} under {moved}", rounding.get(body, 0.0))
    with session(without):
        checkpoint = saved()
        expected = resumed(checkpoint)
    with session(plan):
        moved_checkpoint = saved()
        problems += differences(expected, resumed(checkpoint), f"loaded under {moved}")
    with session(without):
        problems += differences(expected, resumed(moved_checkpoint), f"saved under {moved}")
    return problems


def on_ranks(rank: Rank, plan: str, step: int) -> list[str]:
    return compared(rank.session, plan, {}, BODIES[1::step])


def test_numbers_and_files_are_those_without_it(ranks: Ranks) -> None:
    assert ranks(2, on_ranks, "zero3,offload=all", 2) == [[], []]


@pytest.mark.soak
@pytest.mark.parametrize("plan", PLANS)
def test_all_numbers_and_files_are_those_without_it(ranks: Ranks, plan: str) -> None:
    assert ranks(2, on_ranks, plan, 1) == [[], []]


@pytest.mark.soak
@pytest.mark.parametrize("plan", ON_ONE_RANK)
def test_so_they_are_on_one_rank(plan: str, tmp_path: Path) -> None:
    assert compared(lambda each: alone(tmp_path, each), plan, _ALONE) == []


class Watching(HostMemory):
    """What may be on its way up must not be written to; what may be on its way down is not there yet."""

    def __init__(self) -> None:
        super().__init__()
        self.rising: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.falling: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.moved: set[str] = set()
        self.sent_in_backward = 0

    def send_down(self, elements: torch.Tensor) -> torch.Tensor:
        self.sent_in_backward += torch._C._current_graph_task_id() != -1
        part = super().send_down(elements)
        self.falling.append((part, part.clone()))
        return part.fill_(torch.nan)

    def down(self, parts: Sequence[torch.Tensor], elements: Sequence[torch.Tensor]) -> None:
        for part, before in self.rising:
            assert torch.equal(part.nan_to_num(), before.nan_to_num())
        self.rising.clear()
        for part, value in self.falling:
            part.copy_(value)
        self.falling.clear()
        if any(part is not each for part, each in zip(parts, elements, strict=True)):
            self.moved.add("down")
        super().down(parts, elements)

    def up(self, elements: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> None:
        rising = [part for each, part in zip(elements, parts, strict=True) if part is not each]
        self.rising += [(part, part.clone()) for part in rising]
        if rising:
            self.moved.add("up")
        super().up(elements, parts)


@pytest.mark.parametrize(
    "plan",
    [
        *(
            pytest.param(plan, marks=pytest.mark.soak)
            for plan in ("offload=optimizer", "zero3,offload=optimizer")
        ),
        "zero3,offload=all",
    ],
)
def test_nothing_is_overwritten_on_its_way_to_the_device(
    plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes: list[Watching] = []
    monkeypatch.setattr(
        "ronde.strategies.memory_homes.HostMemory", lambda: homes.append(Watching()) or homes[-1]
    )
    for body in BODIES:
        with alone(tmp_path, "ddp"):
            expected = body()
        with alone(tmp_path, plan):
            assert list(differences(expected, body(), body.__name__, _ALONE.get(body, 0.0))) == []
    assert [home.moved for home in homes] == [{"down", "up"}] * len(BODIES)


def test_what_is_moved_lies_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = HostMemory()
    monkeypatch.setattr("ronde.strategies.memory_homes.HostMemory", lambda: home)

    def lives_there(tensor: Any) -> bool:
        return home.lodge(tensor) is tensor

    def trained(plan: str) -> tuple[list[bool], list[bool], list[bool]]:
        with alone(tmp_path, plan):
            model = made()
            optimizer = torch.optim.Adam(model.parameters())
            for x, y in batches(2):
                mse_loss(model(x), y).backward()
                optimizer.step()
            state = vars(optimizer)["state"]
            assert isinstance(state, CutState)
            held = state._held
            cut = [piece.tensor for piece in state.pieces.values()]
            assert len(cut) == len([each for each in model.parameters() if each.dim()])
            return (
                [lives_there(piece.own) for piece in state.pieces.values()],
                [lives_there(part) for each in cut if (part := held.part(each)) is not None],
                [lives_there(held.own_gradient(each, ShardSpec(((0, each.numel()),)))) for each in cut],
            )

    many = 2 * 4
    assert trained("offload=optimizer") == ([True] * many, [], [False] * many)
    assert trained("zero2,offload=optimizer") == ([True] * many, [], [False] * many)
    assert trained("zero3,offload=optimizer") == ([True] * many, [False] * many, [False] * many)
    assert trained("zero3,offload=all") == ([True] * many, [True] * many, [True] * many)


def test_an_optimizer_that_cannot_step_there_stays_on_the_device(tmp_path: Path) -> None:
    for make, words in (
        (lambda model: torch.optim.Adafactor(model.parameters()), "moves that of SGD, Adam, "),
        (
            lambda model: torch.optim.Adam(model.parameters(), capturable=True),
            "capturable=True runs on devices",
        ),
    ):
        with alone(tmp_path, "zero1,offload=optimizer") as session:
            model = made()
            optimizer = make(model)
            optimizer.zero_grad()
            for parameter in model.parameters():
                parameter.requires_grad_(False)
            optimizer.step()
            assert not isinstance(vars(optimizer)["state"], CutState)
            (note,) = without_codes(session.notes)
            assert note.startswith(
                f"the optimizer state of {type(optimizer).__name__} is whole, and stays on "
            )
            assert words in note


def test_the_memory_of_one_rank(tmp_path: Path) -> None:
    """Nothing is sent between ranks; what is counted as buckets is what goes up and down."""
    peaks: dict[str, Any] = {}
    for plan in ("offload=optimizer", "zero3,offload=all"):
        with alone(tmp_path, plan) as session:
            model = nn.Sequential(*(nn.Linear(128, 128, bias=False) for _ in range(6)))
            optimizer = torch.optim.Adam(model.parameters())
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.ones(8, 128)).square().mean().backward()
                optimizer.step()
            peaks[plan] = session.memory.memory().peaks
    unit = 4 * 128 * 128
    whole, counts = 6 * unit, 6 * 4
    assert peaks["offload=optimizer"] == {
        "parameters": whole,
        "gradients": whole,
        "optimizer": 2 * whole + counts,
        "buckets": whole,
        "activations": peaks["offload=optimizer"].get("activations"),
    }
    # In host memory the parts, which are everything; on the device two units.
    all_moved = peaks["zero3,offload=all"]
    assert whole + unit <= all_moved["parameters"] <= whole + 2 * unit
    assert (all_moved["gradients"], all_moved["optimizer"]) == (whole, 2 * whole + counts)
    assert all_moved["buckets"] <= whole + KIB  # these gradients leave together


def test_gradients_leave_the_device_as_backward_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homes: list[Watching] = []
    monkeypatch.setattr(
        "ronde.strategies.memory_homes.HostMemory", lambda: homes.append(Watching()) or homes[-1]
    )
    found: list[Any] = []
    for plan in ("zero3,bucket-mb=0.5", "zero3,offload=all,bucket-mb=0.5"):
        with alone(tmp_path, plan):
            torch.manual_seed(4)
            model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(5)))  # 1 MiB each
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for _ in range(2):
                model(torch.ones(4, 512)).square().mean().backward()
                optimizer.step()
            found.append(values(model))
    assert list(differences(*found, "weights")) == []
    # Each when the next is there: all but the last, which leaves when backward has ended.
    assert homes[0].sent_in_backward == 2 * 4
