"""What modules compute is counted in a model's first call, and stages are balanced by it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from parallel.cut_models import Ranks
from ronde.parallel.pipeline.unit_costs import counting
from ronde.policies.stages import cut_into_stages
from ronde.testing.run_ranks import Rank


def net() -> nn.Sequential:
    """Two convolutions with few parameters and much to do, and layers of which the reverse is true."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        nn.Linear(32, 64),
        nn.Linear(64, 64),
        nn.Linear(64, 4),
    ).double()


IMAGES, LABELS = torch.linspace(-1, 1, 6 * 3 * 16 * 16).double().view(6, 3, 16, 16), torch.arange(6) % 4


def _first_stage(model: nn.Module, counted: dict[nn.Module, float] | None) -> list[str]:
    return [unit.name for unit in cut_into_stages(model, 2, counted=counted).units if unit.stage == 0]


def test_convolutions_count_by_their_images():
    model = net()
    with counting(model) as counts:
        model(IMAGES)
    products = 6 * 16 * 16 * 2 * 9 * 8 * 8
    assert products <= counts[model[1]] <= 2 * products
    assert counts[model] >= sum(counts[part] for part in model)
    assert _first_stage(model, None) != ["0"] == _first_stage(model, counts)


def test_attention_counts_by_its_length():
    class Attends(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(x, x, x)

    found = list[float]()
    for length in (64, 128):
        model = Attends()
        with counting(model) as counts:
            model(torch.ones(1, 2, length, 64))
        found.append(counts[model])
    assert 3 < found[1] / found[0] <= 4


def test_a_unit_that_is_not_called_leaves_parameters_to_tell():
    model = net()
    with counting(model) as counts:
        model[:3](IMAGES)
    assert _first_stage(model, counts) == _first_stage(model, None)


def _trained(model: nn.Module) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = list[float]()
    for _ in range(3):
        loss = F.cross_entropy(model(IMAGES), LABELS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told.append(loss.item())
    return told


def _on_rank(rank: Rank) -> tuple[list[float], list[str]]:
    with rank.session(plan="pipeline=2") as session:
        torch.manual_seed(0)
        model = net()
        losses = _trained(model)
        blocks = session.state.blocks
        here = [name for name, each in model.named_parameters() if blocks.block(each).leaf.numel()]
    return losses, here


def test_stages_are_balanced_by_the_first_call(two: Ranks) -> None:
    torch.manual_seed(0)
    expected = _trained(net())
    told = two(_on_rank)
    for losses, _ in told:
        torch.testing.assert_close(losses, expected, rtol=1e-12, atol=0)
    assert told[0][1] == ["0.weight", "0.bias"]
