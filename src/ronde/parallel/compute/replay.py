"""Checkpointed execution of a part of a model, with its state restored.

torch's checkpoints handle random draws and autocast. They leave to the user: parameters that were swapped in
for one call (`functional_call`), attributes, buffers and variables that the forward changes, and modes that
the script changes before backward. These are handled here. Former values of changed parameters cannot be
restored: that is an error.
"""

from __future__ import annotations

import io
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.utils.checkpoint

from ronde.errors import UsageError
from ronde.modules.recompute import as_it_is
from ronde.modules.referenced_globals import NamedPlace, contents, named_places
from ronde.parallel.compute.kept_results import Keeping, ReplayedResults
from ronde.patching.thread_stream import redirected
from ronde.rowwise.generators import States
from ronde.rowwise.undo import ContainerSnapshot
from ronde.tensor.global_tensor import GlobalTensor
from ronde.tensor.tensor_class import alike
from ronde.tensor.tree import Opaque, leaves, map_leaves

__all__ = ["Replay"]

# Number of elements up to which a tensor is copied at no cost.
_SMALL = 1 << 12

Contents = list[tuple[torch.Tensor, torch.Tensor]]


class Replay:
    """Runs parts of models with recomputation in backward.

    Args:
        asked: plan item for which this is done, for errors.
        again: callback whenever a part has been recomputed.
    """

    def __init__(self, asked: str, again: Callable[[], object] = lambda: None) -> None:
        self._asked = asked
        self._again = again
        self._places: weakref.WeakKeyDictionary[torch.nn.Module, list[NamedPlace]] = (
            weakref.WeakKeyDictionary()
        )

    def outside(self, module: torch.nn.Module) -> list[tuple[str, Any]]:
        """Return the variables that its code names, with their values."""
        return contents(self._places_of(module))

    def _places_of(self, module: torch.nn.Module) -> list[NamedPlace]:
        places = self._places.get(module)
        if places is None:
            places, _ = named_places(module)
            self._places[module] = places
        return places

    def __call__(
        self, module: torch.nn.Module, function: Callable[..., Any], values: Sequence[Any], *, draws: bool,
        kept: Collection[Any] = (),
    ) -> Any:  # fmt: skip
        """Run `function(*values)` with recomputation in backward.

        Args:
            module: module with the parameters and attributes that `function` uses.
            draws: whether it may draw random numbers from torch's default generators.
            kept: operations whose results are kept.
        """
        asked, again = self._asked, self._again
        moment = _Moment(module, asked, self._places_of(module))
        results: list[Any] = []
        # A layer that works in place may change its arguments.
        in_place = any(_is_in_place(part) for part in module.modules())
        originals = list(values)
        held = [_another(value, in_place) for value in values]
        before = [(tensor, tensor._version) for tensor in _tensors(held)]
        first = True
        failed: list[Exception] = []

        def carried_out(*_: Any) -> Any:
            nonlocal first
            if not first:
                if any(tensor._version != version for tensor, version in before):
                    raise UsageError(
                        f"an argument of {type(module).__name__} was changed in place between its forward "
                        f"and its backward, and {asked} computes it again from that in backward; change a "
                        f"copy, or leave {asked} out of the plan [R379]"
                    )
                with moment.restored(), ReplayedResults(kept, results) if kept else nullcontext():
                    try:
                        return function(*(_another(value, in_place) for value in held))
                    finally:  # torch stops the recomputation as soon as it has all that backward needs
                        again()
            first = False
            try:
                return forward()
            except Exception as error:  # raised inside, torch before 2.12 would continue to record
                failed.append(error)

        def forward() -> Any:
            with Keeping(kept, results) if kept else nullcontext():
                result = function(*originals)
            originals.clear()
            moment.passed()
            if any(tensor._version != version for tensor, version in before):
                raise UsageError(
                    f"{type(module).__name__} changes its argument in place, and {asked} computes it again "
                    f"in backward from that argument; let it change a copy, or leave {asked} out of the "
                    "plan [R379]"
                )
            return result

        # torch finds the devices in use by the arguments, and keeps these.
        given = [torch.empty(0, dtype=tensor.dtype, device=tensor.device) for tensor, _ in before]
        # Looked up by name, because the boundary has replaced it by a function that continues in the same
        # region.
        checkpoint: Any = torch.utils.checkpoint.checkpoint
        result = checkpoint(carried_out, *given, use_reentrant=False, preserve_rng_state=draws)
        if failed:
            raise failed.pop()
        return result


class _World:
    """Current state of a module, of variables that its code names, and of generators."""

    def __init__(self, module: torch.nn.Module, places: Sequence[NamedPlace]) -> None:
        self._variables = [(place, place.read()) for place in places]
        self._held = (
            ContainerSnapshot.by(module),
            ContainerSnapshot((place.name, value) for place, value in self._variables),
        )
        self._generators = States.of_hosts(each for held in self._held for each in held.generators)

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for held in self._held for _, tensor in held.tensors]

    def restore(self) -> None:
        for place, value in self._variables:
            if place.read() is not value:
                place.put(value)
        for held in self._held:
            held.restore()
        self._generators.restore()


class _Moment:
    """State of a module at its call."""

    def __init__(self, module: torch.nn.Module, asked: str, places: Sequence[NamedPlace]) -> None:
        self._module, self._places = module, places
        self._name = type(module).__name__
        self._asked = asked
        parts = list(module.modules())
        self._world = _World(module, places)
        held = [value for part in parts for value in part._buffers.values() if value is not None]
        known: list[torch.Tensor] = list(module.parameters())
        own = {id(tensor) for tensor in (*held, *known)}
        held += [each for each in self._world.tensors() if id(each) not in own and not each.is_inference()]
        self._changed: Contents = [(buffer, buffer.detach().clone()) for buffer in held]
        self._unchanged: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self._versions = [(tensor, tensor._version) for tensor in map(_at_hand, known)]

    def passed(self) -> None:
        """Drop copies of large tensors that the forward pass has not changed."""
        held, self._changed = self._changed, []
        for tensor, before in held:
            if not _same(tensor, before):
                self._changed.append((tensor, before))
            elif before.numel() <= _SMALL:
                self._unchanged.append((tensor, before, tensor._version))
            else:
                self._versions.append((tensor, tensor._version))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the state of the call inside the `with` block, the current state after."""
        if any(tensor._version != version for tensor, version in self._versions):
            raise UsageError(
                f"parameters or tensors of {self._name} were changed in place between its forward and its "
                f"backward, and {self._asked} computes it again in backward; change them after backward, or "
                f"leave {self._asked} out of the plan [R379]"
            )
        changed = [
            (tensor, value) for tensor, value, version in self._unchanged if tensor._version != version
        ]
        changed += self._changed
        contents: Contents = [(tensor, tensor.detach().clone()) for tensor, _ in changed]
        now = _World(self._module, self._places)
        self._world.restore()
        _put(changed)
        try:
            # It has printed its output already.
            with redirected("stdout", io.StringIO()), redirected("stderr", io.StringIO()):
                yield
        finally:
            now.restore()
            _put(contents)


def _put(contents: Contents) -> None:
    for tensor, value in contents:
        # By `.data`: versions stay, so graphs that use the buffer remain valid.
        tensor.data.copy_(value)


def _is_in_place(part: torch.nn.Module) -> bool:
    """Return whether a module works in place; its `__getattr__` is not called."""
    return bool(vars(part).get("inplace", getattr(type(part), "inplace", False)))


def _another(value: Any, copied: bool) -> Any:
    """Return an argument with copied lists and dicts.

    Args:
        copied: whether to copy tensors too.
    """

    def leaf(value: Any) -> Any:
        if copied and isinstance(value, torch.Tensor):
            return alike(value.clone(), value)
        return as_it_is(value)

    return map_leaves(leaf, value, always=True)


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    try:
        found = list(leaves(list(values)))
    except Opaque:  # an opaque object's tensors are not checked
        found = values
    tensors = [_at_hand(value) for value in found if isinstance(value, torch.Tensor)]
    return [tensor for tensor in tensors if not tensor.is_inference()]


def _at_hand(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a global tensor, without gathering it."""
    local = tensor._local if isinstance(tensor, GlobalTensor) else None
    return tensor if local is None else local


def _same(tensor: torch.Tensor, before: torch.Tensor) -> bool:
    return tensor.shape == before.shape and torch.equal(tensor, before)
