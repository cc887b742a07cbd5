"""Counter of dispatched operations in forward, by part of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ronde.patching.patches import Patches
from ronde.patching.stacks import MODULE_CALL
from ronde.patching.torch_internals import TorchDispatchMode, current_graph_task_id, pytree
from ronde.policies.expert_structure import mixtures
from ronde.policies.repeated_blocks import repeated_blocks
from ronde.runtime.costs.amounts import ForwardAmounts, Product
from ronde.runtime.costs.divided import Cut, DividedValues, key_of
from ronde.runtime.costs.fakes import answer, is_real, really

__all__ = ["Counter"]

_aten = torch.ops.aten
_PRODUCTS = {_aten.mm.default: (0, 1), _aten.addmm.default: (1, 2)}
_BATCHED = {_aten.bmm.default: (0, 1), _aten.baddbmm.default: (1, 2)}
_ATTENTION = {
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
}
FIRST, LAST = "first", "last"


class Counter(TorchDispatchMode):
    """Dispatch mode with hooks that track the part of the model that runs.

    Attributes:
        first, last, blocks: parts before repeated blocks, after them, and these.
        heads, tokens, rows: of attention, of a sample, of a batch; 0 where none were seen.
        experts: the number of experts of the largest mixture; 1 without.
        gives_loss: whether the model returned its loss.
    """

    def __init__(self, *, real: bool) -> None:
        super().__init__()
        self._real = real
        self.first, self.last = ForwardAmounts(), ForwardAmounts()
        self.blocks: list[ForwardAmounts] = []
        self.heads = self.tokens = self.rows = 0
        self.experts = 1
        self.gives_loss = False
        self.model: nn.Module | None = None
        self._places: dict[nn.Module, ForwardAmounts] = {}
        self._now = self.first
        self._inside = 0
        self._seen: dict[int, Tensor] = {}
        # Kept alive, because an address that is reused would be taken for a result.
        self._made: dict[int, Tensor] = {}
        self._divided = DividedValues()
        self._width = 0
        # Rows of products by mixture and size of the weights.
        self._routed: dict[int, str] = {}
        self._rows_routed: dict[tuple[int, str], dict[tuple[int, int], float]] = {}
        # Rows of the call that runs.
        self._rows = 0
        self.counting = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._real:
            result = func(*args, **kwargs)
        elif is_real(args, kwargs):
            result = really(func, args, kwargs)
        elif func is _aten._local_scalar_dense.default:
            return answer(args[0])
        else:
            result = func(*args, **kwargs)
        if self.counting and current_graph_task_id() == -1:
            self._count(func, args, result)
        return result

    def _count(self, func: Any, args: Any, result: Any) -> None:
        part = self._now
        if func in _PRODUCTS:
            left, right = (args[place] for place in _PRODUCTS[func])
            cut = self._divided.multiplied(right, result)
            self._product(part, left.shape[0], right.shape[1], left.shape[1], cut)
            self._route(part, right, left.shape[0])
            self._note_results(result)
        elif func is _aten.convolution.default:
            weight = args[1]
            rows = result.numel() // result.shape[1]
            self._product(part, rows, weight.shape[0], weight.numel() // weight.shape[0], "whole")
            self._divided.computed(func, args, result)
            self._note_results(result)
        elif func in _BATCHED:
            left, right = (args[place] for place in _BATCHED[func])
            part.attention_flops += 2.0 * left.numel() * right.shape[2]
            part.head_size = part.head_size or int(left.shape[2])
            if not self.heads and self._rows and left.shape[0] % self._rows == 0:
                self.heads = int(left.shape[0]) // self._rows
            part.attention_divided |= self._divided.computed(func, args, result)
            self._note_results(result)
        elif func in _ATTENTION:
            query, key, value = args[:3]
            part.attention_flops += 4.0 * query.numel() * key.shape[2]
            part.keys += key.numel() + value.numel()
            part.head_size = int(query.shape[3])
            self.heads = int(query.shape[1])
            part.attention_divided |= self._divided.computed(func, args, result)
            self._note_results(result)
        elif not func.is_view and func.namespace != "prim" and func is not _aten.detach.default:
            tensors = [each for each in pytree.tree_leaves((args, result)) if isinstance(each, Tensor)]
            moved = sum(each.numel() for each in tensors)
            part.moved += moved
            part.moved_cut += moved * self._divided.computed(func, args, result)
            part.kernels += 1

    def _product(self, part: ForwardAmounts, rows: int, n: int, k: int, cut: Cut) -> None:
        new = Product(int(rows), int(n), int(k), cut)
        for known in part.products:
            if (known.rows, known.n, known.k, known.cut) == (new.rows, new.n, new.k, new.cut):
                known.count += 1
                return
        part.products.append(new)

    def _route(self, part: ForwardAmounts, weight: Tensor, rows: int) -> None:
        """Count rows for experts, by their product that has fewest."""
        mixture = self._routed.get(key_of(weight))
        if mixture is not None:
            sizes = self._rows_routed.setdefault((id(part), mixture), {})
            size = (int(weight.shape[0]), int(weight.shape[1]))
            part.routed -= min(sizes.values(), default=0.0) * self._width
            sizes[size] = sizes.get(size, 0.0) + rows
            part.routed += min(sizes.values()) * self._width

    def _note_results(self, result: Any) -> None:
        for each in pytree.tree_leaves(result):
            if isinstance(each, Tensor):
                self._made[key_of(each)] = each.detach()

    def pack(self, tensor: Tensor) -> Tensor:
        """Count a tensor that autograd keeps, each storage once.

        The storage is kept alive, so that its address is not reused.
        """
        if self.counting and tensor.layout is torch.strided and not isinstance(tensor, nn.Parameter):
            key = key_of(tensor)
            if key not in self._seen:
                self._seen[key] = tensor.detach()
                self._keep(tensor, key)
        return tensor.detach()

    def know(self, tensors: Iterator[Tensor]) -> None:
        """Register tensors that are not counted: parameters, buffers, the batch."""
        for tensor in tensors:
            if tensor.layout is torch.strided:
                self._seen.setdefault(key_of(tensor), tensor.detach())

    def _keep(self, tensor: Tensor, key: int) -> None:
        part = self._now
        size = tensor.untyped_storage().nbytes()
        part.saved_bytes += size
        divided = self._divided.has(tensor)
        if not tensor.dtype.is_floating_point or tensor.itemsize == 1:
            part.masks += size
            part.masks_cut += size * divided
            return
        values = size / tensor.itemsize
        part.saved += values
        part.saved_cut += values * divided
        if key in self._made:
            part.results += values

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count the forward of every module inside the block, from the first model on."""

        def around(plain: Callable[..., Any]) -> Callable[..., Any]:
            def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
                # Global module hooks do not get keyword arguments.
                self._enter(module, (args, kwargs))
                output = None
                try:
                    output = plain(module, *args, **kwargs)
                finally:
                    self._leave(module, output)
                return output

            return call

        patches = Patches()
        patches.layer(MODULE_CALL, "costs", around)
        try:
            with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda saved: saved):
                yield
        finally:
            patches.restore()

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not self.counting or current_graph_task_id() != -1:
            return
        self._inside += 1
        if self.model is None and torch.is_grad_enabled() and next(module.parameters(), None) is not None:
            self._begin(module)
        if module is self.model:
            self._batch(args)
        if module in self._places:
            self._now = self._places[module]
            self._width = next((int(each.shape[-1]) for each in _tensors(args) if each.dim()), 0)
            self._now.calls += 1

    def _leave(self, module: nn.Module, output: Any) -> None:
        if not self.counting or current_graph_task_id() != -1:
            return
        self._inside -= 1
        tensors = [each for each in pytree.tree_leaves(output) if isinstance(each, Tensor)]
        if module is self.model:
            self.gives_loss |= any(each.dim() == 0 and each.requires_grad for each in tensors)
            # The output may be a custom object or a loss, so the rows are first looked for in the batch.
            self.rows += self._rows or next((int(each.shape[0]) for each in tensors[:1] if each.dim()), 0)
        if module in self._places and tensors:
            self._places[module].output = float(tensors[0].numel())
            self._now = self.last
        elif module is self.model and not self._places:
            self._now = self.last

    def _begin(self, module: nn.Module) -> None:
        self.model = module
        # Operations before this belong to the construction of the model.
        self.first = self._now = ForwardAmounts()
        found = repeated_blocks(module)
        self.blocks = [ForwardAmounts() for _ in found]
        self._places = dict(zip(found, self.blocks, strict=True))
        owners: dict[int, ForwardAmounts] = {}
        for block, part in self._places.items():
            for each in block.parameters():
                owners.setdefault(id(each), part)
        seen = False
        for part_module in module.modules():
            seen = seen or part_module in self._places
            for each in part_module.parameters(recurse=False):
                owners.setdefault(id(each), self.last if seen else self.first)
        for each in module.parameters():
            owners[id(each)].parameters += each.numel()
        for mixture in mixtures(module, 1):
            self.experts = max(self.experts, mixture.count)
            for each, _ in mixture.parameters:
                owners[id(each)].parameters_routed += each.numel()
                self._routed[key_of(each)] = mixture.name
        tables = {id(each.weight) for each in module.modules() if isinstance(each, nn.Embedding)}
        for each in self._divided.know(module):
            if key_of(each) not in self._routed:
                owners[id(each)].parameters_cut += each.numel()
                owners[id(each)].tables += each.numel() * (id(each) in tables)
        self.know(iter(module.parameters()))
        self.know(iter(module.buffers()))

    def _batch(self, args: Any) -> None:
        self._rows = 0
        tensors = [each for each in pytree.tree_leaves(args) if isinstance(each, Tensor) and each.dim()]
        if not tensors:
            return
        self.know(iter(tensors))
        self._rows = int(tensors[0].shape[0])
        # Labels or lengths may come first.
        words = next((each for each in tensors if each.dim() == 2 and not each.dtype.is_floating_point), None)
        if words is None or tensors[0].dtype.is_floating_point:
            self.tokens = 1
        else:
            self.tokens = int(words.shape[1])


def _tensors(given: Any) -> list[Tensor]:
    return [each for each in pytree.tree_leaves(given) if isinstance(each, Tensor)]
