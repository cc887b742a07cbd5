"""Default generators of the accelerator that this process uses, whatever its maker.

An accelerator that was not used yet has no states: to ask for them would initialize it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

__all__ = ["device_generator", "device_in_use", "device_states", "same_draws", "set_device_states"]


def device_states() -> list[torch.Tensor]:
    """Return the state of each device's generator; empty where none is in use."""
    module = _module_in_use()
    return [] if module is None else module.get_rng_state_all()


def set_device_states(states: Sequence[torch.Tensor]) -> None:
    """Set the states of devices; unused ones get theirs at their first use."""
    accelerator = torch.accelerator.current_accelerator(check_available=True) if states else None
    if accelerator is not None:
        module: Any = torch.get_device_module(accelerator)
        module.set_rng_state_all(states[: module.device_count()])


def device_generator() -> torch.Generator | None:
    """Return the generator of the current device; None where none is in use."""
    module = _module_in_use()
    return None if module is None else module.default_generators[module.current_device()]


def same_draws(*, on_device: bool, enabled: bool) -> AbstractContextManager[None]:
    """Restore the generators of host and current device after the `with` block."""
    accelerator = torch.accelerator.current_accelerator() if on_device else None
    if accelerator is None:
        return torch.random.fork_rng([], enabled=enabled)
    here = [torch.accelerator.current_device_index()]
    return torch.random.fork_rng(here, enabled=enabled, device_type=accelerator.type)


def device_in_use() -> bool:
    """Tell whether this process has used its accelerator."""
    return _module_in_use() is not None


def _module_in_use() -> Any:
    """Return torch's module of the accelerator, None before its first use."""
    accelerator = torch.accelerator.current_accelerator()
    module: Any = None if accelerator is None else torch.get_device_module(accelerator)
    return module if module is not None and module.is_initialized() else None
