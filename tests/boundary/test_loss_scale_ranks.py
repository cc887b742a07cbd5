"""A `GradScaler` skips on ranks the steps that it skips on one device, and no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from both_ways import flat
from ronde.boundary.deferred import DeferredScalar
from ronde.boundary.global_tensor import GlobalTensor, materialize
from ronde.testing.run_ranks import Rank

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
        twist: what else it does: "hook", "retain", "leaf", "penalty", "fails".
    """

    def __init__(self, share: float, accumulate: int, twist: str) -> None:
        self.share, self.accumulate, self.twist = share, accumulate, twist
        self.seen: list[Any] = []

    def run(self) -> list[Any]:
        torch.manual_seed(2)
        net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh(), nn.Linear(8, 1, bias=False))
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.5)
        scale = self.share * LARGEST * ROWS / 2
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)
        self.seen = seen = list[Any]()
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
                if self.twist == "penalty":
                    loss = loss + 1e-3 * sum(p.square().sum() for p in net.parameters())
                if self.twist == "fails":
                    with pytest.raises(RuntimeError):
                        scaler.scale(out).backward()
                scaler.scale(loss).backward()
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


def _compare(rank: Rank, share: float, accumulate: int, twist: str) -> list[str]:
    script = _Script(share, accumulate, twist)
    expected = list(flat(script.run()))
    with rank.session() as session:
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


@pytest.mark.parametrize("world_size", [2, 3])
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
        (0.3, 1, "hook"),
        (0.3, 1, "retain"),
    ],
)
def test_gradients_are_those_of_one_device(ranks: Any, share: float, accumulate: int, twist: str) -> None:
    assert ranks(2, _compare, share, accumulate, twist) == [[], []]


def test_the_script_comes_close_to_the_edge() -> None:
    """A smaller share is not skipped in plain torch, a larger one is: scales that the ranks must keep."""
    for share, skipped in ((0.7, False), (1.5, True)):
        scales = [value for value in _Script(share, 1, "").run() if isinstance(value, float) and value > 1e4]
        assert (min(scales) < share * LARGEST * ROWS / 2) is skipped
