"""The picture of a proof: which values are its curves, and that it can be drawn."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ronde.errors import UsageError
from ronde.verify import plot
from ronde.verify.clauses.verdict import Tolerance
from ronde.verify.curves import GRADIENTS, Curve, loss_curves
from ronde.verify.proof import Proof
from ronde.verify.record import Gradients, RankRecord, Read
from ronde.verify.runs import Job

SOURCE = 'x = 1\nprint(loss.item())\nprint(f"{accuracy:.2f}")\nprint("$loss$", total_loss.item())\n'
TOLERANCE = Tolerance.strict()


def record(reads: list[Read], rank: int = 0, norms: tuple[float, ...] = ()) -> RankRecord:
    return RankRecord(
        rank=rank,
        batches=(),
        ids=(),
        reads=tuple(reads),
        gradients=tuple(
            Gradients(step=step, norms={"a": norm, "b": None}) for step, norm in enumerate(norms, 1)
        ),
        steps=(),
        starts={},
        opened={},
        circumstances=(),
        in_parts=(0, 0),
        turned=(),
        stopped=True,
        tensors=Path("none"),
    )


def read(line: int, value: Any, step: int) -> Read:
    return Read(call="item", where=f"train.py:{line}", value=value, step=step)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SOURCE)
    return tmp_path


def test_curves_are_read_where_the_script_speaks_of_a_loss(place: Path) -> None:
    plain = [read(3, "0.50", 1), read(3, "0.75", 2), read(3, "0.9", 2), read(2, 4.0, 1), read(2, 2.0, 2)]
    plain += [read(1, 7, 2)]
    first, second = record(plain), record([*plain[:4], read(2, 2.5, 2)], rank=1)
    (curve,) = loss_curves(first, [first, second], TOLERANCE, place)
    assert curve.name == "train.py:2  print(loss.item())"
    assert (curve.steps, curve.plain, curve.ranks) == ((1, 2), (4.0, 2.0), (4.0, 2.0))
    assert curve.differences == (0.0, 0.5)
    assert curve.worst == 0.5
    assert curve.allowed == 4.0 * TOLERANCE.values


def test_without_a_loss_the_most_read_number_counts_and_then_the_gradients(place: Path) -> None:
    plain = record([read(3, "0.50", 1), read(3, "0.75", 2), read(1, 7, 2), read(3, "none", 2)])
    (curve,) = loss_curves(plain, [plain], TOLERANCE, place)
    assert curve.plain == (0.5, 0.75)
    silent = record([], norms=(3.0, 4.0))
    (curve,) = loss_curves(silent, [silent], TOLERANCE, place)
    assert (curve.name, curve.steps, curve.plain) == (GRADIENTS, (1, 2), (3.0, 4.0))
    assert loss_curves(record([]), [record([])], TOLERANCE, place) == ()


CURVE = Curve(
    name='train.py:4  print("$loss$", total_loss.item())',
    steps=(1, 2, 3),
    plain=(3.0, 2.0, 1.0),
    ranks=(3.0, 2.0, 1.0),
    differences=(0.0, 2e-16, 1e-16),
    allowed=3e-9,
)
PROOF = Proof(
    job=Job(script="train.py"),
    ranks=2,
    dtype="float32",
    tolerance=TOLERANCE,
    steps=3,
    floor=None,
    verdicts=(),
    curves=(CURVE,),
    failure="",
)


@pytest.mark.parametrize(("name", "begin"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_a_picture_is_drawn(tmp_path: Path, name: str, begin: bytes) -> None:
    plot.check(tmp_path / name)
    plot.draw(PROOF, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begin)


@pytest.mark.parametrize("steps", [1, 2, 3, 20, 700])
def test_steps_are_whole(steps: int) -> None:
    ones = (1.0,) * steps
    curve = Curve(
        name="loss",
        steps=tuple(range(1, steps + 1)),
        plain=ones,
        ranks=ones,
        differences=(0.0,) * steps,
        allowed=1e-9,
    )
    axis = plot.figure(dataclasses.replace(PROOF, curves=(curve,))).axes[-1].xaxis
    low, high = axis.get_view_interval()
    shown = [tick for tick in axis.get_ticklocs() if low <= tick <= high]
    assert shown
    assert all(tick == int(tick) for tick in shown)


def test_the_axis_says_what_is_drawn() -> None:
    assert plot.figure(PROOF).axes[0].get_ylabel() == "value read by the script"
    norms = dataclasses.replace(PROOF, curves=(dataclasses.replace(CURVE, name=GRADIENTS),))
    assert plot.figure(norms).axes[0].get_ylabel() == "norm of all gradients"


def test_equal_curves_and_several_of_them(tmp_path: Path) -> None:
    equal = dataclasses.replace(CURVE, differences=(0.0, 0.0, 0.0))
    nought = dataclasses.replace(equal, plain=(0.0,) * 3, ranks=(0.0,) * 3, allowed=0.0)
    for curves in ((equal,), (nought,), (CURVE, equal, nought)):
        plot.draw(dataclasses.replace(PROOF, curves=curves), tmp_path / "a.png")
        assert (tmp_path / "a.png").stat().st_size > 10_000
        (tmp_path / "a.png").unlink()


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UsageError, match=r"loss\.gif is not one of \.png, \.svg, \.pdf; try --plot loss\.png"
    ):
        plot.check(tmp_path / "loss.gif")
    with pytest.raises(UsageError, match="there is no folder"):
        plot.check(tmp_path / "none" / "loss.png")
    with pytest.raises(UsageError, match="nothing to plot"):
        plot.draw(dataclasses.replace(PROOF, curves=()), tmp_path / "loss.png")
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"--plot needs matplotlib; pip install 'ronde\[plot\]'"):
        plot.check(tmp_path / "loss.png")
