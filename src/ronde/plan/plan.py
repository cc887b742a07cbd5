"""A plan: one value on each of six axes."""

from __future__ import annotations

import dataclasses

from ronde.plan.axes import AXES
from ronde.plan.communication import Communication
from ronde.plan.grammar import items_of_source, items_of_text, settle
from ronde.plan.key import keys_of
from ronde.plan.mesh import Mesh
from ronde.plan.validate import check
from ronde.plan.values import DEFAULT, Values

__all__ = ["DEFAULT", "Plan", "expand", "read_plan"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan(Values):
    """Execution of a script on many ranks.

    `Plan.parse("ddp,bucket-mb=10")` and `Plan(communication=Communication(bucket_mb=10))` are equal. An axis
    refuses values that it does not have; `parse` and `ronde.plan.check` judge combinations of values, and
    whether they are built in this version.
    """

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Parse a plan; raises one `PlanError` with all errors."""
        plan = _assemble(settle(items_of_text(text)))
        check(plan)
        return plan

    def for_ranks(self, ranks: int) -> Plan:
        """Return this plan as it takes effect on `ranks` ranks.

        `data=auto` takes the ranks that the other degrees leave. One rank has nothing to cut and
        no peer: mesh and communication are switched off, the other axes stay.
        """
        if ranks == 1:
            return dataclasses.replace(self, mesh=Mesh(data=1), communication=Communication())
        left = ranks // self.mesh.model_ranks
        if self.mesh.data is not None or left * self.mesh.model_ranks != ranks:
            return self
        return dataclasses.replace(self, mesh=dataclasses.replace(self.mesh, data=left))


def expand(*sources: str) -> Plan:
    """Expand plan sources into one plan, without checking it.

    This version may be unable to run it.

    Each source is a plan string or the path of a `.toml` file; none at all is the default plan.
    """
    return _assemble(settle(item for source in sources for item in items_of_source(source)))


def read_plan(*sources: str, ranks: int | None = None, device: str | None = None) -> Plan:
    """Expand and check a plan; raises one `PlanError` with all obstacles.

    `ranks`: number of ranks to run on. `device`: where these compute, "cpu" or "cuda".
    """
    plan = expand(*sources)
    check(plan, ranks, device)
    return plan


def _assemble(values: dict[str, object]) -> Plan:
    """Make a plan of values by key name; other keys have their defaults."""
    axes = {}
    for name, axis in AXES.items():
        axes[name] = axis(**{key.field: values[key.name] for key in keys_of(axis) if key.name in values})
    return Plan(**axes)
