"""The ways to run a workload: under ronde, as plain python, as the ranks of a DDP script."""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ronde.bench.process_set import Process, run_together
from ronde.bench.sample import Sample, parse

__all__ = ["plain", "twin", "under_ronde"]

_FOLDER = Path(__file__).parent / "workloads"
_TIMEOUT = 900.0


def _script(name: str) -> str:
    return str(_FOLDER / f"{name.replace('-', '_')}.py")


def _sample(*processes: Process) -> Sample:
    output, wall = run_together(processes, timeout=_TIMEOUT)
    return parse(output, wall_seconds=wall)


def under_ronde(
    workload: str, arguments: list[str], *, ranks: int, threads: int | None, environment: Mapping[str, str]
) -> Sample:
    """`ronde run` of the workload's script; `threads` None leaves their number to `ronde run`."""
    with tempfile.TemporaryDirectory(prefix="ronde-bench-run-") as folder:
        asked = [] if threads is None else ["--threads", str(threads)]
        options = ["--ranks", str(ranks), "--seed", "0", "--run-dir", folder, *asked]
        command = (sys.executable, "-m", "ronde", "run", *options, _script(workload), *arguments)
        return _sample(Process(command=command, environment=environment))


def plain(workload: str, arguments: list[str], *, environment: Mapping[str, str]) -> Sample:
    """The script by itself, as `python SCRIPT`."""
    return _sample(Process(command=(sys.executable, _script(workload), *arguments), environment=environment))


def twin(
    workload: str, arguments: list[str], *, ranks: int, threads: int, environment: Mapping[str, str]
) -> Sample:
    """The hand-written DDP script on `ranks` processes of `threads` threads.

    They are given what torchrun would give them, without its agent, whose watching would cost them time.
    """
    command = (sys.executable, _script(f"{workload}-ddp"), *arguments)
    port = _free_port()
    return _sample(
        *(
            Process(
                command=command, environment={**environment, **_rank_variables(rank, ranks, port, threads)}
            )
            for rank in range(ranks)
        )
    )


def _rank_variables(rank: int, ranks: int, port: int, threads: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": str(threads),
        # The interface that ronde's local ranks use too.
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
