"""The way back from an observed call that must not be cut: what it changed is as before.

That is what the module's own tree and the variables that its code names hold: tensors, by copy on write, and
plain containers and objects; the random generators of torch, numpy and Python; and its arguments.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ronde.rowwise.generators import Generators
from ronde.rowwise.held import Held
from ronde.rowwise.labels import Marks, address
from ronde.rowwise.named import caches, variables

__all__ = ["Undo", "held_by"]


def held_by(module: torch.nn.Module) -> Held:
    """What a module and those in it hold, and the variables that their code names."""
    own = ((name, vars(part)) for name, part in module.named_modules())
    held = Held([*own, *variables(module)])
    # TorchScript keeps them elsewhere.
    known = {id(tensor) for _, tensor in held.tensors}
    held.tensors += [(name, tensor) for name, tensor in _own(module) if id(tensor) not in known]
    return held


def _own(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


class Undo:
    """What a call of a module may change, as it was before.

    Args:
        given: what it is given.

    Attributes:
        module: what the tree of modules holds.
        arguments: what the arguments hold.
        generators: as they were.
    """

    def __init__(self, module: torch.nn.Module, given: object) -> None:
        self._root, self._call = module, given
        self.module = held_by(module)
        self.arguments = Held([("", given)])
        self.generators = Generators(self.module.generators)
        held = self.module.tensors
        self._names = {address(tensor): name for name, tensor in reversed(held)}
        self._own = {address(tensor) for _, tensor in _own(module)}
        self._given = {address(tensor) for _, tensor in self.arguments.tensors}
        self._parameters = {address(each) for each in module.parameters()}
        self._objects = {id(tensor): f"its {kind(tensor)} {name}" for name, tensor in held}
        self._objects |= {id(tensor): "its argument" for _, tensor in self.arguments.tensors}
        self._gradients = [(each, each.grad) for _, each in held if each.is_leaf]
        self._caches = [(each, each.cache_info()) for each in caches(module)]
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """What the memory that a tensor lies in is called, where the module holds it."""
        return self._names.get(address(tensor))

    def is_given(self, tensor: torch.Tensor) -> bool:
        """Whether it lies in the memory of an argument."""
        return address(tensor) in self._given

    def is_own(self, tensor: torch.Tensor) -> bool:
        """Whether it lies in the memory of a parameter, a buffer or an argument."""
        return address(tensor) in self._own or self.is_given(tensor)

    def is_parameter(self, tensor: torch.Tensor) -> bool:
        """Whether it lies in the memory of a parameter of the module's."""
        return address(tensor) in self._parameters

    def called(self, tensor: torch.Tensor) -> str | None:
        """What a tensor of the module's, or an argument, is called: this one, whatever lies in its memory."""
        return self._objects.get(id(tensor))

    def keep(self, written: Iterable[torch.Tensor], marks: Marks) -> None:
        """Before they are written to: copies of those that were there before the call."""
        for tensor in written:
            place = address(tensor)
            if place and place not in self._before and not marks.is_new(tensor):
                self._before[place] = tensor, _whole(tensor).clone()

    def anew(self) -> Undo:
        """The same from here on."""
        return Undo(self._root, self._call)

    def changed_tensor(self) -> str:
        """A tensor that was there before and is written to, or the name of one that was not; "" for none."""
        known = {id(tensor) for _, tensor in self.module.tensors}
        for tensor, _ in self._before.values():
            return self.name_of(tensor) or "a tensor that is none of its own"
        return next((name for name, tensor in held_by(self._root).tensors if id(tensor) not in known), "")

    def has_gradients(self) -> bool:
        """Whether a gradient was added to one of the module's tensors."""
        return any(tensor.grad is not before for tensor, before in self._gradients)

    def unwind(self) -> None:
        """All as before the call."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for tensor, before in self._before.values():
                _whole(tensor).copy_(before)
            for tensor, gradient in self._gradients:
                if tensor.grad is not gradient:
                    tensor.grad = gradient
        for function, before in self._caches:
            if function.cache_info() != before:
                function.cache_clear()
        self.module.restore()
        self.arguments.restore()
        self.generators.restore()


def kind(tensor: torch.Tensor) -> str:
    return "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of the memory that it lies in, without autograd's knowing."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
