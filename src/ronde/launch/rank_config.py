"""What one rank process is told by its launcher; travels as JSON in one environment variable."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import MutableMapping

__all__ = ["DEFAULT_PLAN", "ENVIRONMENT_KEY", "STACK_SIGNAL", "RankConfig"]

ENVIRONMENT_KEY = "RONDE_RANK_CONFIG"
# `str(Plan())`. One rank under it runs as plain Python does, without `ronde.plan`, whose import takes 20 ms.
DEFAULT_PLAN = "ddp"
# Real-time signals are hardly used by scripts. A rank writes its stack when it gets this one. Other
# systems than Linux have none, and are to come as far as the sentence that refuses them.
STACK_SIGNAL = getattr(signal, "SIGRTMIN", 34) + 7


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankConfig:
    """One rank's part of a run.

    Attributes:
        rank, world_size: position and number of the ranks of the whole run.
        local_rank, local_world_size: the same among the ranks of this host.
        host, hosts: which of how many hosts this one is.
        run_dir: directory of this run's logs and reports.
        store: where the ranks meet: `file://PATH` or `tcp://HOST:PORT` (an existing server).
        script: path of the script, or dotted name of the module when `module` is true.
        arguments: what the script finds behind its own name in `sys.argv`.
        plan: the plan as its canonical string.
        seed: seed of torch, numpy and random.
        native: the script is a distributed script already; ronde keeps out.
        master_address, master_port: what such a script is given by the torchrun environment.
        address: by which ranks of other hosts reach this one; "": to be found out.
        timeout: seconds that a rank waits for its peers.
        extensions: `module:function` strings, called with the session before the script starts
            (the recorder of `ronde verify` and seeded faults are two).
        watched: a launcher of ours sees the run through and says at its end what there is to say; rank 0
            without one says so itself.
        quiet: the user wants to read nothing of ronde but errors.
        terminal: rank 0's stdin is a terminal, at which a user may sit.
        publish: seconds between versions of the model that the run publishes; 0: it publishes none.
        checkpoint: folder of the run's checkpoints; "": it makes none.
        checkpoint_every: steps between two, or 0, and seconds.
        checkpoint_keep: how many are kept.
        resume: the run goes on from the newest of them.
        temporary: folder for the rank's own temporary files, which the launcher removes; "": it has none.
        servers: endpoints of the parameter servers, as ZeroMQ writes them.
        trace_steps: `A:B`, of which steps a timeline is written; "": of none.
        server_token: 32 hexadecimal digits that each message to them holds.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    run_dir: str
    store: str
    script: str
    host: int = 0
    hosts: int = 1
    arguments: tuple[str, ...] = ()
    module: bool = False
    plan: str = DEFAULT_PLAN
    seed: int = 0
    native: bool = False
    master_address: str = "127.0.0.1"
    master_port: int = 0
    address: str = ""
    device: str = "cpu"
    timeout: float = 1800.0
    extensions: tuple[str, ...] = ()
    watched: bool = False
    quiet: bool = False
    terminal: bool = False
    publish: float = 0.0
    checkpoint: str = ""
    checkpoint_every: tuple[int, float] = (0, 600.0)
    checkpoint_keep: int = 2
    resume: bool = False
    temporary: str = ""
    servers: tuple[str, ...] = ()
    server_token: str = ""
    trace_steps: str = ""

    @property
    def has_launcher(self) -> bool:
        """Whether a launcher of ours ends the ranks and says why; the file store is one's of this host."""
        return self.watched or self.store.startswith("file://")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RankConfig:
        fields = json.loads(text)
        for name in ("arguments", "extensions", "servers", "checkpoint_every"):
            fields[name] = tuple(fields[name])
        return cls(**fields)

    @classmethod
    def take_from(cls, environment: MutableMapping[str, str]) -> RankConfig:
        """Read the configuration and remove it, so that the script does not see it."""
        return cls.from_json(environment.pop(ENVIRONMENT_KEY))
