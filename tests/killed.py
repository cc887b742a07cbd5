"""A script that is run, killed and resumed in a folder of its own, and what two such runs have left."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import monotonic, sleep

import numpy
import pytest
import torch

from ronde.testing import forked

SCRIPTS = Path(__file__).parent / "scripts"
# Names and times of their own are in what these write.
OWN_NAMES = re.compile(r"events\.out\.tfevents|wandb|runs/|\.log$|trainer_state\.json")
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


class Place:
    """A folder with a copy of the scripts, in which one of them is run, killed and resumed."""

    def __init__(self, path: Path, script: str, environment: Mapping[str, str] | None = None) -> None:
        self.path, self._script, self._environment = path, script, environment
        shutil.copytree(SCRIPTS, path, ignore=shutil.ignore_patterns(".*", "__pycache__"))

    def start(self, ranks: int, *options: str) -> forked.ForkedCommand:
        words = ["run", "--ranks", str(ranks), "--seed", "3", "--checkpoint", "saved", "--every", "2", "-q"]
        return forked.ForkedCommand(
            [*words, *options, f"{self._script}.py"], directory=self.path, environment=self._environment
        )

    def finish(self, ranks: int, *options: str) -> str:
        running = self.start(ranks, *options)
        out, err = running.communicate(150)
        assert running.returncode == 0, err
        return out

    def kill_when_saved(self, ranks: int, *options: str, after: int = 0) -> None:
        """Kill it when there is a checkpoint of a step behind `after`; it may have ended by then."""
        running = self.start(ranks, *options)
        until = monotonic() + 100
        while running.poll() is None and self.newest() <= after:
            assert monotonic() < until
            sleep(0.002)
        running.kill()
        running.wait(30)

    def newest(self) -> int:
        steps = [int(path.name.split("-")[1]) for path in (self.path / "saved").glob("step-????????")]
        return max(steps, default=0)

    def files(self) -> Iterator[str]:
        for path in sorted(self.path.rglob("*")):
            name = str(path.relative_to(self.path))
            if (
                path.is_file()
                and not name.startswith(("saved/", "__pycache__/"))
                and not OWN_NAMES.search(name)
            ):
                yield name


def assert_close(expected: str, found: str) -> None:
    """Lines from the end on, number by number."""
    ours, theirs = found.splitlines(), expected.splitlines()
    for one, other in zip(reversed(ours), reversed(theirs), strict=False):
        assert NUMBER.sub("N", one) == NUMBER.sub("N", other)
        numbers = [[float(each) for each in NUMBER.findall(line)] for line in (one, other)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-3, abs=1e-4)


def assert_same(expected: Path, found: Path, *, exact: bool) -> None:
    if expected.suffix in (".pt", ".pth", ".ckpt"):
        values = [torch.load(path, weights_only=False) for path in (expected, found)]
        tolerance = 0.0 if exact else 1e-3
        assert_equal(values[0], values[1], tolerance, str(expected))
    elif exact:
        assert expected.read_bytes() == found.read_bytes(), expected
    else:
        assert_close(expected.read_text(), found.read_text())


def assert_equal(first: object, second: object, tolerance: float, name: str) -> None:
    assert type(first) is type(second), name
    if isinstance(first, torch.Tensor):
        torch.testing.assert_close(
            second, first, rtol=tolerance, atol=tolerance / 10, msg=lambda text: f"{name}: {text}"
        )
    elif isinstance(first, dict):
        assert isinstance(second, dict)
        assert list(first) == list(second), name
        for key, value in first.items():
            assert_equal(value, second[key], tolerance, f"{name}[{key!r}]")
    elif isinstance(first, (list, tuple)):
        assert isinstance(second, (list, tuple))
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            assert_equal(one, other, tolerance, f"{name}[{number}]")
    elif isinstance(first, float):
        assert second == pytest.approx(first, rel=tolerance, abs=tolerance / 10), name
    elif isinstance(first, numpy.ndarray):
        numpy.testing.assert_allclose(second, first, rtol=tolerance, atol=tolerance / 10, err_msg=name)
    elif hasattr(first, "__dict__"):
        assert_equal(vars(first), vars(second), tolerance, name)
    else:
        assert first == second, name
