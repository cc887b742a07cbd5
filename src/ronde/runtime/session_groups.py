"""The process groups of a session, and how they are joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ronde.cluster.mesh import Axis, MeshOfRanks
from ronde.comm.process_group import Comm
from ronde.launch.rank_config import RankConfig
from ronde.plan import Plan
from ronde.plan.algorithm import inside_model
from ronde.plan.communication import Algorithm
from ronde.runtime.groups import join_group, join_some, listens_on, note_hosts
from ronde.runtime.replica import ModelReplica

__all__ = ["Join", "SessionGroups", "join_in_replica", "join_in_run"]

Join = Callable[[str, Algorithm, "Sequence[int] | None"], Comm]
"""Joins the group with a name, an algorithm, and members; None: all ranks of the session."""


def join_in_run(config: RankConfig, own_file: Callable[[str], bool]) -> Join:
    """Return the function that joins groups of a run's ranks.

    Args:
        own_file: predicate for files of which each rank has one of its own, by path; their names differ.
    """
    host = listens_on(config)

    def join(name: str, algorithm: Algorithm, members: Sequence[int] | None) -> Comm:
        if members is None:
            return join_group(config, name, host, algorithm, own_file)
        return join_some(config, name, host, algorithm, members)

    return join


def join_in_replica(replica: ModelReplica) -> Join:
    """Return the function that joins groups of a replica's ranks, numbered from 0."""
    host, ranks = listens_on(replica.config), replica.ranks

    def join(name: str, algorithm: Algorithm, members: Sequence[int] | None) -> Comm:
        among_all = ranks if members is None else [ranks[member] for member in members]
        return join_some(replica.config, name, host, algorithm, among_all)

    return join


class SessionGroups:
    """Process groups of one rank's session. Joining is a collective.

    Attributes:
        mesh: positions of the ranks along the plan's axes.
        everybody: all ranks, in the order of the script.
        rows: the ranks among whom batches are cut: all, where no model is.
        reducer: the ranks over which gradients are averaged, and state is cut.
        all: the groups above and those of strategies, each once.
    """

    def __init__(self, config: RankConfig, plan: Plan, join: Join) -> None:
        self._rank, self._world_size = config.place.rank, config.place.world_size
        self._plan, self._join = plan, join
        self._subgroups: list[Comm] = []
        self.mesh = MeshOfRanks.of(plan.for_ranks(self._world_size).mesh)
        # Two groups: operations of the script and of backward have separate orders.
        self.everybody = self.rows = join("boundary", "auto", None)
        note_hosts(config, self.everybody)
        if self.mesh.degree("data") == self._world_size:
            self.reducer = join("reducer", plan.communication.algorithm, None)
        else:
            self.rows = self._along("rows", "data")
            self.reducer = self._along("reducer", *self._reduced_axes())
        self.all = list(dict.fromkeys([self.everybody, self.reducer, self.rows]))

    def meet(self, name: str, members: Sequence[int]) -> Comm:
        """Join a group of a strategy.

        Args:
            members: ranks of the session, this one among them.
        """
        group = self._meet(name, members)
        self.all.append(group)
        return group

    def leave_subgroups(self) -> None:
        """Leave the groups of some ranks only."""
        for group in self._subgroups:
            group.close()

    def close(self) -> None:
        """Leave all groups."""
        for group in self.all:
            group.close()

    def any_rank(self, answer: bool) -> bool:
        """Return whether the answer is true on any rank. A collective."""
        return self.everybody.votes([answer]) != [0]

    def waited_ns(self) -> int:
        """Return the nanoseconds that this rank has waited for others."""
        waited = 0
        for group in self.all:  # no generator, because it is called often in a recorded step
            waited += group.waited_ns
        return waited

    @property
    def algorithm(self) -> str:
        """Description of the summation of gradients over ranks."""
        if self.reducer.world_size > 1 or self._world_size == 1:
            return self.reducer.algorithm
        cutting = next(group for group in reversed(self.all) if group.world_size > 1)
        return inside_model(cutting.algorithm)

    @property
    def notes(self) -> list[str]:
        """Sentences for the user about all groups but `everybody`."""
        return [group.note for group in self.all[1:] if group.note]

    def _along(self, name: str, *axes: Axis) -> Comm:
        """Join the ranks that differ from this one along these axes only."""
        return self._meet(name, self.mesh.members(self._rank, *axes))

    def _meet(self, name: str, members: Sequence[int]) -> Comm:
        algorithm = self._plan.communication.algorithm if name.endswith("reducer") else "auto"
        group = self._join(name, algorithm, members)
        self._subgroups.append(group)
        return group

    def _reduced_axes(self) -> tuple[Axis, ...]:
        """Return the axes along which gradients are averaged.

        Ranks of a context group have other tokens of the same rows; compressors encode the sums over that
        group.
        """
        cuts_state = self._plan.state.on(self._world_size).cuts_optimizer
        encodes = self._plan.communication.compressor != "none"
        if self.mesh.degree("context") > 1 and (cuts_state or not encodes):
            return "data", "context"
        return ("data",)
