"""Broadcasts of parameters, optimizer state and objects."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ronde.compat.horovod import operations as ops
from ronde.compat.horovod.basics import ProcessSet, global_process_set, rank
from ronde.compat.horovod.operations import synchronize

__all__ = [
    "allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters",
    "dumps_base64", "loads_base64", "pickled",
]  # fmt: skip


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Broadcast a rank's `state_dict()` or `named_parameters()` to all ranks, in place.

    Raises:
        ValueError: `params` are not named tensors.
    """
    if isinstance(params, Mapping):
        named = list(params.items())
    elif isinstance(params, torch.Tensor) or not isinstance(params, Iterable):
        raise ValueError(
            f"params must be a state_dict() or named_parameters(), not {type(params).__name__} [R721]"
        )
    else:
        named = [each if isinstance(each, tuple) else (None, each) for each in params]
    handles = [
        ops.broadcast_async_(tensor, root_rank, name and f"parameters.{name}", process_set)
        for name, tensor in named
        if isinstance(tensor, torch.Tensor)
    ]
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Broadcast a rank's optimizer state and options to all ranks.

    Tensors are broadcast as such; the rest is pickled. An optimizer that has not stepped gets no state.

    Args:
        model: accepted without effect.

    Raises:
        ValueError: the optimizer is LBFGS.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of LBFGS is of one process, and is not broadcast [R721]")
    is_root = rank() == root_rank
    given = optimizer.state_dict()
    tensors: list[torch.Tensor] = []
    told = _without_tensors(given, tensors) if is_root else None
    shapes = [(tuple(each.shape), each.dtype, each.device.type) for each in tensors]
    told, shapes = broadcast_object((told, shapes), root_rank, "optimizer_state", process_set)
    if not is_root:
        tensors = [torch.empty(shape, dtype=kind, device=device) for shape, kind, device in shapes]
    handles = [ops.broadcast_async_(each, root_rank, None, process_set) for each in tensors]
    for handle in handles:
        synchronize(handle)
    if not is_root:
        optimizer.load_state_dict(_with_tensors(told, tensors))


class _TensorIndex:
    """A placeholder for a tensor in a pickled state, by its index."""

    def __init__(self, number: int) -> None:
        self.number = number


def _without_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return _TensorIndex(len(tensors) - 1)
    if isinstance(value, dict):
        return {key: _without_tensors(each, tensors) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_without_tensors(each, tensors) for each in value)
    return value


def _with_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, _TensorIndex):
        return tensors[value.number]
    if isinstance(value, dict):
        return {key: _with_tensors(each, tensors) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_with_tensors(each, tensors) for each in value)
    return value


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return a rank's object on all ranks."""
    data = _bytes_of(obj) if rank() == root_rank else torch.empty(0, dtype=torch.uint8)
    size = torch.tensor([data.numel()])
    synchronize(ops.broadcast_async_(size, root_rank, name and f"{name}.size", process_set))
    if rank() != root_rank:
        data = torch.empty(int(size), dtype=torch.uint8)
    synchronize(ops.broadcast_async_(data, root_rank, name and f"{name}.data", process_set))
    return obj if rank() == root_rank else _object_of(data)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return every rank's object, in rank order."""
    data = _bytes_of(obj)
    sizes = synchronize(
        ops.allgather_async(torch.tensor([data.numel()]), name and f"{name}.sizes", process_set)
    )
    gathered = synchronize(ops.allgather_async(data, name and f"{name}.data", process_set))
    return [_object_of(each) for each in gathered.split(sizes.tolist())]


def _bytes_of(obj: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(pickled(obj)), dtype=torch.uint8)


def pickled(obj: Any) -> bytes:
    """Pickle an object, by cloudpickle if installed, which also takes a script's functions."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps(obj)
    return cloudpickle.dumps(obj)


def dumps_base64(obj: Any, to_ascii: bool = True) -> str | bytes:
    """Pickle an object as base64 text, for a command's arguments."""
    encoded = base64.b64encode(pickled(obj))
    return encoded.decode("ascii") if to_ascii else encoded


def loads_base64(encoded: str | bytes) -> Any:
    return pickle.loads(base64.b64decode(encoded))


def _object_of(data: torch.Tensor) -> Any:
    return pickle.loads(data.numpy().tobytes())
