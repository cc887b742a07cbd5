"""The columns of the table: every preset, the degrees of the mesh, and values of the compute axis.

A new preset is a column by itself; any other plan is one line here.
"""

from __future__ import annotations

import dataclasses

from ronde.plan import PRESETS, Plan, read_plan

__all__ = ["PLANS", "Column"]

RANKS = 2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A plan, and the model that it has something to do with.

    Attributes:
        name: the plan as it is typed.
        model: a key of `scripts.MODELS`.
        tolerance: how far a loss may lie from the single-device one, relative to it, by the plan's rounding.
    """

    name: str
    model: str = "layers"
    tolerance: float = 1e-4

    @property
    def plan(self) -> Plan:
        return read_plan(self.name, ranks=RANKS, device="cpu")


_OTHERS = (
    Column(name="tensor=2"),
    Column(name="pipeline=2"),
    Column(name="pipeline=2,micro-batches=2"),
    Column(name="context=2", model="attention"),
    Column(name="expert=2", model="mixture"),
    Column(name="precision=bf16", tolerance=0.05),
    Column(name="recompute=full"),
    Column(name="micro-batches=2"),
)

PLANS = {column.name: column for column in (*(Column(name=name) for name in PRESETS), *_OTHERS)}
