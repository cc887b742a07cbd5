"""Ranks under a real Slurm: a controller and two nodes on this machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ronde.testing.hosts import Network

from .launchers import PATH, RONDE, slurm_cluster
from .training import losses, plain_losses

pytestmark = [pytest.mark.root, pytest.mark.cluster]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def slurm(network: Network) -> Iterator[Run]:
    """`slurm(place, *words)` runs a command of Slurm's with its cluster up."""
    with slurm_cluster(network) as (environment, _):

        def run(where: Path, *words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                network.hosts[0].command(words, directory=str(where)),
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=110,
            )

        yield run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("srun", "-N2", "-n3"), "3 ranks on cpu, started by srun"),
        (("salloc", "-N2", "-n3"), "3 ranks on host-1:2, host-2:1 (from Slurm's allocation)"),
    ],
)
def test_one_devices_numbers(
    slurm: Run,
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = plain_losses(tmp_path, monkeypatch, capsys)
    done = slurm(tmp_path, *words, *RONDE, "train.py")
    assert done.returncode == 0, done.stderr
    assert said in done.stderr
    assert losses(done.stdout) == plain


def test_a_rank_that_fails_in_an_allocation_is_named_with_its_node(slurm: Run, tmp_path: Path) -> None:
    script = "import os, time\nif os.environ['RANK'] == '2': raise ValueError('of host-2')\ntime.sleep(100)\n"
    (tmp_path / "fail.py").write_text(script)
    done = slurm(tmp_path, "salloc", "-N2", "-n3", *RONDE, "--native", "fail.py")
    assert done.returncode == 1
    assert "rank 2 on host-2 failed: ValueError: of host-2" in done.stderr


def test_the_job_that_people_start_from(
    slurm: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = plain_losses(tmp_path, monkeypatch, capsys)
    shutil.copy(Path(__file__).parents[2] / "deploy/slurm/train.sbatch", tmp_path)
    command = tmp_path / "bin/ronde"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ronde "$@"\n')
    command.chmod(0o755)
    words = ["sbatch", "--wait", "--ntasks-per-node=2", "--output=out", "train.sbatch"]
    done = slurm(tmp_path, "env", f"PATH={command.parent}:{PATH}", *words)
    said = (tmp_path / "out").read_text()
    assert done.returncode == 0, done.stderr + said
    assert "4 ranks on host-1:2, host-2:2 (from Slurm's allocation)" in said
    assert "metrics are at http://0.0.0.0:9464/metrics" in said
    assert losses(said) == plain
    assert list((tmp_path / "saved").glob("step-*")) == []  # shorter than an interval
