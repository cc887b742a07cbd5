"""Sharded parameters, gradients and optimizer state of a session."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, final

import torch

from ronde.parallel.tensor.deferred_init import Building
from ronde.patching.patches import Patches
from ronde.shards import raw_memory_access
from ronde.shards.block_gradients import BlockGradients
from ronde.shards.saved_parameters import SavedParameters
from ronde.shards.sharded_parameters import ShardedParameters
from ronde.shards.sharded_update import ShardedUpdate
from ronde.sync.gradient_shards import GradientShards
from ronde.sync.leaf import gradient_of
from ronde.trace.resident import Resident

if TYPE_CHECKING:
    from ronde.parallel.servers.update import ServedUpdate

__all__ = ["ShardedState", "all_of"]


def all_of(contexts: Sequence[AbstractContextManager[object]]) -> AbstractContextManager[object]:
    """Return one context manager that enters several, the first outermost."""
    if len(contexts) == 1:
        return contexts[0]
    return _nested(contexts) if contexts else nullcontext()


@contextmanager
def _nested(contexts: Sequence[AbstractContextManager[object]]) -> Iterator[None]:
    with ExitStack() as stack:
        for each in contexts:
            stack.enter_context(each)
        yield


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardedState:
    """Shards of a strategy, possibly none.

    Attributes:
        parameters: stores of parameters; a store comes before the stores that are made of its parameters.
        gradients: stores of gradients.
        blocks: gradient store of the blocks of cut models; None without a cut model.
        update: sharded step of optimizers; None where each rank makes whole steps.
        saved: store of parameters saved by autograd; None where these are whole.
        building: hook that cuts models while they are built; None where parameters are whole.
    """

    parameters: Sequence[ShardedParameters] = ()
    gradients: Sequence[GradientShards] = ()
    blocks: BlockGradients | None = None
    update: ShardedUpdate | ServedUpdate | None = None
    saved: SavedParameters | None = None
    building: Building | None = None

    @property
    def residents(self) -> list[Resident]:
        """Stores that hold state outside of the script's tensors."""
        return [*self.gradients, *self.parameters]

    def has_gradient(self, tensor: torch.Tensor) -> bool:
        """Return whether a leaf has a gradient, perhaps in shards, without gathering it."""
        return gradient_of(tensor) is not None or any(tensor in each for each in self.gradients)

    def own(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return this rank's current blocks of some parameters, and the whole ones."""
        blocks = self.blocks
        if blocks is None:
            return parameters
        self.parameters[0].rest(keep_last=False)
        found = [each if (block := blocks.block(each)) is None else block.leaf for each in parameters]
        return [each for each in found if each.numel()]

    def parameters_of_leaves(self) -> dict[int, int]:
        """Map the id of each block's leaf to the id of its parameter."""
        known = () if self.blocks is None else self.blocks.blocks
        return {id(block.leaf): id(block.parameter.tensor) for block in known}

    def gathered(self, module: torch.nn.Module) -> AbstractContextManager[object]:
        """Hold a module's parameters whole inside the `with` block. A collective."""
        parameters = list(module.parameters())
        return all_of([each.holding(parameters) for each in self.parameters])

    def deferred(self) -> AbstractContextManager[None]:
        """Cut a model while it is built inside the `with` block."""
        return nullcontext() if self.building is None else self.building.deferred()

    def around_backward(self) -> AbstractContextManager[object]:
        """Surround a backward: parameters gathered inside are read, and not written."""
        return all_of([each.backward() for each in self.parameters])

    def before_step(self) -> None:
        """Release gathered parameters before the step of any optimizer, sharded or not."""
        for each in self.parameters:
            each.unpin()

    def settle(self) -> None:
        """Release parameters gathered on some ranks only, after an exception on all. A collective."""
        for each in self.parameters:
            each.settle()

    def install(self, patches: Patches, *, hooks_at_once: bool = True) -> None:
        """Install the patches that handle sharded parameters.

        Args:
            hooks_at_once: whether saved-tensor hooks start now; else a model's call starts them.
        """
        if self.update is not None:
            self.update.install(patches)
        if self.building is not None:
            self.building.install(patches)
        if self.saved is not None:
            for each in self.parameters:
                raw_memory_access.install(patches, each, self.saved)
            self.saved.install(patches, at_once=hooks_at_once)

    def uninstall(self) -> None:
        """Undo the effects of `install` besides its patches."""
        if self.saved is not None:
            self.saved.uninstall()

    def release(self) -> None:
        """Gather all shards for good. A collective."""
        if self.update is not None:
            self.update.release()
        for gradients in self.gradients:
            gradients.restore()
        for parameters in self.parameters:
            parameters.release()
        self.uninstall()
