"""Sequence parallelism in a tensor group: tokens cut between cut products.

A row-parallel product ends with a sum over ranks, of which each rank takes its tokens (a reduce-scatter); the
next column-parallel product gathers them. So norms, dropout and residual additions are divided, and so are
their saved tensors (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
Models"). Both together send as many bytes as an all-reduce.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ronde.plan.mesh import SequenceParallel
from ronde.tensor.context import Context
from ronde.tensor.edges import Scatter, Share, SumRanks, gather_data
from ronde.tensor.global_tensor import GlobalTensor, gathered, wrap
from ronde.tensor.layout import Layout
from ronde.tensor.rules.common import enter, is_sharded
from ronde.tensor.rules.shapes import reshaped_layout
from ronde.tensor.shard import version_of

__all__ = ["TokenSharding"]

# Bytes of a whole value: below, the saved memory is not worth another message.
_LITTLE = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class _Used:
    """Input of column-parallel layers, kept for the next layer.

    Attributes:
        given: weak reference to this rank's part of the value.
        version: version of `given` at that time.
        whole: the value as it is used.
        rows: tokens of this rank, in the dtype of `whole`; None if every rank has the whole value.
        again: object that gathers these once more.
    """

    given: weakref.ref[torch.Tensor]
    version: int
    whole: torch.Tensor
    rows: torch.Tensor | None = None
    again: _RegatheredTokens | None = None

    def stands(self, given: torch.Tensor) -> bool:
        """Return whether a value is the kept one, unchanged."""
        wants = given.requires_grad and torch.is_grad_enabled()
        dtype = given.dtype if self.rows is None else _type_of_products(given)
        same = self.given() is given and self.version == version_of(given)
        return same and self.whole.requires_grad == wants and self.whole.dtype is dtype


class TokenSharding:
    """Policy for cutting tokens; one for the models of a tensor group.

    Args:
        way: setting of the plan; `auto` cuts values of a mebibyte and more on CUDA devices.
    """

    def __init__(self, way: SequenceParallel) -> None:
        self._way = way
        self._last: _Used | None = None
        # Layout of the tokens in the last input of column-parallel layers, with all axes but the last
        # flattened.
        self._cut: Layout | None = None

    def forget(self) -> None:
        """Forget the last used value at the end of a call."""
        self._last = self._cut = None

    def columns(
        self,
        context: Context,
        x: Any,
        weight: GlobalTensor,
        bias: torch.Tensor | None,
        product: Callable[..., torch.Tensor],
        *,
        flattened: bool = False,
    ) -> torch.Tensor:
        """Multiply the whole `x [..., in]` by this rank's columns.

        Args:
            weight: [out, in] cut along the first dimension, or [in, out] along the second.
            bias: bias of this rank's columns, [out].
            product: function of a whole `x`, columns and bias.
            flattened: whether the rows of an `x` of two axes are tokens of a batch.
        """
        block = weight._local
        assert block is not None
        self._cut = self._tokens_of(context, x, flattened=flattened)
        used = self._used(context, x)
        if used.rows is None:
            return product(used.whole, block, *(() if bias is None else (bias,)))
        matrix = block if weight._layout.dim == 0 else block.t()
        return _Columns.apply(used.whole, used.rows, _narrow(matrix), _narrow(bias), used.again)

    def _used(self, context: Context, x: Any) -> _Used:
        """Return the whole `x`.

        Consecutive layers with the same input share the gathered value, and its gradient.
        """
        cut = is_sharded(x, context) and x._layout.dim < x.dim() - 1
        given: Any = x._local if cut else gathered(x)
        if self._last is not None and self._last.stands(given):
            return self._last
        if cut:
            rows, again = _narrow(given), _RegatheredTokens(context, x._layout)
            used = _Used(weakref.ref(given), version_of(given), again.shared(rows), rows, again)
        else:
            used = _Used(weakref.ref(given), version_of(given), enter(context, given))
        # A value that is used without gathering need not be kept.
        self._last = None if used.whole is given else used
        return used

    def total(
        self, context: Context, summand: torch.Tensor, like: GlobalTensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Sum the ranks' summands `[..., out]`, and keep this rank's tokens, or all.

        Args:
            like: global tensor with the rules of the result.
            bias: whole, [out].
        """
        self._last, layout = None, self._layout_of(context, summand)
        if layout is None:
            whole: Any = SumRanks.apply(summand, context)
            return whole if bias is None else whole + bias
        rows: Any = Scatter.apply(summand, context, layout)
        return wrap(context, rows if bias is None else rows + enter(context, bias), layout, like._rules)

    def looked_up(self, context: Context, found: torch.Tensor, like: GlobalTensor) -> torch.Tensor:
        """Sum the ranks' results of a look-up, `[rows, tokens, width]`."""
        self._cut = self._tokens_of(context, found)
        return self.total(context, found, like)

    def _layout_of(self, context: Context, summand: torch.Tensor) -> Layout | None:
        """Return the cut of a sum's tokens: that of the last columns' input."""
        known, shape = self._cut, summand.shape[:-1]
        if known is None or self._way == "off" or known.size != math.prod(shape):
            return None
        # A CPU loses more time by the gather in backward than it gains by norms; Gloo sums everything on
        # every rank.
        if self._way == "auto" and (summand.nbytes < _LITTLE or not context.comm.on_cuda):
            return None
        return reshaped_layout([known.size], known, shape)

    def _tokens_of(self, context: Context, x: Any, *, flattened: bool = False) -> Layout | None:
        """Return the cut of the tokens of `x`, its axes but the last flattened.

        For a whole `x` it is the cut that ranks may use.
        """
        shape, found = x.shape[:-1], None
        if is_sharded(x, context):
            found = x._layout if x._layout.dim < len(shape) else None
        elif len(shape) > 1 or flattened:
            found = _first_cut(shape, context.world_size)
        return None if found is None else reshaped_layout(shape, found, [math.prod(shape)])


def _first_cut(shape: Sequence[int], ranks: int) -> Layout | None:
    """Return a cut of the first axis that ranks divide.

    In most models it is that of rows of the batch, or of tokens.
    """
    for dim, size in enumerate(shape):
        if size and size % ranks == 0:
            return Layout(dim, ranks, ranks, 1, size // ranks)
    return None


def _type_of_products(value: torch.Tensor) -> torch.dtype:
    """Return the dtype in which autocast multiplies a value."""
    kind = value.device.type
    if not torch.is_autocast_enabled(kind) or not value.is_floating_point() or value.dtype is torch.float64:
        return value.dtype
    return torch.get_autocast_dtype(kind)


def _narrow(value: Any) -> Any:
    return None if value is None else value.to(_type_of_products(value))


class _RegatheredTokens:
    """Gathers tokens for layers' columns, and again for all their weights' gradients."""

    def __init__(self, context: Context, layout: Layout) -> None:
        self._context, self._layout = context, layout
        self.uses = self._left = 0
        self._whole: torch.Tensor | None = None

    def shared(self, rows: torch.Tensor) -> torch.Tensor:
        """Gather the whole value, from which each rank then computes its part."""
        return Share.apply(rows, self._context, self._layout)

    def whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Gather the whole value in the backward of one of its uses."""
        if torch.is_grad_enabled():
            return self.shared(rows)
        if self._whole is None:
            self._whole, self._left = gather_data(self._context, rows, self._layout), self.uses
        whole, self._left = self._whole, self._left - 1
        if self._left <= 0:
            self._whole = None
        return whole


_Function: Any = torch.autograd.Function


class _Columns(_Function):
    """`F.linear` of a whole value; saves only this rank's tokens for backward."""

    @staticmethod
    def forward(
        ctx: Any,
        whole: torch.Tensor,
        rows: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        again: _RegatheredTokens,
    ) -> torch.Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.again = again
        again.uses += ctx.needs_input_grad[2]
        return F.linear(whole, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        rows, weight = ctx.saved_tensors
        of_whole, _, of_weight, of_bias, _ = ctx.needs_input_grad
        flat = grad.flatten(0, -2)
        return (
            grad @ weight if of_whole else None,
            None,
            flat.t() @ ctx.again.whole(rows).flatten(0, -2) if of_weight else None,
            flat.sum(0) if of_bias else None,
            None,
        )
