"""Compare loaders of images in plain Python and on two ranks: `python -m benchmarks.loaders`.

Each decodes the same JPEG files for the same small network. Plain Python has two threads, each rank has one.
Loaders whose package is not installed are left out, and named.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy
from PIL import Image

from benchmarks.report_options import add_options, say, show
from ronde.bench.machine import Machine
from ronde.bench.report import Quantity, Report, Result
from ronde.errors import BenchError

__all__ = ["main", "write_images"]

_SCRIPT = Path(__file__).parent / "scripts" / "train_images.py"
_MODULES = {
    "DataLoader": "torch",
    "StatefulDataLoader": "torchdata",
    "webdataset": "webdataset",
    "datasets": "datasets",
    "DALI": "nvidia.dali",
}
_IMAGES, _PIXELS, _SHARDS = 768, 256, 4


def main() -> int:
    """Measure every loader that is installed, and print the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loaders", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    add_options(parser)
    asked = parser.parse_args()
    machine = Machine.here()
    missing = [name for name, module in _MODULES.items() if not _is_installed(module)]
    with tempfile.TemporaryDirectory(prefix="ronde-loaders-") as place:
        folder = Path(place)
        write_images(folder)
        results = [_measured(name, folder, rounds=asked.rounds) for name in _MODULES if name not in missing]
    report = Report(
        kind="loaders",
        machine=machine,
        settings={"images": f"{_IMAGES} of {_PIXELS} x {_PIXELS}", "ranks": "2"},
        quantities={
            "plain Python": Quantity(unit="samples/s", spread=True),
            "ronde": Quantity(unit="samples/s", spread=True),
            "ratio": Quantity(spread=True),
        },
        results=tuple(results),
        notes=tuple(f"{name} is not installed" for name in missing),
    )
    show(report, asked)
    return 0


def write_images(folder: Path) -> None:
    """Write JPEG files in folders of ten labels, and tar files of them."""
    draw = numpy.random.default_rng(0)
    with contextlib.ExitStack() as stack:
        archives = [
            stack.enter_context(tarfile.open(folder / f"train-{shard}.tar", "w")) for shard in range(_SHARDS)
        ]
        for number in range(_IMAGES):
            image, label = _drawn(draw), str(number % 10)
            place = folder / "images" / label
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{number:05d}.jpg").write_bytes(image)
            for ending, content in (("jpg", image), ("cls", label.encode())):
                member = tarfile.TarInfo(f"{number:05d}.{ending}")
                member.size = len(content)
                archives[number % _SHARDS].addfile(member, io.BytesIO(content))


def _drawn(draw: numpy.random.Generator) -> bytes:
    """Return the JPEG file of a smooth random image."""
    coarse = draw.integers(0, 256, size=(16, 16, 3), dtype=numpy.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((_PIXELS, _PIXELS), Image.Resampling.BICUBIC).save(
        buffer, "JPEG", quality=90
    )
    return buffer.getvalue()


def _measured(name: str, folder: Path, *, rounds: int) -> Result:
    """Run a loader in plain Python and on two ranks, in turns."""
    script = (str(_SCRIPT), name, str(folder))
    commands = {
        "plain Python": (sys.executable, *script),
        "ronde": (sys.executable, "-m", "ronde", "run", "-q", "--ranks", "2", "--seed", "0", *script),
    }
    found: dict[str, list[float]] = {each: [] for each in commands}
    for turn in range(rounds):
        for each in commands if turn % 2 else reversed(commands):
            found[each].append(
                _samples_per_second(commands[each], threads=2 if each == "plain Python" else 1)
            )
    ratios = [ours / plain for ours, plain in zip(found["ronde"], found["plain Python"], strict=True)]
    say(f"{name}: plain Python {found['plain Python'][-1]:.0f} samples/s, ronde {found['ronde'][-1]:.0f}")
    samples = {each: tuple(numbers) for each, numbers in found.items()}
    return Result(labels={"loader": name}, samples={**samples, "ratio": tuple(ratios)})


def _samples_per_second(command: Sequence[str], *, threads: int) -> float:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory(prefix="ronde-loaders-run-") as place:
        ran = subprocess.run(
            command, cwd=place, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    if ran.returncode:
        raise BenchError(f"`{' '.join(command)}` ended with exit code {ran.returncode}: {ran.stderr[-500:]}")
    return float(json.loads(ran.stdout.splitlines()[-1])["samples_per_second"])


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


if __name__ == "__main__":
    raise SystemExit(main())
