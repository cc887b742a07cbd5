"""The state axis: where do parameters, gradients and optimizer state live?"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from ronde.plan.key import Spelled, check_fields, choice

__all__ = ["Offload", "Placement", "Sparse", "State"]

Placement = Literal["replicated", "zero1", "zero2", "zero3", "central", "server"]
Sparse = Literal["replicated", "sharded"]
Offload = Literal["none", "optimizer", "all"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Where state lives.

    Attributes:
        placement: the key `state`. `replicated`: all of it on every rank. `zero1`: each rank keeps its part
            of the optimizer's state, `zero2`: of the averaged gradients too, `zero3`: of the parameters
            too, which are gathered unit by unit where they are used. `central`: rank 0 keeps all of it, and
            others fetch units of parameters from it. `server`: parameter servers own it.
        sparse: where the rows of sparse embedding tables live: with the other parameters
            (`replicated`), or `sharded` by row over the ranks.
        offload: what is kept in host memory.
    """

    placement: Annotated[Placement, Spelled("state", choice(Placement))] = "replicated"
    sparse: Annotated[Sparse, Spelled("sparse", choice(Sparse))] = "replicated"
    offload: Annotated[Offload, Spelled("offload", choice(Offload))] = "none"

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def cuts_optimizer(self) -> bool:
        """Whether each rank has a part of the optimizer's state, or one rank has all."""
        return self.placement in ("zero1", "zero2", "zero3", "central")

    @property
    def cuts_gradients(self) -> bool:
        """As `cuts_optimizer`, of gradients."""
        return self.placement in ("zero2", "zero3", "central")

    @property
    def cuts_parameters(self) -> bool:
        """As `cuts_optimizer`, of parameters."""
        return self.placement in ("zero3", "central")
