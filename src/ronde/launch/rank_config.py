"""The configuration of a rank process, as JSON in an environment variable."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import MutableMapping

from ronde.launch.run_spec import RunSpec

__all__ = ["ENVIRONMENT_KEY", "RankConfig", "RankPlace"]

ENVIRONMENT_KEY = "RONDE_RANK_CONFIG"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """The place of a rank among others and on its host.

    Attributes:
        rank, world_size: position and number of the ranks of the whole run.
        local_rank, local_world_size: the same among the ranks of this host.
        host, hosts: number of this host, and of all.
        run_dir: directory of this run's logs and reports.
        store: place where the ranks meet: `file://PATH` or `tcp://HOST:PORT` (an existing server).
        master_address, master_port: the same as in torchrun's environment, for scripts that distribute
            themselves.
        address: address by which ranks of other hosts reach this one; "": to be found out.
        device: cpu or cuda.
        watched: whether a launcher of ronde's watches the run and prints its summary; otherwise rank 0 prints
            it.
        observed: whether an observer of ronde's reports failures of this host's ranks, which another launcher
            ends.
        terminal: whether rank 0's stdin is a terminal, at which a user may sit.
        temporary: folder for the rank's own temporary files, which the launcher removes; "": it has none.
        checkpoints: local folder used in place of the run's; "": this host sees the run's folder.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    run_dir: str
    store: str
    host: int = 0
    hosts: int = 1
    master_address: str = "127.0.0.1"
    master_port: int = 0
    address: str = ""
    device: str = "cpu"
    watched: bool = False
    observed: bool = False
    terminal: bool = False
    temporary: str = ""
    checkpoints: str = ""

    @property
    def has_launcher(self) -> bool:
        """Return whether a launcher of ronde's ends the ranks and reports why."""
        return self.watched or self.store.startswith("file://")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RankConfig:
    """The configuration of a rank: the run and the rank's place."""

    run: RunSpec
    place: RankPlace

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RankConfig:
        fields = json.loads(text)
        return cls(run=RunSpec.from_fields(fields["run"]), place=RankPlace(**fields["place"]))

    @classmethod
    def take_from(cls, environment: MutableMapping[str, str]) -> RankConfig:
        """Read the configuration and remove it, so that the script does not see it."""
        return cls.from_json(environment.pop(ENVIRONMENT_KEY))
