"""The wheel by itself: in an environment with ronde's dependencies and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import test_extras

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.soak

TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(torch.randn(6, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
print("trained")
"""


def build(source: Path, folder: Path) -> list[Path]:
    """Wheel and source distribution of a folder."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=source, capture_output=True, check=True, env={**os.environ, "PYTHONPATH": ""})
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, built: list[Path]) -> Path:
    """A folder with a script, and the wheel in an environment of its own."""
    folder = tmp_path_factory.mktemp("alone")
    venv.create(folder / "env", with_pip=True)
    pins = ["-c", str(ROOT / "constraints.txt")]
    pip = [str(folder / "env/bin/python"), "-m", "pip", "install", "-qq", *pins]
    subprocess.run([*pip, str(built[0])], check=True, env={**os.environ, "PYTHONPATH": ""})
    (folder / "train.py").write_text(TRAIN)
    return folder


def run(place: Path, line: str) -> str:
    """All that a command line prints there, or code behind `python: `."""
    head, _, code = line.partition("python: ")
    words = ["python", "-c", code] if code else ["ronde", *head.split()]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [place / "env/bin" / words[0], *words[1:]], cwd=place, env=environment, capture_output=True, text=True
    )
    return done.stdout + done.stderr


def test_the_source_distribution_builds_the_same_wheel(built: list[Path], tmp_path: Path) -> None:
    wheel, source = built
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    again = build(unpacked, tmp_path / "dist")[0]
    assert again.read_bytes() == wheel.read_bytes()


def test_the_wheel_has_the_package_alone_and_is_small(built: list[Path]) -> None:
    names = zipfile.ZipFile(built[0]).namelist()
    assert {name.split("/")[0].removesuffix(".dist-info").partition("-")[0] for name in names} == {"ronde"}
    assert not [name for name in names if "/tests/" in name or "/benchmarks/" in name]
    assert built[0].stat().st_size < 2_500_000


def test_commands_run_with_core_dependencies_alone(place: Path) -> None:
    assert run(place, "--version").startswith("ronde ")
    said = run(place, "run --ranks 2 train.py")
    assert "trained\n" in said
    assert "3 optimizer steps" in said
    assert "The law holds." in run(place, "verify --ranks 2 --steps 3 train.py")
    assert "zero2" in run(place, "plan show zero2")
    assert "torch" in run(place, "doctor --ranks 2")
    assert "--nproc" in run(place, "explain R180")


@pytest.mark.parametrize("case", test_extras.CASES, ids=lambda case: case.line)
def test_a_missing_extra_is_answered_by_its_installation(place: Path, case: test_extras.Case) -> None:
    said = run(place, case.line)
    assert f"pip install 'ronde[{case.extra}]'" in said, said
