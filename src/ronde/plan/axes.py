"""The six axes and all keys of the grammar, in printing order."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ronde.plan.communication import Communication
from ronde.plan.compute import Compute
from ronde.plan.data import Data
from ronde.plan.key import Key, keys_of
from ronde.plan.mesh import Mesh
from ronde.plan.state import State
from ronde.plan.update import Update

__all__ = ["AXES", "KEYS", "axis_of"]

AXES: Mapping[str, Any] = MappingProxyType(
    {
        "mesh": Mesh,
        "state": State,
        "communication": Communication,
        "update": Update,
        "compute": Compute,
        "data": Data,
    }
)
"""Each axis' class by its name, which is also its attribute on a `Plan` and its table in TOML."""

KEYS: Mapping[str, Key] = MappingProxyType({one.name: one for axis in AXES.values() for one in keys_of(axis)})
"""Every key by its name. Key names are unique over all axes, so a plan needs no axis names."""

_AXIS_OF_KEY = {one.name: name for name, axis in AXES.items() for one in keys_of(axis)}


def axis_of(key_name: str) -> str:
    """Return the axis to which a key belongs."""
    return _AXIS_OF_KEY[key_name]
