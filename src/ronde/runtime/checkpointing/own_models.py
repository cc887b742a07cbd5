"""Saving and restoring of ranks that train by themselves, each with its model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

from ronde.checkpoint.schedule import Schedule
from ronde.checkpoint.script_state import CapturedState
from ronde.checkpoint.state import State, mean_over_ranks
from ronde.comm.process_group import Comm
from ronde.runtime.checkpointing.agreed_cuts import AgreedCuts
from ronde.runtime.checkpointing.announced_cuts import AnnouncedCuts
from ronde.sync.averaging.protocol import Averaging

if TYPE_CHECKING:  # runs without servers have not got their packages
    from ronde.parallel.servers.local_update import GeoUpdate, LocalUpdate
    from ronde.server.transport.client import Client

__all__ = ["AveragedModels", "OwnModels", "ServedModels"]

Standing = Callable[[], tuple[int, int, bool]]
End = Callable[[bool], None]


class OwnModels(ABC):
    """State of one rank that trains by itself, beside the variables of its script.

    Attributes:
        reads_servers: whether this rank reads for the checkpoint the state that all ranks have on servers.
    """

    reads_servers: bool

    @abstractmethod
    def cuts(
        self, comm: Comm, schedule: Schedule, standing: Standing, end: End
    ) -> AgreedCuts | AnnouncedCuts:
        """Create the object that decides at which steps ranks are saved."""

    @abstractmethod
    def poll(self) -> None:
        """Apply messages of other ranks between two steps."""

    @abstractmethod
    def stand(self) -> None:
        """Bring parameters up to date, while all ranks are being saved."""

    @abstractmethod
    def kept(self, held: CapturedState) -> CapturedState:
        """Select the objects of the script that this rank saves."""

    @abstractmethod
    def states(self) -> Sequence[tuple[Any, Any]]:
        """Return optimizers that have stepped, with this rank's state for each."""

    @abstractmethod
    def go_on(self, optimizer: Any, state: Any) -> None:
        """Restore an optimizer from its part of `states`."""

    @abstractmethod
    def begin(self, optimizers: Sequence[Any]) -> None:
        """Begin training after all optimizers of the script have been restored."""

    @abstractmethod
    def one_model(self, states: Sequence[State], held: CapturedState) -> State:
        """Combine the states of all ranks into that of one model."""


@final
class AveragedModels(OwnModels):
    """Ranks that average their models."""

    reads_servers = True

    def __init__(self, averaging: Averaging) -> None:
        self._averaging = averaging

    def cuts(self, comm: Comm, schedule: Schedule, standing: Standing, end: End) -> AgreedCuts:
        self._averaging.cuts = AgreedCuts(comm, schedule, standing, lambda: end(True))
        return self._averaging.cuts

    def poll(self) -> None:
        self._averaging.poll()

    def stand(self) -> None:
        """Return at once: an average has just been made."""

    def kept(self, held: CapturedState) -> CapturedState:
        return held

    def states(self) -> Sequence[tuple[Any, Any]]:
        return [(each, self._averaging.state_of(each)) for each in self._averaging.optimizers]

    def go_on(self, optimizer: Any, state: Any) -> None:
        self._averaging.go_on(optimizer, state)

    def begin(self, optimizers: Sequence[Any]) -> None:
        """Return at once: each rank has its own state."""

    def one_model(self, states: Sequence[State], held: CapturedState) -> State:
        return mean_over_ranks(states, held)


@final
class ServedModels(OwnModels):
    """Ranks that share their parameters on servers, which step or add.

    Rank 0 saves the state of servers, and sends it to them again on resumption.

    Args:
        comm: group of all ranks.
        staleness: steps by which a rank may be ahead of the slowest; None where none waits.
    """

    def __init__(
        self, comm: Comm, client: Client, update: LocalUpdate | GeoUpdate, staleness: int | None
    ) -> None:
        self._comm, self._client, self._update = comm, client, update
        self._ahead = 0 if staleness is None else staleness + 1
        self.reads_servers = comm.rank == 0

    def cuts(self, comm: Comm, schedule: Schedule, standing: Standing, end: End) -> AnnouncedCuts:
        return AnnouncedCuts(comm, schedule, standing, end, settle=self._client.settle, ahead=self._ahead)

    def poll(self) -> None:
        """Return at once: servers answer each step."""

    def stand(self) -> None:
        self._update.stand()

    def kept(self, held: CapturedState) -> CapturedState:
        if self.reads_servers or not self._update.keeps_state:
            return held
        return CapturedState(held.tensors, {}, held.modules, held.generators)

    def states(self) -> Sequence[tuple[Any, Any]]:
        return self._update.states()

    def go_on(self, optimizer: Any, state: Any) -> None:
        self._update.go_on(optimizer, state)

    def begin(self, optimizers: Sequence[Any]) -> None:
        self._update.begin(optimizers)
        self._comm.barrier()  # no rank steps before servers are restored

    def one_model(self, states: Sequence[State], held: CapturedState) -> State:
        names = {id(value): name for name, value in held.tensors.items()}
        there = {names[id(tensor)]: value for tensor, value in self._update.there() if id(tensor) in names}
        return {**states[0], "tensors": {**states[0]["tensors"], **there}}
