"""The plan: a small frozen description of a run; imports no torch."""

from __future__ import annotations

from ronde.plan.communication import Communication
from ronde.plan.compute import Compute
from ronde.plan.data import Data
from ronde.plan.mesh import Mesh
from ronde.plan.plan import Plan, expand, read_plan
from ronde.plan.preset import PRESETS, Preset
from ronde.plan.state import State
from ronde.plan.update import Update
from ronde.plan.validate import check, validate

__all__ = [
    "PRESETS",
    "Communication",
    "Compute",
    "Data",
    "Mesh",
    "Plan",
    "Preset",
    "State",
    "Update",
    "check",
    "expand",
    "read_plan",
    "validate",
]
