"""Contenders that run a workload: ronde, plain python, the ranks of a peer's script."""

from __future__ import annotations

import dataclasses
import shlex
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from ronde.bench.peers import LIMIT, Peer
from ronde.bench.process_set import Process, run_together
from ronde.bench.sample import Sample, parse

__all__ = [
    "FOLDER",
    "Contender",
    "by_torchrun",
    "free_port",
    "plain",
    "plain_words",
    "rank_variables",
    "shown",
    "step_words",
    "under_ronde",
    "with_peer",
]

FOLDER = Path(__file__).parent / "workloads"
_TIMEOUT = 900.0
_RETRIES = 2

# Workloads that are a script of their own; the others are names for `plain.py`.
_OWN_SCRIPT = {
    "host": ("short_steps.py", "host"),
    "tiny": ("short_steps.py", "tiny"),
    "start-up": ("start_up.py",),
    "start-up-2": ("start_up.py",),
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """A contender with one workload.

    Attributes:
        command: the command line for the report, without the paths of this host.
        run: the function that measures one run.
        retries: runs that may fail in a round: torch now and then aborts at its exit.
        trains_alike: whether its last loss must be near that of the others.
    """

    name: str
    command: str
    run: Callable[[], Sample]
    retries: int = 0
    trains_alike: bool = True


def under_ronde(
    workload: str,
    arguments: Sequence[str],
    *,
    ranks: int,
    threads: int | None,
    environment: Mapping[str, str],
    plan: str = "ddp",
    steps: bool = False,
) -> Contender:
    """Return `ronde run` of the plain script.

    Args:
        threads: threads of each rank; None leaves their number to `ronde run`.
        steps: whether the script is the one with `ronde.Step`.
    """
    asked = () if threads is None else ("--threads", str(threads))
    cut = () if plan == "ddp" else ("--plan", plan)
    start = (sys.executable, "-m", "ronde", "run", "--ranks", str(ranks), *cut, "--seed", "0", *asked)
    words = step_words(workload, arguments) if steps else plain_words(workload, arguments)

    def run() -> Sample:
        with tempfile.TemporaryDirectory(prefix="ronde-bench-run-") as folder:
            command = (*start, "--run-dir", folder, *words)
            return _measure([Process(command=command, environment=environment)])

    return Contender(name="ronde", command=shown((*start, *words)), run=run)


def plain(workload: str, arguments: Sequence[str], *, environment: Mapping[str, str]) -> Contender:
    """Return the script by itself, as `python SCRIPT`."""
    return _other("plain", (sys.executable, *plain_words(workload, arguments)), environment)


def by_torchrun(environment: Mapping[str, str]) -> Contender:
    """Return `start_up_ddp.py` on two ranks, as `torchrun --nproc-per-node 2` starts it."""
    words = ("-m", "torch.distributed.run", "--nproc-per-node", "2", str(FOLDER / "start_up_ddp.py"))
    return _other("torchrun", (sys.executable, *words), environment)


def _other(name: str, command: tuple[str, ...], environment: Mapping[str, str], label: str = "") -> Contender:
    process = Process(command=command, environment=environment)
    run = partial(_measure, [process], label=label)
    return Contender(name=name, command=shown(command), run=run, retries=_RETRIES)


def with_peer(
    peer: Peer,
    workload: str,
    arguments: Sequence[str],
    *,
    ranks: int,
    threads: int,
    environment: Mapping[str, str],
    folder: Path = FOLDER,
) -> Contender:
    """Return the peer's script on `ranks` processes of `threads` threads.

    They have the variables of torchrun without its agent, which would cost them time.
    """
    command = (sys.executable, str(folder / peer.script), workload, *arguments)
    if peer.by_horovodrun:
        words = (sys.executable, "-m", "ronde", "horovodrun", "-np", str(ranks), *command)
        return _other(
            peer.name, words, {**environment, "OMP_NUM_THREADS": str(threads)}, label="[0]<stdout>:"
        )

    def run() -> Sample:
        port = free_port()
        variables = [rank_variables(rank, ranks, port, threads) for rank in range(ranks)]
        return _measure([Process(command=command, environment={**environment, **own}) for own in variables])

    return Contender(
        name=peer.name,
        command=shown(command),
        run=run,
        retries=_RETRIES,
        trains_alike=peer != LIMIT,
    )


def plain_words(workload: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the script of a workload on one device, and its arguments."""
    script, *words = _OWN_SCRIPT.get(workload, ("plain.py", workload))
    return (str(FOLDER / script), *words, *arguments)


def step_words(workload: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the script of a workload with `ronde.Step`, and its arguments."""
    return (str(FOLDER / "with_step.py"), workload, *arguments)


def shown(command: Sequence[str]) -> str:
    """Return a command line without the paths of this host."""
    short = {sys.executable: "python"}
    return shlex.join(short.get(word, word.replace(str(FOLDER), "workloads")) for word in command)


def _measure(processes: Sequence[Process], label: str = "") -> Sample:
    """Measure one run, of which each line begins with `label`."""
    output, wall = run_together(processes, timeout=_TIMEOUT)
    return parse(output.replace(label, ""), wall_seconds=wall)


def rank_variables(rank: int, ranks: int, port: int, threads: int) -> dict[str, str]:
    """Return the variables by which torchrun tells a rank its place."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # By which Fabric knows that processes were started for it.
        "TORCHELASTIC_RUN_ID": "ronde-bench",
        "OMP_NUM_THREADS": str(threads),
        # The interface that ronde's local ranks use too.
        "GLOO_SOCKET_IFNAME": "lo",
    }


def free_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
