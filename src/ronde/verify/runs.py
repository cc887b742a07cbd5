"""Starts the recorded runs, plain and on ranks, each in a scratch directory of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ronde.verify import scratch as scratches
from ronde.verify.record import ENVIRONMENT_KEY, RankRecord, RecordConfig, read_record

__all__ = ["Job", "Run", "run_on_ranks", "run_plain"]

RECORDER = "ronde.verify.recorder:install"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is run, the same for every run of one proof.

    Attributes:
        steps: optimizer steps after which a run ends.
        directory: where the user stands; relative paths of the script start here.
        threads: threads of every process, plain or rank: another number rounds differently.
    """

    script: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    steps: int = 20
    seed: int = 0
    dtype: str = "float32"
    plan: str = "ddp"
    directory: Path = Path(".")
    threads: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One finished run: a record per rank, what it printed, the files it wrote."""

    records: tuple[RankRecord, ...]
    files: Mapping[str, Path]
    stdout: str
    stderr: str
    exit_code: int


def run_plain(job: Job, place: Path, *, halves: bool = False) -> Run:
    """The script in plain python, recorded; with `halves`, the run that measures the noise floor."""
    scratch, config = _prepare(job, place, halves=halves)
    kind = "module" if job.module else "script"
    command = [sys.executable, "-m", "ronde.verify.plain", str(job.seed), kind, job.script, *job.arguments]
    code = _run(command, job, place, scratch, config)
    return _finished(place, scratch, ranks=1, exit_code=code)


def run_on_ranks(job: Job, place: Path, *, ranks: int, extensions: tuple[str, ...] = ()) -> Run:
    """The script on N ranks, every rank recorded; `extensions` are loaded before the recorder."""
    scratch, config = _prepare(job, place, halves=False)
    fields = {
        "script": job.script,
        "arguments": job.arguments,
        "module": job.module,
        "plan": job.plan,
        "seed": job.seed,
        "threads": job.threads,
        "extensions": (*extensions, RECORDER),
    }
    command = [sys.executable, "-m", "ronde.verify.ranks", str(ranks), str(place / "run"), json.dumps(fields)]
    code = _run(command, job, place, scratch, config)
    return _finished(place, scratch, ranks=ranks, exit_code=code)


def _run(
    command: list[str], job: Job, place: Path, scratch: scratches.Scratch, config: RecordConfig
) -> int:
    environment = {**_environment(job), ENVIRONMENT_KEY: config.to_json()}
    with open(place / "stdout", "wb") as stdout, open(place / "stderr", "wb") as stderr:
        process = subprocess.run(
            command, cwd=scratch.directory, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
        )
    return process.returncode


def _prepare(job: Job, place: Path, *, halves: bool) -> tuple[scratches.Scratch, RecordConfig]:
    place.mkdir(parents=True)
    scratch = scratches.build(place / "tree", job.directory)
    record = place / "record"
    record.mkdir()
    config = RecordConfig(
        directory=str(record.resolve()),
        scratch=str(scratch.directory),
        tree=str(scratch.tree),
        steps=job.steps,
        dtype=job.dtype,
        halves=halves,
    )
    return scratch, config


def _environment(job: Job) -> dict[str, str]:
    threads = str(job.threads)
    # The runs stand elsewhere, so what is relative to here would be lost.
    paths = [os.path.abspath(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _finished(place: Path, scratch: scratches.Scratch, *, ranks: int, exit_code: int) -> Run:
    return Run(
        records=tuple(read_record(place / "record", rank) for rank in range(ranks)),
        files=scratches.written(scratch),
        stdout=(place / "stdout").read_text(errors="replace"),
        stderr=(place / "stderr").read_text(errors="replace"),
        exit_code=exit_code,
    )
