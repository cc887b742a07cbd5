"""The ways to run a workload: under ronde, as plain python, as the ranks of a peer's script."""

from __future__ import annotations

import dataclasses
import shlex
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from ronde.bench.peers import Peer
from ronde.bench.process_set import Process, run_together
from ronde.bench.sample import Sample, parse

__all__ = [
    "FOLDER",
    "Contender",
    "by_torchrun",
    "plain",
    "plain_words",
    "shown",
    "step_words",
    "under_ronde",
    "with_peer",
]

FOLDER = Path(__file__).parent / "workloads"
_TIMEOUT = 900.0

# Workloads that are a script of their own; the others are names that `plain.py` takes.
_OWN_SCRIPT = {"host": "host.py", "tiny": "tiny.py", "start-up": "start_up.py", "start-up-2": "start_up.py"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One way to run one workload.

    Attributes:
        command: how it is run, for the report: without the paths of this host.
        run: measures one run.
    """

    name: str
    command: str
    run: Callable[[], Sample]


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
    """`ronde run` of the plain script, or of that with `ronde.Step`; `threads` None leaves their number to
    `ronde run`."""
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
    """The script by itself, as `python SCRIPT`."""
    command = (sys.executable, *plain_words(workload, arguments))
    process = Process(command=command, environment=environment)
    return Contender(name="plain", command=shown(command), run=partial(_measure, [process]))


def by_torchrun(environment: Mapping[str, str]) -> Contender:
    """`start_up_ddp.py` on two ranks, as `torchrun --nproc-per-node 2` starts it."""
    words = ("-m", "torch.distributed.run", "--nproc-per-node", "2", str(FOLDER / "start_up_ddp.py"))
    process = Process(command=(sys.executable, *words), environment=environment)
    return Contender(
        name="torchrun", command=shown((sys.executable, *words)), run=partial(_measure, [process])
    )


def with_peer(
    peer: Peer,
    workload: str,
    arguments: Sequence[str],
    *,
    ranks: int,
    threads: int,
    environment: Mapping[str, str],
) -> Contender:
    """The peer's script on `ranks` processes of `threads` threads.

    They are given what torchrun would give them, without its agent, whose watching would cost them time.
    """
    command = (sys.executable, str(FOLDER / peer.script), workload, *arguments)
    if peer.by_horovodrun:
        words = (sys.executable, "-m", "ronde", "horovodrun", "-np", str(ranks), *command)
        process = Process(command=words, environment={**environment, "OMP_NUM_THREADS": str(threads)})
        return Contender(
            name=peer.name, command=shown(words), run=partial(_measure, [process], label="[0]<stdout>:")
        )

    def run() -> Sample:
        port = _free_port()
        return _measure(
            [
                Process(
                    command=command,
                    environment={**environment, **_rank_variables(rank, ranks, port, threads)},
                )
                for rank in range(ranks)
            ]
        )

    return Contender(name=peer.name, command=shown(command), run=run)


def plain_words(workload: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """The script of a workload on one device, and its arguments."""
    script = _OWN_SCRIPT.get(workload)
    words = (str(FOLDER / "plain.py"), workload) if script is None else (str(FOLDER / script),)
    return (*words, *arguments)


def step_words(workload: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """The script of a workload whose steps are `ronde.Step`'s, and its arguments."""
    return (str(FOLDER / "with_step.py"), workload, *arguments)


def shown(command: Sequence[str]) -> str:
    """A command line without the paths of this host."""
    short = {sys.executable: "python"}
    return shlex.join(short.get(word, word.replace(str(FOLDER), "workloads")) for word in command)


def _measure(processes: Sequence[Process], label: str = "") -> Sample:
    """One run, whose lines come behind `label`."""
    output, wall = run_together(processes, timeout=_TIMEOUT)
    return parse(output.replace(label, ""), wall_seconds=wall)


def _rank_variables(rank: int, ranks: int, port: int, threads: int) -> dict[str, str]:
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
