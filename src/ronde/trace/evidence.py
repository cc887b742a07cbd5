"""Evidence about a run at one moment: plain data, interpreted by the doctor.

Evidence of a stall is written to `evidence/stall.json`, of a failure to `evidence/failure.json`, before any
rank is ended. Times are seconds; ages count back from the moment at which the evidence was gathered.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ronde.trace.run_hosts import RunHost
from ronde.trace.whole_file import replace_file

__all__ = [
    "Collective",
    "Connection",
    "Evidence",
    "Failure",
    "HostFacts",
    "ProcessFacts",
    "RankEvidence",
    "SilentHost",
    "evidence_path",
    "merged",
    "read_evidence",
    "write_evidence",
]

_SILENT_S = 3.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProcessFacts:
    """A process as Linux shows it.

    Attributes:
        state: R runs, S sleeps, D cannot be interrupted, T is stopped, Z is dead; "" where it is gone.
        waits_in: the kernel function in which it sleeps; "" if hidden.
        call: number of its present system call; -1 for none or if hidden.
        cpu: share of one core that its main thread used between two readings; None after one reading.
        busy: the same of all its threads.
    """

    pid: int
    name: str = ""
    state: str = ""
    waits_in: str = ""
    call: int = -1
    cpu: float | None = None
    busy: float | None = None
    threads: int = 0
    files: int = 0
    most_files: int = 0
    memory: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """Entry of a rank's ring: `entered` and `left` are ages.

    While the rank waits, `left` has no value.
    """

    group: str
    number: int
    what: str
    where: str
    entered: float
    left: float | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankEvidence:
    """Facts about one rank.

    Attributes:
        code: exit code as `subprocess` has it, None while the process runs, or where the launcher has ended
            it.
        standing: absent, running, waiting or ended; "" where ranks have no board.
        stood: seconds in this state.
        what, where: its present or last operation in step with others, and the line of the script.
        step: optimizer steps done; -1 where that is not known.
        beat: age of the last beat of its thread; None where it has none.
        stack: stacks of all its threads, as `faulthandler` writes them, the main thread first; "" without
            any.
        crash: the stack at the moment of a crash.
        error: its `rank-N.error.json`.
        not_finite: first step of the present sequence of steps with non-finite local gradients; 0 if they are
            finite.
        children: processes that it has started, loader workers among them.
        threads: number of threads that it was told to compute with; 0 if unset.
        host: index of its host in the evidence.
    """

    rank: int
    process: ProcessFacts
    code: int | None = None
    standing: str = ""
    stood: float = 0.0
    what: str = ""
    where: str = ""
    step: int = -1
    beat: float | None = None
    stack: str = ""
    crash: str = ""
    error: Mapping[str, Any] | None = None
    not_finite: int = 0
    collectives: tuple[Collective, ...] = ()
    children: tuple[ProcessFacts, ...] = ()
    threads: int = 0
    log: tuple[str, ...] = ()
    summary: Mapping[str, Any] | None = None
    host: int = 0

    @property
    def is_alive(self) -> bool:
        return self.process.state not in ("", "Z", "X")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """TCP connections of a host's ranks to one other address, as Linux shows them.

    Attributes:
        peer: address of the other host.
        queued: unacknowledged bytes, the smaller of two readings.
        repeated: largest number of unanswered retransmissions of the same bytes, over all connections.
    """

    peer: str
    queued: int = 0
    repeated: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SilentHost:
    """A host that has not reported.

    Attributes:
        ranks: numbers of its ranks.
        seconds: seconds since its last sign of life.
    """

    name: str
    ranks: tuple[int, ...]
    seconds: float
    address: str = ""

    @property
    def is_lost(self) -> bool:
        """Return whether the host is silent, though its agent sends every second."""
        return self.seconds >= _SILENT_S


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HostFacts:
    """A host of the run: bytes, and counts since the run began.

    Attributes:
        name: its name, as the user gave it; "" for the launcher's own.
        address: address by which others reach it; "" for the only one.
        oom_kills: processes that the kernel has killed in the run's control group because memory ran out.
        kernel: lines of the kernel's log about the run's processes, or about memory and devices.
        disk, shared: free bytes where the run directory is, and in /dev/shm; -1 where that is not known.
        connections: connections of its ranks to other hosts.
        sent: bytes per second that its network cards sent between two readings.
    """

    name: str = ""
    address: str = ""
    cores: int = 0
    memory: int = -1
    oom_kills: int = 0
    kernel: tuple[str, ...] = ()
    disk: int = -1
    shared: int = -1
    connections: tuple[Connection, ...] = ()
    sent: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """The first failure, as the launcher has found it: see `RankFailure` in `launch/failure.py`."""

    rank: int
    kind: str
    exit_code: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One run at one moment.

    Attributes:
        reason: stall, failure, or asked (by `ronde doctor`).
        time: seconds since 1970.
        said: reason that the launcher gives, where it ends the run itself.
        launcher_gone: whether the launcher has ended before its ranks, without a record.
        silent: hosts of the run that have not reported.
        unobserved: hosts of the run that are not observed from here.
    """

    run_directory: str
    reason: str
    time: float
    ranks: tuple[RankEvidence, ...]
    hosts: tuple[HostFacts, ...] = (HostFacts(),)
    failure: Failure | None = None
    said: str = ""
    launcher_gone: bool = False
    silent: tuple[SilentHost, ...] = ()
    unobserved: tuple[RunHost, ...] = ()

    def rank(self, number: int) -> RankEvidence | None:
        return next((each for each in self.ranks if each.rank == number), None)

    def host_of(self, rank: RankEvidence) -> HostFacts:
        return self.hosts[rank.host]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Evidence:
        """Parse the output of `to_json`. Raises ValueError, KeyError or TypeError for anything else."""
        return cls.from_fields(json.loads(text))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Evidence:
        """Invert `dataclasses.asdict`, also after a round trip through JSON without tuples."""
        fields = dict(fields)
        failure = fields.pop("failure", None)
        ranks = tuple(_rank(each) for each in fields.pop("ranks"))
        hosts = fields.pop("hosts", None) or [fields.pop("host", {})]
        silent = fields.pop("silent", ())
        unobserved = fields.pop("unobserved", ())
        return cls(
            **fields,
            ranks=ranks,
            hosts=tuple(_host(each) for each in hosts),
            failure=None if failure is None else Failure(**failure),
            silent=tuple(SilentHost(**{**each, "ranks": tuple(each["ranks"])}) for each in silent),
            unobserved=tuple(RunHost(**{**each, "ranks": tuple(each["ranks"])}) for each in unobserved),
        )


def _host(told: Mapping[str, Any]) -> HostFacts:
    fields = dict(told)
    fields["kernel"] = tuple(fields.get("kernel", ()))
    fields["connections"] = tuple(Connection(**each) for each in fields.get("connections", ()))
    return HostFacts(**fields)


def _rank(told: Mapping[str, Any]) -> RankEvidence:
    fields = dict(told)
    fields["process"] = ProcessFacts(**fields["process"])
    fields["collectives"] = tuple(Collective(**each) for each in fields.get("collectives", ()))
    fields["children"] = tuple(ProcessFacts(**each) for each in fields.get("children", ()))
    fields["log"] = tuple(fields.get("log", ()))
    return RankEvidence(**fields)


def merged(parts: Sequence[Evidence], run_directory: Path) -> Evidence:
    """Merge the evidence of several nodes, gathered for one reason.

    Args:
        parts: evidence of each node, one at least.
        run_directory: the directory of the launcher.
    """
    hosts: list[HostFacts] = []
    ranks: list[RankEvidence] = []
    for part in parts:
        ranks += (dataclasses.replace(rank, host=rank.host + len(hosts)) for rank in part.ranks)
        hosts += part.hosts
    return dataclasses.replace(
        parts[0],
        run_directory=str(run_directory),
        time=min(part.time for part in parts),
        ranks=tuple(sorted(ranks, key=lambda rank: rank.rank)),
        hosts=tuple(hosts),
    )


def evidence_path(run_directory: Path, reason: str) -> Path:
    return run_directory / "evidence" / f"{reason}.json"


def write_evidence(evidence: Evidence) -> None:
    """Write evidence into the run directory, and stacks as texts. A full disk is ignored."""
    path = evidence_path(Path(evidence.run_directory), evidence.reason)
    try:
        path.parent.mkdir(exist_ok=True)
        replace_file(path, evidence.to_json())
        for rank in evidence.ranks:
            for name, text in (("stack", rank.stack), ("crash", rank.crash)):
                if text:
                    replace_file(path.with_name(f"{evidence.reason}-rank-{rank.rank}.{name}.txt"), text)
    except OSError:
        return


def read_evidence(run_directory: Path, reason: str) -> Evidence | None:
    """Read the evidence that was written for this reason; None without it."""
    try:
        return Evidence.from_json(evidence_path(run_directory, reason).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
