"""Kill ranks of a training at random, and compare its result.

Reported beside: how long training stood still for a checkpoint, over one copy of the same bytes in memory;
and how long it took from a kill to the step where it went on, with and without the import of torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

import psutil
import torch

from ronde.bench.machine import Machine
from ronde.trace.checkpoint_manifest import CheckpointManifest, checkpoints_in

_SCRIPT = Path(__file__).with_name("train.py")
_RESUMED = re.compile(r"ronde: note\[R504\]: resumed at step (\d+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Trained:
    """One training.

    Attributes:
        kills: moments at which a rank was killed, by a monotonic clock.
        resumed: moments at which it had come back.
        manifests: manifests of the checkpoints that were seen.
    """

    seconds: float
    kills: list[float]
    resumed: list[float]
    manifests: list[CheckpointManifest]


def main() -> int:
    """0 where all ends are equal to the bit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoints", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--width", type=int, default=512, help="of the model; 512 are 0.3 M parameters")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--every", default="20", help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the report to this file")
    asked = parser.parse_args()
    machine, folder = Machine.here(), Path(tempfile.mkdtemp(prefix="ronde-checkpoints-"))
    plain = _train(folder / "plain", asked, 0)
    _say(f"left alone: {asked.steps} steps in {plain.seconds:.1f} s")
    killed = _train(folder / "killed", asked, asked.kills)
    alike = _same(folder / "plain" / "end.pt", folder / "killed" / "end.pt")
    imported = _import_seconds()
    copy = _copy_seconds(plain.manifests[-1].state_bytes, asked.device)
    held_up = [each.held_up for each in plain.manifests[1:]]
    recovery = [after - before for before, after in zip(killed.kills, killed.resumed)]
    report = {
        "kind": "checkpoints",
        "machine": dataclasses.asdict(machine),
        "options": {key: str(value) for key, value in vars(asked).items() if key != "json"},
        "kills": len(killed.kills),
        "came_back": len(killed.resumed),
        "bit_equal": alike,
        "seconds": {"left alone": plain.seconds, "killed": killed.seconds},
        "recovery_s": {
            "median": statistics.median(recovery) if recovery else None,
            "most": max(recovery, default=None),
            "import_of_torch": imported,
        },
        "state_bytes": plain.manifests[-1].state_bytes,
        "held_up_s": {"median": statistics.median(held_up), "copy": copy},
        "held_up_over_copy": statistics.median(held_up) / copy,
    }
    if asked.json is not None:
        asked.json.write_text(json.dumps(report, indent=2) + "\n")
    _say(
        json.dumps(
            {key: value for key, value in report.items() if key not in ("machine", "options")}, indent=2
        )
    )
    if alike:
        shutil.rmtree(folder)
    return 0 if alike else 1


def _train(place: Path, asked: Any, kills: int) -> Trained:
    place.mkdir()
    # A copy: what lies among ronde's own files is not taken for a user's script.
    script = shutil.copy(_SCRIPT, place)
    command = [sys.executable, "-m", "ronde", "run", "--ranks", str(asked.ranks), "--seed", "1"]
    command += ["--checkpoint", "saved", "--every", asked.every, "--restarts", str(kills + 5)]
    command += ["--run-dir", "run", str(script), str(asked.steps), str(asked.width), asked.device]
    moments, manifests, draw = [], {}, random.Random(asked.seed)
    resumed: list[float] = []
    begun = time.monotonic()
    running = subprocess.Popen(
        command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert running.stderr is not None
    words: list[str] = []
    listening = threading.Thread(target=_listen, args=(running.stderr, resumed, words))
    listening.start()
    gap = asked.steps / (kills + 1)
    while running.poll() is None:
        for step, folder in checkpoints_in(place / "saved"):
            if step not in manifests:
                try:
                    manifests[step] = CheckpointManifest.read(folder)
                except (OSError, ValueError):
                    continue
        newest = max(manifests, default=0)
        due = len(moments) < kills and newest > gap * (len(moments) + draw.random())
        if due and len(resumed) == len(moments):
            time.sleep(draw.random() * 0.1)  # anywhere between two checkpoints, or while one is written
            ranks = [each for each in psutil.Process(running.pid).children() if _is_rank(each)]
            if ranks:
                draw.choice(ranks).kill()
                moments.append(time.monotonic())
        time.sleep(0.005)
    listening.join()
    if running.returncode:
        raise SystemExit("the training failed:\n" + "\n".join(words[-20:]))
    return Trained(
        time.monotonic() - begun, moments, resumed, [manifests[each] for each in sorted(manifests)]
    )


def _listen(stream: IO[str], resumed: list[float], words: list[str]) -> None:
    for line in stream:
        words.append(line.rstrip())
        if _RESUMED.match(line):
            resumed.append(time.monotonic())


def _is_rank(process: psutil.Process) -> bool:
    try:
        return "ronde.runtime.worker" in process.cmdline()
    except psutil.Error:
        return False


def _same(first: Path, second: Path) -> bool:
    return _equal(torch.load(first), torch.load(second))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return one == other


def _import_seconds() -> float:
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True, env=dict(os.environ))
    return time.monotonic() - begun


def _copy_seconds(nbytes: int, device: str) -> float:
    """Median seconds of nine copies into host memory that was used before.

    From a CUDA device into pinned memory.
    """
    torch.set_num_threads(1)
    source = torch.ones(nbytes // 4, device=device)
    target = torch.zeros(nbytes // 4, pin_memory=source.is_cuda)
    seconds = []
    for _ in range(9):
        begun = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def _say(words: str) -> None:
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
