"""Hints about errors that come from running on many ranks, after tracebacks."""

from __future__ import annotations

import errno
import os
import re
import traceback
from collections.abc import Sequence

from ronde.launch.rank_config import RankConfig
from ronde.runtime.torchrun import torchrun_environment
from ronde.trace.memory import show_bytes

__all__ = ["hint"]

# Texts by which torch's errors are recognized.
_APART = (
    "Expected all tensors to be on the same device",
    "is not on the expected device",
    "are not at the same device",
)
_TYPES_APART = re.compile(r"type \((torch\.\S+)\) and \w+ type \((torch\.\S+)\) should be the same")
_NO_CUDA = ("Torch not compiled with CUDA enabled", "Found no NVIDIA driver", "No CUDA GPUs are available")
_NO_TENSOR = re.compile(r"must be Tensor, not (list|tuple|numpy\.ndarray)\b")
# Class names of sharded values.
_IN_PARTS = re.compile(r"\b(GlobalTensor|DeferredScalar|ShardedParameter)\b")
_NO_KERNEL = ("could not create a primitive descriptor",)
# These messages also occur with plain tensors.
_OF_ANY_TENSOR = ("has no attribute", "unsupported operand")
# Messages of torch, of the system, and of gRPC, which has no details.
_IN_USE = ("eaddrinuse", "address already in use", "failed to bind to address")
_NO_SHARED_MEMORY = ("unable to allocate shared memory", "out of shared memory")


def hint(error: BaseException, config: RankConfig) -> str:
    """Return a hint in one sentence, or "" if the error says it all."""
    text = str(error)
    if isinstance(error, KeyError) and error.args and error.args[0] in torchrun_environment(config):
        return (
            f"the script reads {error.args[0]} itself: it is written for many ranks already. Run it with "
            "`ronde run --native`, or leave the ranks out of the script [R173]"
        )
    if _has(text, _NO_SHARED_MEMORY) or _of_a_semaphore(error):
        return (
            f"shared memory{_size('/dev/shm')} is too small for the batches that loader workers hand over on "
            f"{config.place.local_world_size} ranks: make it larger (docker run --shm-size=8g), or use a "
            "smaller num_workers [R196]"
        )
    if _of_an_address(error, text) and config.place.local_world_size > 1:
        return (
            "another program on this host has the address, a Unix socket's file was left there, or several "
            "ranks open it. Give each rank its own, PORT + ronde.rank(), or open it behind `if "
            "ronde.is_main():`. A script that starts ranks itself runs by python, or with --ranks 1 [R174]"
        )
    if _has(text, _NO_KERNEL):
        return (
            "torch has no kernel of oneDNN for this on this CPU, mostly an LSTM in 16 bits: leave "
            "precision=bf16 out of the plan, or autocast out of the script, or set "
            "torch.backends.mkldnn.enabled = False there [R204]"
        )
    return _about_batches(text) or _about_devices(text, config.place.device) or _about_classes(text)


def _about_classes(text: str) -> str:
    """Explain an error of code that expects the exact class of a sharded tensor."""
    kind = _IN_PARTS.search(text)
    if kind is None or _has(text, _OF_ANY_TENSOR):
        return ""
    base = "torch.nn.Parameter" if kind[1] == "ShardedParameter" else "torch.Tensor"
    return (
        f"a {kind[1]} is a sharded {base}, of a subclass: in place of type(...) write isinstance(..., "
        f"{base}); if a library compares types, give it a whole value, "
        "torch.from_numpy(x.numpy(force=True)), or run the script by python [R202]"
    )


def _about_batches(text: str) -> str:
    """Explain an error about a batch that consists of something else than tensors."""
    if "default_collate: batch must contain" in text:
        return (
            "the samples of this data set are of a class that torch cannot make a batch of: return tensors, "
            "numbers, or tuples and dicts of them, or give the DataLoader a collate_fn [R204]"
        )
    kind = _NO_TENSOR.search(text)
    if kind is None:
        return ""
    return (
        f"a {kind[1]} was given where a tensor is needed: torch.stack makes one of tensors, torch.as_tensor "
        "of numbers or an array; a DataLoader does so by itself without collate_fn [R204]"
    )


def _about_devices(text: str, device: str) -> str:
    """Explain tensors on the wrong device; `device` is that of the ranks."""
    if "invalid device ordinal" in text and device == "cuda":
        return (
            'each rank sees one CUDA device, its own: write "cuda" or "cuda:0" instead of another '
            "number [R203]"
        )
    if _has(text, _NO_CUDA) and device == "cpu":
        return (
            'the script asks for a CUDA device, and these ranks are on the CPU: write device = "cuda" if '
            'torch.cuda.is_available() else "cpu", and use it in place of "cuda" [R203]'
        )
    apart = _are_apart(text)
    if "meta tensor" in text or (apart and re.search(r"\bmeta\b", text)):
        return (
            'tensors on the device "meta" have no values: leave that device out of the script, or call '
            f'model.to_empty(device="{device}") and load the parameters [R203]'
        )
    if not apart:
        return ""
    return (
        "a model and its inputs must be on one device, here the device of the ranks: "
        f'model.to("{device}") before the optimizer is made, and .to("{device}") for every tensor of a '
        "batch [R203]"
    )


def _are_apart(text: str) -> bool:
    """Return whether tensors of two devices were combined.

    A convolution names their types instead; those of CUDA tensors contain "cuda".
    """
    types = _TYPES_APART.search(text)
    return _has(text, _APART) or (
        types is not None and types[1].startswith("torch.cuda.") != types[2].startswith("torch.cuda.")
    )


def _has(text: str, words: Sequence[str]) -> bool:
    return any(each in text for each in words)


def _of_an_address(error: BaseException, text: str) -> bool:
    """Return whether an error says that an address is in use.

    ZMQ's error is not an OSError, but has its number.
    """
    return getattr(error, "errno", None) == errno.EADDRINUSE or _has(text.lower(), _IN_USE)


def _of_a_semaphore(error: BaseException) -> bool:
    """Return whether a semaphore could not be made: they lie in /dev/shm.

    Their error names no file.
    """
    if not isinstance(error, OSError) or error.errno != errno.ENOSPC:
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.filename.endswith("multiprocessing/synchronize.py") for frame in frames)


def _size(folder: str) -> str:
    try:
        found = os.statvfs(folder)
    except OSError:
        return ""
    return f" ({folder}, {show_bytes(found.f_blocks * found.f_frsize)})"
