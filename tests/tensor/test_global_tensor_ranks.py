"""A global tensor behaves as the `torch.Tensor` that the script takes it for."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from both_ways import ROWS, Inputs, compare_all
from ronde.testing.run_ranks import Rank
from world_sizes import WORLD_SIZES


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x.sum(0)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * x.sum(0) + (grads[0] * x).sum(0)


def _scripted(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum(0) + 1


def _compiled_by_jit(x: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # scripts use it still
        return torch.jit.script(_scripted)(x)


def _saved(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def _hooked(m: Inputs) -> Any:
    x, seen = m.batch(ROWS, 3), []
    x.register_hook(lambda grad: seen.append(grad * 1))
    x.retain_grad()
    (x * x * m.leaf(3)).sum().backward()
    for leaf in m.leaves:
        leaf.tensor.grad = None
    return [*seen, x.grad]


def _watched_input(m: Inputs) -> Any:
    x = m.batch(ROWS, 3, grad=False)
    x.requires_grad_()
    before = (x.requires_grad, x.is_leaf, x.grad is None)
    loss = ((x * m.leaf(3)).sum(1) ** 2).mean()
    loss.backward()
    for leaf in m.leaves:
        leaf.tensor.grad = None
    return [before, x.grad, x.grad.sign(), x + 0.1 * x.grad.sign()]


def _delta(m: Inputs) -> Any:
    x = m.batch(ROWS, 3, grad=False)
    delta = torch.zeros_like(x, requires_grad=True)
    ((x + delta) ** 2).sum().backward()
    return [delta.grad, delta.is_leaf]


def _changed(change: Callable[[torch.Tensor], Any]) -> Callable[[Inputs], Any]:
    """Change a batch in place, then look at it in ways that keep it sharded and ways that do not."""

    def case(m: Inputs) -> Any:
        x = m.batch(ROWS, 3, grad=False)
        y = x.view(-1)
        result = change(x)
        returned = result if isinstance(result, torch.Tensor) else None
        same = [x.to("cpu"), x.to(torch.float32), x.type_as(y), x.cpu()]
        return [x * 1, x.sum(), y + 0, x[:, 1], x.mean(1), returned, *same]

    return case


def _written_after_a_use(x: torch.Tensor) -> None:
    array = x.numpy()
    (x * 2).sum().item()
    array[:, 0] = 3.0


def _no_gradient(function: Callable[[torch.Tensor, Inputs], Any]) -> Callable[[Inputs], Any]:
    return lambda m: function(m.batch(ROWS, 3, grad=False), m)


def _with_gradient(function: Callable[[torch.Tensor, Inputs], Any]) -> Callable[[Inputs], Any]:
    return lambda m: function(m.batch(ROWS, 3), m)


_IN_PLACE: dict[str, Callable[[torch.Tensor], Any]] = {
    "add_": lambda x: x.add_(1),
    "+=": lambda x: x.__iadd__(1),
    "*= tensor": lambda x: x.__imul__(torch.arange(3)),
    "row": lambda x: x.__setitem__(2, 0.0),
    "column": lambda x: x.__setitem__((slice(None), 1), 5.0),
    "mask": lambda x: x.__setitem__(x > 0.5, -1.0),
    "where its own": lambda x: x.__setitem__(x[:, 0] > 0.5, x[0].clone()),
    "column view": lambda x: x[:, 1].fill_(3.0),
    "row view": lambda x: x[3].mul_(2),
    "flattened view": lambda x: x.view(-1).mul_(2),
    "numpy": lambda x: x.numpy().fill(3.0),
    "numpy, forced": lambda x: x.numpy(force=True).fill(3.0),
    "numpy after a use": _written_after_a_use,
    "numpy of a column": lambda x: x[:, 1].numpy().fill(3.0),
    "numpy of a row": lambda x: x[3].numpy().fill(3.0),
    "numpy of rows": lambda x: [row.numpy().sort() for row in x],
    "numpy of a transposed view": lambda x: x.t().numpy().__setitem__(1, 3.0),
    "numpy of a detached one": lambda x: x.detach().cpu().numpy().fill(3.0),
    "array": lambda x: np.asarray(x).sort(),
    "written to by numpy": lambda x: np.multiply(x.numpy(), 2, out=x.numpy()),
    "from_numpy": lambda x: torch.from_numpy(x.numpy()).mul_(2),
    "dlpack": lambda x: torch.from_dlpack(x).mul_(2),
    "dlpack to numpy and back": lambda x: torch.from_dlpack(x.numpy()).mul_(2),
    "numpy of a copy": lambda x: x.clone().numpy().fill(3.0),
    "numpy of another type": lambda x: x.float().numpy().fill(3.0),
    "chained views": lambda x: x.t().unsqueeze(0)[0].clamp_(0.4, 0.5),
    "data": lambda x: x.data.clamp_(0.4, 0.6),
    "data of a view": lambda x: x[:, :2].data.zero_(),
    "detach": lambda x: x.detach().sub_(1),
    "contiguous": lambda x: x.contiguous().sub_(1),
    "contiguous copy": lambda x: x.t().contiguous().sub_(1),
    "reshape copy": lambda x: x.t().reshape(-1).sub_(1),
    "same type": lambda x: x.double().sub_(1),
    "other type": lambda x: x.float().sub_(1),
    "relu inplace": lambda x: F.relu(x.sub_(0.5), inplace=True),
    "relu inplace of a view": lambda x: F.relu(x[:, :2], inplace=True),
    "threshold inplace": lambda x: F.threshold(x, 0.5, 0.0, True),
    "dropout inplace": lambda x: F.dropout(x, 0.5, True, True),
    "out": lambda x: torch.add(x, 1, out=x),
    "normal_": lambda x: x.normal_(),
    "uniform_ of a copy": lambda x: x.clone().uniform_(-1, 1),
    "copy_": lambda x: x.copy_(torch.ones(ROWS, 3)),
    "into a plain one": lambda x: torch.zeros(ROWS, 3, dtype=x.dtype).copy_(x),
    "init": lambda x: nn.init.constant_(x, 2.0),
    "foreach": lambda x: torch._foreach_add_([x], 1.0),
    "unbound": lambda x: [row.zero_() for row in x.unbind()][-1],
    "iterated": lambda x: [row.zero_() for row in x][-1],
    "chunks": lambda x: x.chunk(2)[1].zero_(),
    "transposed property": lambda x: x.T.mul_(2),
    "scatter_": lambda x: x.scatter_(1, torch.zeros(ROWS, 1, dtype=torch.long), 9.0),
    "index_fill_": lambda x: x.index_fill_(0, torch.tensor([1, 4]), 7.0),
}

_CONVERSIONS: dict[str, Callable[[torch.Tensor, Inputs], Any]] = {
    "numpy": lambda x, m: [float(x.numpy().sum()), x.numpy().shape],
    "numpy forced": lambda x, m: x.numpy(force=True).tolist(),
    "tolist": lambda x, m: x.tolist(),
    "float": lambda x, m: [float(x[2, 1]), int(x[2, 1] * 10), bool(x[0, 0] > 0.5)],
    "item": lambda x, m: [x[0, 0].item(), x.sum().item(), x.max().item(), x[:, 0].max().item()],
    "bool": lambda x, m: bool((x > 0).all()),
    "pickle": lambda x, m: pickle.loads(pickle.dumps(x)),
    "deepcopy": lambda x, m: copy.deepcopy(x),
    "copy": lambda x, m: copy.copy(x),
    "deepcopy of a dict": lambda x, m: copy.deepcopy({"a": [x, x]})["a"],
    "repr": lambda x, m: [repr(x), str(x), f"{x}", f"{x.mean():.3f}", f"{x[0, 0]:.2e}"],
    "parameter": lambda x, m: [nn.Parameter(x).data, isinstance(nn.Parameter(x), nn.Parameter)],
    "torch.tensor": lambda x, m: torch.tensor(x.clone()),
    "torch.as_tensor": lambda x, m: [torch.as_tensor(x), torch.as_tensor(x, dtype=torch.float32)],
    "torch.tensor of numbers": lambda x, m: torch.tensor([x[0, 0], x[1, 1]]),
    "np.asarray": lambda x, m: np.asarray(x).tolist(),
    "np.array": lambda x, m: np.array(x).sum().item(),
    "np functions": lambda x, m: [np.mean(x.numpy()).item(), np.argmax(x, axis=1).tolist()],
    "save": lambda x, m: _saved(x),
    "save in a dict": lambda x, m: _saved({"x": x, "n": [x[0]]}),
    "buffer": lambda x, m: _buffer(x),
    "storage": lambda x, m: [x.data_ptr() != 0, x.storage_offset(), x.stride(), x.is_contiguous()],
    "new": lambda x, m: [x.new_zeros(2), x.new_tensor([1.0]), x.new_full((2,), 3.0), x.new_ones(x.shape)],
    "type": lambda x, m: [
        isinstance(x, torch.Tensor),
        torch.is_tensor(x),
        x.type(),
        x.dtype == torch.float64,
    ],
    "format": lambda x, m: f"{x.sum():.3f} {tuple(x.shape)}",
    "hash": lambda x, m: [x in {x: 1}, len({x, x})],
    "memory format": lambda x, m: x[None, None].contiguous(memory_format=torch.channels_last),
}


def _buffer(x: torch.Tensor) -> Any:
    module = nn.Module()
    module.register_buffer("kept", x)
    return [module.state_dict()["kept"], module.double().kept]


_SEQUENCES: dict[str, Callable[[torch.Tensor, Inputs], Any]] = {
    "len": lambda x, m: [len(x), x.shape[0], x.size(0), x.size(), x.numel(), x.ndim, x.nelement()],
    "iteration": lambda x, m: list(x),
    "unpacking": lambda x, m: [*x[:4]][:2],
    "zip": lambda x, m: [a * b for a, b in zip(x, x.flip(0), strict=True)],
    "enumerate": lambda x, m: [i * row for i, row in enumerate(x)],
    "in": lambda x, m: [0.5 in x, any(x is item for item in [x])],
    "reversed": lambda x, m: list(reversed(x)),
    "sum()": lambda x, m: sum(x),
    "max()": lambda x, m: max(x[:, 0]),
    "sorted": lambda x, m: sorted(x[:, 0].tolist()),
    "split": lambda x, m: [x.split(2), x.chunk(3), x.split([3, 4]), x.unbind(1), torch.tensor_split(x, 2)],
    "stack": lambda x, m: [torch.stack([x, x]), torch.stack([x, m.leaf(ROWS, 3)], 1)],
    "cat": lambda x, m: [torch.cat([x, x]), torch.cat([x, m.leaf(ROWS, 3)], 1), torch.cat([m.leaf(2, 3), x])],
    "cat of one": lambda x, m: [torch.cat([x]).mul_(2), torch.cat([x.new_empty(0), x]).mul_(2), x * 1],
    "cat with a wider empty vector": lambda x, m: torch.cat([x.new_empty(0), x.float()]).dtype,
    "cat by name": lambda x, m: [torch.cat(tensors=[x, x], dim=1), torch.cat([x, x], axis=1)],
    "cat of layouts": lambda x, m: torch.cat([x, m.batch(3, ROWS, dim=1).t(), m.inner(ROWS, 2)], -1),
    "stack of rows": lambda x, m: torch.stack([row.sum() for row in x]),
    "block": lambda x, m: [
        torch.hstack([x, x]),
        torch.vstack([x, x]),
        torch.atleast_3d(x),
        torch.block_diag(x[:2], x[2:]),
    ],
}

_INDEXING: dict[str, Callable[[torch.Tensor, Inputs], Any]] = {
    "row": lambda x, m: [x[0], x[-1], x[3], x[2, 1], x[6][2]],
    "rows": lambda x, m: [x[1:5], x[::2], x[-3:], x[:100], x[2:2]],
    "list": lambda x, m: [x[[0, 3]], x[[True, False] * 3 + [True]], x[[0, 1], [1, 2]]],
    "tensor": lambda x, m: [x[torch.tensor([5, 0])], x[torch.arange(ROWS), 1], x[:, torch.tensor([2, 0])]],
    "mask": lambda x, m: [x[x > 0.5], x[x[:, 0] > 0.5], x[m.values(ROWS) > 0.5], x[:, m.values(3) > 0.5]],
    "global index": lambda x, m: [
        x[m.batch(ROWS, low=0, high=ROWS, integer=True)],
        x[torch.arange(ROWS), x.argmax(1)],
    ],
    "plain by global": lambda x, m: [m.leaf(3, 2)[x.argmax(1)], m.leaf(3)[x.argmax(1)]],
    "numpy": lambda x, m: [x[np.array([1, 2])], x[np.int64(3)], x[:, np.int64(1)]],
    "bool": lambda x, m: [x[True], x[None, ..., None]],
    "several": lambda x, m: [x[None, :, None, 1:], x[..., 0], x[:, -1], x[:], x[()], x[..., None, :]],
    "select": lambda x, m: [
        x.select(0, 2),
        x.narrow(0, 1, 3),
        x.index_select(0, torch.tensor([1, 1])),
        x.take(x.long()),
    ],
    "masked_select": lambda x, m: [
        x.masked_select(x > 0.4),
        torch.masked_select(x, x[:1] > 0.4),
        (x > 0.5).nonzero(),
    ],
    "gather": lambda x, m: [
        x.gather(1, m.values(ROWS, 1, low=0, high=3, integer=True)),
        x.gather(dim=0, index=x.long()),
    ],
    "where one": lambda x, m: [
        torch.where(x > 0.5),
        torch.argwhere(x > 0.5),
        torch.nonzero(x > 0.4, as_tuple=True),
    ],
}

_OPERATIONS: dict[str, Callable[[torch.Tensor, Inputs], Any]] = {
    "named input": lambda x, m: [
        torch.flatten(input=x, start_dim=0),
        torch.reshape(input=x, shape=(-1,)),
        torch.unsqueeze(input=x, dim=0),
        torch.squeeze(input=x),
        torch.permute(input=x, dims=(1, 0)),
        torch.t(input=x),
        torch.sum(input=x, dim=1),
        torch.softmax(input=x, dim=1),
        torch.max(input=x, dim=1)[0],
        torch.add(input=x, other=1),
        torch.transpose(input=x, dim0=0, dim1=1),
        F.softmax(input=x, dim=-1),
        torch.clamp(input=x, min=0.4),
        F.mse_loss(input=x, target=x * 2),
        F.relu(input=x),
    ],
    "type as": lambda x, m: [
        torch.ones((), dtype=torch.int32).type_as(x),
        torch.ones(1, 3).type_as(x),
        torch.ones(2, 3).type_as(x),
        torch.ones(3).to(x),
        torch.ones(ROWS, 3).to(x),
        x.to(torch.ones(5, dtype=torch.float64)),
    ],
    "whole sums": lambda x, m: [
        x.sum(),
        x.sum(0),
        x.sum(0, True),
        x.sum((0, 1)),
        x.sum(dim=(0,), keepdim=True),
        x.sum(-2),
        x.mean(),
        x.mean(0),
        x.mean((0, 1), keepdim=True),
        x.mean(dim=0, dtype=torch.float64),
        torch.mean(x, -2),
        x.sum(axis=0),
        x.mean(axis=0, keepdims=True),
        (x > 0.5).sum(),
        (x > 0.5).sum(0),
        x.sum(dim=()),
        x.sum(dim=[]),
        x.detach().long().sum(),
    ],
    "statistics": lambda x, m: [
        x.std(),
        x.var(0),
        x.std(1),
        x.norm(),
        x.norm(dim=1),
        torch.linalg.norm(x),
        x.median(),
        x.max(),
        x.min(0),
        x.argmax(),
        x.argmax(0),
        torch.topk(x, 2, 0),
        x.sort(0),
        x.cumsum(0),
        x.softmax(0),
        x.logsumexp(0),
        x.prod(),
        torch.quantile(x, 0.5),
        x.max(x * 0.5),
        torch.max(x, x.flip(0)),
        x.all(),
        x.any(0),
        x.detach().unique(),
        x.detach().histc(4),
        x.kthvalue(2, 0),
        x.flip(0),
        x.amax(),
        x.amin((0, 1)),
        torch.cdist(x, x),
        torch.corrcoef(x.detach()),
    ],
    "products": lambda x, m: [
        x @ x.t(),
        x.t() @ x,
        x @ m.leaf(3, 2),
        m.inner(2, ROWS) @ x,
        torch.einsum("bi,bj->bij", x, x),
        torch.mm(x, m.leaf(3, 2)),
        F.linear(x, m.leaf(4, 3), m.leaf(4)),
        torch.outer(x[:, 0], x[:, 1]),
        F.cosine_similarity(x, x.flip(1)),
        F.pairwise_distance(x, m.leaf(ROWS, 3)),
        torch.bmm(x[:, None], x[:, :, None]),
        x.matmul(x[0]),
    ],
    "other layouts": lambda x, m: [
        x + m.batch(3, ROWS, dim=1).t(),
        x * m.batch(ROWS)[:, None],
        x[:, 0] + m.batch(ROWS),
        x.unsqueeze(1) - x.unsqueeze(0),
        x[:, :1] + m.batch(ROWS),
        x + m.batch(2, ROWS, 3, dim=1),
        m.batch(ROWS, 3) / x.sum(),
        x - x.mean(0),
        x / x.norm(dim=1, keepdim=True),
        torch.where(m.batch(ROWS, 1) > 0.5, x, m.inner(ROWS, 3)),
        torch.where(x > 0.5, m.leaf(3), m.inner(1)),
    ],
    "half means": lambda x, m: [
        (x.detach() * 0 + 60000).half().mean(),
        (x.detach() * 0 + 60000).half().mean(1),
        (x.detach() * 0 + 60000).half().mean(0),
        (x.detach() * 0 + 60000).half().mean(dtype=torch.float32),
    ],
    "expanding": lambda x, m: [
        x.expand(2, ROWS, 3),
        x.repeat(2, 1),
        x.repeat_interleave(2, 0),
        x.roll(1, 0),
        x.expand_as(x),
        x.broadcast_to(2, ROWS, 3),
        F.pad(x, (1, 1)),
        x.tile(2),
        x.diagonal(),
        x.tril(),
        torch.meshgrid(x[:, 0], x[0], indexing="ij"),
        x.T,
        x.mT,
        x.movedim(0, 1),
        x.view(1, ROWS * 3),
        x.view(3, ROWS),
        x.reshape(ROWS * 3),
        x.squeeze([0]),
        x.unflatten(0, (1, ROWS)),
        x.view(torch.int64),
    ],
    "function": lambda x, m: _Square.apply(x),
    "scripted": lambda x, m: _compiled_by_jit(x),
    "vmap": lambda x, m: [torch.vmap(lambda row: row * row.sum())(x), torch.vmap(torch.sin)(x)],
    "comparison": lambda x, m: [
        torch.equal(x, x * 1),
        torch.allclose(x, x + 1e-12),
        x.equal(x + 1),
        (x == x).all().item(),
    ],
    "out argument": lambda x, m: [
        torch.add(x.detach(), 1, out=torch.empty(ROWS, 3, dtype=torch.float64)),
        torch.cat([x.detach(), x.detach()], 1, out=torch.empty(ROWS, 6, dtype=torch.float64)),
        torch.sum(x.detach(), 0, out=torch.empty(3, dtype=torch.float64)),
    ],
    "interpolation": lambda x, m: [
        F.interpolate(x[None], scale_factor=2),
        F.one_hot(x.detach().long()),
        F.unfold(x[None, None], 2),
    ],
    "bincount": lambda x, m: [torch.bincount((x.detach()[:, 0] * 5).long()), torch.stack([x, x]).sum(0)],
    "inplace on a plain one": lambda x, m: [
        torch.zeros(ROWS, 3, dtype=x.dtype).add_(x.detach()),
        torch.zeros(2, dtype=x.dtype).index_add_(0, torch.arange(ROWS) % 2, x[:, 0]),
        torch.zeros(3, 3, dtype=x.dtype).index_put_((x.argmax(1),), x, accumulate=True),
    ],
    "foreach": lambda x, m: torch._foreach_mul([x, x * 2], 3.0),
    "checkpoint": lambda x, m: torch.utils.checkpoint.checkpoint(
        lambda y: (y * y.sum(0)).exp(), x, use_reentrant=False
    ),
}


def _func_cases() -> dict[str, Callable[[Inputs], Any]]:
    def per_sample(m: Inputs) -> Any:
        x, w = m.batch(ROWS, 3, grad=False), m.values(3)
        loss = lambda w, row: (w * row).sum() ** 2  # noqa: E731
        return torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x)

    def jacobian(m: Inputs) -> Any:
        x, w = m.batch(ROWS, 3, grad=False), m.values(3)
        return [
            torch.func.jacrev(lambda w: x @ w)(w),
            torch.func.grad(lambda w: (x @ w).sum())(w),
            torch.func.grad(lambda y: (y * y).sum())(x),
            torch.func.hessian(lambda w: (x * w).sum() ** 2)(w),
            torch.autograd.functional.jacobian(lambda w: x @ w, w),
            torch.autograd.functional.hessian(lambda y: (y**3).sum(), x)[0],
        ]

    return {"per-sample gradients": per_sample, "jacobians": jacobian}


def _single_rows(m: Inputs) -> Any:
    """A column of a batch of which no rank has more than one row."""
    results: list[Any] = []
    for rows in (2, 3):
        x = m.batch(rows, 4)
        column = x[:, 1]
        results += [
            column.tolist(),
            torch.from_numpy(column.detach().numpy()),
            torch.cat([column, column]),
            column.sort().values,
        ]
        results += [
            column[column > 0],
            (x[:, ::2] * 2)[0],
            x.t()[2].detach()[0].item(),
            x.detach().to(torch.complex128)[:, 3],
        ]
    return results


_GROUPS: dict[str, dict[str, Callable[[Inputs], Any]]] = {
    "in place": {name: _changed(change) for name, change in _IN_PLACE.items()},
    "conversions": {name: _no_gradient(case) for name, case in _CONVERSIONS.items()},
    "sequences": {name: _with_gradient(case) for name, case in _SEQUENCES.items()},
    "indexing": {name: _with_gradient(case) for name, case in _INDEXING.items()},
    "operations": {name: _with_gradient(case) for name, case in _OPERATIONS.items()},
    "functional": _func_cases(),
    "single rows": {"columns": _single_rows},
    "gradients": {"hooks": _hooked, "input gradient": _watched_input, "delta": _delta},
}


def _one(rank: Rank, group: str, names: list[str]) -> list[str]:
    return compare_all(rank, {name: _GROUPS[group][name] for name in names}, tolerance=1e-12)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize(("group", "name"), [(group, name) for group in _GROUPS for name in _GROUPS[group]])
def test_it_is_the_tensor_that_it_stands_for(ranks: Any, group: str, name: str, world_size: int) -> None:
    assert ranks(world_size, _one, group, [name]) == [[]] * world_size
