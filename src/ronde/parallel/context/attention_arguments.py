"""Detection of token axes among arguments, in an observed call.

A sequence may begin inside of a model, as patches of an image that a convolution makes. Modules with
attention then receive it as `[rows, tokens, ...]` or `[tokens, rows, ...]`.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from ronde.patching.torch_internals import DisableTorchFunction
from ronde.tensor.tree import Opaque, leaves

__all__ = ["AttendedTokens", "AttentionCalls", "Site", "sites"]

Site = tuple[int | str, int]
"""Leaf among arguments: position or name of the argument, and index of the leaf in it."""


@dataclasses.dataclass(slots=True)
class AttendedTokens:
    """Attention in a model.

    Attributes:
        given: leaves of arguments with the tokens and their token axis, by module with attention.
        causal: whether some attention calls are causal.
        lost: class of a module, and number of entries that it attends to, if no argument has the tokens.
    """

    given: weakref.WeakKeyDictionary[nn.Module, dict[Site, int]]
    causal: bool = False
    lost: tuple[str, int] | None = None

    @staticmethod
    def none() -> AttendedTokens:
        return AttendedTokens(weakref.WeakKeyDictionary())


def sites(args: Any, kwargs: Any) -> Iterator[tuple[Site, Any]]:
    """Yield the leaves of arguments; an argument that cannot be taken apart has none."""
    for key, value in (*enumerate(args), *kwargs.items()):
        try:
            yield from (((key, number), leaf) for number, leaf in enumerate(list(leaves(value))))
        except Opaque:
            continue


class AttentionCalls(TorchFunctionMode):
    """Detects attention: torch's own, or scores `[..., n, n]` of two activations.

    Args:
        tokens: object to which findings are added.

    Attributes:
        seen: whether attention was found.
    """

    def __init__(self, tokens: AttendedTokens) -> None:
        super().__init__()
        self.seen = False
        self._tokens = tokens
        self._around: list[tuple[nn.Module, list[tuple[Site, tuple[int, ...]]]]] = []

    @contextmanager
    def calling(self, module: nn.Module, args: Any, kwargs: Any) -> Iterator[None]:
        """Surround the call of the model, or of one of its modules."""
        shapes = [
            (site, _shape(leaf)[:2])
            for site, leaf in sites(args, kwargs)
            if isinstance(leaf, torch.Tensor) and leaf.dim() >= 2
        ]
        self._around.append((module, shapes))
        try:
            yield
        finally:
            self._around.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            causal = bool((kwargs or {}).get("is_causal", args[5:6] == (True,)))
            self._tokens.causal = self._tokens.causal or causal
            query = args[0] if args else (kwargs or {})["query"]
            self._attends(_shape(query)[0], _shape(query)[-2])
        if func is F.multi_head_attention_forward and args[0].dim() == 3:
            self._attends(_shape(args[0])[1], _shape(args[0])[0])
        made = func(*args, **(kwargs or {}))
        if func in _PRODUCTS and _are_scores(made, args):
            self._attends(_shape(made)[0], _shape(made)[-1])
        return made

    def _attends(self, rows: int, length: int) -> None:
        """Record attention over `length` tokens in each of `rows` rows (or rows times heads)."""
        self.seen = found = True
        for module, shapes in self._around:
            known = {site: axis for site, shape in shapes if (axis := _axis(shape, rows, length)) is not None}
            if known:
                self._tokens.given.setdefault(module, {}).update(known)
                found = False
        if found and self._around:
            self._tokens.lost = type(self._around[-1][0]).__name__, length


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the shape in plain numbers, unseen by the observation."""
    with DisableTorchFunction():
        return tuple(tensor.shape)


def _axis(shape: tuple[int, ...], rows: int, length: int) -> int | None:
    """Return the axis of tokens in a shape that starts with two known sizes."""
    first, second = shape
    if second == length and first and rows % first == 0:
        return 1
    return 0 if first == length != rows and second and rows % second == 0 else None


def _are_scores(made: torch.Tensor, operands: Any) -> bool:
    of_activations = all(each.dim() >= 3 for each in operands if isinstance(each, torch.Tensor))
    return of_activations and made.dim() >= 3 and made.shape[-1] == made.shape[-2] > 1


_PRODUCTS = (
    torch.matmul,
    torch.Tensor.matmul,
    torch.Tensor.__matmul__,
    torch.bmm,
    torch.Tensor.bmm,
    torch.einsum,
)
