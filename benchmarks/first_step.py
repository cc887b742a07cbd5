"""Time from a command to the first step:

`ronde run` of a plain script against torchrun of its twin by hand, in turns, each on the same ranks. What is
timed ends when the script has read the loss of its first step: starting, meeting, making the model, one step.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ronde.bench.contenders import FOLDER
from ronde.bench.machine import Machine
from ronde.bench.spread import Spread
from ronde.errors import BenchError

__all__ = ["main", "seconds_to"]

_BOUND_S = 0.3
_TOLD = b"bench-line"
_FIRST = ("mlp-20k", "--warm-up", "0", "--steps", "1")


def seconds_to(line: bytes, command: Sequence[str], folder: Path) -> float:
    """Measure seconds until a command prints a line with this beginning.

    Raises:
        BenchError: the command ends without that line, or fails.
    """
    begun, seen = time.perf_counter(), 0.0
    with open(folder / "stderr", "w+b") as errors:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        )
        assert process.stdout is not None
        with process.stdout as output:
            for each in output:
                if not seen and each.startswith(line):
                    seen = time.perf_counter() - begun
        if process.wait() or not seen:
            errors.seek(0)
            said = errors.read().decode(errors="replace")[-500:]
            raise BenchError(f"`{' '.join(command)}` ended with exit code {process.returncode}: {said}")
    return seen


def main() -> int:
    """0 where ronde takes at most 0.3 s longer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_step", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=9)
    asked = parser.parse_args()
    machine = Machine.here()
    os.environ["OMP_NUM_THREADS"] = str(max(1, machine.cores // asked.ranks))
    ranks = str(asked.ranks)
    by_hand = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks)
    ours = ("-m", "ronde", "run", "--ranks", ranks, "--seed", "0", "--run-dir", "run")
    commands = {
        "ronde run": (sys.executable, *ours, str(FOLDER / "plain.py"), *_FIRST),
        "torchrun": (sys.executable, *by_hand, str(FOLDER / "with_ddp.py"), *_FIRST),
    }
    found: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(asked.pairs):
        order = list(commands) if turn % 2 else list(reversed(commands))
        for name in order:
            with tempfile.TemporaryDirectory(prefix="ronde-bench-") as folder:
                found[name].append(seconds_to(_TOLD, commands[name], Path(folder)))
    print(f"{machine.processors}, {machine.cores} cores, torch {machine.torch}, load {machine.load} before")
    for name, seconds in found.items():
        spread = Spread.of(seconds)
        print(f"{name}: {spread.median:.2f} s to the first step ({spread.low:.2f} to {spread.high:.2f})")
    added = Spread.of([one - other for one, other in zip(*found.values(), strict=True)])
    print(f"ronde takes {added.median:+.2f} s ({added.low:+.2f} to {added.high:+.2f}) longer than torchrun")
    return int(added.median > _BOUND_S)


if __name__ == "__main__":
    sys.exit(main())
