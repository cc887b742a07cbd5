"""A rule of one's own: `cosine_similarity` of two global tensors, row by row, stays sharded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ronde.tensor import rules as built_in
from ronde.tensor.context import Context
from ronde.tensor.global_tensor import Rule, cut, materialize, wrap
from ronde.tensor.rules.common import functions, is_sharded
from ronde.tensor.rules.reductions import dimensions, finish
from ronde.testing.run_ranks import Rank


# the rule
def cosine(context: Context, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Each row by itself, as long as the similarity is not taken along the batch."""
    if len(args) < 2 or not (is_sharded(args[0], context) and is_sharded(args[1], context)):
        return NotImplemented
    first, second = args[0], args[1]
    if first._layout != second._layout or first.dim() != second.dim():
        return NotImplemented
    dims = dimensions(first, kwargs.get("dim", args[2] if len(args) > 2 else 1))
    if first._layout.dim in dims:
        return NotImplemented
    local = func(first._local, second._local, *args[2:], **kwargs)
    return finish(context, first, local, dims, keepdim=False)


def rules() -> dict[Any, Rule]:
    return dict.fromkeys(functions(["cosine_similarity"]), cosine)


# the check
ROWS = 7


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, ROWS, 3, generator=generator, dtype=torch.float64)
    return x.requires_grad_(), y


def plain() -> tuple[torch.Tensor, torch.Tensor]:
    """Similarities and the gradient of their sum, in plain torch."""
    x, y = inputs()
    similarity = F.cosine_similarity(x, y)
    similarity.sum().backward()
    assert x.grad is not None
    return similarity.detach(), x.grad


def on_ranks(rank: Rank) -> tuple[bool, torch.Tensor, torch.Tensor]:
    """The same on this rank's rows, and whether the similarities stayed sharded."""
    with rank.session() as session:
        x, y = inputs()
        layout = session.context.layout(0, ROWS)
        table = {**built_in.table(), **rules()}
        a, b = (wrap(session.context, cut(session.context, value, layout), layout, table) for value in (x, y))
        similarity = F.cosine_similarity(a, b)
        kept = is_sharded(similarity, session.context)
        similarity.sum().backward()
        assert x.grad is not None
        return kept, materialize(similarity).detach(), x.grad
