"""Reads of tensors by the host, each with the line of ronde that asks for it.

On a device such a read waits for everything that has been enqueued. On a CPU it costs nothing, so calls are
counted: of methods that give the host a value, and of functions whose result has a shape that depends on
values.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import ronde

__all__ = ["host_reads"]

_OURS = str(Path(ronde.__file__).parent)
_METHODS = (
    "item tolist numpy cpu __bool__ __int__ __float__ __index__ nonzero unique masked_select equal allclose"
).split()
_FUNCTIONS = "nonzero unique unique_consecutive masked_select equal allclose".split()


@contextmanager
def host_reads() -> Iterator[collections.Counter[str]]:
    """Inside, count reads of tensors that ronde asks for itself, by `file:function`."""
    counts: collections.Counter[str] = collections.Counter()

    def counting(plain: Any) -> Any:
        def read(*args: Any, **kwargs: Any) -> Any:
            code = sys._getframe(1).f_code
            if code.co_filename.startswith(_OURS):
                counts[f"{Path(code.co_filename).relative_to(_OURS)}:{code.co_name}"] += 1
            return plain(*args, **kwargs)

        return read

    places: list[tuple[Any, str]] = [
        *((torch.Tensor, name) for name in _METHODS),
        *((torch, name) for name in _FUNCTIONS),
    ]
    patches = [mock.patch.object(owner, name, counting(getattr(owner, name))) for owner, name in places]
    try:
        for each in patches:
            each.start()
        yield counts
    finally:
        for each in patches:
            each.stop()
