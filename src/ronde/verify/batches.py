"""Records the batches that loaders hand out, and the indices that their samplers draw."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler

from ronde.patching.patches import Patches
from ronde.patching.stacks import NEXT_BATCH
from ronde.verify.reads import to_array
from ronde.verify.record import Writer

__all__ = ["BatchRecorder", "fingerprint"]


class BatchRecorder:
    """Records batches from the loader's iterator, in the outermost layer around its `__next__`."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._depth = 0

    def install(self) -> None:
        recorder = self
        index_batches = BatchSampler.__iter__

        def around(plain: Callable[..., Any]) -> Callable[..., Any]:
            def recorded_next(iterator: Any) -> Any:
                # A dataset may itself iterate over a loader: only the outermost one is the script's.
                recorder._depth += 1
                try:
                    batch = plain(iterator)
                finally:
                    recorder._depth -= 1
                if recorder._depth == 0 and recorder._writer.active:
                    recorder._writer.event(
                        "batch", fingerprints=[fingerprint(each) for each in tensors_of(batch)]
                    )
                return batch

            return recorded_next

        def recorded_indices(sampler: Any) -> Iterator[Any]:
            for indices in index_batches(sampler):
                recorder._writer.event("ids", ids=_identity(indices))
                yield indices

        patches = Patches()
        patches.layer(NEXT_BATCH, "verify", around)
        patches.set(BatchSampler, "__iter__", recorded_indices)


def tensors_of(value: Any) -> Iterator[Any]:
    """Yield the tensors, numbers and strings of a batch, in order."""
    if isinstance(value, dict):
        for each in value.values():
            yield from tensors_of(each)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for each in value:
            yield from tensors_of(each)
    elif isinstance(value, (torch.Tensor, str, bytes, int, float)):
        yield value
    elif hasattr(value, "__dict__"):
        yield from tensors_of(vars(value))


def fingerprint(value: Any) -> str:
    """Return shape, dtype and hash of a tensor's contents; `repr` of anything else."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    array = to_array(value)
    digest = hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()
    return f"{tuple(array.shape)} {array.dtype} {digest}"


def _identity(indices: Any) -> str:
    try:
        return json.dumps(indices)
    except TypeError:
        return repr(indices)
