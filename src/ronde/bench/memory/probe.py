"""Counts of a workload: `python -m ronde.bench.memory.probe WORKLOAD [RANKS DEVICE]`.

They are its sizes, or with ranks the bytes that autograd saves on the rank with most rows. Autograd shows
every tensor that it saves; ranks are measured by the allocator, another instrument. This is a process of its
own, because modules of workloads are found by their folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.data import DataLoader

from ronde.bench.contenders import FOLDER
from ronde.bench.memory.formula import Activations, Sizes
from ronde.parallel.compute.recompute import COSTLY
from ronde.patching.torch_internals import TorchDispatchMode, pytree
from ronde.policies.repeated_blocks import repeated_blocks
from ronde.policies.units import find_units

__all__ = ["main", "saved_by"]

# Numbers for each parameter that these optimizers keep.
_SLOTS = {"AdamW": 2, "SGD": 1}

_Storages = dict[int, int]


class _Saved:
    """Storages that autograd saves, each with its bytes, by the saving place.

    Attributes:
        model, loss: storages of a model with its blocks, and of the loss.
        blocks: storages of each repeated block.
        arguments: storages of the arguments of these blocks.
        results: storages of costly results inside blocks.
    """

    def __init__(self, model: nn.Module, batch: Iterable[Tensor]) -> None:
        self.model: _Storages = {}
        self.loss: _Storages = {}
        self.blocks: list[_Storages] = [{} for _ in repeated_blocks(model)]
        self.arguments: _Storages = {}
        self.results: _Storages = {}
        self._there = {_address(each) for each in (*model.parameters(), *model.buffers(), *batch)}
        # Kept alive, because reused memory would be counted once.
        self._held: list[Tensor] = []
        self._now: list[_Storages] = [self.loss]
        self._hooks = [
            hook
            for block, inside in zip(repeated_blocks(model), self.blocks, strict=True)
            for hook in self._around(block, inside)
        ]
        self._hooks += [
            model.register_forward_pre_hook(lambda *_: self._now.append(self.model)),
            model.register_forward_hook(self._leave),
        ]

    def _around(self, block: nn.Module, inside: _Storages) -> Iterator[Any]:
        def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
            for value in pytree.tree_leaves((args, kwargs)):
                if isinstance(value, Tensor):
                    self._note(value, self.arguments)
            self._now.append(inside)

        yield block.register_forward_pre_hook(enter, with_kwargs=True)
        yield block.register_forward_hook(self._leave)

    def _leave(self, *_: Any) -> None:
        self._now.pop()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        with saved_tensors_hooks(self._pack, lambda saved: saved), _Results(self._costly):
            yield
        for hook in self._hooks:
            hook.remove()

    def _pack(self, tensor: Tensor) -> Tensor:
        self._note(tensor, self._now[-1])
        return tensor.detach()

    def _costly(self, result: Any) -> None:
        if len(self._now) > 2:
            for value in pytree.tree_leaves(result):
                if isinstance(value, Tensor):
                    self._note(value, self.results)

    def _note(self, tensor: Tensor, where: _Storages) -> None:
        if tensor.layout is torch.strided and _address(tensor) not in self._there:
            self._held.append(tensor.detach())
            where[_address(tensor)] = tensor.untyped_storage().nbytes()


class _Results(TorchDispatchMode):
    """Mode that shows the results of costly operations."""

    def __init__(self, show: Callable[[Any], None]) -> None:
        super().__init__()
        self._show = show

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in COSTLY:
            self._show(result)
        return result


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _bytes(storages: _Storages, *without: _Storages) -> int:
    return sum(nbytes for place, nbytes in storages.items() if not any(place in each for each in without))


def saved_by(model: nn.Module, loss: Any, inputs: Tensor, targets: Tensor) -> Activations:
    """Count the tensors that `loss(model(inputs), targets)` saves."""
    saved = _Saved(model, (inputs, targets))
    with saved.watching():
        kept = loss(model(inputs), targets)
    narrow = _Saved(model, (inputs, targets))
    with narrow.watching():
        with torch.autocast(inputs.device.type, torch.bfloat16):
            output = model(inputs)
        kept = loss(output.float(), targets)
    del kept
    left = {**saved.model, **saved.loss, **saved.arguments}
    whole, whole_narrow = _joined(saved), _joined(narrow)
    return Activations(
        rows=len(inputs),
        gradients=sum(each.nbytes for each in model.parameters() if each.requires_grad),
        model=_bytes(whole, saved.loss),
        loss=_bytes(saved.loss),
        narrow=_bytes(whole_narrow),
        left=_bytes(left),
        results=_bytes(saved.results, left),
        largest=max((_bytes(each, left) for each in saved.blocks), default=0),
        rest=max((_bytes(each, left, saved.results) for each in saved.blocks), default=0),
    )


def _joined(saved: _Saved) -> _Storages:
    joined = {**saved.model, **saved.loss}
    for inside in saved.blocks:
        joined.update(inside)
    return joined


def main(name: str, *ranks_and_device: str) -> None:
    """Print `Sizes` or `Activations` as JSON."""
    sys.path.insert(0, str(FOLDER))
    workload = importlib.import_module("catalogue").CATALOGUE[name]
    counts = _activations(workload, *ranks_and_device) if ranks_and_device else _sizes(workload)
    sys.stdout.write(json.dumps(dataclasses.asdict(counts)) + "\n")


def _sizes(workload: Any) -> Sizes:
    model = workload.model()
    parameters = list(model.parameters())
    return Sizes(
        parameters=sum(each.numel() for each in parameters),
        largest_unit=max(sum(each.numel() for each in unit) for unit in find_units(model)),
        slots=_SLOTS[workload.optimizer.func.__name__],
        itemsize=parameters[0].itemsize,
    )


def _activations(workload: Any, ranks: str, device: str) -> Activations:
    torch.manual_seed(0)
    rows = -(-workload.batch_size // int(ranks))
    data = workload.data(rows)
    batch = data.draw(rows) if hasattr(data, "draw") else next(iter(DataLoader(data, rows)))
    inputs, targets = (each.to(device) for each in batch)
    return saved_by(workload.model().to(device), workload.loss, inputs, targets)


if __name__ == "__main__":
    main(*sys.argv[1:])
