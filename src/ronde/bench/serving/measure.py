"""Trains, publishes, serves and asks, each in a process of its own."""

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

from ronde.bench.machine import Machine
from ronde.bench.serving.load import Load, Seen
from ronde.bench.serving.report import ServingFigures, ServingReport
from ronde.errors import BenchError
from ronde.launch.server_config import TOKEN_KEY

__all__ = ["measure"]

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
    progress: Callable[[str, float], None],
) -> ServingReport:
    """Ask a replica for rows by HTTP and by the binary protocol, while a training publishes and afterwards.

    Args:
        rate: requests a second.
        rows: in the table.
        seconds: of a round.
        rounds: of each situation.
        interval: seconds between versions.
        environment: of the processes.
        progress: hears situation and route, and the p99 of each round, in milliseconds.

    Raises:
        BenchError: a process failed.
    """
    machine = Machine.here()
    environment = {**environment, TOKEN_KEY: os.urandom(16).hex()}
    results: list[ServingFigures] = []
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
            serving = _start(
                ["serve", folder, "--port", "0", "--binary", "0"], work / "serve.txt", environment
            )
            log = work / "serve.txt"
            _await(lambda: _ENDPOINT.search(log.read_text()) is not None, serving, log)
            port, endpoint = _PORT.search(log.read_text()), _ENDPOINT.search(log.read_text())
            assert port is not None
            assert endpoint is not None
            load = Load(
                port=int(port[1]),
                table="users",
                rate=rate,
                seconds=seconds,
                ids=IDS_OF_A_REQUEST,
                below=rows,
            )
            loads = {"http": load, "binary": dataclasses.replace(load, endpoint=endpoint[1])}

            def ask(situation: str) -> None:
                for route in ROUTES:
                    asked = situation, route
                    results.append(_ask(asked, loads[route], rounds, work, environment, progress))

            ask("beside training")
            if training.poll() is not None:
                raise BenchError("the training was over before the requests were; give more --seconds [R852]")
            training.wait(_PATIENCE)
            ask("alone")
        finally:
            for process in filter(None, [serving, training]):
                process.terminate()
                process.wait()
    return ServingReport(
        machine=machine,
        rate=rate,
        ids=IDS_OF_A_REQUEST,
        rows=rows,
        seconds=seconds,
        interval=interval,
        http="h11" if find_spec("httptools") is None else "httptools",
        results=tuple(results),
    )


def _ask(
    asked: tuple[str, str],
    load: Load,
    rounds: int,
    work: Path,
    environment: Mapping[str, str],
    progress: Callable[[str, float], None],
) -> ServingFigures:
    medians: list[float] = []
    tails: list[float] = []
    lags: dict[int, float] = {}
    failed = 0
    first = _newest(work)
    for _ in range(rounds):
        words = [sys.executable, "-m", "ronde.bench.serving.load", json.dumps(dataclasses.asdict(load))]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise BenchError(f"requests could not be made: {done.stderr[-500:]} [R852]")
        seen = Seen(**json.loads(done.stdout))
        if not seen.milliseconds:
            raise BenchError(f"no request was answered: {done.stderr[-500:]} [R852]")
        took = sorted(seen.milliseconds)
        medians.append(took[len(took) // 2])
        tails.append(took[int(len(took) * 0.99)])
        failed += seen.failed
        lags |= _lags({int(version): when for version, when in seen.first.items()}, work, after=first)
        progress(", ".join(asked), tails[-1])
        first = _newest(work)
    return ServingFigures(
        situation=asked[0],
        route=asked[1],
        median=tuple(medians),
        p99=tuple(tails),
        lags=tuple(lags.values()),
        load=os.getloadavg()[0],
        failed=failed,
    )


def _lags(first: Mapping[int, float], work: Path, *, after: int) -> dict[int, float]:
    """Of versions that came while requests were made."""
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


def _await(come: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    until = monotonic() + _PATIENCE
    while not come():
        if process.poll() is not None or monotonic() > until:
            raise BenchError(f"what is to be measured has failed: {log.read_text()[-500:]} [R852]")
        sleep(0.1)
