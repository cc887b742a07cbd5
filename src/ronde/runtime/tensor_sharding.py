"""`tensor=N`: the one place that joins what cuts a model's matrices over the ranks of a tensor group."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ronde.parallel.stand_ins import StandIns
from ronde.parallel.tensor_rules import tensor_rules
from ronde.patching.modes_first import modes_first
from ronde.patching.patches import Patches
from ronde.patching.stacks import BACKWARD, GRAD
from ronde.plan import Plan
from ronde.plan.cuts import cuts_by_pattern
from ronde.policies.tensor_structure import placements
from ronde.runtime.block_sharding import BlockRanks, BlockSharding
from ronde.runtime.uncut_models import UncutModels
from ronde.shards.partition import Partition
from ronde.shards.spec import blocks
from ronde.tensor.autograd import ENGINE
from ronde.tensor.context import Context
from ronde.tensor.edges import Gather

__all__ = ["TensorSharding"]


class TensorSharding(BlockSharding):
    """What is cut on this rank.

    Args:
        ranks: `group` is the tensor group.
    """

    def __init__(self, plan: Plan, ranks: BlockRanks, note: Callable[[str], None]) -> None:
        self._uncut = UncutModels(plan.item("tensor"))
        self._override = cuts_by_pattern(plan.mesh.cuts)
        super().__init__(plan, ranks, note, partition=Partition(), find=self._find, item="tensor")
        self._asking = False
        # Models that have been called with a graph.
        self._called: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        stand_ins = self._stand_ins = StandIns(self._group, tensor_rules(), self._blocks, self._cut.latest)
        self.outward = stand_ins.whole

    def _find(self, model: torch.nn.Module) -> list[list[torch.Tensor]]:
        """Decide on the parameters of a model; each that is cut is a unit of its own."""
        found = placements(model, self._group.world_size, self._override)
        self._uncut.tell(model, found)
        for each in found:
            if each.cut is not None:
                self._partition.decide(each.parameter, blocks(each.cut, each.parameter.shape))
        return [[each.parameter] for each in found if each.cut is not None]

    def install(self, patches: Patches, context: Context) -> None:
        super().install(patches, context)
        self._install_gradients(patches, context)

    @contextmanager
    def _calling_whole(self, module: torch.nn.Module) -> Iterator[None]:
        self._called.discard(module)
        with super()._calling_whole(module):
            yield

    @contextmanager
    def _calling_cut(self, module: torch.nn.Module) -> Iterator[None]:
        if torch.is_grad_enabled():
            self._called.add(module)
        with self._stand_ins.inside([module]):
            yield

    def notes(self) -> list[str]:
        return [*super().notes(), *self._uncut.notes()]

    def _install_gradients(self, patches: Patches, context: Context) -> None:
        """`torch.autograd.grad` and `backward(inputs=...)` of a parameter reach its block too."""

        def around_grad(plain: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(plain)
            def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
                several = isinstance(inputs, (tuple, list))
                asked = list(inputs) if several else [inputs]
                found = [] if isinstance(inputs, dict) or self._asking else self._stand_ins.blocks(asked)
                if not found:
                    return plain(outputs, inputs, *args, **kwargs)
                unused = kwargs.pop("allow_unused", None)
                leaves = [block.leaf for _, block in found]
                self._asking = True  # a parameter in parts has the same function called once more
                try:
                    results = list(plain(outputs, [*asked, *leaves], *args, allow_unused=True, **kwargs))
                finally:
                    self._asking = False
                of_blocks = results[len(asked) :]
                del results[len(asked) :]
                for (place, block), part in zip(found, of_blocks, strict=True):
                    cut = block.spec.cut
                    if part is not None and cut is not None:
                        layout = cut.layout(asked[place].shape)
                        whole: Any = Gather.apply(part, self._group, layout)
                        results[place] = whole if results[place] is None else results[place] + whole
                if not unused and any(result is None for result in results):
                    # torch's own error, of what is not reached by any way.
                    missing = [each for each, result in zip(asked, results, strict=True) if result is None]
                    return plain(outputs, missing, *args, **kwargs)
                return tuple(results)

            return modes_first(grad)

        def around_backward(plain: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(plain)
            def backward(tensors: Any, *args: Any, inputs: Any = None, **kwargs: Any) -> None:
                if inputs is not None:
                    several = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
                    inputs = [*several, *(block.leaf for _, block in self._stand_ins.blocks(several))]
                plain(tensors, *args, inputs=inputs, **kwargs)

            return backward

        engine: Any = getattr(torch.autograd, ENGINE)

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            """What a checkpoint computes again in there is what it has computed before."""
            if not context.on_main_thread():
                return engine(*args, **kwargs)
            self._cut.rest(keep_last=False)
            with self._stand_ins.inside(list(self._called)):
                return engine(*args, **kwargs)

        patches.set(torch.autograd, ENGINE, run_backward)
        patches.layer(GRAD, "model parallel", around_grad)
        patches.layer(BACKWARD, "model parallel", around_backward)
