"""Each rank updates its own part of the parameters, and all share the result.

Exact for optimizers that update every element by itself: for the time of its step, an optimizer's groups
hold views of this rank's elements instead of the parameters, and its state the entries of these views. What
a script sees before and after, its hooks included, is the single-device optimizer; its state is gathered when
it is read.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.optim import Optimizer

from ronde.errors import UsageError
from ronde.patching.patches import Patches
from ronde.patching.torch_internals import DisableTorchFunction
from ronde.shards.cut_state import CutParameter, CutState, StateInParts
from ronde.shards.elementwise import ELEMENTWISE, is_elementwise
from ronde.shards.hooked_step import replace_step
from ronde.shards.host_options import as_on_device, options_on_host
from ronde.shards.optimizer_shards import OptimizerShards
from ronde.shards.state_references import state_is_held
from ronde.tensor.context import Context, Region

__all__ = ["ShardedUpdate"]


class ShardedUpdate:
    """Sharded steps and sharded state of optimizers.

    Args:
        context: context with the ranks that share the work.
        held: shards of parameters and gradients.
        takes: function that returns whether to shard the steps of an optimizer with whole state.
        kinds: optimizers of which some can be cut.
        suits: whether one of them can be cut in its present state.
    """

    def __init__(
        self,
        context: Context,
        held: OptimizerShards,
        takes: Callable[[Any], bool],
        note: Callable[[str], None],
        kinds: Sequence[type[Optimizer]] = ELEMENTWISE,
        suits: Callable[[Any], bool] = is_elementwise,
    ) -> None:
        self._context = context
        self._kinds = kinds
        self._suits = suits
        self._note = note
        self._held = held
        self._takes = takes
        # Optimizers with sharded state, numbered in the order of their first cut, which is the same on all
        # ranks.
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._count = 0

    def install(self, patches: Patches) -> None:
        patches.add(Optimizer, "state", property(self._read, _write))
        for kind in self._kinds:
            replace_step(patches, kind, self._around)

    def release(self) -> None:
        """Make all state whole again. A collective."""
        here = {number: optimizer for optimizer, number in self._numbers.items()}
        everywhere = self._context.comm.all_gather_object(set(here))
        # An optimizer that is gone on one rank only is not collected there yet.
        for number in sorted(set.intersection(*everywhere)):
            self._read(here[number])

    def _read(self, optimizer: Any) -> Any:
        """Return the whole `optimizer.state`, gathering it if needed."""
        try:
            held = vars(optimizer)["state"]
        except KeyError:
            raise AttributeError(f"'{type(optimizer).__name__}' object has no attribute 'state'") from None
        if not isinstance(held, StateInParts):
            return held
        if not self._context.on_main_thread():
            raise UsageError(
                f"the state of {type(optimizer).__name__} is cut over the ranks, and was read in another "
                "thread than the script's main one, where ranks are not in step; read it in the main "
                "thread [R374]"
            )
        vars(optimizer)["state"] = as_on_device(optimizer, held.whole())
        return vars(optimizer)["state"]

    def _around(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def step(optimizer: Any, closure: Any = None) -> Any:
            if not self._applies(optimizer):
                return plain(optimizer, closure)
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            if self._held_somewhere(optimizer):
                plain(optimizer)
            else:
                self._step(optimizer, plain)
            return loss

        return step

    def _applies(self, optimizer: Any) -> bool:
        # Inside a model that runs on shards, ranks may have different parameters.
        if self._context.region is not Region.SCRIPT or not self._context.on_main_thread():
            return False
        if not self._suits(optimizer):
            return False
        return isinstance(vars(optimizer)["state"], StateInParts) or self._takes(optimizer)

    def _held_somewhere(self, optimizer: Any) -> bool:
        """Return whether the script still holds state that it read or loaded.

        It expects to see the state change: `load_state_dict` keeps the given tensors, and a script that loads
        them once more finds the values after later steps in them.
        """
        if isinstance(vars(optimizer)["state"], StateInParts):
            return False
        if self._context.comm.votes([state_is_held(optimizer)]) == [0]:
            return False
        self._note(
            f"the state of {type(optimizer).__name__} was whole on every rank for some steps, because the "
            "script kept a reference to state that it read or loaded; delete it, or keep a copy.deepcopy, "
            "so that the state is sharded again [R310]"
        )
        return True

    def _step(self, optimizer: Any, plain: Callable[..., Any]) -> None:
        self._held.begin_update()
        parameters = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        state = self._state(optimizer, parameters)
        pieces = state.present(parameters)
        vars(optimizer)["state"] = state.local
        try:
            with (
                options_on_host(optimizer) if self._held.home.on_host else nullcontext(),
                _own_parts(optimizer, state, pieces, self._held),
            ):
                plain(optimizer)
            _unscale_others(optimizer, pieces, self._held)
        finally:
            vars(optimizer)["state"] = state
        state.share(pieces)
        self._held.end_update([piece.tensor for piece in pieces])

    def _number(self, optimizer: Any) -> int:
        if optimizer not in self._numbers:
            self._count += 1
            self._numbers[optimizer] = self._count
        return self._numbers[optimizer]

    def _state(self, optimizer: Any, parameters: Sequence[torch.Tensor]) -> CutState:
        """Return the sharded state of all parameters with a gradient or a state."""
        state = vars(optimizer)["state"]
        if isinstance(state, CutState):
            new = [tensor for tensor in parameters if self._held.has_gradient(tensor)]
            if state.stands and state.admit(new):
                return state
            state = self._read(optimizer)
        self._number(optimizer)
        cut = vars(optimizer)["state"] = CutState(self._context.comm, state, self._held)
        cut.admit(each for each in parameters if self._held.has_gradient(each) or each in state)
        return cut


@contextmanager
def _own_parts(
    optimizer: Any, state: CutState, pieces: Sequence[CutParameter], held: OptimizerShards
) -> Iterator[None]:
    """Replace parameters in groups by this rank's shards, with gradients, in the `with` block.

    Both are at home, where the step runs.
    """
    home = held.home
    mine = [piece for piece in pieces if piece.own is not None]
    elements: list[Any] = [piece.elements for piece in mine]
    own: list[Any] = [piece.own for piece in mine]
    with DisableTorchFunction():  # operations of some ranks only must not gather anything
        gradients = [held.own_gradient(piece.tensor, piece.spec) for piece in mine]
        theirs = [home.lodge(gradient) for gradient in gradients]
        # At every step, because a script may write to parameters without a version change.
        home.down([*own, *theirs], [*elements, *gradients])
        for part, gradient in zip(own, theirs, strict=True):
            part.grad = gradient
    before = [group["params"] for group in optimizer.param_groups]
    try:
        for group in optimizer.param_groups:
            group["params"] = list(_swapped(group["params"], state))
        yield
    finally:
        for group, parameters in zip(optimizer.param_groups, before, strict=True):
            group["params"] = parameters
        for part in own:
            part.grad = None
    home.up(elements, own)
    if getattr(optimizer, "grad_scale", None) is not None:  # a fused step has unscaled it
        home.up(gradients, theirs)


def _unscale_others(optimizer: Any, pieces: Sequence[CutParameter], held: OptimizerShards) -> None:
    """Unscale the shards of other ranks, after a fused step has unscaled its own.

    A fused step divides gradients by GradScaler's scale in place.
    """
    scale = getattr(optimizer, "grad_scale", None)
    if scale is None:
        return
    divisor = torch.where(optimizer.found_inf > 0, torch.ones_like(scale), scale)
    with DisableTorchFunction():
        for piece in pieces:
            for each in held.gradient_beside(piece.tensor, piece.spec):
                each.div_(divisor)


def _swapped(parameters: Sequence[torch.Tensor], state: CutState) -> Iterator[torch.Tensor]:
    for tensor in parameters:
        piece = state.pieces.get(id(tensor))
        if piece is None:
            yield tensor
        elif piece.own is not None and piece.own.grad is not None:
            yield piece.own


def _write(optimizer: Any, state: Any) -> None:
    vars(optimizer)["state"] = state
