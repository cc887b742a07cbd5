"""A `GradScaler` skips on ranks the steps that it skips on one device, and no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from both_ways import flat
from ronde.tensor.deferred import DeferredScalar
from ronde.tensor.global_tensor import GlobalTensor, materialize
from ronde.testing.run_ranks import Rank
from world_sizes import WORLD_SIZES

ROWS = 8
# Half of it, times any number of ranks, is more than float16 holds.
LARGEST = 65504.0


def _plain(value: Any) -> Any:
    if isinstance(value, (GlobalTensor, DeferredScalar)):
        value = materialize(value)
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


class _Script:
    """Training whose scaled gradients lie at `share` of the largest float16.

    Args:
        accumulate: backwards for each step.
        twist: what else it does: "hook", "retain", "leaf", "penalty", "fails", "apart" (a backward to a
            tensor that no optimizer and no model has); "bias" and "wide" add a parameter whose gradient is a
            sum over all rows, in float16 and in float32; "minus" and "plus" call the model with a bias twice,
            so that its gradient is a sum in float16 less half of another, or two together.
    """

    def __init__(self, share: float, accumulate: int, twist: str) -> None:
        self.share, self.accumulate, self.twist = share, accumulate, twist
        self.seen: list[Any] = []

    def run(self) -> list[Any]:
        torch.manual_seed(2)
        last = nn.Linear(8, 1, bias=self.twist in ("bias", "minus", "plus"))
        net: nn.Module = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh(), last)
        if self.twist == "wide":
            net = _Shifted(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.5)
        scale = self.share * LARGEST * ROWS / 2
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)
        self.seen = seen = list[Any]()
        apart = torch.ones(3, requires_grad=True)
        for _ in range(4):
            for _ in range(self.accumulate):
                x = 0.01 * torch.randn(ROWS, 4)
                if self.twist == "leaf":
                    x.requires_grad_()
                with torch.autocast("cpu", torch.float16):
                    out = net(x)
                if self.twist == "hook":
                    out.register_hook(lambda gradient: self.seen.append(_plain(gradient)))
                if self.twist == "retain":
                    out.retain_grad()
                loss = F.mse_loss(out.float(), torch.ones(ROWS, 1))
                if self.twist in ("minus", "plus"):
                    with torch.autocast("cpu", torch.float16):
                        again = net(3 * x)
                    second = F.mse_loss(again.float(), torch.ones(ROWS, 1))
                    loss = loss + second if self.twist == "plus" else loss - second / 2
                if self.twist == "penalty":
                    loss = loss + 1e-3 * sum(p.square().sum() for p in net.parameters())
                if self.twist == "fails":
                    with pytest.raises(RuntimeError):
                        scaler.scale(out).backward()
                scaler.scale(loss).backward()
                if self.twist == "apart":
                    scaler.scale(apart.square().sum()).backward()
                    seen.append(_plain(apart.grad))
                seen += [loss.item()] + [p.grad.clone() for p in net.parameters() if p.grad is not None]
                if self.twist == "leaf":
                    seen.append(_plain(x.grad))
                if self.twist == "retain":
                    seen.append(_plain(out.grad))
            scaler.unscale_(optimizer)
            seen.append(nn.utils.clip_grad_norm_(net.parameters(), 0.1).item())
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            seen.append(scaler.get_scale())
        return [*seen, *(p.detach() for p in net.parameters())]


class _Shifted(nn.Module):
    """A model with a shift behind it, to which autocast does nothing."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.shift = net, nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).float() + self.shift


def _compare(rank: Rank, share: float, accumulate: int, twist: str, plan: str = "ddp") -> list[str]:
    script = _Script(share, accumulate, twist)
    expected = list(flat(script.run()))
    with rank.session(plan) as session:
        found = list(flat([_plain(value) for value in script.run()]))
        assert session.tally.sharded
    if len(expected) != len(found):
        return [f"{len(found)} values instead of {len(expected)}"]
    return [
        f"{place}: {b}, not {a}"
        for place, (a, b) in enumerate(zip(expected, found, strict=True))
        if not _close(torch.as_tensor(a), torch.as_tensor(b))
    ]


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal within the rounding of float16, which a gradient has that is not finite too."""
    if not torch.isfinite(a).all() or not torch.isfinite(b).all():
        return bool(torch.isfinite(a).all() == torch.isfinite(b).all())
    return bool((a - b).abs().max() <= 4e-3 * a.abs().max())


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("share", [0.7, 1.5])
def test_the_steps_of_one_device_are_skipped(ranks: Any, share: float, world_size: int) -> None:
    assert ranks(world_size, _compare, share, 1, "") == [[]] * world_size


@pytest.mark.parametrize(
    ("share", "accumulate", "twist"),
    [
        (0.7, 3, ""),
        (0.7, 2, "leaf"),
        (0.7, 1, "penalty"),
        (0.7, 2, "fails"),
        (0.7, 3, "apart"),
        (0.3, 1, "hook"),
        (0.3, 1, "retain"),
    ],
)
def test_gradients_are_those_of_one_device(ranks: Any, share: float, accumulate: int, twist: str) -> None:
    assert ranks(2, _compare, share, accumulate, twist) == [[], []]


# Sums over eight rows: of those of 0.2 all are too large for float16, and no rank's part of them is.
SUMS = [(0.2, 1, "bias", True), (0.1, 1, "bias", False), (0.2, 1, "wide", False)]
# Of two sums the first is too large, and their difference is not; then neither is, and both together are.
SUMS += [(0.2, 1, "minus", True), (0.08, 1, "plus", False), (0.2, 1, "plus", True)]
# What three backwards accumulate in float32 may be larger than that.
ACCUMULATED_SUMS = [(0.1, 3, "bias", False), (0.2, 2, "bias", True)]


@pytest.mark.parametrize(("share", "accumulate", "twist"), [case[:3] for case in SUMS + ACCUMULATED_SUMS])
@pytest.mark.parametrize("plan", ["ddp", "zero2", "zero3", "central"])
def test_what_float16_holds_of_one_rank_only_is_lost(
    ranks: Any, share: float, accumulate: int, twist: str, plan: str
) -> None:
    assert ranks(2, _compare, share, accumulate, twist, plan) == [[], []]


@pytest.mark.parametrize(
    ("share", "accumulate", "twist", "skipped"),
    [(0.7, 1, "", False), (1.5, 1, "", True), *SUMS, *ACCUMULATED_SUMS],
)
def test_the_script_comes_close_to_the_edge(share: float, accumulate: int, twist: str, skipped: bool) -> None:
    """A smaller share is not skipped in plain torch, a larger one is: scales that the ranks must keep."""
    first = torch.tensor(share * LARGEST * ROWS / 2).item()
    values = _Script(share, accumulate, twist).run()
    assert any(value == first / 2 for value in values if isinstance(value, float)) is skipped
