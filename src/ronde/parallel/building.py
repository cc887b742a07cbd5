"""Models are cut while they are made: no rank ever holds one whole.

Where a script says `ronde.deferred()`, layers are cut as they become part of a larger module, and what is
left at its end; what a rank keeps for good may be decided later. A model of the device `meta` has no elements
yet. It is cut as `to_empty` gives it some, whoever calls that: nothing is lost by it, since what lies there
then is undefined.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_module_registration_hook

from ronde.patching.patches import Patches
from ronde.policies.repeated_blocks import repeated_blocks
from ronde.tensor.context import Context, Region

__all__ = ["Building"]

Module = torch.nn.Module


class Building:
    """Knows when there is something to cut.

    Args:
        cut: cuts what is new in a module, if that is enough for a unit; all ranks come there.
    """

    def __init__(self, context: Context, cut: Callable[[Module], None]) -> None:
        self._context = context
        self._cut = cut

    def install(self, patches: Patches) -> None:
        plain: Any = Module.to_empty

        @functools.wraps(plain)
        def to_empty(module: Module, **options: Any) -> Any:
            if not self._in_step():
                return plain(module, **options)
            with self._filling(module):
                return plain(module, **options)

        patches.set(Module, "to_empty", to_empty)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Around the making of a model."""
        # Those that are part of no other, in the order in which they were given parts. They are held: what is
        # garbage on one rank may not be so on another.
        roots: dict[int, Module] = {}

        def registered(parent: Module, _name: str, child: Module | None) -> None:
            roots.setdefault(id(parent), parent)
            if isinstance(child, Module):
                roots.pop(id(child), None)
                self._cut(child)

        handle: Any = register_module_module_registration_hook(registered)
        try:
            yield
        finally:
            handle.remove()
        for root in roots.values():
            self._cut(root)

    @contextmanager
    def _filling(self, model: Module) -> Iterator[None]:
        """Around `model.to_empty`: what is not divided further is cut when it has memory."""
        blocks = set(repeated_blocks(model))
        plain: Any = Module._apply
        depth = 0

        def apply(module: Module, *args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            is_block = module in blocks
            depth += is_block
            try:
                result = plain(module, *args, **kwargs)
            finally:
                depth -= is_block
            if depth == 0 and self._in_step():
                self._cut(module)
            return result

        patches = Patches()
        patches.set(Module, "_apply", apply)
        try:
            yield
        finally:
            patches.restore()

    def _in_step(self) -> bool:
        """Whether all ranks come here."""
        context = self._context
        return context.on_main_thread() and context.region is Region.SCRIPT and not context.comm.alone
