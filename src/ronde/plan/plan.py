"""A plan: how a script is run on many ranks, as one value on each of six axes."""

from __future__ import annotations

import dataclasses
from typing import Any

from ronde.plan.axes import AXES, KEYS, axis_of
from ronde.plan.communication import Communication
from ronde.plan.compute import Compute
from ronde.plan.data import Data
from ronde.plan.grammar import items_of_source, items_of_text, settle
from ronde.plan.key import keys_of
from ronde.plan.mesh import Mesh
from ronde.plan.state import State
from ronde.plan.update import Update
from ronde.plan.validate import check

__all__ = ["DEFAULT", "Plan", "expand", "read_plan"]

DEFAULT = "ddp"
"""How the plan with no value changed is spelled."""

# Of `bucket-mb=auto`. Gradients that are cut take memory twice while they are sent, so there is less of it.
_BUCKET_MB = 25.0
_CUT_BUCKET_MB = 4.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How a script is run on many ranks.

    `Plan.parse("ddp,bucket-mb=10")` and `Plan(communication=Communication(bucket_mb=10))` are
    equal. An axis refuses values that it does not have; which values go together, and which are
    built in this version, is asked by `parse` and by `ronde.plan.check`.
    """

    mesh: Mesh = dataclasses.field(default_factory=Mesh)
    state: State = dataclasses.field(default_factory=State)
    communication: Communication = dataclasses.field(default_factory=Communication)
    update: Update = dataclasses.field(default_factory=Update)
    compute: Compute = dataclasses.field(default_factory=Compute)
    data: Data = dataclasses.field(default_factory=Data)

    @classmethod
    def parse(cls, text: str) -> Plan:
        """The plan spelled by `text`; raises one `PlanError` with everything that is wrong with it."""
        plan = _assemble(settle(items_of_text(text)))
        check(plan)
        return plan

    def __str__(self) -> str:
        """The canonical spelling: the keys that are not at their defaults, in order.

        Presets are not used, so that a recorded plan keeps its meaning if a preset changes.
        """
        items = [self.item(name) for name, key in KEYS.items() if self.value(name) != key.default]
        return ",".join(items) or DEFAULT

    def value(self, key_name: str) -> Any:
        """The value of the key with this name in the grammar."""
        return getattr(getattr(self, axis_of(key_name)), KEYS[key_name].field)

    def item(self, key_name: str) -> str:
        """The item `key=value` for the key with this name."""
        return KEYS[key_name].write(self.value(key_name))

    @property
    def inexact_because(self) -> tuple[str, ...]:
        """The items by which this plan departs from the single-device update; none if it is exact."""
        lossy = self.communication.compressor != "none"
        items = {"update": self.update.rule != "sync", "compressor": lossy}
        return tuple(self.item(name) for name, departs in items.items() if departs)

    @property
    def exact(self) -> bool:
        """Whether parameters equal the single-device ones up to floating-point reordering."""
        return not self.inexact_because

    @property
    def bucket_bytes(self) -> int:
        """How many bytes of gradients travel together."""
        asked = self.communication.bucket_mb
        if asked is None:
            asked = _CUT_BUCKET_MB if self.state.cuts_gradients else _BUCKET_MB
        return int(asked * 2**20)

    def for_ranks(self, ranks: int) -> Plan:
        """This plan as it takes effect on so many ranks.

        `data=auto` takes the ranks that the other degrees leave. One rank has nothing to cut and
        nobody to talk to: mesh and communication are switched off, the other axes stay.
        """
        if ranks == 1:
            return dataclasses.replace(self, mesh=Mesh(data=1), communication=Communication())
        left = ranks // self.mesh.model_ranks
        if self.mesh.data is not None or left * self.mesh.model_ranks != ranks:
            return self
        return dataclasses.replace(self, mesh=dataclasses.replace(self.mesh, data=left))


def expand(*sources: str) -> Plan:
    """The plan that the sources spell together, whether or not this version can run it.

    Each source is a plan string or the path of a `.toml` file; none at all is the default plan.
    """
    return _assemble(settle(item for source in sources for item in items_of_source(source)))


def read_plan(*sources: str, ranks: int | None = None, device: str | None = None) -> Plan:
    """As `expand`, but raises one `PlanError` with everything that keeps it from running on `ranks`.

    `device`: where these compute, "cpu" or "cuda".
    """
    plan = expand(*sources)
    check(plan, ranks, device)
    return plan


def _assemble(values: dict[str, object]) -> Plan:
    """A plan with these values by key name, all others at their defaults."""
    axes = {}
    for name, axis in AXES.items():
        axes[name] = axis(**{key.field: values[key.name] for key in keys_of(axis) if key.name in values})
    return Plan(**axes)
