"""Values of a plan on six axes, and properties that follow from them together."""

from __future__ import annotations

import dataclasses
from typing import Any

from ronde.plan.axes import KEYS, axis_of
from ronde.plan.communication import Communication
from ronde.plan.compute import Compute
from ronde.plan.data import Data
from ronde.plan.mesh import Mesh
from ronde.plan.state import State
from ronde.plan.update import Update

__all__ = ["DEFAULT", "Values"]

DEFAULT = "ddp"
"""How the plan with no value changed is spelled."""

# Values of `bucket-mb=auto`. Sharded gradients take memory twice while they are sent, so their buckets are
# smaller.
_BUCKET_MB = 25.0
_CUT_BUCKET_MB = 4.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Values:
    """The values of a plan. An axis refuses values that it does not have."""

    mesh: Mesh = dataclasses.field(default_factory=Mesh)
    state: State = dataclasses.field(default_factory=State)
    communication: Communication = dataclasses.field(default_factory=Communication)
    update: Update = dataclasses.field(default_factory=Update)
    compute: Compute = dataclasses.field(default_factory=Compute)
    data: Data = dataclasses.field(default_factory=Data)

    def __str__(self) -> str:
        """Return the canonical spelling: the keys that differ from defaults, in order.

        Presets are not used, so that a recorded plan keeps its meaning if a preset changes.
        """
        items = [self.item(name) for name, key in KEYS.items() if self.value(name) != key.default]
        return ",".join(items) or DEFAULT

    def value(self, key_name: str) -> Any:
        """Return the value of the key with this name in the grammar."""
        return getattr(getattr(self, axis_of(key_name)), KEYS[key_name].field)

    def item(self, key_name: str) -> str:
        """Return the item `key=value` for the key with this name."""
        return KEYS[key_name].write(self.value(key_name))

    @property
    def inexact_because(self) -> tuple[str, ...]:
        """Return the items that depart from the single-device update; empty if exact."""
        lossy = self.communication.compressor != "none"
        other = self.communication.reduction != "mean"
        items = {"update": self.update.rule != "sync", "compressor": lossy, "reduction": other}
        return tuple(self.item(name) for name, departs in items.items() if departs)

    @property
    def is_local(self) -> bool:
        """Return whether each rank trains by itself, against servers that it shares with others.

        If servers have tables only, ranks step together, and `update=bounded` applies to look-ups.
        """
        return self.update.rule in ("async", "bounded", "geo") and self.state.placement == "server"

    @property
    def in_local_view(self) -> bool:
        """Return whether each rank runs the script on its slice of every batch.

        It then sees values of its own rows.
        """
        return self.is_local or self.update.rule in ("local", "decentralized", "async-average")

    @property
    def exact(self) -> bool:
        """Return whether parameters equal the single-device ones up to floating-point reordering."""
        return not self.inexact_because

    @property
    def bucket_bytes(self) -> int:
        """Return the size of a bucket of gradients, in bytes."""
        asked = self.communication.bucket_mb
        if asked is None:
            asked = _CUT_BUCKET_MB if self.state.cuts_gradients else _BUCKET_MB
        return int(asked * 2**20)
