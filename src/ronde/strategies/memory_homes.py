"""Memory of an optimizer and of shards, as `offload` asks for it."""

from __future__ import annotations

from ronde.plan.state import State
from ronde.sync.memory_home import Home, HostMemory, OnDevice

__all__ = ["homes"]


def homes(state: State) -> tuple[Home, Home]:
    """Return the home of optimizer state, and that of parameter and gradient shards."""
    home: Home = HostMemory() if state.offloads_optimizer else OnDevice()
    return home, home if state.offloads_parts else OnDevice()
