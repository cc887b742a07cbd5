"""`tensor=N`: the one place that joins what cuts a model's matrices over the ranks of a tensor group."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.parallel import gradients, opaque
from ronde.parallel.building import Building
from ronde.parallel.local_gradients import LocalGradients
from ronde.parallel.saved_parameters import SavedParameters
from ronde.parallel.sharded_parameters import ShardedParameters
from ronde.parallel.sharded_update import ShardedUpdate
from ronde.parallel.stand_ins import StandIns
from ronde.parallel.tensor_cut import CutRanges
from ronde.parallel.tensor_division import HeldBlocks, TensorDivision
from ronde.parallel.tensor_rules import tensor_rules
from ronde.parallel.tensor_structure import Placement
from ronde.patching.modes_first import modes_first
from ronde.patching.patches import Patches
from ronde.plan import Plan
from ronde.plan.cuts import cuts_by_pattern
from ronde.plan.resident import Resident
from ronde.runtime.sharding import Sharding
from ronde.sync.home import OnDevice
from ronde.sync.reducer import Reducer
from ronde.tensor.autograd import ENGINE
from ronde.tensor.context import Context, Region
from ronde.tensor.edges import Gather

__all__ = ["TensorSharding"]


class TensorSharding(Sharding):
    """What is cut on this rank.

    Args:
        comm: the reducer's group, of the ranks that have the same blocks and other rows.
        tensor: the tensor group, of those that have other blocks and the same rows.
    """

    def __init__(self, plan: Plan, comm: Comm, tensor: Comm, note: Callable[[str], None]) -> None:
        super().__init__(plan, comm, note)
        self._rows = comm
        self._uncut: dict[str, None] = {}
        # A group of its own, in which the model's cut values are whole: nothing of the batch is cut there.
        context = Context(comm=tensor, adopt=lambda leaf: None)
        context.weight, context.averages_leaves = 1, False
        self._tensor = context
        self._reducer: Reducer | None = None
        self._asking = False
        self._script: Context | None = None
        # Models that have been called with a graph.
        self._called: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        division = TensorDivision(tensor.world_size, cuts_by_pattern(plan.mesh.cuts), self._tell)
        self._blocks = LocalGradients(tensor, self._adopt, self._mean)
        parameters = ShardedParameters(context, division, OnDevice(), note, division)
        self._cut = parameters
        self._parameters = parameters
        self._saved = SavedParameters(parameters)
        self._building = Building(context, self._cut_new)
        held = HeldBlocks(division, self._blocks, parameters)
        self._update = ShardedUpdate(context, held, self._has_blocks, note)
        self._division = division
        stand_ins = self._stand_ins = StandIns(context, tensor_rules(), self._blocks, parameters.latest)
        self.outward = stand_ins.whole

    def bind(self, context: Context) -> None:
        """What is cut has the tensor group's context; this is the script's."""
        self._script = context

    def average_by(self, reducer: Reducer) -> None:
        """Blocks are averaged over rows by this one, and whole parameters that are cut are not."""
        self._reducer = reducer
        reducer.apart = self._is_cut
        reducer.on_averaged = self._blocks.end_backward

    @property
    def residents(self) -> list[Resident]:
        return [self._blocks, self._cut]

    def install(self, patches: Patches, context: Context) -> None:
        assert self._update is not None
        assert self._saved is not None
        assert self._building is not None
        self._update.install(patches)
        gradients.install(patches, self._tensor, self._blocks, self._cut.lasting)
        self._building.install(patches)
        opaque.install(patches, self._cut, self._saved)
        self._saved.install(patches)
        self._install_gradients(patches, context)
        self._install_hooks(patches)

    def release(self) -> None:
        self._blocks.restore()
        super().release()

    @contextmanager
    def calling(self, module: torch.nn.Module) -> Iterator[None]:
        self._cut_new(module)
        script = self._script
        if script is not None and (script.region is Region.OBSERVED or script.compared):
            # Whether its rows are independent is seen of the model as one device computes it.
            self._called.discard(module)
            with self._cut.calling(module):
                yield
            return
        self._cut.rest(keep_last=False)  # what the script has written to whole parameters is in blocks then
        if torch.is_grad_enabled():
            self._called.add(module)
        with self._stand_ins.inside([module]):
            yield

    @contextmanager
    def backward(self) -> Iterator[None]:
        self._blocks.begin_backward()
        with self._cut.backward():
            yield

    def note_whole_state(self, optimizer: Any) -> None:
        """The state of a whole parameter is whole; of a block, an optimizer of any kind may keep all."""

    def _cut_new(self, module: torch.nn.Module) -> None:
        for parameter in self._cut.cut(module):
            ranges = self._division.ranges(parameter)
            part = self._cut.own(parameter)
            if isinstance(ranges, CutRanges) and part is not None:
                block = self._blocks.block(parameter)
                if block is None or block.leaf.data_ptr() != part.data_ptr():
                    if self._reducer is not None:
                        self._reducer.let_go(parameter)
                    self._blocks.add_block(parameter, ranges, part)
                    self._blocks.take_part(parameter)

    def notes(self) -> list[str]:
        if self._cut.are_there or not self._uncut:
            return super().notes()
        return [
            f"{self._plan.item('tensor')} cuts nothing of {', '.join(self._uncut)}: every rank of a group "
            f"computes all of it, right but no faster; `ronde plan show --script` lists why"
        ]

    def _tell(self, model: torch.nn.Module, found: list[Placement]) -> None:
        if found and not any(each.cut is not None for each in found):
            self._uncut.setdefault(type(model).__name__)

    def _adopt(self, leaf: torch.Tensor) -> None:
        if self._reducer is not None:
            self._reducer.adopt(leaf)

    def _mean(self, gradient: torch.Tensor) -> torch.Tensor:
        if self._rows.world_size == 1:
            return gradient
        return self._rows.all_reduce(gradient).div_(self._rows.world_size)

    def _is_cut(self, tensor: torch.Tensor) -> bool:
        return self._blocks.block(tensor) is not None

    def _has_blocks(self, optimizer: Any) -> bool:
        return any(self._is_cut(tensor) for group in optimizer.param_groups for tensor in group["params"])

    def _install_gradients(self, patches: Patches, context: Context) -> None:
        """`torch.autograd.grad` and `backward(inputs=...)` of a parameter reach its block too."""
        plain: Any = torch.autograd.grad
        plain_backward: Any = torch.autograd.backward

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
                if part is not None:
                    layout = block.ranges.cut.layout(asked[place].shape)
                    whole: Any = Gather.apply(part, self._tensor, layout)
                    results[place] = whole if results[place] is None else results[place] + whole
            if not unused and any(result is None for result in results):
                # torch's own error, of what is not reached by any way.
                missing = [each for each, result in zip(asked, results, strict=True) if result is None]
                return plain(outputs, missing, *args, **kwargs)
            return tuple(results)

        @functools.wraps(plain_backward)
        def backward(tensors: Any, *args: Any, inputs: Any = None, **kwargs: Any) -> None:
            if inputs is not None:
                several = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
                inputs = [*several, *(block.leaf for _, block in self._stand_ins.blocks(several))]
            plain_backward(tensors, *args, inputs=inputs, **kwargs)

        engine: Any = getattr(torch.autograd, ENGINE)

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            """What a checkpoint computes again in there is what it has computed before."""
            if not context.on_main_thread():
                return engine(*args, **kwargs)
            self._cut.rest(keep_last=False)
            with self._stand_ins.inside(list(self._called)):
                return engine(*args, **kwargs)

        patches.set(torch.autograd, ENGINE, run_backward)
        patches.set(torch.autograd, "grad", modes_first(grad))
        patches.set(torch.autograd, "backward", backward)

    def _install_hooks(self, patches: Patches) -> None:
        plain: Any = torch.Tensor.register_hook

        def register_hook(tensor: torch.Tensor, hook: Any) -> Any:
            if self._is_cut(tensor):
                raise UsageError(
                    f"a hook was registered on a parameter of shape {list(tensor.shape)}, of whose gradient "
                    f"{self._plan.item('tensor')} gives each rank a block; register it before the model's "
                    f"first call, then the parameter stays whole"
                )
            return plain(tensor, hook)

        patches.set(torch.Tensor, "register_hook", modes_first(register_hook))
