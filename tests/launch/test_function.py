"""`ronde.launch`: a function on ranks, from a script or a notebook."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import io
import sys
import threading
from typing import Any

import pytest

import ronde
from ronde.errors import FunctionError, UsageError
from ronde.launch import function
from ronde.launch.child_command import run_shown


def test_the_main_ranks_answer_comes_back_whole(capsys: pytest.CaptureFixture[str]) -> None:
    factor = 3.0  # a closure: it travels by value, as a notebook's function does

    def train(steps: int) -> dict[str, Any]:
        import torch

        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            out = model(torch.randn(6, 4)) * factor
            loss = out.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print("ranks", ronde.world_size())
        return {"out": out.detach(), "loss": loss.detach(), "weights": model.state_dict()}

    answer = ronde.launch(train, (3,), ranks=2, seed=5)
    seen = capsys.readouterr()
    assert seen.out == "ranks 2\n"
    assert seen.err.startswith("ronde: seed 5, 2 ranks on cpu")
    assert "ronde: 3 optimizer steps in " in seen.err
    assert answer["out"].shape == (6, 2)
    assert abs(answer["out"].square().mean().item() - answer["loss"].item()) < 1e-6
    assert list(answer["weights"]) == ["weight", "bias"]


@pytest.mark.soak
def test_an_error_comes_with_the_ranks_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ValueError("not today")

    with pytest.raises(
        FunctionError, match="rank 0 failed: ValueError: not today; logs of all ranks: "
    ) as caught:
        ronde.launch(fail, ranks=1)
    assert "in fail" in str(caught.value)
    assert str(caught.value).count("Traceback") == 1
    assert "ValueError: not today" in capsys.readouterr().err


def test_it_is_a_function_to_those_who_look() -> None:
    assert list(inspect.signature(ronde.launch).parameters) == ["fn", "args", "ranks", "plan", "seed"]
    assert "ronde.launch(train" in (function.launch.__doc__ or "")


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (3, "ronde.launch takes a function, not 3; pass train, not train()"),
        ({"weights": [0.5] * 1000}, "ronde.launch takes a function, not a dict; pass train, not train()"),
        (functools.partial(print, threading.Lock()), "cannot be sent to the ranks"),
    ],
)
def test_what_cannot_be_launched_is_refused(fn: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        ronde.launch(fn)
    assert message in str(caught.value)


def test_a_notebooks_function_needs_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "cloudpickle" else find(name)
    )
    with pytest.raises(UsageError, match=r"by cloudpickle only; pip install 'ronde\[notebook\]', or move it"):
        ronde.launch(lambda: None)


class _Interrupted(io.StringIO):
    """A notebook's cell, at which the user presses the stop button when the first words appear."""

    pressed = False

    def write(self, text: str, /) -> int:
        if text and not self.pressed:
            self.pressed = True
            raise KeyboardInterrupt
        return super().write(text)


def test_an_interrupt_ends_the_launcher_and_shows_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = _Interrupted()
    monkeypatch.setattr(sys, "stdout", cell)
    code = """if True:
        import time
        try:
            print("on", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            print("saved")
    """
    with pytest.raises(KeyboardInterrupt):
        run_shown([sys.executable, "-c", code])
    assert cell.getvalue() == "saved\n"
