"""Signals that a script handles, on one rank of two: the other one is its entries on the board."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ronde.patching.patches import Patches
from ronde.process.signal_board import SignalBoard
from ronde.process.signals import COUNTED, HandledSignals

USR1, USR2 = COUNTED.index(signal.SIGUSR1), COUNTED.index(signal.SIGUSR2)


class Other:
    """The other rank."""

    def __init__(self, path: Path) -> None:
        self._board = SignalBoard(path, 1, 2, len(COUNTED))
        self.counts = [0] * len(COUNTED)
        self.step = 0
        self._board.write(0, self.counts)

    def before_step(self) -> None:
        self.step += 1
        self._board.write(self.step, self.counts)

    def close(self) -> None:
        self._board.close()


class Pair:
    """This rank's signals, and the other rank; both take their steps together."""

    def __init__(self, path: Path) -> None:
        self.in_script = True
        self.signals = HandledSignals(
            lambda: SignalBoard(path, 0, 2, len(COUNTED)), lambda: False, lambda: self.in_script
        )
        self.other = Other(path)

    def step(self) -> None:
        self.other.before_step()
        self.signals.before_step()

    def backward(self) -> None:
        self.other.before_step()
        self.signals.before_backward()

    def evaluate(self) -> None:
        self.other.before_step()
        self.signals.before_evaluation()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    before = {number: signal.getsignal(number) for number in COUNTED}
    made, patches = Pair(tmp_path / "signals.board"), Patches()
    made.signals.install(patches)
    yield made
    made.signals.uninstall()
    made.other.close()
    patches.restore()
    for number, handler in before.items():
        signal.signal(number, handler)


def come(number: int, sent: Any = os.kill) -> None:
    """From outside: not by what stands in the place of `os.kill` for scripts."""
    sent(os.getpid(), number)


def test_a_script_finds_its_own_handlers(pair: Pair) -> None:
    def first(*_: Any) -> None: ...

    def second(*_: Any) -> None: ...

    before = signal.getsignal(signal.SIGTERM)
    assert signal.signal(signal.SIGTERM, first) == before
    assert signal.getsignal(signal.SIGTERM) is first
    assert signal.signal(signal.SIGTERM, second) is first
    assert signal.signal(signal.SIGTERM, signal.SIG_IGN) is second
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_before_training_a_signal_is_handled_as_it_comes(pair: Pair) -> None:
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    come(signal.SIGUSR1)
    assert came == [signal.SIGUSR1]
    pair.other.counts[USR1] = 1
    pair.step()
    pair.step()
    assert came == [signal.SIGUSR1]


def test_in_training_it_is_handled_at_the_step_after_one_that_all_came_to_with_it(pair: Pair) -> None:
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    pair.step()
    come(signal.SIGUSR1)
    assert came == []
    pair.step()
    assert came == []
    pair.step()
    assert came == [signal.SIGUSR1]
    pair.other.counts[USR1] = 1  # where it came later
    pair.step()
    pair.step()
    assert came == [signal.SIGUSR1]


def test_a_signal_that_only_another_rank_has_got_is_handled_once(pair: Pair) -> None:
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    pair.step()
    pair.other.counts[USR1] = 1
    pair.step()
    assert came == []
    pair.step()
    assert came == [signal.SIGUSR1]
    come(signal.SIGUSR1)
    pair.step()
    pair.step()
    assert came == [signal.SIGUSR1]


def test_what_came_together_is_handled_once(pair: Pair) -> None:
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    signal.signal(signal.SIGUSR2, lambda number, _: came.append(number))
    pair.step()
    come(signal.SIGUSR2)
    come(signal.SIGUSR1)
    pair.other.counts[USR1] = 2
    pair.step()
    pair.step()
    assert came == [signal.SIGUSR1, signal.SIGUSR2]


def test_a_handler_that_raises_raises_from_the_step_and_the_others_follow(pair: Pair) -> None:
    came: list[int] = []

    def leave(number: int, _: Any) -> None:
        raise SystemExit(number)

    signal.signal(signal.SIGUSR1, leave)
    signal.signal(signal.SIGUSR2, lambda number, _: came.append(number))
    pair.step()
    come(signal.SIGUSR1)
    come(signal.SIGUSR2)
    pair.step()
    with pytest.raises(SystemExit) as raised:
        pair.step()
    assert raised.value.code == signal.SIGUSR1
    pair.step()
    assert came == [signal.SIGUSR2]


def test_a_handler_is_told_where_the_script_is(pair: Pair) -> None:
    functions: list[str] = []

    def handle(_: int, frame: Any) -> None:
        functions.extend(each.name for each in traceback.extract_stack(frame))

    signal.signal(signal.SIGUSR1, handle)
    pair.step()
    come(signal.SIGUSR1)
    pair.step()
    pair.step()
    assert "step" in functions


def test_another_handler_sees_to_what_has_come(pair: Pair) -> None:
    came: list[str] = []
    signal.signal(signal.SIGUSR1, lambda *_: came.append("first"))
    pair.step()
    come(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda *_: came.append("second"))
    pair.step()
    pair.step()
    assert came == ["second"]


def test_ctrl_c_is_raised_at_a_step_too(pair: Pair) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pair.step()
    come(signal.SIGINT)
    pair.step()
    with pytest.raises(KeyboardInterrupt):
        pair.step()
    pair.step()


def test_in_evaluation_it_is_handled_at_a_call_of_a_model(pair: Pair) -> None:
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    pair.step()
    pair.other.counts[USR1] = 1
    pair.evaluate()
    assert came == []
    pair.evaluate()
    assert came == [signal.SIGUSR1]
    come(signal.SIGUSR1)
    pair.evaluate()
    pair.step()
    assert came == [signal.SIGUSR1]


def test_where_no_optimizer_steps_a_backward_is_a_step(pair: Pair) -> None:
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    pair.backward()
    come(signal.SIGUSR1)
    pair.backward()
    assert came == []
    pair.backward()
    assert came == [signal.SIGUSR1]


def test_inside_a_model_or_a_loader_it_waits(pair: Pair) -> None:
    """What the handler writes there would be written by every rank."""
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    pair.in_script = False
    come(signal.SIGUSR1)
    assert not came
    pair.in_script = True
    until = time.monotonic() + 60
    while not came and time.monotonic() < until:
        time.sleep(0.01)
    assert came == [signal.SIGUSR1]


def test_alarms_and_handlers_of_the_standard_library_come_at_once(pair: Pair) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: came.append(number))
    pair.step()
    come(signal.SIGALRM)
    assert came == [signal.SIGALRM]
    signal.signal(signal.SIGALRM, before)

    import asyncio

    async def wait() -> None:
        handled = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, handled.set)
        come(signal.SIGUSR1)
        await handled.wait()

    asyncio.run(wait())


def test_a_library_that_puts_the_scripts_handler_back(pair: Pair) -> None:
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    pair.step()
    library: dict[str, Any] = {"signal": signal, "wait": lambda: come(signal.SIGUSR1)}
    text = """
def guarded():
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    wait()
    signal.signal(signal.SIGUSR1, before)
    return heard
"""
    exec(compile(text, os.path.join(os.path.dirname(torch.__file__), "guard.py"), "exec"), library)
    assert library["guarded"]() == [signal.SIGUSR1]
    come(signal.SIGUSR1)
    assert came == []
    pair.step()
    pair.step()
    assert came == [signal.SIGUSR1]


def test_what_a_forked_process_sets_is_its_own(pair: Pair) -> None:
    signal.signal(signal.SIGUSR1, lambda *_: None)
    pair.step()
    come(signal.SIGUSR1)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
        come(signal.SIGUSR1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_forked_process_handles_signals_as_they_come(pair: Pair) -> None:
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
    pair.step()
    child = os.fork()
    if child == 0:
        come(signal.SIGUSR1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_where_no_step_comes_the_handler_runs_all_the_same(pair: Pair) -> None:
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    pair.step()
    come(signal.SIGUSR1)
    assert came == []
    while not came:
        time.sleep(0.01)
    pair.other.counts[USR1] = 1
    pair.step()
    pair.step()
    assert came == [signal.SIGUSR1]


def test_without_a_board_signals_are_handled_as_they_come(tmp_path: Path) -> None:
    def full() -> SignalBoard:
        raise OSError("no space")

    came: list[int] = []
    signals, patches = HandledSignals(full, lambda: False, lambda: True), Patches()
    signals.install(patches)
    before = signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    try:
        signals.before_step()
        come(signal.SIGUSR1)
        assert came == [signal.SIGUSR1]
    finally:
        signals.uninstall()
        patches.restore()
        signal.signal(signal.SIGUSR1, before)


def test_after_the_session_they_are_handled_as_they_come(pair: Pair) -> None:
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    pair.step()
    pair.signals.uninstall()
    come(signal.SIGUSR1)
    assert came == [signal.SIGUSR1]


def test_what_the_script_sends_to_itself_is_handled_at_once(pair: Pair) -> None:
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    pair.step()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert came == [signal.SIGUSR1]
    signal.raise_signal(signal.SIGUSR1)
    assert came == [signal.SIGUSR1] * 2
    pair.step()
    pair.step()
    assert came == [signal.SIGUSR1] * 2
