"""A run that is killed and resumed ends as the undisturbed one."""

from __future__ import annotations

import textwrap
from pathlib import Path
from time import monotonic, sleep

import pytest
import torch

from codes import without_code
from ronde.testing import forked

SCRIPT = """
    import os, sys, torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
    averaged = torch.optim.swa_utils.AveragedModel(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    X = torch.randn(160, 10)
    data = torch.utils.data.TensorDataset(X, X.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
    best, running = 1e9, torch.zeros(())
    log = open("log.txt", "w")
    for epoch in range(6):
        net.train()
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.mse_loss(net(x + 0.01 * torch.randn_like(x)), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            averaged.update_parameters(net)
            running += loss.detach()
            print(epoch, i, loss.item(), file=log, flush=True)
            with open("appended.txt", "a") as file:
                file.write(f"{epoch} {i}\\n")
        schedule.step()
        net.eval()
        with torch.no_grad():
            error = (net(X) - data.tensors[1]).abs().mean().item()
        if error < best:
            best = error
            torch.save(net.state_dict(), "best.pt")
        print("epoch", epoch, error, running.item(), os.path.exists("later.txt"))
        open("later.txt", "w").close()
    torch.save((net.state_dict(), averaged.state_dict(), optimizer.state_dict(), best, running), "end.pt")
"""


def start(place: Path, ranks: int, *options: str, plan: str = "ddp") -> forked.ForkedCommand:
    place.mkdir(exist_ok=True)
    (place / "train.py").write_text(textwrap.dedent(SCRIPT))
    command = [
        "run",
        "--ranks",
        str(ranks),
        "--seed",
        "3",
        "--plan",
        plan,
        "--checkpoint",
        "saved",
        "--every",
        "3",
    ]
    return forked.ForkedCommand([*command, "-q", "--run-dir", "run", *options, "train.py"], directory=place)


def kill_at(running: forked.ForkedCommand, place: Path, step: int) -> None:
    until = monotonic() + 80
    while not (place / "saved" / f"step-{step:08d}").exists():
        assert running.poll() is None
        assert monotonic() < until
        sleep(0.002)
    running.kill()
    running.wait(30)


def finish(running: forked.ForkedCommand) -> str:
    out, err = running.communicate(90)
    assert running.returncode == 0, err
    return out


@pytest.mark.parametrize(
    ("ranks", "plan"),
    [
        (2, "ddp"),
        *(
            pytest.param(ranks, plan, marks=pytest.mark.soak)
            for ranks, plan in [
                (1, "ddp"),
                (3, "ddp"),
                (2, "zero2"),
                (2, "zero3"),
                (2, "central"),
                (2, "local-sgd,every=3"),
                (3, "decentralized"),
            ]
        ),
    ],
)
def test_a_killed_run_goes_on(tmp_path: Path, ranks: int, plan: str) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    said = finish(start(whole, ranks, plan=plan))
    running = start(cut, ranks, plan=plan)
    try:
        kill_at(running, cut, 18)
    finally:
        running.kill()
    rest = finish(start(cut, ranks, "--resume", plan=plan))
    assert rest
    assert said.endswith(rest)
    for name in ("log.txt", "appended.txt"):
        assert (cut / name).read_text() == (whole / name).read_text()
    equal(torch.load(whole / "end.pt"), torch.load(cut / "end.pt"))


def equal(first: object, second: object) -> None:
    if isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key, value in first.items():
            equal(value, second[key])
    elif isinstance(first, (list, tuple)):
        for one, other in zip(first, second, strict=True):
            equal(one, other)
    else:
        assert first == second


def test_ranks_are_started_again(tmp_path: Path) -> None:
    """Rank 0 is killed: what it had printed before its checkpoint has been written, though Python held it."""
    place = tmp_path / "again"
    running = start(place, 2, "--restarts", "2")
    try:
        import psutil

        until = monotonic() + 80
        while not (place / "saved" / "step-00000012").exists():
            assert monotonic() < until
            sleep(0.002)
        min(psutil.Process(running.pid).children(), key=lambda child: child.pid).kill()  # rank 0
        out, err = running.communicate(90)
    finally:
        running.kill()
    assert running.returncode == 0, err
    assert "was killed by SIGKILL" in err
    assert "restart 1 of 2, from the newest checkpoint" in err
    assert [line.split()[1] for line in out.splitlines()] == list("012345")


def test_lines_that_were_shown_are_not_shown_again_after_a_restart(tmp_path: Path) -> None:
    """The script fails once, at step 7; the steps since the checkpoint of step 4 are done twice."""
    script = """
        import os, time, torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        print("begins")
        for step in range(1, 10):
            loss = net(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print("step", step, round(loss.item(), 3), flush=True)
            if step == 7 and not os.path.exists("failed"):
                while not os.path.exists("saved/step-00000004"):
                    time.sleep(0.002)
                open("failed", "w").close()
                os.abort()
        """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    words = ["run", "--ranks", "2", "--seed", "1", "--checkpoint", "saved", "--every", "4"]
    done = forked.run([*words, "--restarts", "1", "--run-dir", "logs", "train.py"], directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "resumed at step 4" in done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["begins"],
        *(["step", str(step)] for step in range(1, 10)),
    ]
    assert "step 5 " in (tmp_path / "logs" / "rank-0.log").read_text()  # the log has what its attempt did


def test_a_damaged_checkpoint_is_passed_over_and_nothing_is_lost_where_all_are(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    words = ["run", "--ranks", "1", "--seed", "3", "--checkpoint", "saved", "--every", "3"]
    first = forked.run([*words, "train.py"], directory=tmp_path)
    assert first.returncode == 0, first.stderr
    _, newer = sorted((tmp_path / "saved").glob("step-*/manifest.json"))
    newer.write_text(newer.read_text()[:30])
    second = forked.run([*words, "--resume", "train.py"], directory=tmp_path)
    assert second.returncode == 0, second.stderr
    assert "is damaged" in second.stderr
    assert "resumed at step" in second.stderr
    for manifest in (tmp_path / "saved").glob("step-*/manifest.json"):
        manifest.write_text("{")
    journal = (tmp_path / "saved" / "journal").read_bytes()
    for resume in ([], ["--resume"]):
        refused = forked.run([*words, *resume, "train.py"], directory=tmp_path)
        assert refused.returncode == 2
        assert "no checkpoint in saved is whole" in refused.stderr
    assert (tmp_path / "saved" / "journal").read_bytes() == journal


def test_a_script_that_was_edited_is_said_to_be(tmp_path: Path) -> None:
    text = """
        import sys, torch
        net = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        for step in range(int(sys.argv[1])):
            optimizer.zero_grad()
            net(torch.ones(4, 2)).sum().backward()
            optimizer.step()
        print(optimizer.param_groups[0]["lr"])
    """
    words = ["run", "--ranks", "1", "--checkpoint", "saved", "--every", "2", "--resume", "train.py"]
    (tmp_path / "train.py").write_text(textwrap.dedent(text))
    assert "has changed" not in forked.run([*words, "5"], directory=tmp_path).stderr
    assert "has changed" not in forked.run([*words, "5"], directory=tmp_path).stderr
    (tmp_path / "train.py").write_text(textwrap.dedent(text).replace("0.5", "0.25"))
    done = forked.run([*words, "6"], directory=tmp_path)
    assert done.stdout == "0.25\n", done.stderr
    assert (
        "since the checkpoint of step 4 the script has changed: its text and its arguments, which were 5; "
        "the steps before it are not done again"
    ) in done.stderr


def test_an_optimizer_within_another_is_saved(tmp_path: Path) -> None:
    """As accelerate's: the script's variables lead to the outer one alone."""
    text = """
        import sys, torch
        class Outer(torch.optim.Optimizer):
            def __init__(self, inner):
                self.inner = inner
            param_groups = property(lambda self: self.inner.param_groups, lambda self, value: None)
            state_dict = lambda self: self.inner.state_dict()
            load_state_dict = lambda self, state: self.inner.load_state_dict(state)
            step = lambda self, closure=None: self.inner.step(closure)
        net = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.ones_(net.weight)
        optimizer = Outer(torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.5))
        for step in range(int(sys.argv[1])):
            net.zero_grad()
            net(torch.ones(4, 2)).mean().backward()
            optimizer.step()
        print(net.weight.tolist())
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(text))
    words = ["run", "--ranks", "1", "-q", "--checkpoint", "saved", "--every", "1", "--resume", "train.py"]
    assert forked.run([*words, "3"], directory=tmp_path).stdout == "[[-1.125, -1.125]]\n"
    assert forked.run([*words, "4"], directory=tmp_path).stdout == "[[-2.0625, -2.0625]]\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--resume"], "--resume needs --checkpoint DIR, where the run was saved"),
        (["--restarts", "3"], "--restarts 3 needs --checkpoint DIR"),
        (["--every", "3"], "--every 3 needs --checkpoint DIR"),
        (["--keep", "3"], "--keep 3 needs --checkpoint DIR"),
        (
            ["--checkpoint", "c", "--every", "often"],
            "--every often is neither a number of steps nor a time; try --every 1000 or --every 10m",
        ),
        (
            ["--checkpoint", "c", "--native"],
            "--checkpoint needs a script that ronde distributes; leave out --native",
        ),
    ],
)
def test_mistakes_on_the_command_line(tmp_path: Path, options: list[str], said: str) -> None:
    (tmp_path / "train.py").write_text("")
    done = forked.run(["run", *options, "train.py"], directory=tmp_path)
    assert (done.returncode, without_code(done.stderr)) == (2, f"ronde: error: {said}\n")
