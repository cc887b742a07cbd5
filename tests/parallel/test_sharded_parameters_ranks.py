"""Where parameters or gradients lie in parts, whatever a script does gives what one device gives."""

from __future__ import annotations

import copy
import functools
import io
import math
import pickle
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import numpy
import pytest
import torch
from torch import nn
from torch.nn.functional import linear, mse_loss

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.testing.run_ranks import Rank
from world_sizes import WORLD_SIZES

Ranks = Callable[..., list[Any]]
PLANS = ("zero2", "zero3", "central")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24)
        self.layer = nn.Linear(24, 24)
        self.scale = nn.Parameter(torch.tensor(0.5))  # without dimensions: never in parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * torch.tanh(self.layer(self.norm(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(9, 24)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.last = nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)

    def head(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.last.weight, self.last.bias)


class Training:
    """A model that has made a step, and can make more."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = Net().double()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.draw = torch.Generator().manual_seed(2)
        self.step()

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        shape = {"generator": self.draw, "dtype": torch.float64}
        return torch.randn(8, 9, **shape), torch.randn(8, 5, **shape)

    def backward(self) -> torch.Tensor:
        x, y = self.batch()
        loss = mse_loss(self.model(x), y)
        loss.backward()
        return loss

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.backward()
        self.optimizer.step()
        return loss.item()


def values(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def printed(training: Training) -> Any:
    return (
        repr(training.model.last.bias),
        str(training.model.blocks[0].layer.weight.sum()),
        repr(training.model),
    )


def counted(training: Training) -> Any:
    return [
        (
            name,
            type(each.shape),
            tuple(each.shape),
            each.numel(),
            each.dtype,
            each.requires_grad,
            each.is_leaf,
        )
        for name, each in training.model.named_parameters()
    ], sum(each.nbytes for each in training.model.parameters())


def copied(training: Training) -> Any:
    model = copy.deepcopy(training.model)
    training.step()
    return values(model), [type(each) for each in model.parameters()]


def pickled(training: Training) -> Any:
    model = pickle.loads(pickle.dumps(training.model))
    stream = io.BytesIO()
    torch.save({"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}, stream)
    stream.seek(0)
    loaded = torch.load(stream, weights_only=True)
    return values(model), list(loaded["model"].values()), loaded["optimizer"]["state"][3]["exp_avg"]


def loaded(training: Training) -> Any:
    before = copy.deepcopy((training.model.state_dict(), training.optimizer.state_dict()))
    training.step()
    training.model.load_state_dict(before[0])
    training.optimizer.load_state_dict(before[1])
    return training.step()


def kept_views_follow(training: Training) -> Any:
    view = training.model.last.weight.data
    alias = training.model.blocks[1].layer.weight.detach()[3:5]
    state = training.model.state_dict()
    training.step()
    training.step()
    seen = view.clone(), alias.clone(), [value.clone() for value in state.values()]
    view.mul_(2)
    return seen, training.step(), training.step()


def written_through_a_view(training: Training) -> Any:
    """While its unit is let go of, by a view that is gone when the optimizer steps."""
    view = training.model.first.weight.data
    x, _ = training.batch()
    before = training.model(x).detach()
    view.mul_(1.5)
    del view
    after = training.model(x).detach()
    return before, after, training.step()


def written(training: Training) -> Any:
    model = training.model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)
        model.first.weight[2:4] = 0.25
    model.last.weight.data.clamp_(-0.1, 0.1)
    model.last.bias.data = torch.full((5,), 0.5, dtype=torch.float64)
    nn.init.constant_(model.blocks[2].layer.bias, 0.125)
    return training.step(), training.step()


def shown_to_numpy(training: Training) -> Any:
    array = training.model.first.weight.detach().numpy().copy()
    total = numpy.asarray(training.model.last.weight.detach()).sum()
    return array, total, training.step(), training.step()


def made_from(training: Training) -> Any:
    weight = training.model.last.weight
    made = (
        nn.Parameter(weight),
        torch.tensor(weight.tolist()),
        torch.as_tensor(weight),
        torch.zeros_like(weight),
    )
    return [each.detach().clone() for each in made], [type(each) for each in made]


def gradients_read(training: Training) -> Any:
    training.optimizer.zero_grad()
    training.backward()
    first = [each.grad.clone() for each in training.model.parameters() if each.grad is not None]
    training.backward()  # accumulated on what was read
    training.model.first.weight.grad *= 0.5
    second = [each.grad.clone() for each in training.model.parameters() if each.grad is not None]
    training.optimizer.step()
    return first, second, training.step()


def gradients_by_their_other_name(training: Training) -> Any:
    """`_grad` is the field that `grad` is: read, written, taken away and deleted."""
    training.backward()
    parameters = list(training.model.parameters())
    there = [each._grad is not None for each in parameters]
    read = parameters[0]._grad.sum(), parameters[0].grad is parameters[0]._grad
    for each in parameters[1:]:
        each._grad = torch.ones_like(each)
    training.optimizer.step()
    given = values(training.model), [each.grad.sum() for each in parameters]
    training.backward()
    for each in parameters[:4]:
        each._grad = None
    del parameters[4]._grad
    gone = [each.grad is None for each in parameters]
    training.optimizer.step()
    return there, read, given, gone


def accumulated(training: Training) -> Any:
    training.optimizer.zero_grad(set_to_none=False)
    for _ in range(3):
        training.backward()
    norm = nn.utils.clip_grad_norm_(parameters=training.model.parameters(), max_norm=0.1)
    training.optimizer.step()
    return norm, training.step()


def clipped(training: Training) -> Any:
    norms: list[Any] = []
    for order in (2, 1.0, math.inf):
        training.optimizer.zero_grad()
        training.backward()
        norms.append(nn.utils.clip_grad_norm_(training.model.parameters(), 0.05, norm_type=order))
        training.optimizer.step()
    training.optimizer.zero_grad()
    training.backward()
    nn.utils.clip_grad_value_(parameters=training.model.parameters(), clip_value=0.001)
    training.optimizer.step()
    return norms, [type(each) for each in norms], training.step()


def past_forward(training: Training) -> Any:
    x = torch.randn(8, 24, generator=training.draw, dtype=torch.float64)
    penalty = sum(parameter.square().sum() for parameter in training.model.parameters())
    training.optimizer.zero_grad()
    loss = training.model.head(x).square().mean() + 0.01 * penalty
    loss.backward()
    training.optimizer.step()
    return loss.item(), training.step()


def functional(training: Training) -> Any:
    parameters = dict(training.model.named_parameters())
    x, y = training.batch()

    def loss(values: Any) -> torch.Tensor:
        return mse_loss(torch.func.functional_call(training.model, values, (x,)), y)

    found = torch.func.grad(loss)(parameters)
    return list(found.values()), training.step()


def frozen_and_thawed(training: Training) -> Any:
    training.model.blocks[1].requires_grad_(False)
    first = training.step()
    training.model.blocks[1].requires_grad_(True)
    return first, training.step(), training.step()


def another_optimizer(training: Training) -> Any:
    """One that is not cut: it updates whole parameters by whole gradients."""
    training.optimizer = torch.optim.Adafactor(training.model.parameters(), lr=0.01)
    return training.step(), training.step()


def by_hand(training: Training) -> Any:
    training.model.zero_grad()
    training.backward()
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter -= 0.1 * parameter.grad
    return training.step()


def other_type(training: Training) -> Any:
    training.model.float().double()
    return training.step(), training.step()


def second_order(training: Training) -> Any:
    x, y = training.batch()
    loss = mse_loss(training.model(x), y)
    first = torch.autograd.grad(loss, list(training.model.parameters()), create_graph=True)
    training.optimizer.zero_grad()
    sum(each.square().sum() for each in first).backward()
    training.optimizer.step()
    return [each.detach().clone() for each in first], training.step()


def evaluated(training: Training) -> Any:
    training.model.eval()
    with torch.no_grad():
        found = training.model(training.batch()[0])
    with torch.inference_mode():
        also = training.model(training.batch()[0])
    training.model.train()
    return found.sum().item(), also.sum().item(), training.step()


USES = (
    *(printed, counted, copied, pickled, loaded, kept_views_follow, written, written_through_a_view),
    *(shown_to_numpy, made_from, gradients_read, gradients_by_their_other_name, accumulated, clipped),
    *(past_forward, functional, frozen_and_thawed, another_optimizer),
    *(by_hand, other_type, second_order, evaluated),
)


def differences(plain: Any, found: Any, path: str) -> list[str]:
    if isinstance(plain, torch.Tensor):
        alike = isinstance(found, nn.Parameter) is isinstance(plain, nn.Parameter)
        if not alike or found.shape != plain.shape or found.dtype != plain.dtype:
            return [f"{path}: {found} instead of {plain}"]
        close = torch.allclose(plain, found, rtol=1e-11, atol=1e-13)
        return [] if close else [f"{path}: {found} instead of {plain}"]
    if isinstance(plain, (list, tuple)):
        pairs = enumerate(zip(plain, found, strict=True))
        return [each for place, (one, other) in pairs for each in differences(one, other, f"{path}[{place}]")]
    same = (
        numpy.allclose(plain, found, rtol=1e-11)
        if isinstance(plain, (float, numpy.ndarray))
        else plain == found
    )
    return [] if same else [f"{path}: {found!r} instead of {plain!r}"]


def apart() -> Any:
    """Inside, ranks do not know that they share a host: parameters are copied, as between hosts."""
    return mock.patch.object(Comm, "shares_host", False)


def outcome(use: Callable[[Training], Any]) -> Any:
    training = Training()
    return use(training), values(training.model)


# The ranks of all plans compare with one.
on_one_device = functools.cache(outcome)


def everything(rank: Rank, plan: str, *, copied: bool = False, every: int = 1) -> list[str]:
    problems: list[str] = []
    for use in USES[::every]:
        plain = on_one_device(use)
        with apart() if copied else nullcontext(), rank.session(plan):
            problems += differences(plain, outcome(use), use.__name__)
    return problems


def some(rank: Rank) -> list[str]:
    return everything(rank, "zero3", every=8)


def test_what_scripts_do(ranks: Ranks) -> None:
    assert ranks(2, some) == [[]] * 2


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["zero3", "zero2", "central"])
def test_whatever_a_script_does(ranks: Ranks, plan: str) -> None:
    assert ranks(2, everything, plan) == [[]] * 2


def everything_copied(rank: Rank) -> list[str]:
    return everything(rank, "zero3", copied=True)


@pytest.mark.soak
def test_whatever_a_script_does_between_hosts(ranks: Ranks) -> None:
    assert ranks(2, everything_copied) == [[]] * 2


@pytest.mark.soak
@pytest.mark.parametrize("plan", PLANS)
def test_whatever_a_script_does_on_three(ranks: Ranks, plan: str) -> None:
    assert ranks(3, everything, plan) == [[]] * 3


def _resident(session: Any) -> int:
    found = session.memory.count().bytes
    return sum(found[kind] for kind in ("parameters", "gradients", "optimizer", "buckets"))


def memory(rank: Rank, plan: str) -> tuple[int, int, int]:
    """Bytes of state after a step, the number of parameters, and the bytes of the largest unit."""
    with rank.session(plan) as session:
        torch.manual_seed(0)
        net = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)))
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.randn(8, 256)).square().mean().backward()
            optimizer.step()
        return _resident(session), sum(each.numel() for each in net.parameters()), 4 * (256 * 256 + 256)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_zero2_takes_its_share_of_memory(ranks: Ranks, world_size: int) -> None:
    for held, count, _ in ranks(world_size, memory, "zero2"):
        assert held <= 1.05 * (4 * count + 12 * count / world_size)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_zero3_takes_its_share_of_memory(ranks: Ranks, world_size: int) -> None:
    for held, count, unit in ranks(world_size, memory, "zero3"):
        assert held <= 1.05 * (16 * count / world_size + 2 * unit)


def test_one_owner_has_everything(ranks: Ranks) -> None:
    (owner, count, unit), (other, _, _) = ranks(2, memory, "central")
    assert 16 * count <= owner <= 1.05 * (16 * count + 2 * unit)
    assert other <= 2 * unit


class Watched(nn.Module):
    """Tells how many bytes of parameters are there when it is called."""

    def __init__(self, model: nn.Module, seen: list[int]) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        # No list of numbers: one that is another at every call is observed again, with all units there.
        self._all, self._tell = [model], seen.append

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        with torch._C.DisableTorchFunctionSubclass():
            self._tell(sum(each.untyped_storage().nbytes() for each in self._all[0].parameters()))
        return x


def most_whole(rank: Rank) -> tuple[int, int]:
    with apart(), rank.session("zero3"):
        seen: list[int] = []
        net = nn.Sequential()
        net.extend([Watched(net, seen) for _ in range(6)])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
        unit = 4 * (64 * 64 + 64)
        return max(seen[-6:]), 2 * unit


def test_two_units_are_whole_at_a_time(ranks: Ranks) -> None:
    for most, allowed in ranks(2, most_whole):
        assert 0 < most <= allowed


def whole_after_a_transform(rank: Rank) -> tuple[int, int]:
    """Bytes of parameters that are there after a transform, and after the next step and forward."""
    with rank.session("zero3"):
        net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(6)))
        optimizer = torch.optim.Adafactor(net.parameters())  # its steps are not cut
        batch = torch.randn(8, 64)

        def there() -> int:
            with torch._C.DisableTorchFunctionSubclass():
                return sum(each.untyped_storage().nbytes() for each in net.parameters())

        net(batch).square().mean().backward()
        optimizer.step()
        torch.func.grad(lambda x: x.square().sum())(batch)
        transformed = there()
        optimizer.step()
        with torch.no_grad():
            net(batch)
        return transformed, there()


def test_what_a_transform_needed_whole_is_let_go_of_after_any_step(ranks: Ranks) -> None:
    for before, after in ranks(2, whole_after_a_transform):
        assert before == 6 * 4 * (64 * 64 + 64)
        assert after == 0


def in_a_thread(rank: Rank) -> list[str]:
    found: list[str] = []
    with rank.session("zero3"):
        training = Training()
        training.optimizer.zero_grad()
        training.backward()

        def look(read: Callable[[], Any]) -> None:
            try:
                read()
            except UsageError as error:
                found.append(str(error))

        for read in (training.model.last.weight.sum, lambda: training.model.first.weight.grad):
            thread = threading.Thread(target=look, args=(read,))
            thread.start()
            thread.join()
    return found


def test_another_thread_is_told_why_not(ranks: Ranks) -> None:
    for parameter, gradient in ranks(2, in_a_thread):
        assert "a parameter that is spread over the ranks was used in another thread" in parameter
        assert "a gradient that is spread over the ranks was read in another thread" in gradient
