"""Ways round a parameter's class and version: what one device gives is given where they lie in parts too."""

from __future__ import annotations

import gc
import multiprocessing
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import ronde
from codes import without_codes
from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.runtime import api
from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]
SOAK = pytest.mark.soak


def net(width: int = 24) -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).double()


class Training:
    def __init__(self, model: nn.Module, width: int = 24) -> None:
        self.model = model
        self.width = width
        self.draw = torch.Generator().manual_seed(3)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def batch(self) -> torch.Tensor:
        return torch.randn(8, self.width, generator=self.draw, dtype=torch.float64)

    def steps(self, count: int) -> list[float]:
        losses: list[float] = []
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = self.model(self.batch()).square().mean()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses


def averages_in_their_place() -> list[float]:
    """Parameters are laid aside by `.data`, others put in their place for a while."""
    training = Training(net())
    found = training.steps(1)
    backup = {name: each.data for name, each in training.model.named_parameters()}
    for each in training.model.parameters():
        each.data = 0.5 * each.data
    with torch.no_grad():
        found.append(training.model(training.batch()).sum().item())
    for name, each in training.model.named_parameters():
        each.data = backup[name]
    return found + training.steps(2)


def laid_elsewhere_before_backward() -> list[float]:
    """Backward of a linear layer goes by the elements of forward, that of a norm by the new ones."""
    torch.manual_seed(5)
    layers = (layer for _ in range(4) for layer in (nn.Linear(24, 24), nn.LayerNorm(24), nn.Tanh()))
    training = Training(nn.Sequential(*layers).double())
    found: list[float] = []
    for _ in range(2):
        training.optimizer.zero_grad()
        loss = training.model(training.batch()).square().mean()
        for each in training.model.parameters():
            each.data = 0.9 * each.data + 0.01
        loss.backward()
        training.optimizer.step()
        found += [
            each.grad.square().sum().item() for each in training.model.parameters() if each.grad is not None
        ]
    return found + training.steps(2)


def written_by_hooks_in_backward() -> list[float]:
    training = Training(net())
    for each in training.model.parameters():
        each.register_post_accumulate_grad_hook(lambda parameter: parameter.data.mul_(0.9))
    return training.steps(3)


def in_memory_of_several_processes() -> list[float]:
    """It lies elsewhere after that, its gradient too."""
    training = Training(net())
    found = training.steps(1)
    training.model.share_memory()
    return found + training.steps(3)


def read_by_another_process() -> list[float]:
    """An actor, say: what it plays by is what has been learnt until it is asked."""
    training = Training(net())
    training.model.share_memory()
    found = training.steps(1)
    here, there = multiprocessing.get_context("fork").Pipe()

    def actor() -> None:
        there.recv()
        with torch.no_grad():
            there.send(sum(each.sum().item() for each in training.model.parameters()))
        os._exit(0)

    process: Any = multiprocessing.get_context("fork").Process(target=actor)
    process.start()
    found += training.steps(2)
    here.send("go")
    found.append(here.recv())
    process.join()
    return found


def built_in_inference_mode() -> list[float]:
    with torch.inference_mode():
        model = net()
        batch = Training(model).batch()
        first = next(model.parameters())
        return [model(batch).sum().item(), model(batch).sum().item(), first.sum().item()]


def lazy_and_deferred() -> list[float]:
    torch.manual_seed(5)
    with ronde.deferred():
        model = nn.Sequential(nn.LazyLinear(370), nn.Sequential(nn.LazyLinear(370), nn.Linear(370, 370)))
    model.double()(torch.ones(8, 24, dtype=torch.float64))
    return Training(model).steps(2)


def lazy_with_its_optimizer() -> list[float]:
    """An optimizer has the parameters of lazy layers before these have a shape, of one layer for good."""
    torch.manual_seed(5)
    layers = (nn.LazyLinear(24), nn.Tanh(), nn.LazyLinear(24))
    model = nn.Sequential(*layers).double()
    training = Training(model)
    never = nn.LazyLinear(3)
    training.optimizer.add_param_group({"params": never.parameters()})
    return training.steps(3)


def one_memory_for_two_models() -> list[float]:
    """A target that is laid into the model's memory follows it from then on, and once more apart it stays."""
    training, target = Training(net()), net().requires_grad_(False)
    found: list[float] = []
    for again in (False, True):
        for mine, theirs in zip(target.parameters(), training.model.parameters(), strict=True):
            mine.data = theirs.data.clone() if again else theirs.data
        for _ in range(3):
            found += [*training.steps(1), target(training.batch()).sum().item()]
        found += [each.sum().item() for each in target.parameters()]
    return found


def layers_of(model: Any) -> list[Any]:
    return list(model)


def one_memory_for_two_layers() -> list[float]:
    """Both are updated in it, one after the other; a slice of it is a third's."""
    training = Training(net())
    found = training.steps(1)
    first, second, third, _ = layers_of(training.model)
    first.weight.data = second.weight.data
    third.bias.data = second.bias.data[:]
    found += training.steps(3)
    first.bias.data = third.weight.data[3]
    return found + training.steps(3)


def one_memory_from_the_start() -> list[float]:
    """Weights tied by their memory, within a model and with another that is called later."""
    training, other = Training(net()), net()
    first, second, *_ = layers_of(training.model)
    first.weight.data = second.weight.data.t()
    layers_of(other)[3].weight.data = second.weight.data
    training.optimizer.add_param_group({"params": other.parameters()})
    found = training.steps(2)
    for _ in range(2):
        other(training.batch()).sum().backward()
        found += training.steps(1)
    return found


def adapted() -> nn.Sequential:
    """Frozen blocks, of which only small weights are trained."""
    torch.manual_seed(5)
    blocks = (nn.Sequential(nn.Linear(24, 24), nn.LayerNorm(24), nn.Tanh()) for _ in range(6))
    model = nn.Sequential(*blocks).double().requires_grad_(False)
    for block in layers_of(model):
        block[0].bias.requires_grad_(True)
    return model


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = adapted()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(self.blocks, x, use_reentrant=False)


def frozen_in_a_checkpoint() -> list[float]:
    """It holds frozen parameters as they are until backward has come to them."""
    return Training(Checkpointed()).steps(3)


def held_by_hooks() -> list[float]:
    """Hooks on saved tensors that keep what they are given, trained or frozen."""
    found: list[float] = []
    for training in (Training(net()), Training(adapted())):
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            found += training.steps(3)
    return found


def read_in_inference_mode() -> list[float]:
    """Gradients, between the backwards that add to them."""
    training = Training(net())
    found: list[float] = []
    for _ in range(2):
        training.model(training.batch()).square().mean().backward()
        with torch.inference_mode():
            for each in training.model.parameters():
                assert each.grad is not None
                found.append(each.grad.square().sum().item())
    training.optimizer.step()
    return found + training.steps(1)


def with_a_graph_and_without() -> list[float]:
    """Gradients are accumulated by backwards of which some are to be differentiable."""
    found: list[float] = []
    for graphs in ((False, True), (True, False), (False, True, False)):
        training = Training(net())
        for graph in graphs:
            training.model(training.batch()).square().mean().backward(create_graph=graph)
        parameters = list(training.model.parameters())
        found += [each.grad.norm().item() for each in parameters if each.grad is not None]
        for each in parameters:
            each.grad = None  # a graph of its own would hold it
        found += training.steps(1)
    return found


def in_another_order_of_axes() -> list[float]:
    """Parameters are laid out anew between two backwards, before a step, and while a gradient is read."""
    orders = (torch.channels_last, torch.contiguous_format)
    found: list[float] = []
    for where in ("accumulated", "stepped", "read"):
        torch.manual_seed(5)
        layers = (nn.Unflatten(1, (6, 2, 2)), nn.Conv2d(6, 8, 2), nn.Flatten(), nn.Linear(8, 24))
        training = Training(nn.Sequential(*layers).double())
        kernel = layers[1].weight
        for order in orders:
            training.model(training.batch()).square().mean().backward()
            kernel.data = kernel.data.contiguous(memory_format=order)
            if where == "accumulated":
                training.model(training.batch()).square().mean().backward()
            elif where == "read" and kernel.grad is not None:
                found.append(kernel.grad[0].norm().item())
            training.optimizer.step()
            found += [kernel[0].norm().item(), *training.steps(1)]
    return found


def checkpointed_in_the_script() -> list[float]:
    """Of what a model has returned, in a class of its own too, and though it is whole before backward."""
    training = Training(net())
    losses: list[float] = []
    for kind, whole in ((torch.Tensor, False), (Image, False), (torch.Tensor, True)):
        out = training.model(training.batch().as_subclass(kind))
        again = torch.utils.checkpoint.checkpoint(lambda x: x * x.sin(), out, use_reentrant=False)
        if whole:
            with torch.no_grad():
                out.mul_(1.0)
        again.mean().backward()
        losses += [again.mean().item(), *(p.grad.norm().item() for p in training.model.parameters())]
    return losses


class Image(torch.Tensor):
    """A class with torch's own functions."""


USES = (
    checkpointed_in_the_script,
    *(
        averages_in_their_place,
        laid_elsewhere_before_backward,
        written_by_hooks_in_backward,
        in_memory_of_several_processes,
        read_by_another_process,
    ),
    *(one_memory_for_two_models, one_memory_for_two_layers, one_memory_from_the_start),
    *(built_in_inference_mode, lazy_and_deferred, frozen_in_a_checkpoint, held_by_hooks),
    read_in_inference_mode,
    *(with_a_graph_and_without, in_another_order_of_axes),
)


def compared(rank: Rank, copied: bool, uses: Sequence[Callable[[], list[float]]] = USES) -> list[str]:
    problems: list[str] = []
    for use in uses:
        outcomes: list[list[float]] = []
        for plan in ("ddp", "zero3"):
            apart = mock.patch.object(Comm, "shares_host", False) if copied else nullcontext()
            with apart, rank.session(plan) as session, mock.patch.object(api._Process, "session", session):
                outcomes.append(use())
        if outcomes[1] != pytest.approx(outcomes[0], rel=1e-11):
            problems.append(f"{use.__name__}: {outcomes[1]} instead of {outcomes[0]}")
    return problems


def test_some_odd_uses(ranks: Ranks) -> None:
    assert ranks(2, compared, False, USES[::6]) == [[]] * 2


@pytest.mark.soak
@pytest.mark.parametrize("copied", [False, True])
def test_odd_uses(ranks: Ranks, copied: bool) -> None:
    assert ranks(2, compared, copied) == [[]] * 2


def lazy_under_three_plans(rank: Rank) -> list[list[float]]:
    outcomes = [lazy_with_its_optimizer()]
    for plan in ("ddp", "zero1", "zero3"):
        with rank.session(plan):
            outcomes.append(lazy_with_its_optimizer())
    return outcomes


def test_an_optimizer_of_lazy_layers(ranks: Ranks) -> None:
    for expected, *found in ranks(2, lazy_under_three_plans):
        for losses in found:
            assert losses == pytest.approx(expected, rel=1e-11)


def not_finite(rank: Rank) -> list[str]:
    """What a script is told of gradients that cannot be clipped."""
    told: list[str] = []
    for session in (nullcontext(), rank.session("zero2"), rank.session("zero3")):
        with session:
            training = Training(net())
            (training.model(training.batch()).sum() * float("inf")).backward()
            with pytest.raises(RuntimeError) as error:
                nn.utils.clip_grad_norm_(training.model.parameters(), 1.0, error_if_nonfinite=True)
            told.append(str(error.value))
    return told


def test_a_norm_that_is_not_finite_is_torchs_error(ranks: Ranks) -> None:
    for plain, *found in ranks(2, not_finite):
        assert found == [plain, plain]


def assigned_anew(rank: Rank) -> tuple[list[float], list[float], list[bool]]:
    """Losses under both plans, and whether a parameter that was put in another's place is in parts."""
    outcomes: list[list[float]] = []
    in_parts: list[bool] = []
    for plan in ("ddp", "zero3"):
        with rank.session(plan):
            training = Training(net())
            losses = training.steps(1)
            fresh = nn.Parameter(torch.full((24, 24), 0.01, dtype=torch.float64))
            training.model.get_submodule("1").weight = fresh
            training.optimizer.add_param_group({"params": [fresh]})
            outcomes.append(losses + training.steps(2))
            in_parts.append(type(fresh) is not nn.Parameter)
    return outcomes[0], outcomes[1], in_parts


def test_a_parameter_put_in_the_place_of_another_is_cut_too(ranks: Ranks) -> None:
    for expected, found, in_parts in ranks(2, assigned_anew):
        assert found == pytest.approx(expected, rel=1e-11)
        assert in_parts == [False, True]


def shared_under_ddp(rank: Rank) -> tuple[list[float], list[float]]:
    with rank.session("ddp"):
        return Training(net()).steps(4), in_memory_of_several_processes()


def test_gradients_whose_memory_is_replaced_are_averaged_still(ranks: Ranks) -> None:
    for expected, found in ranks(2, shared_under_ddp):
        assert found == pytest.approx(expected, rel=1e-11)


def read_in_a_fork(rank: Rank) -> tuple[str, list[float], list[float]]:
    """What a forked process is told, and steps with one and without."""
    with rank.session("ddp"):
        expected = Training(net()).steps(4)
    with rank.session("zero3"):
        training = Training(net())
        found = training.steps(2)
        receiver, sender = multiprocessing.Pipe(duplex=False)
        with sender, receiver:
            child = os.fork()
            if not child:
                try:
                    sender.send(str(next(training.model.parameters()).sum().item()))
                except UsageError as error:
                    sender.send(str(error))
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            return receiver.recv(), found + training.steps(2), expected


def test_a_forked_process_is_in_step_with_nobody(ranks: Ranks) -> None:
    for told, found, expected in ranks(2, read_in_a_fork):
        assert "a parameter that is spread over the ranks was used in another thread" in told
        assert found == pytest.approx(expected, rel=1e-11)


def dropped(rank: Rank) -> list[float]:
    """A model that refers to itself goes on one rank at once, on the other when its garbage is collected."""
    with rank.session("zero3"):
        staying = Training(net())
        losses = staying.steps(1)
        gc.disable()
        try:
            for _ in range(2):
                training = Training(net())
                training.steps(1)
                training.model.float()
                circle: list[Any] = [training]
                circle.append(circle)
                del training, circle
                if rank.rank:
                    gc.collect()
                losses += staying.steps(1)
        finally:
            gc.enable()
    return losses


def pruned(rank: Rank, plan: str) -> list[float]:
    """Smaller parameters come in the place of others, which go as the models in `dropped` do."""
    with rank.session(plan):
        model: Any = net()
        losses: list[float] = []
        gc.disable()
        try:
            for width in (24, 20, 12):
                circle: list[Any] = [model[0].weight, model[1].weight]
                circle.append(circle)
                model[0].weight = nn.Parameter(model[0].weight.detach()[:width].clone())
                model[0].bias = nn.Parameter(model[0].bias.detach()[:width].clone())
                model[1].weight = nn.Parameter(model[1].weight.detach()[:, :width].clone())
                model.zero_grad()
                del circle
                if rank.rank:
                    gc.collect()
                loss = model(torch.linspace(-1, 1, 192, dtype=torch.float64).view(8, 24)).square().mean()
                loss.backward(retain_graph=True)
                losses.append(loss.item())
            loss.backward(create_graph=True)  # makes gradients whole
            losses += [each.grad.norm().item() for each in model.parameters()]
            model.zero_grad()
        finally:
            gc.enable()
    return losses


def test_when_garbage_is_collected_decides_nothing(ranks: Ranks) -> None:
    one, other = ranks(2, dropped)
    assert one == other


@pytest.mark.parametrize(
    "plan",
    [pytest.param("ddp", marks=pytest.mark.soak), "zero2", pytest.param("central", marks=pytest.mark.soak)],
)
def test_when_garbage_is_collected_decides_nothing_of_gradients(ranks: Ranks, plan: str) -> None:
    one, other = ranks(2, pruned, plan)
    assert one == other


class Policy(nn.Module):
    """Has its optimizer and a table by parameter, none of which its forward touches."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = net()
        self.optimizer = torch.optim.Adam(self.layers.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.scales = {each: place for place, each in enumerate(self.layers.parameters())}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def trained_by_itself() -> list[float]:
    training = Training(Policy())
    training.optimizer = training.model.optimizer  # pyright: ignore[reportAttributeAccessIssue]
    found = training.steps(3)
    training.model.eval()
    return found + training.steps(2)


def holding_its_optimizer(rank: Rank, plan: str) -> tuple[bool, list[str]]:
    expected = trained_by_itself()
    with rank.session(plan) as session:
        found = trained_by_itself()
        return found == pytest.approx(expected, rel=1e-12), [*without_codes(session.notes)]


@pytest.mark.parametrize(
    "plan", [*(pytest.param(each, marks=pytest.mark.soak) for each in ("ddp", "zero2", "central")), "zero3"]
)
def test_a_model_that_holds_its_optimizer_is_cut(ranks: Ranks, plan: str) -> None:
    assert ranks(2, holding_its_optimizer, plan) == [(True, [])] * 2


def left(rank: Rank, plan: str) -> list[int]:
    """Models, mappings, descriptors and finalizers more, after several models and steps than after one."""

    def counted() -> tuple[int, int, int, int]:
        gc.collect()
        with open("/proc/self/maps") as maps:
            mapped = sum("memfd:ronde" in line for line in maps)
        finalizers = len(weakref.finalize._registry)  # pyright: ignore[reportAttributeAccessIssue]
        return sum(each() is not None for each in made), mapped, len(os.listdir("/proc/self/fd")), finalizers

    made: list[weakref.ref[nn.Module]] = []
    with rank.session(plan):
        staying = Training(net())
        staying.steps(2)
        before = counted()
        for _ in range(3):
            training = Training(net())
            training.steps(1)
            made.append(weakref.ref(training.model))
            del training
        staying.steps(5)
        Training(net()).steps(1)  # ranks see then that the others are gone
        return [now - then for now, then in zip(counted(), before, strict=True)]


@pytest.mark.parametrize(
    "plan",
    [pytest.param("ddp", marks=pytest.mark.soak), pytest.param("zero2", marks=pytest.mark.soak), "zero3"],
)
def test_models_that_go_leave_nothing(ranks: Ranks, plan: str) -> None:
    a_model = 40  # the last one is not known to be gone yet
    for models, mapped, descriptors, finalizers in ranks(2, left, plan):
        assert models == 0
        assert mapped <= 16
        assert descriptors <= 4
        assert finalizers <= a_model


class _Named(nn.Module):
    """Names a size, for which it is run on FakeTensors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * torch.ones(x.size(), dtype=x.dtype)


def parts_left(rank: Rank) -> list[bool]:
    with rank.session("zero2") as session:
        training = Training(_Named())
        training.model(training.batch()).square().mean().backward()
        with torch.no_grad():
            training.model(training.batch()[:4])
        (gradients,) = session.state.gradients
        return [each in gradients for each in training.model.parameters()]


def test_gradients_stay_in_parts_where_only_their_shape_is_asked_for(ranks: Ranks) -> None:
    assert ranks(2, parts_left) == [[True] * 8] * 2
