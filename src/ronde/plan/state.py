"""The state axis: placement of parameters, gradients and optimizer state."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from ronde.plan.key import Integer, Spelled, check_fields, choice

__all__ = ["Offload", "Placement", "Sparse", "State"]

Placement = Literal["replicated", "zero1", "zero2", "zero3", "central", "server"]
Sparse = Literal["replicated", "sharded"]
Offload = Literal["none", "optimizer", "all"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Placement of parameters, gradients and optimizer state.

    Attributes:
        placement: the key `state`. `replicated`: all of it on every rank. `zero1`: each rank keeps its part
            of the optimizer's state, `zero2`: of the averaged gradients too, `zero3`: of the parameters
            too, which are gathered unit by unit where they are used. `central`: rank 0 keeps all of it, and
            others fetch units of parameters from it. `server`: parameter servers own it.
        sparse: placement of the rows of sparse embedding tables: with the other parameters (`replicated`), or
            `sharded` by row over the ranks.
        servers: number of parameter servers; `state=server` has one by default. Where there are any, they
            have the rows of tables too.
        offload: state kept in host memory instead of on a CUDA device: the state of optimizers, which then
            step on the CPU (`optimizer`), with `zero3` and `central` parameters and gradients too (`all`).
    """

    placement: Annotated[Placement, Spelled("state", choice(Placement))] = "replicated"
    sparse: Annotated[Sparse, Spelled("sparse", choice(Sparse))] = "replicated"
    servers: Annotated[int | None, Spelled("servers", Integer(at_least=1))] = None
    offload: Annotated[Offload, Spelled("offload", choice(Offload))] = "none"

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def server_count(self) -> int:
        """Return the number of parameter servers."""
        return self.servers or int(self.placement == "server")

    @property
    def cuts_optimizer(self) -> bool:
        """Return whether an optimizer steps on shards: on each rank, or all on one."""
        return self.placement in ("zero1", "zero2", "zero3", "central") or self.offloads_optimizer

    @property
    def cuts_gradients(self) -> bool:
        """Return whether each rank keeps a part of the gradients, or one rank all."""
        return self.placement in ("zero2", "zero3", "central")

    @property
    def cuts_parameters(self) -> bool:
        """Return whether each rank keeps a part of the parameters, or one rank all."""
        return self.placement in ("zero3", "central")

    @property
    def offloads_optimizer(self) -> bool:
        """Return whether the optimizer's state lies in host memory, and its step runs there."""
        return self.offload != "none"

    @property
    def offloads_parts(self) -> bool:
        """Return whether shards of parameters and gradients lie in host memory."""
        return self.offload == "all"

    def on(self, ranks: int) -> State:
        """Return the state axis on `ranks` ranks.

        One rank has nothing to divide, and may offload all.
        """
        return self if ranks > 1 or self.offloads_optimizer or self.server_count else State()
