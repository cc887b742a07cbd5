"""Starts the recorded runs, plain and on ranks, each in its own scratch directory."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ronde.launch.run_spec import RunSpec
from ronde.plan import Compute, Plan, expand
from ronde.plan.compute import Precision
from ronde.verify import scratch as scratches
from ronde.verify.record import ENVIRONMENT_KEY, RankRecord, RecordConfig, Twin, read_record
from ronde.verify.replay_clock import save_chances

__all__ = ["FinishedRun", "Job", "Start", "Starter", "plain_arguments", "run_on_ranks", "run_plain", "spawn"]

RECORDER = "ronde.verify.recorder:install"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Specification of the script and its settings, shared by all runs of a proof.

    Attributes:
        steps: optimizer steps after which a run ends.
        directory: the user's working directory; relative paths of the script start here.
        double: whether every run computes in double precision, whatever the script asks for.
        threads: threads of every process, plain or rank: another number rounds differently.
        devices: a CUDA device for each rank, the first also for the plain run; empty: all on the CPU.
    """

    script: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    steps: int = 20
    seed: int = 0
    double: bool = True
    plan: str = "ddp"
    directory: Path = Path(".")
    threads: int = 1
    devices: tuple[str, ...] = ()

    @property
    def precision(self) -> Precision:
        """The precision in which the plan lets models compute."""
        return expand(self.plan).compute.precision

    @property
    def reference(self) -> str:
        """The plan of the single device: values that change numbers there."""
        return str(Plan(compute=Compute(precision=self.precision)))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FinishedRun:
    """One finished run: a record per rank, its printed text and written files."""

    records: tuple[RankRecord, ...]
    files: Mapping[str, Path]
    stdout: str
    stderr: str
    exit_code: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """One run about to start, with its directories and environment.

    Attributes:
        ranks: the number of ranks; None for plain python.
        place: a directory of the run's own, for the files `stdout` and `stderr` and the ranks' folder `run`.
        directory: the working directory of the script.
        extensions: the extensions that every rank loads, the recorder last.
    """

    job: Job
    ranks: int | None
    place: Path
    directory: Path
    environment: Mapping[str, str]
    extensions: tuple[str, ...] = ()


Starter = Callable[[Start], int]


def spawn(start: Start) -> int:
    """Run in new processes, ranks by the launcher, and return the exit code."""
    job = start.job
    if start.ranks is None:
        command = ["ronde.verify.plain", *plain_arguments(job)]
    else:
        run = RunSpec(
            script=job.script,
            arguments=tuple(job.arguments),
            module=job.module,
            plan=job.plan,
            seed=job.seed,
            threads=job.threads,
            extensions=tuple(start.extensions),
        )
        told = json.dumps({"run": dataclasses.asdict(run), "devices": job.devices})
        command = ["ronde.verify.ranks", str(start.ranks), str(start.place / "run"), told]
    keeper = [sys.executable, "-m", "ronde.verify.keeper", str(os.getpid())]
    with open(start.place / "stdout", "wb") as stdout, open(start.place / "stderr", "wb") as stderr:
        process = subprocess.Popen(
            [*keeper, sys.executable, "-m", *command],
            cwd=start.directory,
            env=start.environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,  # the terminal's keys are for this process
        )
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise


def plain_arguments(job: Job) -> list[str]:
    """Return the arguments of `ronde.verify.plain`."""
    kind = "module" if job.module else "script"
    return [str(job.seed), job.reference, kind, job.script, *job.arguments]


def run_plain(
    job: Job, place: Path, *, twin: Twin = "", like: FinishedRun | None = None, starter: Starter = spawn
) -> FinishedRun:
    """Run the script in plain python, recorded.

    Args:
        twin: the difference from the plain run, by rounding alone.
        like: a run whose clock and seeds this one replays.
    """
    return _run(job, place, starter, ranks=None, twin=twin, like=like)


def run_on_ranks(
    job: Job,
    place: Path,
    *,
    ranks: int,
    like: FinishedRun | None = None,
    extensions: tuple[str, ...] = (),
    starter: Starter = spawn,
) -> FinishedRun:
    """Run the script on N ranks, every rank recorded. `extensions` are loaded before the recorder.

    Args:
        like: a plain run whose clock and seeds this one replays.
    """
    return _run(job, place, starter, ranks=ranks, like=like, extensions=(*extensions, RECORDER))


def _run(
    job: Job,
    place: Path,
    starter: Starter,
    *,
    ranks: int | None,
    extensions: tuple[str, ...] = (),
    twin: Twin = "",
    like: FinishedRun | None = None,
) -> FinishedRun:
    # Every run has the same directory while it runs, so that printed or saved paths are the same.
    stage = place.with_name("tree")
    scratch, config = _prepare(job, place, stage, twin=twin, like=like)
    start = Start(
        job=job,
        ranks=ranks,
        place=place.resolve(),
        directory=scratch.directory,
        environment={**_environment(job), ENVIRONMENT_KEY: config.to_json()},
        extensions=extensions,
    )
    code = starter(start)
    return _finished(place, scratches.move(scratch, place / "tree"), ranks=ranks or 1, exit_code=code)


def _prepare(
    job: Job, place: Path, stage: Path, *, twin: Twin, like: FinishedRun | None
) -> tuple[scratches.Scratch, RecordConfig]:
    place.mkdir(parents=True)
    scratch = scratches.build(stage, job.directory)
    record = place / "record"
    record.mkdir()
    replay = record / "replay.json"
    if like is not None:
        save_chances(replay, like.records[0].circumstances)
    config = RecordConfig(
        directory=str(record.resolve()),
        scratch=str(scratch.directory),
        tree=str(scratch.tree),
        steps=job.steps,
        double=job.double,
        twin=twin,
        narrow=job.precision in ("bf16", "fp16"),
        replay=str(replay.resolve()) if like is not None else "",
    )
    return scratch, config


def _environment(job: Job) -> dict[str, str]:
    threads = str(job.threads)
    # The runs have other working directories, so relative paths would be lost.
    paths = [os.path.abspath(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": job.devices[0] if job.devices else "",
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _finished(place: Path, scratch: scratches.Scratch, *, ranks: int, exit_code: int) -> FinishedRun:
    return FinishedRun(
        records=tuple(read_record(place / "record", rank) for rank in range(ranks)),
        files=scratches.written(scratch),
        stdout=(place / "stdout").read_text(errors="replace"),
        stderr=(place / "stderr").read_text(errors="replace"),
        exit_code=exit_code,
    )
