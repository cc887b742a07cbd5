"""`recompute=full`, `selective`: activation checkpointing of a model's blocks.

Forward keeps only the arguments of every repeated block (`full`), or the arguments and the results of matrix
products, convolutions and attention (`selective`); backward recomputes everything else, which is cheap to
compute and large to keep.
"""

from __future__ import annotations

import dataclasses
import enum
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ronde.modules.compiled import uncompiled
from ronde.modules.module_key import used_up_by
from ronde.parallel.compute.replay import Replay
from ronde.patching.patches import Patches
from ronde.patching.stacks import MODULE_CALL
from ronde.patching.torch_internals import current_graph_task_id
from ronde.plan.compute import Recompute as Extent
from ronde.policies.repeated_blocks import parts_of, repeated_blocks
from ronde.rowwise.compiled import is_compiled
from ronde.tensor.context import in_transform
from ronde.tensor.tree import map_leaves

__all__ = ["COSTLY", "Inside", "Recompute"]

_aten = torch.ops.aten
# Operations that cost far more to compute than their results cost to keep.
COSTLY = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
        _aten.convolution.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
    }
)
# Containers such as lists and dicts are passed to a block as they are; other objects are not searched.
_UNCHANGING = (
    torch.Tensor, torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format, str, bytes, int,
    float, complex, range, slice, frozenset, enum.Enum,
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Inside:
    """State around a called module.

    Attributes:
        model: function that returns whether execution is inside a model, where tensors are plain.
        script: function that returns whether it is in the script, or in the body of a model that runs in
            parts.
        note: callback for a sentence to the user.
        again: callback whenever a block has been recomputed.
        draws: function that returns whether the running code may draw random numbers, as far as is known.
    """

    model: Callable[[], bool]
    script: Callable[[], bool]
    note: Callable[[str], object]
    again: Callable[[], object] = lambda: None
    draws: Callable[[], bool] = lambda: True


class Recompute:
    """Checkpoints the blocks of every model that is called; one per process.

    Args:
        extent: `full` or `selective`.
    """

    def __init__(self, extent: Extent, inside: Inside) -> None:
        self._asked = f"recompute={extent}"
        self._kept = COSTLY if extent == "selective" else frozenset[Any]()
        self._inside = inside
        self._replay = Replay(self._asked, inside.again)
        self._note = inside.note
        self._depth = 0
        self._in_block, self._by_calls = False, True
        self._searched: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()
        self._blocks: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._told: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def install(self, patches: Patches) -> None:
        patches.layer(MODULE_CALL, "recompute", self._layer)

    @contextmanager
    def by_calls(self, yes: bool) -> Iterator[None]:
        """Set whether calls of blocks are checkpointed inside the `with` block.

        Otherwise `carry_out` alone does so.
        """
        before, self._by_calls = self._by_calls, yes
        try:
            yield
        finally:
            self._by_calls = before

    def carry_out(self, unit: torch.nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run `forward` of a module, with recomputation in backward if it is a block."""
        with self.by_calls(True):
            if unit in self._blocks and self._may_run_again(unit, (args, kwargs)):
                return self._again(lambda _, *args, **kwargs: forward(*args, **kwargs), unit, args, kwargs)
            return forward(*args, **kwargs)

    def _layer(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return plain(module, *args, **kwargs)
            if not self._inside.model():
                if self._inside.script():  # its body may run in parts: each block is called by itself then
                    self._search(module)
                    self._open(module)
                return plain(module, *args, **kwargs)
            if not self._depth:
                self._search(module)
                # A parametrization is called without arguments, and keeps no activations. In backward, parts
                # of a model are called by code that recomputes them already: a checkpoint, or an
                # `autograd.Function` of the user.
                if (args or kwargs) and current_graph_task_id() == -1:
                    self._tell(module)
            self._depth += 1
            try:
                by_call = self._by_calls and module in self._blocks
                if by_call and self._may_run_again(module, (args, kwargs)):
                    return self._again(plain, module, args, kwargs)
                return plain(module, *args, **kwargs)
            finally:
                self._depth -= 1

        return call

    def _search(self, model: torch.nn.Module) -> None:
        """Find the blocks of a model."""
        if model._modules and self._is_new(model) and not is_compiled(model):
            self._blocks.update(repeated_blocks(model))

    def _open(self, block: torch.nn.Module) -> None:
        """Recompute the modules of a block one by one, if it runs in parts.

        A block in parts could take another path through its code when it is recomputed in backward.
        """
        if block in self._blocks:
            self._blocks.discard(block)
            self._blocks.update(parts_of(block))

    def _is_new(self, model: torch.nn.Module) -> bool:
        """Return whether the model is new, or its layers have changed."""
        count = sum(1 for _ in model.modules())
        known, self._searched[model] = self._searched.get(model), count
        return known != count

    def _tell(self, model: torch.nn.Module) -> None:
        """Note a trained model that keeps all activations, as no model has blocks."""
        if model in self._told or not model._modules or not torch.is_grad_enabled():
            return
        self._told.add(model)
        name = type(uncompiled(model)).__name__
        if is_compiled(model):
            self._note(f"{name} was given to torch.compile, where {self._asked} has no effect [R314]")
        elif not self._blocks:
            self._note(
                f"{name} keeps all its activations: {self._asked} recomputes repeated blocks (composite "
                "modules of one class), and the model has none [R314]"
            )

    def _may_run_again(self, block: torch.nn.Module, given: Any) -> bool:
        if self._in_block or not torch.is_grad_enabled() or in_transform():
            return False
        found: list[str] = []
        map_leaves(lambda leaf: found.append(type(leaf).__name__) if _may_change(leaf) else None, given)
        if found:
            self._note(
                f"{type(block).__name__} keeps all its activations: it is given a {found[0]}, which may hold "
                f"something else when {self._asked} computes it again [R314]"
            )
            return False
        if any(part._forward_hooks or part._forward_pre_hooks for part in block.modules()):
            self._note(
                f"{type(block).__name__} keeps all its activations: it has forward hooks, which "
                f"{self._asked} would call a second time [R314]"
            )
            return False
        used = used_up_by(block, self._replay.outside(block))
        if used:
            self._note(
                f"{type(block).__name__} keeps all its activations: it uses {used}, which {self._asked} "
                "cannot restore to recompute the block [R314]"
            )
            return False
        return True

    def _again(self, plain: Callable[..., Any], block: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        def run(*given: Any) -> Any:
            before, self._in_block, self._depth = self._in_block, True, self._depth + 1
            try:
                return plain(block, *given[: len(args)], **dict(zip(kwargs, given[len(args) :], strict=True)))
            finally:
                self._in_block, self._depth = before, self._depth - 1

        values = [*args, *kwargs.values()]
        return self._replay(block, run, values, draws=self._inside.draws(), kept=self._kept)


def _may_change(leaf: Any) -> bool:
    """Return whether an argument may be changed in place, as a key-value cache."""
    return not (leaf is None or callable(leaf) or isinstance(leaf, _UNCHANGING))
