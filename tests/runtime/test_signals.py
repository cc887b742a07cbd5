"""Scripts that save and leave at a signal, on two ranks: they do it at the same place.

A rank gets signals where a test wants them at places of its own, by a way that scripts do not use; else the
launcher is sent one, once the script has said by a file how far it is.
"""

from __future__ import annotations

import signal
import textwrap
import time
from pathlib import Path

import pytest
import torch

from ronde.testing.forked import ForkedCommand

BOUND_S = 100.0
# Each starts ranks of its own, and differs from its siblings in an order only.
SOAK = pytest.mark.soak
SCRIPT = """\
import os, signal, sys, threading, time
import torch
own = int("rank-1" in os.readlink("/proc/self/fd/1"))  # which rank this is; a script has no business to know
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = torch.randn(8, 4), torch.randint(2, (8,))
step = 0

def train():
    global step
    step += 1
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

def save():
    torch.save({"model": model.state_dict(), "step": step}, "last.pt")
    print("saved at step", step)

def say(name):  # to write a file is a meeting: all ranks are here when it is there
    open(name, "w").close()

"""
FLAG = """\
flag = []
signal.signal(signal.SIGTERM, lambda number, frame: flag.append(number))
"""
# Ends by itself where the signal does not come, or its handler leaves only one rank.
UNTIL_FLAG = """\
while not flag and step < 100_000:
    train()
save()
sys.exit(3)
"""


def start(folder: Path, *parts: str) -> ForkedCommand:
    (folder / "train.py").write_text(SCRIPT + "".join(map(textwrap.dedent, parts)))
    return ForkedCommand(["run", "--ranks", "2", "--run-dir", "logs", "train.py"], directory=folder)


def finish(process: ForkedCommand) -> tuple[int | None, str, str]:
    try:
        out, err = process.communicate(timeout=BOUND_S)
    finally:
        process.kill()
    return process.returncode, out, err


def wait_until_said(folder: Path, process: ForkedCommand, name: str) -> None:
    end = time.monotonic() + BOUND_S
    while not (folder / name).exists():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise AssertionError(f"waited in vain for {name}: {process.communicate()}")
        time.sleep(0.01)


def saved_alike(folder: Path, out: str) -> int:
    """The step at which both ranks have saved."""
    step = torch.load(folder / "last.pt")["step"]
    assert out == f"saved at step {step}\n"
    assert out in (folder / "logs" / "rank-1.log").read_text()
    return step


@pytest.mark.parametrize(
    "steps", [(5, 6), *(pytest.param(each, marks=SOAK) for each in ((None, 5), (5, 5), (6, 5), (5, None)))]
)
def test_wherever_the_ranks_get_it_they_leave_at_one_step(
    tmp_path: Path, steps: tuple[int | None, int | None]
) -> None:
    script = f"""
        while not flag and step < 20:
            train()
            if step == {steps}[own]:
                signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        assert len(flag) == 1
        save()
        sys.exit(3)
        """
    code, out, err = finish(start(tmp_path, FLAG, script))
    assert (code, saved_alike(tmp_path, out)) == (3, 7), err


EVALUATION = """
    def evaluate():
        global step
        step += 1
        with torch.no_grad():
            return torch.nn.functional.cross_entropy(model(inputs), targets).item()
    train()
    """
BY_HAND = """
    def evaluate():
        global step
        step += 1
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    evaluate()
    """
BY_GRAD = """
    def evaluate():
        global step
        step += 1
        parameters = list(model.parameters())
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
                parameter -= 0.1 * gradient
    evaluate()
    """


@pytest.mark.parametrize(
    ("work", "steps"),
    [
        pytest.param(EVALUATION, (5, 6), marks=SOAK),
        (EVALUATION, (None, 5)),
        pytest.param(BY_HAND, (6, 5), marks=SOAK),
        pytest.param(BY_GRAD, (5, None), marks=SOAK),
    ],
    ids=["evaluation", "evaluation, one of them", "by hand", "by grad, one of them"],
)
def test_where_no_optimizer_steps_they_leave_together_too(
    tmp_path: Path, work: str, steps: tuple[int | None, int | None]
) -> None:
    script = f"""
        while not flag and step < 20:
            evaluate()
            if step == {steps}[own]:
                signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        assert len(flag) == 1
        save()
        sys.exit(3)
        """
    code, out, err = finish(start(tmp_path, FLAG, work, script))
    assert (code, saved_alike(tmp_path, out)) == (3, 7), err


@pytest.mark.soak
def test_a_handler_that_saves_and_leaves_in_a_long_evaluation(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        """
        def leave(number, frame):
            save()
            sys.exit(5)
        signal.signal(signal.SIGTERM, leave)
        """,
        EVALUATION,
        """
        say("evaluates")
        while step < 100_000:
            evaluate()
        """,
    )
    wait_until_said(tmp_path, process, "evaluates")
    process.terminate()
    code, out, err = finish(process)
    assert (code, saved_alike(tmp_path, out) > 0) == (5, True), err
    assert "diverged" not in err


def test_a_signal_to_the_launcher(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        FLAG,
        """
        for _ in range(3):
            train()
        say("trains")
        """,
        UNTIL_FLAG,
    )
    wait_until_said(tmp_path, process, "trains")
    process.terminate()
    code, out, err = finish(process)
    assert (code, saved_alike(tmp_path, out) > 3) == (3, True)
    assert "diverged" not in err


@pytest.mark.soak
def test_a_handler_that_saves_and_leaves_by_itself(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        """
        def leave(number, frame):
            save()
            sys.exit(5)
        signal.signal(signal.SIGUSR1, leave)
        train()
        say("trains")
        while step < 100_000:
            train()
        """,
    )
    wait_until_said(tmp_path, process, "trains")
    process.send_signal(signal.SIGUSR1)
    code, out, err = finish(process)
    assert (code, saved_alike(tmp_path, out) > 0) == (5, True), err


@pytest.mark.parametrize("saves", ["except", pytest.param("finally", marks=SOAK), "atexit"])
def test_an_interrupt_comes_before_one_step(tmp_path: Path, saves: str) -> None:
    """Whether the script says what is to happen, or leaves that to something that runs at its end."""
    loop = """
        while step < 100_000:
            train()
            if step == 3:
                say("trains")
        """
    loop = textwrap.dedent(loop)
    if saves == "except":
        loop = "try:\n" + textwrap.indent(loop, "    ")
        loop += "except KeyboardInterrupt:\n    save()\n    sys.exit(3)\n"
    elif saves == "finally":
        loop = "try:\n" + textwrap.indent(loop, "    ") + "finally:\n    save()\n"
    else:
        loop = "import atexit\natexit.register(save)\n" + loop
    process = start(tmp_path, loop)
    wait_until_said(tmp_path, process, "trains")
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert (code, saved_alike(tmp_path, out) >= 3) == (3 if saves == "except" else 130, True), err
    assert "diverged" not in err


def test_a_signal_before_training_is_handled_where_it_comes(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        FLAG,
        """
        say("waits")
        while not flag:
            time.sleep(0.01)
        """,
        UNTIL_FLAG,
    )
    wait_until_said(tmp_path, process, "waits")
    process.terminate()
    code, out, err = finish(process)
    assert (code, saved_alike(tmp_path, out)) == (3, 0), err


def test_a_signal_while_no_step_comes(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        FLAG,
        """
        for _ in range(3):
            train()
        say("waits")
        while not flag:
            time.sleep(0.01)
        """,
        UNTIL_FLAG,
    )
    wait_until_said(tmp_path, process, "waits")
    process.terminate()
    code, out, err = finish(process)
    assert (code, saved_alike(tmp_path, out)) == (3, 3), err
