"""Records the script's reads on the host: calls that make tensors python values."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader

from ronde.verify.call_sites import Sites
from ronde.verify.record import Writer

__all__ = ["ReadRecorder", "to_array"]

_METHODS = (
    "item",
    "tolist",
    "numpy",
    "is_nonzero",
    "equal",
    "allclose",
    "__float__",
    "__int__",
    "__bool__",
    "__index__",
    "__complex__",
    "__array__",
    "__format__",
)


class ReadRecorder:
    """Wraps the reading methods of every tensor type, `len(loader)` and the clipping functions."""

    def __init__(self, writer: Writer, sites: Sites) -> None:
        self._writer = writer
        self._sites = sites
        self._busy = False

    def install(self) -> None:
        for kind in _tensor_types(torch.Tensor):
            for name in _METHODS:
                # The type itself, and every subclass that overrides the method; the rest inherit.
                if kind is torch.Tensor or name in vars(kind):
                    setattr(kind, name, self._wrapped(getattr(kind, name), name))
        DataLoader.__len__ = self._wrapped(DataLoader.__len__, "len(loader)")
        for name in ("equal", "allclose", "is_nonzero"):
            setattr(torch, name, self._wrapped(getattr(torch, name), f"torch.{name}"))
        for name in ("clip_grad_norm_", "get_total_norm"):
            original = getattr(torch.nn.utils, name, None)
            if original is not None:
                wrapped = self._wrapped(original, name)
                setattr(torch.nn.utils, name, wrapped)
                setattr(torch.nn.utils.clip_grad, name, wrapped)

    def _wrapped(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def read(*args: Any, **kwargs: Any) -> Any:
            if self._busy or not self._writer.active:
                return original(*args, **kwargs)
            frame = sys._getframe(1)
            where = None if _is_guard(frame) else self._sites.of(frame)
            if where is None:
                return original(*args, **kwargs)
            self._busy = True
            try:
                value = original(*args, **kwargs)
                self._record(name, where, value)
            finally:
                self._busy = False
            return value

        return read

    def _record(self, call: str, where: str, value: Any) -> None:
        if isinstance(value, (bool, int, float, str)):
            self._writer.event("read", call=call, where=where, value=value)
        elif isinstance(value, complex):
            self._writer.event("read", call=call, where=where, value=[value.real, value.imag])
        else:
            array = to_array(value) if isinstance(value, torch.Tensor) else numpy.asarray(value)
            self._writer.event("read", call=call, where=where, stored=self._writer.store(array))


def _is_guard(frame: FrameType) -> bool:
    """Return whether the frame is a guard of torch.compile, not a script's line."""
    code = frame.f_code
    return (code.co_filename, code.co_name) == ("<string>", "guard") and "torch._dynamo" in sys.modules


def _tensor_types(kind: type) -> Iterator[type]:
    yield kind
    for each in type.__subclasses__(kind):
        yield from _tensor_types(each)


def to_array(tensor: torch.Tensor) -> numpy.ndarray:
    """Return a tensor's entries. Only ordinary operations are used, so that a sharded tensor is gathered."""
    with torch.no_grad():
        # A copy: a batch whose memory is handed out would no longer be sharded.
        plain = tensor.detach().clone()
        if plain.layout is not torch.strided:
            plain = plain.to_dense()
        if plain.is_quantized:
            plain = plain.dequantize()
        if plain.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
            plain = plain.float()
        return plain.cpu().resolve_conj().resolve_neg().numpy()
