"""Sharding of models while they are built: no rank ever holds a whole one.

Inside `ronde.deferred()`, layers are cut as they become part of a larger module, and the remaining ones at
its end; the final owners may be decided later. A model on the device `meta` has no elements yet. It is cut as
`to_empty` allocates them, by any caller: nothing is lost, since the contents are undefined at that time.
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
    """Decides when to cut a model under construction.

    Args:
        cut: function that cuts new parameters of a module, if they suffice for a unit. A collective.
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
        """Cut the models that are built inside the `with` block."""
        # Modules without a parent, in the order in which they got children. They are kept alive, because
        # garbage on one rank may be alive on another.
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
        """Cut blocks of a model during `to_empty`, as soon as they have memory."""
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
        """Return whether all ranks execute this code."""
        context = self._context
        return context.on_main_thread() and context.region is Region.SCRIPT and not context.comm.alone
