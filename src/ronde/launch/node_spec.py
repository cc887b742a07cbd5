"""One node's part of a run on several nodes, as JSON for its agent."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ronde.launch.checkpoint_transfer import carried_folder
from ronde.launch.rank_config import RankConfig, RankPlace
from ronde.launch.run_spec import RunSpec
from ronde.trace.run_directory import RunDirectory

if TYPE_CHECKING:
    from ronde.launch.server_config import ServerConfig

__all__ = ["NodeSpec"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NodeSpec:
    """The ranks and servers of one node.

    Attributes:
        run: the script, its plan and its options.
        run_id: the run id on this node; nodes may be one machine, so each has its own.
        run_dir: the user's choice of a run directory; "": none.
        host, hosts: number of this node, and of all.
        first_rank, ranks, world_size: the node's ranks among all.
        store: place where all ranks meet.
        master_address, master_port: the same place, as in torchrun's environment.
        address: address by which other hosts reach this one.
        cuda: whether one device per rank is used.
        one_stream: whether stdout and stderr of the user are one stream.
        servers: parameter servers that are started on this node.
        is_far: whether it does not see the launcher's folder of checkpoints, and uses a local one.
    """

    run: RunSpec
    run_id: str
    ranks: int
    world_size: int
    store: str
    master_port: int
    cuda: bool
    run_dir: str = ""
    host: int = 0
    hosts: int = 1
    first_rank: int = 0
    master_address: str = "127.0.0.1"
    address: str = ""
    one_stream: bool = False
    servers: tuple[ServerConfig, ...] = ()
    is_far: bool = False

    @property
    def makes_large_files(self) -> bool:
        """Return whether rank 0 here makes large files that the launcher must get."""
        return self.first_rank == 0 and (self.is_far or self.run.publish > 0)

    def to_fields(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> NodeSpec:
        from ronde.launch.server_config import ServerConfig  # imported here, because most runs do not need it

        run = RunSpec.from_fields(fields["run"])
        servers = tuple(ServerConfig(**each) for each in fields["servers"])
        return cls(**{**fields, "run": run, "servers": servers})

    def rank_configs(
        self, directory: RunDirectory, temporary: str, *, has_terminal: bool
    ) -> list[RankConfig]:
        """Make the configuration of each of the node's ranks.

        Args:
            directory: the node's run directory.
            temporary: folder for temporary files of ranks.
            has_terminal: whether the stdin of rank 0 is a terminal.
        """
        places = (
            RankPlace(
                rank=self.first_rank + local,
                world_size=self.world_size,
                local_rank=local,
                local_world_size=self.ranks,
                host=self.host,
                hosts=self.hosts,
                run_dir=str(directory.path),
                store=self.store,
                master_address=self.master_address,
                master_port=self.master_port,
                address=self.address,
                device="cuda" if self.cuda else "cpu",
                watched=True,
                terminal=has_terminal,
                temporary=temporary,
                checkpoints=str(carried_folder(directory.path)) if self.is_far else "",
            )
            for local in range(self.ranks)
        )
        return [RankConfig(run=self.run, place=place) for place in places]
