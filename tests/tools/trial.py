"""One script under one plan, in a folder of its own: runs of `ronde` in it, and what is right."""

from __future__ import annotations

import contextlib
import io
import math
import re
import runpy
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil
import torch

from ronde.errors import UsageError
from ronde.testing import forked
from ronde.verify.proof import Proof, verify
from ronde.verify.runs import Job, Starter
from tools.plans import RANKS, Column
from tools.scripts import LAST_STEP, source

__all__ = ["Died", "Refused", "Trial"]

# Enough for a run of 12 steps on a busy machine; one that takes longer hangs.
PATIENCE_S = 240.0
_ERROR = re.compile(r"ronde: error(\[R\d\d\d\])?: ")


class Refused(Exception):
    """ronde does not take this together, and says so."""


class Died(Exception):
    """Something else than the right end."""


class Trial:
    """One script under one plan.

    Args:
        folder: an empty one.
        starter: starts the processes of `ronde verify`.

    Attributes:
        apart: ranks do not wait for one another.
        losses: of each step in plain Python.
        weights: what plain Python ends with.
    """

    def __init__(self, column: Column, script: str, folder: Path, starter: Starter) -> None:
        self.column, self.script = column, script
        self.apart = column.plan.update.rule in ("async", "geo", "async-average")
        self._folder, self._starter = folder, starter
        self._count = 0
        self._write(folder)
        said = io.StringIO()
        with contextlib.redirect_stdout(said), torch.random.fork_rng():
            names = runpy.run_path(str(folder / "train.py"))
        self.losses = _losses(said.getvalue())
        self.weights: dict[str, torch.Tensor] = names["model"].state_dict()

    def place(self, *, holds: bool = False) -> Path:
        """A new folder with the script."""
        self._count += 1
        place = self._folder / str(self._count)
        place.mkdir()
        self._write(place, holds=holds)
        return place

    def _write(self, place: Path, *, holds: bool = False) -> None:
        text = source(self.script, self.column.model, holds=holds, apart=self.apart)
        (place / "train.py").write_text(text)
        if holds:
            (place / "hold").touch()

    def run(self, place: Path, *options: str, script: str = "train.py", plan: str = "") -> Ran:
        """`ronde run` to its end.

        Raises:
            Refused, Died: it does not end well.
        """
        alone = self.apart and plan in ("", self.column.name)
        if alone and "--checkpoint" in options:  # a fast rank has ended before the others are to be saved
            self._write(place, holds=True)
            return self.finish(self.start(place, *options, script=script, plan=plan), place, lambda: None)
        return self._ended(self.start(place, *options, script=script, plan=plan))

    def start(
        self, place: Path, *options: str, script: str = "train.py", plan: str = ""
    ) -> forked.ForkedCommand:
        ranks = () if "-H" in options else ("--ranks", str(RANKS))
        words = ["run", *ranks, "--plan", plan or self.column.name, "--run-dir", "run", *options, script]
        return forked.ForkedCommand(words, directory=place)

    def finish(self, command: forked.ForkedCommand, place: Path, when: Callable[[], Any]) -> Ran:
        """Interfere with a run that holds, at step 9, and let it go on.

        Args:
            when: interferes, once the newest checkpoint is there.
        """
        until = monotonic() + PATIENCE_S
        try:
            while not any((place / "saved").glob("step-*")) and command.poll() is None:
                if monotonic() > until:
                    raise Died("no checkpoint is written")
                sleep(0.02)
            if command.poll() is None:
                when()
            (place / "hold").unlink()
            return self._ended(command)
        finally:
            command.kill()

    def tool(self, place: Path, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        """Another command of `ronde`; what it prints.

        Raises:
            Died: it ends with another exit code.
        """
        done = forked.run(words, directory=place, timeout=PATIENCE_S)
        if done.returncode not in codes:
            raise Died(f"ronde {words[0]} ends with {done.returncode}: {_last(done.stderr)}")
        return done.stdout + done.stderr

    def verify(self) -> Proof:
        """What `ronde verify` finds.

        Raises:
            Refused: it has nothing to compare.
        """
        job = Job(script="train.py", directory=self.place(), plan=str(self.column.plan), steps=LAST_STEP)
        try:
            return verify(job, ranks=RANKS, starter=self._starter)
        except UsageError as error:
            raise Refused(str(error)) from None

    def _ended(self, command: forked.ForkedCommand) -> Ran:
        try:
            out, err = command.communicate(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Died(f"hangs for {PATIENCE_S:.0f} s") from None
        finally:
            command.kill()
        refusals = [line for line in err.splitlines() if _ERROR.match(line)]
        if command.returncode == 2 and refusals:
            raise Refused(_ERROR.sub("", refusals[0], count=1))
        if command.returncode:
            raise Died(f"ends with {command.returncode}: {_last(err)}")
        return Ran(out, err)

    def require_right(self, ran: Ran, *, after: int = 0) -> None:
        """The script has come to its end, with the losses of one device if the plan keeps them.

        Args:
            after: the step after which it was resumed.

        Raises:
            Died: with what is wrong.
        """
        losses = _losses(ran.out)
        if list(losses) != list(self.losses)[after:]:
            raise Died(f"prints the steps {list(losses)}")
        if not all(map(math.isfinite, losses.values())):
            raise Died(f"its losses are {list(losses.values())}")
        for step, loss in losses.items() if self.column.plan.exact else ():
            if abs(loss - self.losses[step]) > self.column.tolerance * self.losses[step]:
                raise Died(f"the loss of step {step} is {loss}, and {self.losses[step]} in plain Python")


class Ran:
    """What a run that has ended well has printed."""

    def __init__(self, out: str, err: str) -> None:
        self.out, self.err = out, err


def ranks_of(launcher: int) -> list[psutil.Process]:
    """Processes of the ranks of a launcher, or of agents, in the order in which they were started."""
    return sorted(
        psutil.Process(launcher).children(), key=lambda process: (process.create_time(), process.pid)
    )


def copied(saved: Path, place: Path) -> None:
    """A checkpoint, to be gone on from elsewhere."""
    shutil.copytree(saved, place / "saved")


def _losses(out: str) -> dict[int, float]:
    lines = [line.split() for line in out.splitlines()]
    return {int(step): float(loss) for step, loss in lines}


def _last(err: str) -> str:
    """The sentence that tells most of an error: ronde's own, or the last line."""
    lines = [line for line in err.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("ronde: ") and "seed" not in line]
    return (told or lines or ["without a word"])[0 if told else -1].removeprefix("ronde: ")
