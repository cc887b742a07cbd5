"""Outline of a value: structure, shapes and dtypes of tensors, contents of small ones.

A replay makes a placeholder value from it, with which the script continues without computing.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

from ronde.errors import RondeError

__all__ = ["NoOutline", "Outlines", "build"]

_SMALL_BYTES = 1024


class NoOutline(Exception):
    """Raised for a value that cannot be made from an outline."""


class Outlines:
    """Makes outlines, equal ones as one object."""

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}

    def of(self, value: Any) -> bytes:
        """Make the outline of a value.

        Raises:
            NoOutline: the value has parts that cannot be pickled, or tensors that are not strided.
        """
        stream = io.BytesIO()
        try:
            _Outlining(stream).dump(value)
        except NoOutline:
            raise
        except Exception as error:
            raise NoOutline(f"{type(error).__name__}: {error}") from None
        content = stream.getvalue()
        return self._known.setdefault(content, content)


def build(outline: bytes) -> Any:
    """Make a value of this form; tensors that were not kept hold a constant."""
    return _Building(io.BytesIO(outline)).load()


class _Outlining(pickle.Pickler):
    """Pickler that numbers tensors, so that aliases stay aliases."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=5)
        self._seen: dict[int, tuple[int, torch.Tensor]] = {}

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return None
        if obj.layout is not torch.strided:
            raise NoOutline(f"a tensor is {obj.layout}")
        plain = type(obj) in (torch.Tensor, torch.nn.Parameter)
        content = None
        if plain and obj.numel() * obj.element_size() <= _SMALL_BYTES and not obj.is_meta:
            content = obj.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        number, _ = self._seen.setdefault(id(obj), (len(self._seen), obj))
        return number, tuple(obj.shape), obj.dtype, obj.device.type, obj.requires_grad, content


class _Building(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self._made: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> torch.Tensor:
        number, *form = pid
        if number not in self._made:
            self._made[number] = self._make(*form)
        return self._made[number]

    def _make(
        self, shape: Any, dtype: torch.dtype, device: str, requires_grad: bool, content: bytes | None
    ) -> Any:
        if content is not None:
            flat = (
                torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)
            )
            value = flat.reshape(shape).clone().to(device)  # no view: scripts write into losses
        else:
            # A constant that is valid as a probability and as a divisor.
            constant = 1 / max(shape[-1], 1) if shape and (dtype.is_floating_point or dtype.is_complex) else 1
            value = torch.full(shape, constant, dtype=dtype, device=device)
        return _OfEarlierRun.apply(_anchor(device), [value]) if requires_grad else value


class _OfEarlierRun(torch.autograd.Function):
    """Placeholder for a graph from before the checkpoint; its backward fails."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, made: list[torch.Tensor]) -> torch.Tensor:
        return made[0]  # not a direct argument: that would be a view, which forbids writes

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise RondeError(
            "the script calls backward through a graph that was made before the checkpoint from which it "
            "was resumed; such a graph is not saved: begin anew, or from another checkpoint [R518]"
        )


def _anchor(device: str) -> torch.Tensor:
    return torch.zeros((), device=device, requires_grad=True)
