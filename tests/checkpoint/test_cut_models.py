"""Models that lie in parts on ranks are saved and brought back as one device's, under any plan."""

from __future__ import annotations

import random
import signal
import textwrap
from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest
import torch

from ronde.checkpoint.export import find_checkpoint
from ronde.testing import forked
from tools.scripts import MODELS

# Gradients are there where a checkpoint is cut, as they are set to zero behind the forward.
SCRIPT = """
    import sys, torch
    from torch import nn

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    {model}
    averaged = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(48, 4, 6)
    data = torch.utils.data.TensorDataset(x, x.sum(-1, keepdim=True).sin())
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    step, last = 0, int(sys.argv[1])
    while step < last:
        for inputs, targets in loader:
            if step == last:
                break
            step += 1
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            present = sum(parameter.grad is not None for parameter in model.parameters())
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            averaged.update_parameters(model)
            print(step, round(loss.item(), 10), round(norm.item(), 10), present, flush=True)
    torch.save((model.state_dict(), averaged.state_dict(), optimizer.state_dict()), "end.pt")
"""
TRANSFORMER = """
    layers = [nn.TransformerEncoderLayer(16, 4, 24, 0.1, batch_first=True) for _ in range(2)]
    model = nn.Sequential(nn.Linear(6, 16), *layers, nn.Linear(16, 1))
"""
# A loss that is no mean over rows: what micro-batches count is found by another try.
STEPS = """
    import sys, torch, ronde
    from torch import nn

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 16), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train = ronde.Step(model, optimizer, lambda output, target: (output - target).square().sum())
    x = torch.randn(48, 6)
    for step in range(1, int(sys.argv[1]) + 1):
        loss = train(x.roll(-8 * step, 0)[:8], target=x.roll(-8 * step, 0)[:8, :1].sin())
        print(step, round(loss.item(), 10), flush=True)
    torch.save(model.state_dict(), "end.pt")
"""
# Plans and numbers of ranks, one after the other.
CHAINS = [
    pytest.param(TRANSFORMER, [(2, "zero3"), (4, "tensor=2,pipeline=2")]),
    *(
        pytest.param(model, chain, marks=pytest.mark.soak)
        for model, chain in [
            (TRANSFORMER, [(4, "tensor=2,pipeline=2"), (2, "zero3"), (3, "ddp"), (2, "tensor=2")]),
            (TRANSFORMER, [(2, "pipeline=2"), (1, "ddp"), (2, "pipeline=2,micro-batches=2")]),
            (TRANSFORMER, [(4, "data=2,tensor=2,zero1"), (2, "pipeline=2"), (4, "data=2,pipeline=2")]),
            (TRANSFORMER, [(2, "zero2"), (2, "tensor=2"), (2, "zero1"), (2, "central")]),
            (MODELS["attention"], [(2, "context=2"), (2, "zero2"), (4, "data=2,context=2")]),
            (MODELS["attention"], [(4, "pipeline=2,context=2"), (2, "ddp"), (4, "tensor=2,context=2,zero3")]),
            (MODELS["attention"], [(8, "tensor=2,pipeline=2,context=2,zero1"), (2, "ddp")]),
            (MODELS["mixture"], [(2, "expert=2"), (2, "ddp"), (4, "expert=4"), (2, "zero3")]),
        ]
    ),
]


def write(place: Path, model: str = TRANSFORMER) -> Path:
    place.mkdir(exist_ok=True)
    whole = textwrap.dedent(model)
    script = whole if model is STEPS else textwrap.dedent(SCRIPT).format(model=whole)
    (place / "train.py").write_text(script)
    return place


def train(place: Path, ranks: int, plan: str, last: int, *options: str) -> str:
    words = ["run", "--ranks", str(ranks), "--plan", plan, "-q", *options, "train.py", str(last)]
    done = forked.run(words, directory=place, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("model", "chain"), CHAINS)
def test_a_run_goes_on_under_another_plan(tmp_path: Path, model: str, chain: list[tuple[int, str]]) -> None:
    """Each part is resumed under the next plan: it reads, ends with and saves what one device does."""
    alone, cut = write(tmp_path / "alone", model), write(tmp_path / "cut", model)
    begin = ("--checkpoint", "saved", "--every", "1", "--seed", "3")
    expected = train(alone, 1, "ddp", 5 * len(chain), *begin).splitlines()
    for part, (ranks, plan) in enumerate(chain):
        options = (*begin[:-2], "--resume") if part else begin
        said = train(cut, ranks, plan, 5 * part + 5, *options).splitlines()
        assert said == expected[5 * part + 5 - len(said) : 5 * part + 5]
        assert len(said) == 5 + bool(part)  # the step behind the checkpoint is done again
    close(torch.load(alone / "end.pt"), torch.load(cut / "end.pt"))
    states = [find_checkpoint(place / "saved", str)[1] for place in (alone, cut)]
    for key in ("models", "tensors", "optimizers", "left"):
        close(states[0][key], states[1][key])


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("model", [STEPS])
def test_steps_of_a_schedule_go_on_under_another_plan(tmp_path: Path, model: str) -> None:
    plans = ["pipeline=2,micro-batches=2,schedule=1f1b", "ddp", "pipeline=2,micro-batches=4,schedule=1f1b"]
    test_a_run_goes_on_under_another_plan(tmp_path, model, [(2, plan) for plan in plans])


def close(first: object, second: object) -> None:
    if isinstance(first, torch.Tensor):
        assert isinstance(second, torch.Tensor)
        torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-10)
    elif isinstance(first, dict):
        assert isinstance(second, dict)
        assert list(first) == list(second)
        for key, value in first.items():
            close(value, second[key])
    elif isinstance(first, (list, tuple)):
        assert isinstance(second, (list, tuple))
        for one, other in zip(first, second, strict=True):
            close(one, other)
    else:
        assert first == second


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("ranks", "plan", "kills"),
    [
        (2, "pipeline=2", 1),
        pytest.param(8, "data=2,tensor=2,pipeline=2,zero1", 20, marks=pytest.mark.soak),
    ],
)
def test_ranks_of_a_cut_model_are_killed(tmp_path: Path, ranks: int, plan: str, kills: int) -> None:
    """The run ends with the parameters of an undisturbed one, to the bit."""
    whole, cut = write(tmp_path / "whole"), write(tmp_path / "cut")
    last = 6 * kills + 15
    saves = ["--seed", "3", "--checkpoint", "saved", "--every", "3"]
    said = train(whole, ranks, plan, last, *saves)
    draw = random.Random(kills)
    words = ["run", "--ranks", str(ranks), "--plan", plan, *saves, "--restarts", str(kills), "-q"]
    running = forked.ForkedCommand([*words, "train.py", str(last)], directory=cut)
    try:
        for number in range(kills):
            kill_one(running, cut, draw, after=6 * number + 3)
        out, err = running.communicate(1000)
    finally:
        running.kill()
    assert running.returncode == 0, err
    # Where a rank was killed a part of a line may stay.
    assert set(said.splitlines()) <= set(out.splitlines())
    for name, value in torch.load(whole / "end.pt")[0].items():
        assert torch.equal(torch.load(cut / "end.pt")[0][name], value)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_cut_model_is_saved_before_the_end_by_sigterm(tmp_path: Path) -> None:
    place = write(tmp_path / "cut")
    words = ["run", "--ranks", "4", "--plan", "tensor=2,pipeline=2", "--seed", "3", "-q"]
    running = forked.ForkedCommand(
        [*words, "--checkpoint", "saved", "--every", "1h", "--run-dir", "run", "train.py", "9999"],
        directory=place,
    )
    log, until = place / "run" / "rank-0.log", monotonic() + 120
    try:
        while not log.exists() or log.read_text().count("\n") < 9:
            assert monotonic() < until
            sleep(0.01)
        running.send_signal(signal.SIGTERM)
        running.communicate(60)
    finally:
        running.kill()
    step = newest(place)
    assert log.read_text().splitlines()[-1].split()[0] == str(step)
    (place / "run").rename(place / "before")
    said = train(place, 2, "zero2", step + 2, "--checkpoint", "saved", "--resume")
    assert [int(line.split()[0]) for line in said.splitlines()] == [step + 1, step + 2]


def kill_one(running: forked.ForkedCommand, place: Path, draw: random.Random, *, after: int) -> None:
    """Kill a rank at some moment behind this step's checkpoint."""
    until = monotonic() + 300
    while not (children := psutil.Process(running.pid).children()) or newest(place) < after:
        assert running.poll() is None, running.communicate()[1]
        assert monotonic() < until
        sleep(0.002)
    sleep(draw.uniform(0, 0.2))
    killed = draw.choice(children)
    killed.kill()
    killed.wait(30)
    while any(child.is_running() for child in children):  # those of this attempt
        assert monotonic() < until
        sleep(0.01)


def newest(place: Path) -> int:
    return max((int(path.name[5:]) for path in (place / "saved").glob("step-*")), default=0)
