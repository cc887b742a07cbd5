"""A run on parameter servers is saved, and goes on, as one without."""

from __future__ import annotations

import dataclasses
import shutil
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep
from typing import Any, cast

import psutil
import pytest
import torch
import torch.distributed as dist

from ronde.checkpoint.cadence import Cadence
from ronde.checkpoint.schedule import Schedule
from ronde.checkpoint.store import read_checkpoint
from ronde.comm.process_group import Comm
from ronde.runtime.checkpointing.announced_cuts import AnnouncedCuts
from ronde.testing import forked
from ronde.trace.checkpoint_manifest import checkpoints_in

HEAD = """
    import os, sys, time, torch, ronde
    from torch import nn

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 1))
    x = torch.randn(96, 8)
    ids = torch.arange(192).view(96, 2) % 37
    data = torch.utils.data.TensorDataset(x, ids, x.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
"""
DENSE = """
    optimizer = torch.optim.{optimizer}
    step = 0
    for epoch in range(2):
        for inputs, _, targets in loader:
            step += 1
            loss = nn.functional.mse_loss(net(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(step, loss.item(), flush=True)
            while step == 9 and os.path.exists("hold"):
                time.sleep(0.01)
    torch.save((net.state_dict(), optimizer.state_dict()), "end.pt")
"""
# Most of a step's time lies between its first call of the model and its last: there nobody may be saved.
CALLS = DENSE.replace(
    "mse_loss(net(inputs), targets)", "mse_loss(sum(net(inputs) for _ in range(20)) / 20, targets)"
)
# Rows that come late, and two optimizers.
TABLE = """
    admit = ronde.table.AdmitAfter(2)
    table = ronde.EmbeddingTable(8, optimizer=ronde.table.Adam(), admit=admit, pooling="sum")
    both = nn.ModuleList([net, table])
    first = torch.optim.{optimizer}
    second = torch.optim.Adam([*net[3].parameters(), table.anchor], lr=0.02)
    step = 0
    for epoch in range(2):
        for inputs, words, targets in loader:
            step += 1
            bags = torch.arange(0, 2 * len(words), 2)
            loss = nn.functional.mse_loss(net(inputs + table(words.view(-1), bags)), targets)
            both.zero_grad()
            loss.backward()
            first.step()
            second.step()
            print(step, loss.item(), len(table), flush=True)
            while step == 9 and os.path.exists("hold"):
                time.sleep(0.01)
    torch.save((net.state_dict(), first.state_dict(), second.state_dict(), table.state_dict()), "end.pt")
"""
# Gradients stand over a step of the other optimizer: a checkpoint is made in between at step 4.
ACROSS = TABLE.replace(
    """loss = nn.functional.mse_loss(net(inputs + table(words.view(-1), bags)), targets)
            both.zero_grad()
            loss.backward()
            first.step()
            second.step()
""",
    """second.zero_grad()
            for part in range(2):
                loss = nn.functional.mse_loss(net(inputs + table(words.view(-1), bags)), targets)
                first.zero_grad()
                loss.backward()
                first.step()
            second.step()
""",
)
# Of a run's processes, in the order in which they are started.
SERVER, RANK = 1, 3
MOMENTUM = "SGD(net[0].parameters(), lr=0.02, momentum=0.9)"
ADAM = "Adam(net.parameters(), lr=0.01)"


def written(place: Path, body: str, optimizer: str) -> Path:
    place.mkdir()
    text = textwrap.dedent(HEAD) + textwrap.dedent(body).format(optimizer=optimizer)
    (place / "train.py").write_text(text)
    return place


def start(place: Path, plan: str, *options: str, ranks: int = 2) -> forked.ForkedCommand:
    words = ["run", "--ranks", str(ranks), "--plan", plan, "--checkpoint", "saved", "--keep", "9"]
    return forked.ForkedCommand([*words, *options, "train.py"], directory=place)


def train(place: Path, plan: str, *options: str, ranks: int = 2) -> list[str]:
    running = start(place, plan, *options, ranks=ranks)
    out, err = running.communicate(90)
    assert running.returncode == 0, err
    return out.splitlines()


def values(place: Path) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(torch.load(place / "end.pt"))
    return [each for each in leaves if isinstance(each, torch.Tensor)]


def only_first(whole: Path, cut: Path) -> Path:
    """Copy the first checkpoint of a run to the folder of another; where it was."""
    first = min((whole / "saved").glob("step-*"))
    shutil.copytree(first, cut / "saved" / first.name)
    shutil.copy(whole / "saved" / "journal", cut / "saved")
    return first


def check_goes_on(place: Path, plan: str, body: str, optimizer: str, *, ranks: int) -> None:
    """From its first checkpoint a run prints what is left, and ends as one that was left alone."""
    whole, cut = written(place / "whole", body, optimizer), written(place / "cut", body, optimizer)
    said = train(whole, plan, "--seed", "3", "--every", "4", ranks=ranks)
    only_first(whole, cut)
    rest = train(cut, plan, "--resume", "--every", "4", ranks=ranks)
    assert 0 < len(rest) < len(said)
    assert rest == said[-len(rest) :]
    assert is_equal(cut, whole)


def is_equal(place: Path, other: Path) -> bool:
    return all(torch.equal(a, b) for a, b in zip(values(place), values(other), strict=True))


@pytest.mark.parametrize(
    ("plan", "body", "optimizer"),
    [
        ("ps,servers=2", DENSE, ADAM),
        *(
            pytest.param(*case, marks=pytest.mark.soak)
            for case in [
                ("ps,servers=2", TABLE, MOMENTUM),
                ("ps,servers=2", ACROSS, MOMENTUM),
                ("ddp", ACROSS, MOMENTUM),
                ("ps,optimizer-on=worker", DENSE, ADAM),
                ("hybrid,servers=2", TABLE, MOMENTUM),
            ]
        ),
    ],
)
def test_a_run_goes_on_with_what_servers_had(tmp_path: Path, plan: str, body: str, optimizer: str) -> None:
    check_goes_on(tmp_path, plan, body, optimizer, ranks=2)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("before", "now", "body"),
    [
        (("ps,servers=2", 2), ("ps,servers=3", 3), TABLE),
        (("ps,servers=2", 2), ("ps,servers=3", 3), ACROSS),
        (("ps,servers=2", 2), ("ddp", 2), TABLE),
        (("zero2", 2), ("hybrid,servers=2", 2), TABLE),
        (("ddp", 3), ("ps,servers=2", 2), ACROSS),
    ],
)
def test_other_servers_and_other_plans_go_on(
    tmp_path: Path, before: tuple[str, int], now: tuple[str, int], body: str
) -> None:
    whole, cut = written(tmp_path / "whole", body, MOMENTUM), written(tmp_path / "cut", body, MOMENTUM)
    train(whole, before[0], "--seed", "3", "--every", "4", ranks=before[1])
    only_first(whole, cut)
    train(cut, now[0], "--resume", "--every", "4", ranks=now[1])
    for ours, theirs in zip(values(cut), values(whole), strict=True):
        if ours.is_floating_point():  # how often a row was looked up is counted on each rank
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("victim", "options"),
    [
        (RANK, ()),
        (SERVER, ()),
        (SERVER, ("--durability", "none")),
    ],
)
def test_whoever_is_killed_the_end_is_the_same(tmp_path: Path, victim: int, options: tuple[str, ...]) -> None:
    whole, cut = written(tmp_path / "whole", TABLE, MOMENTUM), written(tmp_path / "cut", TABLE, MOMENTUM)
    said = train(whole, "ps,servers=2", "--seed", "3", "--every", "4")
    running = held(cut, "--seed", "3", "--restarts", "1", *options)
    try:
        children = psutil.Process(running.pid).children()
        sorted(children, key=lambda child: (child.create_time(), child.pid))[victim].kill()
        (cut / "hold").unlink()
        out, err = running.communicate(90)
    finally:
        running.kill()
    assert running.returncode == 0, err
    assert ("restart 1 of 1" in err) == (victim == RANK or bool(options))
    assert out.splitlines() == said
    assert is_equal(cut, whole)


def held(place: Path, *options: str) -> forked.ForkedCommand:
    """A run that waits at its step 9, and has saved."""
    (place / "hold").touch()
    running = start(place, "ps,servers=2", "--every", "4", *options)
    until = monotonic() + 80
    while not any((place / "saved").glob("step-*12")) and running.poll() is None:
        assert monotonic() < until
        sleep(0.01)
    return running


@pytest.mark.soak
def test_what_servers_have_is_saved_before_the_run_is_ended(tmp_path: Path) -> None:
    body = TABLE.replace("range(2)", "range(40)")
    whole, cut = written(tmp_path / "whole", body, MOMENTUM), written(tmp_path / "cut", body, MOMENTUM)
    said = train(whole, "ps,servers=2", "--seed", "3")
    running = held(cut, "--seed", "3")
    try:
        (cut / "hold").unlink()
        running.terminate()
        out, err = running.communicate(90)
    finally:
        running.kill()
    assert "saved at step" in err
    rest = train(cut, "ps,servers=2", "--resume")
    assert out.splitlines() + rest == said
    assert is_equal(cut, whole)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--plan", "ps", "--servers", "tcp://127.0.0.1:9", "--restarts", "1"],
            (
                "--servers tcp://127.0.0.1:9 were started by hand, and keep their state when ranks are "
                "restarted; give --servers N, or leave out --restarts, --min-ranks and --max-ranks"
            ),
        ),
    ],
)
def test_mistakes_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    monkeypatch.setenv("RONDE_SERVER_TOKEN", "0" * 32)
    (tmp_path / "train.py").write_text("")
    done = forked.run(["run", "--checkpoint", "c", *options, "train.py"], directory=tmp_path)
    assert (done.returncode, done.stderr) == (2, f"ronde: error[R500]: {said}\n")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("plan", "body", "optimizer"),
    [
        ("ps-async,servers=2", DENSE, ADAM),
        ("ps-bounded,staleness=1", DENSE, ADAM),
        ("geo,every=3", DENSE, ADAM),
        ("ps-async", TABLE, MOMENTUM),
        ("geo,every=3,servers=2", TABLE, MOMENTUM),
    ],
)
def test_one_rank_by_itself_ends_as_undisturbed(tmp_path: Path, plan: str, body: str, optimizer: str) -> None:
    check_goes_on(tmp_path, plan, body, optimizer, ranks=1)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("plan", "body"),
    [
        ("ps-async,servers=2", DENSE),
        ("ps-async,servers=2", CALLS),
        ("ps-bounded,staleness=0", DENSE),
        ("geo,every=3", DENSE),
    ],
)
def test_no_update_of_a_rank_is_lost_or_made_twice(tmp_path: Path, plan: str, body: str) -> None:
    """Adam counts its steps on servers: as many as ranks have made together, before and after."""
    body = body.replace("range(2)", "range(20)")
    whole, cut = written(tmp_path / "whole", body, ADAM), written(tmp_path / "cut", body, ADAM)
    train(whole, plan, "--seed", "3", "--every", "20")
    first = only_first(whole, cut)
    _, begun = read_checkpoint(cut / "saved" / first.name)
    train(cut, plan, "--resume", "--every", "20", "--run-dir", "run")
    for rank, state in enumerate(begun["ranks"]):
        lines = (cut / "run" / f"rank-{rank}.log").read_text().splitlines()
        printed = [int(line.split()[0]) for line in lines if line[:1].isdigit()]
        assert printed == list(range(state["step"] + 1, 121))
    found = [read_checkpoint(place)[1] for _, place in checkpoints_in(cut / "saved")]
    assert len(found) > 1
    for state in found if "geo" not in plan else ():
        (optimizer,) = state["optimizers"].values()
        made = sum(rank["step"] for rank in state["ranks"])
        assert {int(entry["step"]) for entry in optimizer.values()} == {made}


@pytest.mark.soak
def test_ranks_by_themselves_are_started_again(tmp_path: Path) -> None:
    body = DENSE.replace("range(2)", "range(20)").replace("step += 1\n", "step += 1; time.sleep(0.02)\n")
    place = written(tmp_path / "run", body, ADAM)
    running = start(place, "ps-async", "--every", "5", "--seed", "3", "--restarts", "1")
    until = monotonic() + 80
    try:
        while not any((place / "saved").glob("step-*")):
            assert monotonic() < until
            sleep(0.01)
        children = psutil.Process(running.pid).children()
        max(children, key=lambda child: (child.create_time(), child.pid)).kill()
        out, err = running.communicate(90)
    finally:
        running.kill()
    assert running.returncode == 0, err
    assert "restart 1 of 1" in err
    steps = [int(line.split()[0]) for line in out.splitlines()]
    assert steps[-1] == 120
    assert set(steps) == set(range(1, 121))  # those after the checkpoint are shown twice, as losses differ


@dataclasses.dataclass
class Ranks:
    """Ranks of a group, each of which comes from a thread of its own."""

    rank: int
    store: dist.Store
    met: threading.Barrier
    votes_of: list[bool]

    def votes(self, flags: list[bool]) -> list[int]:
        self.votes_of[self.rank] = flags[0]
        self.met.wait(10)
        return [sum(self.votes_of)]


class Cut:
    """One rank's cuts."""

    def __init__(self, ranks: Ranks, ahead: int, every: int = 1) -> None:
        self.steps, self.ending, self.ends = 0, False, list[bool]()
        self.schedule = Schedule(Cadence(steps=every), lambda numbers: numbers, leads=ranks.rank == 0)
        self.cuts = AnnouncedCuts(
            cast(Comm, ranks), self.schedule, lambda: (self.steps, 0, self.ending), self.ends.append,
            settle=lambda: None, ahead=ahead,
        )  # fmt: skip

    def at(self, steps: int) -> bool:
        self.steps = steps
        return self.cuts.is_due()


def two(ahead: int, every: int = 1) -> list[Cut]:
    store, met, votes = dist.HashStore(), threading.Barrier(2), [False, False]
    return [Cut(Ranks(rank, store, met, votes), ahead, every) for rank in range(2)]


def together(*acts: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(acts)) as pool:
        return [each.result(20) for each in [pool.submit(act) for act in acts]]


def test_ranks_stop_where_none_waits_for_one_that_stands() -> None:
    first, second = two(ahead=2)
    assert not second.at(2)
    assert not first.at(1)
    assert not second.at(2)
    assert second.at(3)
    assert first.at(3)
    assert together(first.cuts.come, second.cuts.come) == [True, True]
    assert not second.at(4)


def test_nobody_is_saved_after_a_rank_has_ended() -> None:
    first, second = two(ahead=0)
    assert first.at(1)
    ended = threading.Thread(target=second.cuts.end)
    ended.start()
    assert first.cuts.come() is False
    assert not first.at(2)
    first.cuts.end()
    ended.join(20)
    assert not ended.is_alive()
    assert first.ends == second.ends == []


def test_a_rank_that_is_to_end_has_all_saved() -> None:
    first, second = two(ahead=0, every=1000)
    second.ending = True
    assert not second.at(1)
    assert first.at(1)
    assert second.at(1)
    assert together(first.cuts.come, second.cuts.come) == [True, True]
    assert first.schedule.is_ending
    assert second.schedule.is_ending
