"""Prints what plain torch keeps: `python -m ronde.bench.memory.saved_tensors WORKLOAD RANKS DEVICE`.

Autograd shows every tensor that it saves. So this is another instrument than the one that measures ranks,
which asks the allocator.
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
from ronde.bench.memory.activations import Activations
from ronde.parallel.recompute import COSTLY
from ronde.patching.torch_internals import TorchDispatchMode, pytree
from ronde.policies.repeated_blocks import repeated_blocks

__all__ = ["main", "saved_by"]

_Storages = dict[int, int]


class _Saved:
    """Storages that autograd saves, each with its bytes, by the place that saves them.

    Attributes:
        model, loss: by a model, blocks included, and by what comes behind it.
        blocks: by each repeated block.
        arguments: of these blocks.
        results: of what is costly to compute, inside them.
    """

    def __init__(self, model: nn.Module, batch: Iterable[Tensor]) -> None:
        self.model: _Storages = {}
        self.loss: _Storages = {}
        self.blocks: list[_Storages] = [{} for _ in repeated_blocks(model)]
        self.arguments: _Storages = {}
        self.results: _Storages = {}
        self._there = {_address(each) for each in (*model.parameters(), *model.buffers(), *batch)}
        # Memory that was freed would be given out again, and counted once.
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
    """Shows the results of what is costly to compute."""

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
    """What one forward pass of `loss(model(inputs), targets)` keeps."""
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


def main(name: str, ranks: str, device: str) -> None:
    sys.path.insert(0, str(FOLDER))
    workload = importlib.import_module("catalogue").CATALOGUE[name]
    torch.manual_seed(0)
    rows = -(-workload.batch_size // int(ranks))
    data = workload.data(rows)
    batch = data.draw(rows) if hasattr(data, "draw") else next(iter(DataLoader(data, rows)))
    inputs, targets = (each.to(device) for each in batch)
    activations = saved_by(workload.model().to(device), workload.loss, inputs, targets)
    sys.stdout.write(json.dumps(dataclasses.asdict(activations)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
