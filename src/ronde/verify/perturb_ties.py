"""A twin of the plain run with numbers moved across near ties and kinks.

A ReLU has a kink at zero, a maximum a tie where the two largest are equal: there a difference of one rounding
decides where the gradient goes. Two right runs need not agree on these numbers. The possible effect is
therefore measured: before such an operation these numbers are moved by as much as rounding could. The idea of
measuring rounding by perturbing it is that of stochastic arithmetic (CESTAC, Vignes 1993).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ronde.patching.torch_internals import TorchDispatchMode, unsafe_preserve_version_counter
from ronde.verify.record import Writer

__all__ = ["AtKinks", "Turning"]

# Distance that counts as rounding, in roundings of the largest number: sums over a batch in another order,
# after some steps of training.
_ROUNDINGS = 32

_AT_NOUGHT = frozenset("relu relu_ abs sgn sign leaky_relu _prelu_kernel elu celu".split())
_AT_BOUNDS = frozenset("clamp clamp_ clamp_min clamp_max hardtanh hardtanh_".split())
_AT_OTHER = frozenset("lt le gt ge maximum minimum".split())
_AMONG = frozenset("max min amax amin argmax argmin topk sort kthvalue median cummax cummin".split())
_POOLS = frozenset(
    "max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d".split()
)
_MARK = "_ronde_computed"


class Turning:
    """Turns numbers at ties and kinks, and records the places."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._modules: list[torch.nn.Module] = []

    def install(self) -> None:
        turning, call = self, torch.nn.Module.__call__

        def noted_call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            turning._modules.append(module)
            try:
                return call(module, *args, **kwargs)
            finally:
                turning._modules.pop()

        torch.nn.Module.__call__ = noted_call
        # Stays for as long as the process lives.
        AtKinks(self._turned).__enter__()

    def _turned(self, operation: str, count: int, of: int, apart: float) -> None:
        if self._writer.active:
            place = f"{self._module()}{operation}"
            self._writer.event("turned", place=place, count=count, of=of, apart=apart)

    def _module(self) -> str:
        """Return the name of the innermost running module, within the outermost one."""
        if not self._modules:
            return ""
        outermost, inner = self._modules[0], self._modules[-1]
        names = (name for name, module in outermost.named_modules() if module is inner)
        return f"{next(names, '') or type(inner).__name__}, "


class AtKinks(TorchDispatchMode):
    """Moves numbers before operations that have a tie or a kink at them.

    They are moved in place, hidden from autograd: tensors that an operation saves for backward move as well.
    """

    def __init__(self, turned: Callable[[str, int, int, float], None]) -> None:
        super().__init__()
        self._turned = turned

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        for numbers, moved in _moved(func, name, args, kwargs or {}):
            apart = (numbers - moved).abs()
            count = int((apart > 0).sum())
            if count:
                scale = float(numbers.abs().max())
                self._turned(name, count, numbers.numel(), float(apart[apart > 0].min()) / scale)
                with unsafe_preserve_version_counter(numbers):
                    numbers.copy_(moved)
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point():
            setattr(result, _MARK, True)
        return result


def _moved(
    func: Any, name: str, args: Any, kwargs: dict[str, Any]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the tensors that `func` is about to read, with their new values."""
    numbers: Any = args[0] if args else None
    if not _is_computed(numbers):
        return
    if name in _AT_NOUGHT:
        yield numbers, _mirrored(numbers, 0.0)
    elif name in _AT_BOUNDS:
        for bound in args[1:3]:
            if isinstance(bound, (int, float)):
                yield numbers, _mirrored(numbers, bound)
    elif name in _AT_OTHER:
        other = args[1]
        if isinstance(other, (int, float)) or (
            isinstance(other, torch.Tensor)
            and other.dtype == numbers.dtype
            and other.device == numbers.device
        ):
            yield numbers, _mirrored(numbers, other)
    elif name in _AMONG:
        yield numbers, _swapped(numbers, name, args[1:], kwargs)
    elif name in _POOLS:
        yield numbers, _swapped_in_windows(func, numbers, args[1:], kwargs)


def _is_computed(value: Any) -> bool:
    """Return whether a tensor is a floating-point result, and not data or a parameter."""
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.numel() > 0
        and (value.grad_fn is not None or hasattr(value, _MARK))
    )


def _within(numbers: torch.Tensor) -> torch.Tensor:
    """Return the distance by which rounding may move these numbers."""
    return _ROUNDINGS * torch.finfo(numbers.dtype).eps * numbers.abs().max()


def _mirrored(numbers: torch.Tensor, kink: Any) -> torch.Tensor:
    """Mirror numbers close to the kink.

    Numbers that lie on it exactly stay, since rounding did not put them there.
    """
    apart = (numbers - kink).abs()
    if apart.shape != numbers.shape:
        return numbers
    return torch.where((apart > 0) & (apart <= _within(numbers)), 2 * kink - numbers, numbers)


def _swapped(numbers: torch.Tensor, name: str, rest: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """Swap neighbours in sorted order that differ by less than rounding."""
    ranked = name in ("topk", "kthvalue")
    dims = rest[1:] if ranked else rest
    dim = kwargs.get("dim", dims[0] if dims else (-1 if ranked or name == "sort" else None))
    if isinstance(dim, (list, tuple)):
        dim = dim[0] if len(dim) == 1 else None
    flat = numbers.reshape(-1) if dim is None or not isinstance(dim, int) else numbers.movedim(dim, -1)
    if flat.shape[-1] < 2:
        return numbers
    pairs = flat.shape[-1] // 2 if name in ("topk", "sort", "kthvalue", "median") else 1
    smallest = name in ("min", "amin", "argmin", "cummin")
    ordered, places = flat.sort(dim=-1, descending=not smallest, stable=True)
    first, second = ordered[..., 0 : 2 * pairs : 2], ordered[..., 1 : 2 * pairs : 2]
    close = _turnable(first, second, _within(numbers))
    exact = torch.nextafter(first, torch.full_like(first, -torch.inf if smallest else torch.inf))
    ordered = ordered.clone()
    ordered[..., 0 : 2 * pairs : 2] = torch.where(close, second, first)
    ordered[..., 1 : 2 * pairs : 2] = torch.where(close, torch.where(first == second, exact, first), second)
    moved = torch.empty_like(flat).scatter_(-1, places, ordered)
    return (
        moved.reshape(numbers.shape) if flat.dim() != numbers.dim() or dim is None else moved.movedim(-1, dim)
    )


def _turnable(first: torch.Tensor, second: torch.Tensor, within: torch.Tensor) -> torch.Tensor:
    """Return where two numbers differ by less than rounding.

    Two zeros after a ReLU do not count: rounding did not make that tie.
    """
    return ((first - second).abs() <= within) & ~((first == 0) & (second == 0))


def _swapped_in_windows(func: Any, numbers: torch.Tensor, rest: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """Swap the largest and second of each window where they nearly tie."""
    spatial = 2 if "2d" in func._schema.name else 3
    first, place = func(numbers, *rest, **kwargs)
    flat, place = numbers.flatten(-spatial), place.flatten(-spatial)
    without = flat.scatter(-1, place, -torch.inf).reshape(numbers.shape)
    second, next_place = func(without, *rest, **kwargs)
    first, second, next_place = (
        first.flatten(-spatial),
        second.flatten(-spatial),
        next_place.flatten(-spatial),
    )
    close = _turnable(first, second, _within(numbers)) & second.isfinite()
    exact = torch.nextafter(first, torch.full_like(first, torch.inf))
    larger = torch.where(first == second, exact, first)
    # Numbers that are not close keep their value.
    moved = flat.scatter(-1, place, torch.where(close, second, first))
    kept = moved.gather(-1, next_place)
    return moved.scatter(-1, next_place, torch.where(close, larger, kept)).reshape(numbers.shape)
