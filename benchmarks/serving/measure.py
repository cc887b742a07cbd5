"""Requests to a replica while a model is trained, and afterwards."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep

from benchmarks import importable
from benchmarks.serving.load import Load, Seen
from ronde.bench.machine import Machine
from ronde.bench.report import Quantity, Report, Result
from ronde.bench.rounds import Progress
from ronde.errors import BenchError
from ronde.launch.server_config import TOKEN_KEY

__all__ = ["NOTES", "QUANTITIES", "measure", "row_of"]

QUANTITIES = {
    "median": Quantity(unit="ms"),
    "p99": Quantity(unit="ms", spread=True, drawn=True),
    "lag": Quantity(unit="s"),
    "longest lag": Quantity(unit="s"),
    "versions": Quantity(),
    "failed": Quantity(),
    "load": Quantity(),
}
NOTES = (
    "median, p99: of a request from its due time to its answer; lag: from the end of a training step to the "
    "first answer of its version; load: of the machine at the end",
)
IDS_OF_A_REQUEST = 100
_PATIENCE = 120.0
ROUTES = ("http", "binary")
_ENDPOINT = re.compile(r"answers the binary protocol at (tcp://127\.0\.0\.1:\d+)")
_PORT = re.compile(r"serves version \d+ at http://127\.0\.0\.1:(\d+)")


def measure(
    *,
    rate: float,
    rows: int,
    seconds: float,
    rounds: int,
    interval: float,
    environment: Mapping[str, str],
    say: Progress,
) -> Report:
    """Request rows by HTTP and by the binary protocol, beside a training and alone.

    Args:
        rate: requests a second.
        rows: rows of the table.
        seconds: the length of a round.
        rounds: rounds of each situation.
        interval: seconds between versions.

    Raises:
        BenchError: a process failed.
    """
    machine = Machine.here()
    environment = {**environment, TOKEN_KEY: os.urandom(16).hex(), "PYTHONPATH": importable()}
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="ronde-serving-") as folder:
        work = Path(folder)
        spent = len(ROUTES) * rounds * (seconds + 3) + 10
        train = [
            *("run", "--ranks", "1", "--threads", "1", "--publish", f"{interval:g}", "--run-dir", folder),
            *(str(Path(__file__).with_name("train.py")), f"{spent:g}", str(rows)),
        ]
        training = _start(train, work / "train.txt", environment)
        serving = None
        try:
            _await((work / "published").is_dir, training, work / "train.txt")
            words, log = ["serve", folder, "--port", "0", "--binary", "0"], work / "serve.txt"
            serving = _start(words, log, environment)
            _await(lambda: _ENDPOINT.search(log.read_text()) is not None, serving, log)
            port, endpoint = _PORT.search(log.read_text()), _ENDPOINT.search(log.read_text())
            assert port is not None
            assert endpoint is not None
            http = Load(
                port=int(port[1]), table="users", rate=rate, seconds=seconds, ids=IDS_OF_A_REQUEST, below=rows
            )
            loads = {"http": http, "binary": dataclasses.replace(http, endpoint=endpoint[1])}
            for situation in ("beside training", "alone"):
                for route, load in loads.items():
                    labels = {"situation": situation, "by": route}
                    results.append(_request(labels, load, rounds, work, environment, say))
                if situation == "beside training":
                    if training.poll() is not None:
                        raise BenchError("the training ended before the requests; give more --seconds")
                    training.wait(_PATIENCE)
        finally:
            for process in filter(None, [serving, training]):
                process.terminate()
                process.wait()
    return Report(
        kind="serving",
        machine=machine,
        settings={
            "requests a second": f"{rate:g}",
            "ids of each": str(IDS_OF_A_REQUEST),
            "rows": f"{rows:,}",
            "seconds of a round": f"{seconds:g}",
            "seconds between versions": f"{interval:g}",
            "HTTP by": "h11" if find_spec("httptools") is None else "httptools",
        },
        quantities=QUANTITIES,
        results=tuple(results),
        notes=NOTES,
    )


def _request(
    labels: dict[str, str], load: Load, rounds: int, work: Path, environment: Mapping[str, str], say: Progress
) -> Result:
    medians: list[float] = []
    tails: list[float] = []
    lags: dict[int, float] = {}
    failed = 0
    first = _newest(work)
    for _ in range(rounds):
        words = [sys.executable, "-m", "benchmarks.serving.load", json.dumps(dataclasses.asdict(load))]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise BenchError(f"requests could not be made: {done.stderr[-500:]}")
        seen = Seen(**json.loads(done.stdout))
        if not seen.milliseconds:
            raise BenchError(f"no request was answered: {done.stderr[-500:]}")
        took = sorted(seen.milliseconds)
        medians.append(took[len(took) // 2])
        tails.append(took[int(len(took) * 0.99)])
        failed += seen.failed
        lags |= _lags({int(version): when for version, when in seen.first.items()}, work, after=first)
        say(f"{', '.join(labels.values())}: p99 {tails[-1]:.2f} ms")
        first = _newest(work)
    return row_of(labels, medians, tails, list(lags.values()), failed, os.getloadavg()[0])


def row_of(
    labels: Mapping[str, str],
    medians: list[float],
    tails: list[float],
    lags: list[float],
    failed: int,
    load: float,
) -> Result:
    """Return the row of a situation and a route."""
    samples = {"median": tuple(medians), "p99": tuple(tails), "versions": (float(len(lags)),)}
    if lags:
        samples |= {"lag": tuple(lags), "longest lag": (max(lags),)}
    return Result(labels=labels, samples={**samples, "failed": (float(failed),), "load": (load,)})


def _lags(first: Mapping[int, float], work: Path, *, after: int) -> dict[int, float]:
    """Return the seconds of each version that was published during the requests."""
    lags: dict[int, float] = {}
    for version, when in first.items():
        manifest = work / "published" / f"version-{version}.json"
        if version > after and manifest.exists():
            lags[version] = when - json.loads(manifest.read_text())["time"]
    return lags


def _newest(work: Path) -> int:
    names = (work / "published").glob("version-*.json")
    return max((int(path.stem.partition("-")[2]) for path in names), default=0)


def _start(words: list[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "ronde", *words], env=environment, stdout=file, stderr=subprocess.STDOUT
        )


def _await(reached: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    until = monotonic() + _PATIENCE
    while not reached():
        if process.poll() is not None or monotonic() > until:
            raise BenchError(f"the measured process failed: {log.read_text()[-500:]}")
        sleep(0.1)
