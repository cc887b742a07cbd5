"""What one host does of a run on several: told to its agent, as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from ronde.launch.job import WORKER
from ronde.launch.rank_config import RankConfig
from ronde.launch.server_config import ServerConfig
from ronde.trace.run_directory import RunDirectory

__all__ = ["HostPart"]

_TUPLES = ("arguments", "extensions", "endpoints", "servers", "worker", "checkpoint_every")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HostPart:
    """One host's part.

    Attributes:
        run_id: the run's on this host; hosts may be one machine, so each has its own.
        run_dir: the user's choice of a run directory; "": none.
        host, hosts: which of how many.
        first_rank, ranks, world_size: the host's ranks among all.
        store: where all ranks meet.
        master_address, master_port: the same, as torchrun's environment has it.
        address: by which other hosts reach this one.
        cuda: one device per rank is used.
        one_stream: the user reads stdout and stderr as one.
        endpoints, server_token: of all parameter servers.
        servers: those that are started on this host, as the fields of `ServerConfig`.
        the others: as in `Job`.
    """

    run_id: str
    run_dir: str
    host: int
    hosts: int
    first_rank: int
    ranks: int
    world_size: int
    store: str
    master_address: str
    master_port: int
    address: str
    cuda: bool
    one_stream: bool
    script: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    plan: str = "ddp"
    seed: int = 0
    native: bool = False
    extensions: tuple[str, ...] = ()
    threads: int | None = None
    timeout: float = 1800.0
    labelled: bool = False
    quiet: bool = False
    publish: float = 0.0
    checkpoint: str = ""
    checkpoint_every: tuple[int, float] = (0, 600.0)
    checkpoint_keep: int = 2
    resume: bool = False
    endpoints: tuple[str, ...] = ()
    server_token: str = ""
    servers: tuple[dict[str, Any], ...] = ()
    worker: tuple[str, ...] = WORKER

    def to_fields(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> HostPart:
        for name in _TUPLES:
            if name in fields:
                fields[name] = tuple(fields[name])
        return cls(**fields)

    def rank_configs(self, directory: RunDirectory, temporary: str) -> list[RankConfig]:
        """What each of the host's ranks is told."""
        return [
            RankConfig(
                rank=self.first_rank + place,
                world_size=self.world_size,
                local_rank=place,
                local_world_size=self.ranks,
                host=self.host,
                hosts=self.hosts,
                run_dir=str(directory.path),
                store=self.store,
                script=self.script,
                arguments=self.arguments,
                module=self.module,
                plan=self.plan,
                seed=self.seed,
                native=self.native,
                master_address=self.master_address,
                master_port=self.master_port,
                address=self.address,
                device="cuda" if self.cuda else "cpu",
                timeout=self.timeout,
                extensions=self.extensions,
                watched=True,
                quiet=self.quiet,
                publish=self.publish,
                checkpoint=self.checkpoint,
                checkpoint_every=self.checkpoint_every,
                checkpoint_keep=self.checkpoint_keep,
                resume=self.resume,
                temporary=temporary,
                servers=self.endpoints,
                server_token=self.server_token,
            )
            for place in range(self.ranks)
        ]

    def server_configs(self, directory: RunDirectory) -> list[ServerConfig]:
        """What each server on this host is told; its state lies in the host's run directory."""
        configs = [ServerConfig(**fields) for fields in self.servers]
        return [
            dataclasses.replace(config, directory=str(directory.server_state(config.index)))
            for config in configs
        ]
