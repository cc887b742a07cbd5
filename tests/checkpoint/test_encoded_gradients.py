"""What encoding has held back of gradients is saved: a resumed run ends as an undisturbed one."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from ronde.runtime.checkpointing.rank_state import has_place
from ronde.sync.compression.protocol import GradientCompression
from ronde.testing import forked

SCRIPT = """
    import sys, torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.{optimizer}
    x = torch.randn(160, 10)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    step, last = 0, int(sys.argv[1])
    while step < last:
        for inputs, targets in loader:
            if step == last:
                break
            step += 1
            loss = nn.functional.mse_loss(net(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(step, loss.item(), flush=True)
    torch.save(net.state_dict(), "end.pt")
"""
MOMENTUM = "SGD(net.parameters(), lr=0.02, momentum=0.9)"
ADAM = "Adam(net.parameters(), lr=0.01)"


def train(place: Path, plan: str, last: int, *options: str, optimizer: str = MOMENTUM, ranks: int = 2) -> str:
    place.mkdir(exist_ok=True)
    (place / "train.py").write_text(textwrap.dedent(SCRIPT).format(optimizer=optimizer))
    words = ["run", "--ranks", str(ranks), "--plan", plan, "--checkpoint", "saved", "--every", "1"]
    done = forked.run([*words, *options, "train.py", str(last)], directory=place)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("plan", "optimizer"),
    [
        ("dgc,density=0.1", MOMENTUM),
        *(
            pytest.param(plan, optimizer, marks=pytest.mark.soak)
            for plan, optimizer in [
                ("onebit", MOMENTUM),
                ("twobit", ADAM),
                ("powersgd", ADAM),
                ("compressor=randomk,density=0.2,error-feedback=true", MOMENTUM),
                ("bytegrad", ADAM),
                ("qadam,warm-up=3", ADAM),
                ("fp16-allreduce", MOMENTUM),
                ("reduction=adasum", MOMENTUM),
            ]
        ),
    ],
)
def test_a_run_goes_on_with_what_each_rank_held_back(tmp_path: Path, plan: str, optimizer: str) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    said = train(whole, plan, 12, "--seed", "3", "-q", optimizer=optimizer)
    train(cut, plan, 7, "--seed", "3", "-q", optimizer=optimizer)
    rest = train(cut, plan, 12, "--resume", "-q", optimizer=optimizer)
    assert rest.splitlines() == said.splitlines()[6:]
    for name, value in torch.load(whole / "end.pt").items():
        assert torch.equal(torch.load(cut / "end.pt")[name], value)


@pytest.mark.soak
def test_ranks_of_another_number_go_on(tmp_path: Path) -> None:
    train(tmp_path, "dgc,density=0.1", 5, "--seed", "3")
    assert "dropped" not in train(tmp_path, "dgc,density=0.1", 8, "--resume", ranks=3)
    said = train(tmp_path, "zero1", 11, "--resume")
    assert "the residuals of the compressor under " in said
    assert "are dropped" in said
    losses = [float(line.split()[1]) for line in said.splitlines() if line[0].isdigit()]
    assert all(loss < 20 for loss in losses)


def test_what_is_held_back_is_as_much_on_another_number_of_ranks() -> None:
    """The mean over ranks, by which it enters the gradient, is the same."""
    states = [
        {"held": {"residual.0": torch.full((2,), 3.0 * rank), "factor.1": torch.ones(2)}, "steps": [7]}
        for rank in range(3)
    ]
    taken: list[Any] = []

    class Taking(GradientCompression):
        def __init__(self) -> None:
            """Nothing is sent."""

        def load_state_dict(self, state: Any) -> None:
            taken.append(state)

    for rank, ranks in ((0, 2), (1, 2), (2, 3)):
        Taking().load_states(states, rank, ranks)
    assert [state["held"]["residual.0"].tolist() for state in taken] == [[3, 3], [3, 3], [6, 6]]
    assert all(state["held"]["factor.1"].tolist() == [1, 1] for state in taken)
    assert all(state["steps"] == [7] for state in taken)


@pytest.mark.parametrize(
    ("before", "now", "fits"),
    [
        (("dgc", 2), ("dgc", 3), True),
        (("dgc", 2), ("onebit", 2), True),
        (("tensor=2", 4), ("tensor=2", 4), True),
        (("tensor=2", 4), ("tensor=2", 8), False),
        (("tensor=2", 4), ("onebit", 4), False),
    ],
)
def test_whose_it_is(before: tuple[str, int], now: tuple[str, int], fits: bool) -> None:
    assert has_place(*before, *now) is fits
