"""Time of pushes and pulls of dense values, by ronde and MXNet."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import importable
from ronde.errors import BenchError
from ronde.launch.server_config import SERVER_KEY, SERVERS_KEY, TOKEN_KEY, ServerConfig, local_endpoint

__all__ = ["push_and_pull"]

#: Floats of a value, and its pushes and pulls in a round.
SIZES = {"102 MB": (25_500_000, 3), "4 KB": (1024, 200)}

Ask = Callable[[int, int], float]


def push_and_pull(
    rounds: int, workers: int, mxnet: str | None, before: Path | None = None
) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Yield milliseconds of a push and a pull through one server, by size.

    Of several workers the slowest counts.

    Args:
        mxnet: an interpreter with MXNet 1.9; None leaves MXNet out.
        before: the `src` of another checkout, measured over TCP too; None leaves it out.

    Raises:
        BenchError: a process ended before its answer.
    """
    with contextlib.ExitStack() as stack:
        contenders: dict[str, Ask] = {
            "ronde": stack.enter_context(_ours(workers, local_endpoint(os.urandom(8).hex(), 0))),
            "ronde, tcp": stack.enter_context(_ours(workers, f"tcp://127.0.0.1:{_free_port()}")),
        }
        if before is not None:
            endpoint = f"tcp://127.0.0.1:{_free_port()}"
            contenders["before, tcp"] = stack.enter_context(_ours(workers, endpoint, before))
        if mxnet is not None:
            contenders["MXNet"] = stack.enter_context(_mxnet(mxnet, workers))
        for name, (size, times) in SIZES.items():
            timed: dict[str, list[float]] = {each: [] for each in contenders}
            for number in range(rounds + 1):  # the first is the warm-up
                order = list(contenders.items())
                for each, ask in order if number % 2 else reversed(order):
                    seconds = ask(size, times)
                    if number:
                        timed[each].append(seconds / times * 1e3)
            many = "1 worker" if workers == 1 else f"{workers} workers"
            yield f"push and pull {name}, {many}", timed


@contextlib.contextmanager
def _ours(workers: int, endpoint: str, source: Path | None = None) -> Iterator[Ask]:
    """Start a server and its workers, from this checkout or the `src` of another."""
    token = os.urandom(16).hex()
    config = ServerConfig(index=0, servers=1, endpoint=endpoint, token=token, workers=workers)
    path = os.pathsep.join(filter(None, (source and str(source.resolve()), importable())))
    common = {**os.environ, "PYTHONPATH": path}
    commands = [([sys.executable, "-m", "ronde.server.process"], {**common, SERVER_KEY: config.to_json()})]
    for rank in range(workers):
        told = {SERVERS_KEY: config.endpoint, TOKEN_KEY: token, "RANK": str(rank), "WORLD_SIZE": str(workers)}
        commands.append(([sys.executable, "-m", "benchmarks.servers.worker"], {**common, **told}))
    with _running(commands, workers) as ask:
        yield ask


@contextlib.contextmanager
def _mxnet(python: str, workers: int) -> Iterator[Ask]:
    """Start the scheduler and server of MXNet by `import mxnet` in their role."""
    common = {
        **os.environ,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(_free_port()),
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": str(workers),
    }
    script = str(Path(__file__).with_name("mxnet_worker.py"))
    commands = [
        ([python, "-c", "import mxnet"], {**common, "DMLC_ROLE": role}) for role in ("scheduler", "server")
    ]
    commands += [([python, script], {**common, "DMLC_ROLE": "worker"}) for _ in range(workers)]
    with _running(commands, workers) as ask:
        yield ask


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def _running(commands: Sequence[tuple[list[str], dict[str, str]]], workers: int) -> Iterator[Ask]:
    """Start all; the last ones are the workers, which are asked together."""
    started: list[subprocess.Popen[str]] = []
    try:
        for command, environment in commands:
            started.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
        asked = started[-workers:]
        for each in asked:
            _answer(each, "ready")

        def ask(size: int, times: int) -> float:
            for each in asked:
                assert each.stdin is not None
                each.stdin.write(f"{size} {times}\n")
                each.stdin.flush()
            return max(float(_answer(each)) for each in asked)

        yield ask
    finally:
        for each in reversed(started):
            each.kill()
            each.communicate()


def _answer(worker: subprocess.Popen[str], wanted: str | None = None) -> str:
    """Return the next answer of a worker; other lines of its library are ignored."""
    assert worker.stdout is not None
    for line in worker.stdout:
        word = line.strip()
        if word == wanted or (wanted is None and word.replace(".", "", 1).replace("e-", "", 1).isdigit()):
            return word
    raise BenchError(f"{' '.join(map(str, worker.args))} ended before it had answered [R852]")  # pyright: ignore[reportArgumentType]
