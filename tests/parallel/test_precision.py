"""Precision by plan is what a careful user writes with autocast and GradScaler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from ronde.errors import UsageError
from ronde.parallel.compute.loss_scaling import LossScaling
from ronde.parallel.compute.precision import NARROW, Precision, allow_tf32
from ronde.patching.patches import Patches
from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]


@contextmanager
def computing(name: str) -> Iterator[tuple[list[str], LossScaling]]:
    """As one rank runs, without a boundary; gives what was noted, and the scale."""
    patches, notes, scaling = Patches(), [], LossScaling(bool)
    Precision(name, notes.append).install(patches)
    if name == "fp16":
        scaling.install(patches)
        scaling.install_backward(patches)
    try:
        yield notes, scaling
    finally:
        patches.restore()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)
        self.seen: list[torch.dtype] = []

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        hidden = self.first(x)
        self.seen.append(hidden.dtype)
        out = self.second(hidden.relu())
        return {"out": out, "again": out, "word": "x"}


def _net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_a_model_computes_in_the_narrow_type_and_nothing_else_does(name: str) -> None:
    net, x, y = _net(), torch.randn(9, 6), torch.randint(3, (9,))
    with torch.autocast("cpu", NARROW[name]):
        narrow = net(x)["out"]
    expected = F.cross_entropy(narrow.float(), y)
    with computing(name) as (notes, _):
        found = net(x)
        loss = nn.CrossEntropyLoss()(found["out"], y)
        assert torch.get_autocast_dtype("cpu") is not None
        assert not torch.is_autocast_enabled("cpu")
    assert net.seen == [NARROW[name]] * 2
    assert found["out"].dtype is torch.float32
    assert found["again"] is found["out"]
    assert torch.equal(loss, expected)
    assert notes == []


def test_a_script_with_autocast_of_its_own_is_agreed_with_or_refused() -> None:
    net, x = _net(), torch.randn(9, 6)
    with computing("bf16"):
        with torch.autocast("cpu", torch.bfloat16):
            assert net(x)["out"].dtype is torch.bfloat16
        with (
            torch.autocast("cpu", torch.float16),
            pytest.raises(UsageError, match="the script computes in float16 by an autocast of its own"),
        ):
            net(x)


def test_an_autocast_that_the_script_has_switched_off_is_switched_on() -> None:
    net, x = _net(), torch.randn(9, 6)
    with computing("bf16") as (notes, _), torch.autocast("cpu", enabled=False):
        net(x)
    assert not notes
    assert net.seen == [torch.bfloat16]


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_computes_again_has_the_type_that_it_had(reentrant: bool) -> None:
    """It has contexts of its own around it, which are switched off where none was on."""
    net, x = _net(), torch.randn(9, 6, requires_grad=True)
    with computing("bf16"):
        found = torch.utils.checkpoint.checkpoint(lambda x: net(x)["out"], x, use_reentrant=reentrant)
        found.sum().backward()
    assert net.seen == [torch.bfloat16] * 2


def test_another_type_of_the_scripts_choice_is_said() -> None:
    with computing("bf16") as (notes, _):
        assert _net().double()(torch.randn(2, 6, dtype=torch.float64))["out"].dtype is torch.float64
        assert _net().bfloat16()(torch.randn(2, 6, dtype=torch.bfloat16))["out"].dtype is torch.bfloat16
    assert [note.split(":")[0] for note in notes] == ["Net computes in float64, as its parameters are"]


def test_tf32_says_that_a_cpu_has_none() -> None:
    if torch.cuda.is_available():
        pytest.skip("for machines without a CUDA device")
    notes: list[str] = []
    allow_tf32(Patches(), notes.append)
    assert notes[0].startswith("precision=tf32 changes nothing on a CPU")
    assert torch.get_float32_matmul_precision() == "highest"


def test_tf32_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    patches, cudnn = Patches(), torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("highest")
        cudnn.allow_tf32 = False
        allow_tf32(patches, lambda note: None)
        assert (torch.get_float32_matmul_precision(), cudnn.allow_tf32) == ("high", True)
        patches.restore()
        assert (torch.get_float32_matmul_precision(), cudnn.allow_tf32) == ("highest", False)
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32 = before[1]


def _trained(scaler: Any) -> tuple[list[torch.Tensor], list[float]]:
    """Accumulation, clipping, and a step whose gradients overflow; the parameters and the norms."""
    net = _net()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    norms: list[float] = []
    narrow = torch.autocast("cpu", torch.float16) if scaler else nullcontext()
    for step in range(5):
        optimizer.zero_grad()
        for _ in range(2):
            with narrow:
                out = net(torch.randn(9, 6))["out"]
            loss = F.cross_entropy(out.float(), torch.randint(3, (9,))) * (1e6 if step == 2 else 1)
            (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.unscale_(optimizer)
        norms.append(nn.utils.clip_grad_norm_(net.parameters(), 0.5).item())
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
    return [parameter.detach().clone() for parameter in net.parameters()], norms


def test_the_scale_is_that_of_a_scaler() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    expected, norms = _trained(scaler)
    with computing("fp16") as (_, scaling):
        found, found_norms = _trained(None)
        assert scaling.scale == scaler.get_scale() == 2.0**15
        assert scaling.skipped == 1
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert norms[:2] == found_norms[:2]


def test_leaves_that_no_optimizer_has_get_true_gradients() -> None:
    net, x = _net(), torch.randn(9, 6, requires_grad=True)
    with computing("fp16"):
        net(x)["out"].mean().backward()
        once = x.grad.clone()  # pyright: ignore[reportOptionalMemberAccess]
        net(x)["out"].mean().backward()
    torch.testing.assert_close(x.grad, 2 * once)
    torch.testing.assert_close(once, torch.autograd.grad(net(x)["out"].mean(), x)[0], rtol=2e-2, atol=1e-4)


def test_what_cannot_be_scaled_is_refused() -> None:
    net = _net()
    with computing("fp16"):
        optimizer = torch.optim.LBFGS(net.parameters())
        with pytest.raises(UsageError, match=r"cannot skip a step of LBFGS that computes the loss itself"):
            optimizer.step(_forbidden)
        with pytest.raises(UsageError, match="register_post_accumulate_grad_hook would see scaled gradients"):
            net.first.weight.register_post_accumulate_grad_hook(print)


def _forbidden() -> float:
    raise AssertionError("the closure was called")


def test_a_scaler_of_the_script_scales_alone() -> None:
    with computing("fp16") as (_, scaling):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        net = _net()
        scaler.scale(net(torch.randn(9, 6))["out"].sum()).backward()
        assert net.second.bias.grad is not None
        assert net.second.bias.grad.tolist() == [72.0] * 3
        assert scaling.skipped == 0


def _gradients(large: bool = False) -> list[torch.Tensor]:
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x, y = torch.randn(11, 6), torch.randint(3, (11,))
    if large:
        x[10] = torch.inf  # the last rank's row is none
    F.cross_entropy(net(x)["out"], y).backward()
    optimizer.step()
    return [value.detach().clone() for p in net.parameters() for value in (p, p.grad) if value is not None]


def _on_ranks(rank: Rank, plan: str) -> list[Any]:
    found: list[Any] = []
    for large in (False, True) if "fp16" in plan else (False,):
        with rank.session(plan) as session:
            found.append(_gradients(large))
            assert session.tally.sharded == {"Net": 1}
    return found


@pytest.mark.parametrize("plan", ["precision=bf16", "precision=fp16,micro-batches=2", "zero3,precision=fp16"])
def test_ranks_round_as_one_device(ranks: Ranks, plan: str) -> None:
    with computing("fp16" if "fp16" in plan else "bf16"):
        expected = _gradients()
    results = ranks(2, _on_ranks, plan)
    for found, *overflown in results:
        for a, b in zip(expected, found, strict=True):
            torch.testing.assert_close(b, a, rtol=2e-2, atol=2e-3)
        for values in overflown:  # every rank skips
            for parameter, plain in zip(values[::2], _net().parameters(), strict=True):
                assert torch.equal(parameter, plain)


class Sized(nn.Module):
    """Names a size, so whether that decides is asked on tensors without data before the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x.reshape(x.shape[0], -1)).relu())


def _of_sized(own: bool) -> list[torch.Tensor]:
    """Losses and parameters of some steps.

    Args:
        own: the autocast is the script's.
    """
    torch.manual_seed(3)
    net = Sized()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses: list[torch.Tensor] = []
    for _ in range(3):
        x, y = torch.randn(24, 2, 3), torch.randint(3, (24,))
        with torch.autocast("cpu", torch.bfloat16) if own else nullcontext():
            loss = F.cross_entropy(net(x).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(each.detach().clone() for each in net.parameters())]


def _sized_on_ranks(rank: Rank, plan: str) -> list[Any]:
    with rank.session(plan) as session:
        found = [value.tolist() for value in _of_sized(own=plan == "ddp")]
        assert session.tally.sharded == {"Sized": 3}
        return found


@pytest.mark.parametrize("plan", ["ddp", "precision=bf16", "zero3,precision=bf16"])
def test_what_is_tried_without_data_leaves_nothing_in_the_casts(ranks: Ranks, plan: str) -> None:
    expected = _of_sized(own=True)
    for found in ranks(2, _sized_on_ranks, plan):
        for value, other in zip(expected, found, strict=True):
            torch.testing.assert_close(torch.tensor(other), value, rtol=0.02, atol=0.002)
