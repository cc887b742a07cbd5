"""Saved-tensor hooks that pack sharded parameters by location, so units can be freed.

Installed for the whole session, because any operation of a script may save a parameter. Hooks that are pushed
above these (by the script, a checkpoint) may keep the parameter that they are given, which may have no
elements by backward.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from ronde.patching.patches import Patches
from ronde.patching.torch_internals import (
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    saved_tensor_hooks,
)
from ronde.shards.sharded_parameters import ShardedParameters
from ronde.shards.unit import Member, Saved
from ronde.shards.untraced import untraced
from ronde.tensor.tensor_class import alike, own_class

__all__ = ["SavedParameters"]

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_hooks: Any = saved_tensor_hooks
_push: Callable[..., None] = _hooks._push_saved_tensors_default_hooks


@dataclasses.dataclass(frozen=True, slots=True)
class _MemoryPlace:
    """A tensor in a parameter's memory."""

    owner: ShardedParameters
    member: Member
    saved: Saved
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class SavedParameters:
    """Saved-tensor hooks: pack a parameter as its place, unpack by gathering it."""

    def __init__(self, *parameters: ShardedParameters) -> None:
        self._parameters = parameters
        self._installed = False

    def install(self, patches: Patches, *, at_once: bool = True) -> None:
        """Push the hooks below all hooks of the script.

        Args:
            at_once: whether to push now; else the first `begin` does, so that there is no cost where nothing
                is cut.
        """

        def push(pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], Any]) -> None:
            plain(pack, lambda packed: self.lasting(unpack(packed)))

        if at_once:
            self.push()
        plain = patches.set(_hooks, "_push_saved_tensors_default_hooks", push)

    def begin(self) -> bool:
        """Push the hooks; False while hooks of the script prevent it."""
        if not self._installed and _hooks._top_saved_tensors_default_hooks(True) is None:
            self.push()
        return self._installed

    def push(self) -> None:
        """Push the hooks on top of the stack."""
        _push(self._pack, self._unpack)
        self._installed = True

    def uninstall(self) -> None:
        """Pop the hooks if they are on top.

        Hooks that the script has pushed above them end with their own blocks.
        """
        if self._installed and self.on_top:
            _hooks._pop_saved_tensors_default_hooks()
            self._installed = False

    @property
    def on_top(self) -> bool:
        """Return whether the script has no hooks above these."""
        top = _hooks._top_saved_tensors_default_hooks(True)
        return top is not None and top[0] == self._pack

    def _pack(self, tensor: torch.Tensor) -> Any:
        with untraced():
            return self._packed(tensor)

    def _packed(self, tensor: torch.Tensor) -> Any:
        own = own_class(tensor) is not None
        if not (own or type(tensor) in _PLAIN) or tensor.layout is not torch.strided:
            return tensor
        owner, found = (None, None) if own else self._found(tensor)
        if owner is None or found is None:
            # Without its graph: an operation that saves its own result would otherwise hold itself for ever.
            with DisableTorchFunctionSubclass():
                return (tensor if tensor.grad_fn is None else alike(tensor.detach(), tensor),)
        member, _ = found
        place = tensor.size(), tensor.stride(), int(tensor.storage_offset()), tensor.dtype
        return _MemoryPlace(owner, member, member.save(), *place)

    def _found(self, tensor: torch.Tensor) -> tuple[ShardedParameters | None, tuple[Member, Any] | None]:
        for owner in self._parameters:
            found = owner.saved(tensor)
            if found is not None:
                return owner, found
        return None, None

    def lasting(self, value: Any) -> Any:
        """Apply `ShardedParameters.lasting` of each owner."""
        for owner in self._parameters:
            value = owner.lasting(value)
        return value

    def _unpack(self, packed: Any) -> torch.Tensor:
        if isinstance(packed, tuple):
            # A parameter that was whole when saved, such as a transposed one, may be sharded by now.
            return self.lasting(packed[0])
        if not isinstance(packed, _MemoryPlace):
            return packed
        owner, member, place = (
            packed.owner,
            packed.member,
            (packed.size, packed.stride, packed.offset, packed.dtype),
        )
        parameter = member.ref()
        with torch.no_grad(), DisableTorchFunction():
            if parameter is not None and member.covers(*place) and owner.left(member, parameter):
                # torch saves the parameter itself, so memory that it gets later counts, and a view with its
                # former memory.
                owner.touch([parameter])
                return parameter.detach()
            owner.need(member)
            return member.view(*place)
