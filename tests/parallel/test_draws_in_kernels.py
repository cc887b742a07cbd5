"""Micro-batches of a model whose dropout is drawn inside of a kernel, as CUDA's attention does it.

No kernel of a CPU draws so; dropout stands in for one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from alone import alone
from codes import without_codes
from ronde.rng import draws


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        nn.init.eye_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.layer(x), 0.5)


@pytest.fixture(autouse=True)
def in_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "_KERNELS", ("native_dropout", "bernoulli_"))


def trained() -> tuple[torch.Tensor, torch.Tensor]:
    """What the model gives for rows of ones, and the gradient of these."""
    torch.manual_seed(0)
    model = Dropping()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(2):  # the first call is observed
        x = torch.ones(4, 16, requires_grad=True)
        output = model(x)
        output.sum().backward()
        optimizer.step()
    assert x.grad is not None
    return torch.tensor(output.tolist()), torch.tensor(x.grad.tolist())


def test_pieces_draw_anew_where_ranks_do(tmp_path: Path) -> None:
    with alone(tmp_path, "micro-batches=2,rng=per-rank") as session:
        output, gradient = trained()
        assert not any("one piece" in note for note in without_codes(session.notes))
    assert not torch.equal(output[:2], output[2:])
    # Backward has computed the first piece again, with what it had drawn.
    assert torch.equal(output, gradient)


def test_a_draw_that_cannot_be_cut_leaves_the_batch_whole(tmp_path: Path) -> None:
    expected, _ = trained()
    with alone(tmp_path, "micro-batches=2,rng=global") as session:
        output, gradient = trained()
        assert any(
            "draws random numbers inside of its kernel" in note for note in without_codes(session.notes)
        )
    assert torch.equal(output, expected)
    assert torch.equal(output, gradient)
