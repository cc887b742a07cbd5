"""The update axis: when is the update applied, and where?"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from ronde.plan.key import Flag, Integer, Spelled, check_fields, choice

__all__ = ["OptimizerOn", "Peers", "Rule", "Update"]

Rule = Literal["sync", "local", "decentralized", "async-average", "async", "bounded", "geo"]
Peers = Literal["all", "shift-one"]
OptimizerOn = Literal["worker", "server"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """Application of the update: moment and place.

    Attributes:
        rule: the key `update`. Among ranks: `sync`, `local` (average parameters every k steps),
            `decentralized` (average with peers each step), `async-average` (average in the
            background). With servers: `sync`, `async`, `bounded` (staleness), `geo` (send the
            difference every k steps).
        every: k of `local` and `geo`.
        adaptive: `local` chooses k as it goes; `every`, if given, is its first value.
        peers: partners with which `decentralized` averages.
        warm_up: number of first steps without the full effect of the plan. With `local` and `async-average`
            ranks average gradients in these steps, with `powersgd` and `compressed=momentum` gradients are
            sent uncompressed, with `topk` more elements are sent.
        staleness: steps by which the slowest worker may lag, for `bounded`.
        optimizer_on: place of the optimizer's step when there are servers.
    """

    rule: Annotated[Rule, Spelled("update", choice(Rule))] = "sync"
    every: Annotated[int | None, Spelled("every", Integer(at_least=1))] = None
    adaptive: Annotated[bool, Spelled("adaptive", Flag())] = False
    peers: Annotated[Peers | None, Spelled("peers", choice(Peers))] = None
    warm_up: Annotated[int | None, Spelled("warm-up", Integer(at_least=1))] = None
    staleness: Annotated[int | None, Spelled("staleness", Integer(at_least=0))] = None
    optimizer_on: Annotated[OptimizerOn, Spelled("optimizer-on", choice(OptimizerOn))] = "worker"

    def __post_init__(self) -> None:
        check_fields(self)
