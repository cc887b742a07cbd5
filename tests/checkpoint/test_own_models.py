"""Ranks that train by themselves are saved, each with its own model: resumed runs end as undisturbed ones."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from ronde.checkpoint.cadence import Cadence
from ronde.checkpoint.journal import Journal, read_entries
from ronde.checkpoint.schedule import Schedule
from ronde.checkpoint.script_state import CapturedState
from ronde.checkpoint.state import mean_over_ranks
from ronde.checkpoint.store import read_checkpoint
from ronde.comm.process_group import Comm
from ronde.runtime.checkpointing.agreed_cuts import AgreedCuts
from ronde.testing import forked
from ronde.trace.checkpoint_manifest import checkpoints_in

SCRIPT = """
    import os, signal, sys, time, torch, ronde
    from torch import nn

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
    optimizer = torch.optim.{optimizer}
    x = torch.randn(160, 10)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    step, last, begun = 0, int(sys.argv[1]), time.time()
    while step < last:
        for inputs, targets in loader:
            if step == last:
                break
            step += 1
            print("before", step, net[0].weight.sum().item())
            loss = nn.functional.mse_loss(net(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(step, loss.item(), flush=True)
            {at_a_step}
    print("weights", net[0].weight.sum().item())
    torch.save(net.state_dict(), "end.pt")
"""
MOMENTUM = "SGD(net.parameters(), lr=0.02, momentum=0.9)"
ONCE = "not os.system('mkdir done 2>/dev/null')"
ADAM = "Adam(net.parameters(), lr=0.01)"


def train(
    place: Path,
    plan: str,
    last: int,
    *options: str,
    ranks: int = 2,
    optimizer: str = MOMENTUM,
    then: str = "",
) -> Any:
    place.mkdir(exist_ok=True)
    text = textwrap.dedent(SCRIPT).format(optimizer=optimizer, at_a_step=then)
    (place / "train.py").write_text(text)
    words = ["run", "--ranks", str(ranks), "--plan", plan, "--checkpoint", "saved", "--every", "1"]
    return forked.run([*words, "--run-dir", "run", *options, "train.py", str(last)], directory=place)


def steps(out: str) -> list[int]:
    return [int(line.split()[0]) for line in out.splitlines() if line[0].isdigit()]


def newest(place: Path) -> Any:
    return read_checkpoint(next(checkpoints_in(place / "saved"))[1])


def weights(place: Path, rank: int) -> float:
    """What a rank has ended with."""
    return float((place / "run" / f"rank-{rank}.log").read_text().split("weights ")[1].split()[0])


def equal(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(equal, first, second))
    return bool(numpy.array_equal(first, second))


@pytest.mark.parametrize(
    ("plan", "optimizer", "ranks"),
    [
        ("decentralized", ADAM, 2),
        *(
            pytest.param(plan, optimizer, ranks, marks=pytest.mark.soak)
            for plan, optimizer, ranks in [
                ("local-sgd,every=3", MOMENTUM, 2),
                ("local-sgd,every=3", ADAM, 3),
                ("local-sgd,adaptive=true,warm-up=4", ADAM, 2),
                ("decentralized", MOMENTUM, 3),
                ("decentralized,peers=shift-one", ADAM, 2),
                ("decentralized-lowprec", MOMENTUM, 2),
                ("decentralized-lowprec", ADAM, 3),
            ]
        ),
    ],
)
def test_each_rank_goes_on_with_its_own(tmp_path: Path, plan: str, optimizer: str, ranks: int) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    ended = train(whole, plan, 14, "--seed", "3", "-q", optimizer=optimizer, ranks=ranks)
    assert ended.returncode == 0, ended.stderr
    train(cut, plan, 8, "--seed", "3", "-q", optimizer=optimizer, ranks=ranks)
    saved = newest(cut)[0].step
    rest = train(cut, plan, 14, "--resume", "-q", optimizer=optimizer, ranks=ranks)
    assert rest.returncode == 0, rest.stderr
    assert rest.stdout.splitlines() == ended.stdout.splitlines()[2 * saved :]
    (first, one), (second, other) = newest(whole), newest(cut)
    assert first.step == second.step > saved
    for key in ("tensors", "optimizers", "training", "random"):
        for mine, theirs in zip(one["ranks"], other["ranks"], strict=True):
            assert equal(mine[key], theirs[key])
    assert [weights(whole, rank) for rank in range(ranks)] == [weights(cut, rank) for rank in range(ranks)]


@pytest.mark.soak
def test_no_rank_waits_and_each_has_what_it_had(tmp_path: Path) -> None:
    """Each rank goes on at a step of its own, with its own weights; none of either is lost."""
    train(tmp_path, "async-average", 600, "-q", "--every", "50")
    manifest, state = newest(tmp_path)
    rest = train(tmp_path, "async-average", 600, "--resume")
    assert rest.returncode == 0, rest.stderr
    assert f"resumed at step {manifest.step}, " in rest.stderr
    assert steps(rest.stdout) == list(range(manifest.step + 1, 601))
    for rank, own in enumerate(state["ranks"]):
        if own["step"] == 600:  # it was at its end
            continue
        said = (tmp_path / "run" / f"rank-{rank}.log").read_text()
        step, weight = said.split("before ")[1].split()[:2]
        assert int(step) == own["step"] + 1
        assert float(weight) == own["tensors"]["__main__.net.0.weight"].sum().item()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("plan", "ranks"), [("ddp", 2), ("zero2", 3), ("local-sgd,every=3", 3), ("decentralized", 2)]
)
def test_others_go_on_with_the_mean(tmp_path: Path, plan: str, ranks: int) -> None:
    train(tmp_path, "local-sgd,every=3", 8, "-q")
    manifest, state = newest(tmp_path)
    parts = [each["optimizers"]["__main__.optimizer"][0]["momentum_buffer"] for each in state["ranks"]]
    assert not torch.equal(*parts)
    assert torch.equal(state["optimizers"]["__main__.optimizer"][0]["momentum_buffer"], sum(parts) / 2)
    ended = train(tmp_path, plan, manifest.step, "--resume", ranks=ranks)
    assert ended.returncode == 0, ended.stderr
    assert "2 ranks of update=local,every=3 had a model each; " in ended.stderr
    for key, value in torch.load(tmp_path / "end.pt").items():
        assert torch.equal(value, state["tensors"][f"__main__.net.{key}"])
    further = train(tmp_path, plan, 12, "--resume", ranks=ranks)
    assert further.returncode == 0, further.stderr
    assert steps(further.stdout) == list(range(manifest.step + 1, 13))
    assert not forked.run(["export", "saved", "--out", "out"], directory=tmp_path).returncode


@pytest.mark.soak
def test_every_rank_takes_the_one_model(tmp_path: Path) -> None:
    alone = train(tmp_path / "alone", "ddp", 9, "--seed", "3", "-q")
    train(tmp_path / "cut", "ddp", 8, "--seed", "3", "-q")
    rest = train(tmp_path / "cut", "local-sgd,every=3", 9, "--resume")
    assert rest.returncode == 0, rest.stderr
    assert steps(rest.stdout) == [8, 9]
    loss, other = (
        float(out.splitlines()[at].split()[1]) for out, at in ((alone.stdout, 15), (rest.stdout, 0))
    )
    assert loss == pytest.approx(other)


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["local-sgd,every=3", "async-average"])
def test_ranks_are_started_again(tmp_path: Path, plan: str) -> None:
    kill = f"if step == 400 and ronde.rank() == 1 and {ONCE}: os.kill(os.getpid(), 9)"
    done = train(tmp_path, plan, 800, "--restarts", "1", then=kill)
    assert done.returncode == 0, done.stderr
    assert "rank 1 was killed by SIGKILL" in done.stderr
    assert "resumed at step " in done.stderr
    assert steps(done.stdout)[-1] == 800


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["local-sgd,every=3", "async-average"])
def test_a_run_that_is_to_end_saves_first(tmp_path: Path, plan: str) -> None:
    ask = f"if step == 400 and ronde.rank() == 1 and {ONCE}: os.kill(os.getpid(), signal.SIGTERM)"
    done = train(tmp_path, plan, 10**6, then=ask)
    assert done.returncode != 0
    saved = int(re.findall(r"saved at step (\d+), as the run is to end", done.stderr)[0])
    last = max(each["step"] for each in newest(tmp_path)[1]["ranks"]) + 2
    rest = train(tmp_path, plan, last, "--resume", then=ask)
    assert rest.returncode == 0, rest.stderr
    assert steps(rest.stdout) == list(range(saved + 1, last + 1))


def test_replicas_that_train_by_themselves_are_refused(tmp_path: Path) -> None:
    done = train(tmp_path, "data=2,tensor=2,local-sgd", 1, ranks=4)
    assert (done.returncode, done.stderr) == (
        2,
        (
            "ronde: error[R501]: --checkpoint cannot save a cut model under update=local, where each "
            "replica trains by itself; leave out tensor=2, or take update=sync\n"
        ),
    )


def test_a_journal_has_blocks_of_each_rank() -> None:
    journals = [Journal(rank=rank) for rank in range(2)]
    content = b""
    for step in range(2):
        for rank, journal in enumerate(journals):
            journal.record("read", "item", 10 * rank + step)
            content += journal.fresh()
    found = [[each.payload for each in read_entries(content, rank)] for rank in range(3)]
    assert found == [[0, 1], [10, 11], []]
    another = Journal(read_entries(content), rank=1, others=True)  # goes on with what rank 0 has read
    another.record("read", "item", 12)
    assert [each.payload for each in read_entries(content + another.fresh(), 1)] == [0, 1, 12]


def test_the_mean_is_that_of_what_is_trained() -> None:
    net = torch.nn.Linear(1, 1, bias=False)
    batch = torch.zeros(2)
    held = CapturedState(tensors={"net.weight": net.weight, "batch": batch}, modules={"net": net})

    def state(value: float, count: int) -> dict[str, Any]:
        filled = {name: torch.full_like(each.detach(), value) for name, each in held.tensors.items()}
        moments = {
            "m": torch.tensor([value]),
            "step": torch.tensor(count),
            "history": [torch.ones(count)] * count,
        }
        return {"tensors": filled, "optimizers": {"optimizer": {0: moments}}, "left": []}

    found = mean_over_ranks([state(1.0, 1), state(4.0, 2)], held)
    assert found["tensors"]["net.weight"].item() == 2.5
    assert found["tensors"]["batch"].tolist() == [1, 1]
    mean = found["optimizers"]["optimizer"][0]
    assert (mean["m"].item(), mean["step"].item(), len(mean["history"])) == (2.5, 1, 1)


class _Votes(Comm):
    """Other ranks, which vote as told."""

    def __init__(self, others: int) -> None:
        self.rank, self.others = 0, others

    def votes(self, flags: Sequence[bool]) -> list[int]:
        return [self.others + flags[0]]


@pytest.mark.parametrize(
    ("heard", "others", "agreed", "comes"),
    [
        ((1, 0, 0), 0, True, True),
        ((1, 0, 0), 1, True, False),
        ((1, 0, 1), 0, False, False),
        ((0, 0, 0), 0, False, False),
    ],
)
def test_nobody_is_saved_where_a_rank_has_come_to_its_end(
    heard: tuple[int, int, int], others: int, agreed: bool, comes: bool
) -> None:
    ends: list[str] = []
    schedule = Schedule(Cadence(steps=1), lambda numbers: numbers, leads=True)
    cuts = AgreedCuts(_Votes(others), schedule, lambda: (1, 0, False), lambda: ends.append("unsaved"))
    cuts.hear(*heard)
    assert cuts.agreed is agreed
    assert (cuts.agreed and cuts.come()) is comes
    assert not cuts.agreed
    assert cuts.wishes() == (True, False)
    cuts.hear(0, 1, 1)  # one is to end, and one has come to its end
    assert ends == ["unsaved"]
