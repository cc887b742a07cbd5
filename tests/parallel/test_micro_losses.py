"""What a micro-batch's loss counts in that of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ronde.parallel.pipeline.micro_batch_losses import MicroLosses, agree, weighings
from ronde.tensor.layout import Layout

IGNORED = -100


def targets(*, ignored: int = 0) -> torch.Tensor:
    found = torch.arange(7 * 3).view(7, 3) % 5
    found.view(-1)[:ignored] = IGNORED
    return found


def cross_entropy(output: torch.Tensor, target: torch.Tensor, **options: Any) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), **options)


def weighted(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return cross_entropy(output, target, weight=torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).double())


def summed(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return cross_entropy(output, target, reduction="sum")


def contrastive(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    rows = output.flatten(1)
    return F.cross_entropy(rows @ rows.T, torch.arange(len(rows)))


def root(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return cross_entropy(output, target).sqrt()


@pytest.mark.parametrize(
    ("loss", "target", "expected"),
    [
        (cross_entropy, targets(), {"mean", "targets"}),
        (cross_entropy, targets(ignored=4), {"targets"}),
        (cross_entropy, targets(ignored=9), {"sum", "targets"}),  # all of the first micro-batch
        (weighted, targets(), {"targets"}),
        (summed, targets(), {"sum", "targets"}),
        (contrastive, targets(), set()),
        (root, targets(), set()),
    ],
)
def test_gradients_of_micro_batches_are_those_of_the_batch_where_the_loss_is_a_weighted_sum(
    loss: Callable[..., torch.Tensor], target: torch.Tensor, expected: set[str]
) -> None:
    output = torch.randn(7, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    micro = MicroLosses(loss, target, Layout(0, 7, 2))
    value, whole = micro.whole(output)
    assert value == loss(output, target)
    found = {
        by
        for by in weighings
        if all(
            agree(part, micro.rows_of(whole, piece))
            for piece, part in enumerate(micro.parts(output, micro.weights(by, output)))
        )
    }
    assert found == expected


def test_weights_are_known_before_the_output_is_there() -> None:
    micro = MicroLosses(cross_entropy, targets(ignored=4), Layout(0, 7, 2))
    shape = torch.zeros((), dtype=torch.float64).expand(7, 3, 5)
    assert micro.weights("targets", shape) == pytest.approx([5 / 17, 12 / 17], abs=1e-15)


def test_weights_that_are_wrong_are_seen_in_half_precision_too() -> None:
    output = torch.randn(7, 3, 5, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0))
    micro = MicroLosses(cross_entropy, targets(ignored=4), Layout(0, 7, 2))
    _, whole = micro.whole(output)
    parts = micro.parts(output, micro.weights("mean", output))
    assert not all(agree(part, micro.rows_of(whole, piece)) for piece, part in enumerate(parts))


def test_a_loss_of_parameters_is_refused() -> None:
    weight = torch.ones(5, dtype=torch.float64, requires_grad=True)
    micro = MicroLosses(lambda output, _: (output * weight).sum(), None, Layout(0, 7, 2))
    with pytest.raises(ValueError, match="depends on more than the model's output"):
        micro.whole(torch.zeros(7, 5, dtype=torch.float64))
