"""Named collectives: asynchronous ones return a handle, in-place ones end in an underscore."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ronde.compat.engine import Engine, SubmittedTensor
from ronde.compat.horovod.basics import ProcessSet, engine, global_process_set, is_initialized
from ronde.compat.negotiation import Kind, TensorRequest

__all__ = [
    "Adasum", "Average", "Max", "Min", "Product", "Sum",
    "allgather_async", "allreduce_async", "allreduce_async_", "allreduce_held_", "alltoall_async", "barrier",
    "broadcast_async", "broadcast_async_", "give_up", "grouped_allgather_async", "grouped_allreduce_async",
    "grouped_allreduce_async_", "grouped_reducescatter_async", "join", "operation_of", "poll",
    "reducescatter_async", "release", "sparse_allreduce_async", "synchronize",
]  # fmt: skip

Average, Sum, Adasum, Min, Max, Product = range(6)
_OPERATIONS = ("average", "sum", "adasum", "min", "max", "product")

# Submitted tensors by handle: one entry, or the entries of a group.
_handles: dict[int, list[SubmittedTensor] | SubmittedTensor] = {}
_numbers = itertools.count(1)


def operation_of(average: bool | None, op: int | None) -> int:
    """Return `op`, or the operation that the deprecated `average` selects.

    Raises:
        ValueError: both are given, or `op` is unknown.
    """
    if op is not None and average is not None:
        raise ValueError("op and average both select the operation; give only op [R717]")
    if op is None:
        return Sum if average is False else Average
    if op not in range(len(_OPERATIONS)):
        raise ValueError(f"op={op!r} is not one of Average, Sum, Adasum, Min, Max, Product [R717]")
    return op


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce a tensor over ranks, out of place; return a handle."""
    options = operation_of(average, op), prescale_factor, postscale_factor, process_set
    return _reduce([tensor], name, *options, in_place=False, grouped=False)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce a tensor over ranks, in place; return a handle.

    The tensor must not be written to before `synchronize`.
    """
    options = operation_of(average, op), prescale_factor, postscale_factor, process_set
    return _reduce([tensor], name, *options, in_place=True, grouped=False)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce tensors as one group, out of place; return a handle.

    They are exchanged once all are ready on all ranks.
    """
    options = operation_of(average, op), prescale_factor, postscale_factor, process_set
    return _reduce(tensors, name, *options, in_place=False, grouped=True)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce tensors as one group, in place; return a handle."""
    options = operation_of(average, op), prescale_factor, postscale_factor, process_set
    return _reduce(tensors, name, *options, in_place=True, grouped=True)


def allreduce_held_(
    tensor: torch.Tensor, name: str | None, op: int, before: float, after: float, process_set: ProcessSet
) -> int:
    """Start to reduce a tensor in place; it may wait for others until `release`."""
    options = operation_of(None, op), before, after, process_set
    return _reduce([tensor], name, *options, in_place=True, grouped=False, held=True)


def release() -> None:
    """Send held requests, if the engine runs."""
    if is_initialized():
        engine().release()


def _reduce(  # noqa: PLR0913 - the interface's arguments, and modes
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    before: float,
    after: float,
    process_set: ProcessSet,
    *,
    in_place: bool,
    grouped: bool,
    held: bool = False,
) -> int:
    current = _engine_of(process_set)
    if op == Adasum:
        _check_adasum(current, process_set)
    outputs = [each.detach().contiguous() if in_place else _copy(each) for each in tensors]
    fields = {"operation": _OPERATIONS[op], "before": float(before), "after": float(after)}
    entries = _entries(current, "allreduce", outputs, name, process_set, grouped=grouped, fields=fields)
    if in_place:
        for entry, output, target in zip(entries, outputs, tensors, strict=True):
            entry.finish = _into(target, output)
    return _submitted(current, entries, grouped=grouped, held=held)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy, detached from the graph."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _into(target: torch.Tensor, output: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function that finishes an in-place exchange of `target`.

    It copies the result, unless `output` shares the memory of `target`.
    """
    lies_there = output.data_ptr() == target.data_ptr()

    def finish(result: torch.Tensor) -> torch.Tensor:
        if not lies_there:
            with torch.no_grad():
                target.copy_(result)
        elif not target.is_inference():
            torch.autograd.graph.increment_version(target)
        return target

    return finish


def _check_adasum(current: Engine, process_set: ProcessSet) -> None:
    if process_set.process_set_id != global_process_set.process_set_id:
        raise NotImplementedError("op=Adasum works on all ranks only; leave out process_set [R717]")
    ranks = current.place.size
    if ranks & (ranks - 1):
        raise NotImplementedError(
            f"op=Adasum adds ranks by pairs, and {ranks} is not a power of 2; start 2, 4, 8, ... ranks [R717]"
        )


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start to sum or average a sparse COO tensor over ranks. Call the returned function for the result."""
    if op not in (Sum, Average):
        raise NotImplementedError("sparse_allreduce_async takes op=Sum or op=Average [R717]")
    given = tensor.coalesce()
    indices = allgather_async(given.indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(given.values(), f"{name}.values", process_set)

    def finish() -> torch.Tensor:
        rows, elements = synchronize(indices), synchronize(values)
        if op == Average:
            elements = elements / (process_set.size() or 1)
        shape = tensor.size()
        return torch.sparse_coo_tensor(rows.t(), elements, shape, check_invariants=False).coalesce()

    return finish


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to gather tensors [rows, ...] of all ranks; the numbers of rows may differ."""
    current = _engine_of(process_set)
    return _submitted(current, _entries(current, "allgather", [_with_rows(tensor)], name, process_set))


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to gather several tensors as one group, each like `allgather_async`."""
    current = _engine_of(process_set)
    given = [_with_rows(each) for each in tensors]
    entries = _entries(current, "allgather", given, name, process_set, grouped=True)
    return _submitted(current, entries, grouped=True)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to broadcast a rank's tensor, out of place; return a handle. The root is a global rank."""
    output = _copy(tensor)
    return _broadcast(output, output, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to broadcast a rank's tensor, in place; return a handle."""
    return _broadcast(tensor.detach().contiguous(), tensor, root_rank, name, process_set)


def _broadcast(
    output: torch.Tensor, target: torch.Tensor, root: int, name: str | None, process_set: ProcessSet
) -> int:
    current = _engine_of(process_set)
    if root not in current.sets[_number(process_set)]:
        raise ValueError(f"root_rank={root} is not a member of {process_set} [R716]")
    entries = _entries(current, "broadcast", [output], name, process_set, fields={"root": int(root)})
    entries[0].finish = _into(target, output)
    return _submitted(current, entries)


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to send rows to ranks; with `splits`, `synchronize` also returns received counts.

    Args:
        splits: number of rows for each member, int32 [members]; None: equal numbers.

    Raises:
        ValueError: the splits do not add up to the tensor's rows.
    """
    current, given = _engine_of(process_set), _with_rows(tensor)
    members = len(current.sets[_number(process_set)])
    if splits is None:
        if given.shape[0] % members:
            raise ValueError(
                f"alltoall of {given.shape[0]} rows on {members} ranks needs splits: rows for each "
                "rank [R718]"
            )
        rows = [given.shape[0] // members] * members
    else:
        if isinstance(splits, torch.Tensor) and splits.dim() != 1:
            raise ValueError(f"splits must be [{members}], not of shape {list(splits.shape)} [R718]")
        rows = [int(each) for each in splits]
        if len(rows) != members or min(rows) < 0 or sum(rows) != given.shape[0]:
            raise ValueError(
                f"splits {rows} must be {members} numbers that add up to the tensor's {given.shape[0]} "
                "rows [R718]"
            )
    entries = _entries(current, "alltoall", [given], name, process_set, fields={"splits": tuple(rows)})
    entries[0].finish = None if splits is not None else lambda result: result[0]
    return _submitted(current, entries)


def reducescatter_async(
    tensor: torch.Tensor,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to reduce a tensor [rows, ...] and scatter its rows; return a handle."""
    factors = prescale_factor, postscale_factor
    return _reducescatter([tensor], op, name, process_set, *factors, grouped=False)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to reduce and scatter tensors as one group, each like `reducescatter_async`."""
    factors = prescale_factor, postscale_factor
    return _reducescatter(tensors, op, name, process_set, *factors, grouped=True)


def _reducescatter(
    tensors: Sequence[torch.Tensor],
    op: int,
    name: str | None,
    process_set: ProcessSet,
    before: float,
    after: float,
    *,
    grouped: bool,
) -> int:
    if op not in (Average, Sum):
        raise NotImplementedError("reducescatter takes op=Average or op=Sum [R717]")
    current = _engine_of(process_set)
    fields = {"operation": _OPERATIONS[op], "before": float(before), "after": float(after)}
    given = [_with_rows(each) for each in tensors]
    entries = _entries(current, "reducescatter", given, name, process_set, grouped=grouped, fields=fields)
    return _submitted(current, entries, grouped=grouped)


def join(device: int = -1) -> int:
    """Contribute zeros to the others' all-reduces until all ranks have joined. Collective.

    Args:
        device: accepted without effect: the other ranks' requests name the device.

    Returns:
        the rank that joined last.
    """
    current = engine()
    request = TensorRequest(name="join", kind="join", counts=current.counts())
    entry = SubmittedTensor(request, None)
    current.submit(entry)
    return entry.wait()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all members have called it. Earlier requests may still be pending."""
    current = _engine_of(process_set)
    name = current.name_for("barrier", None)
    entry = SubmittedTensor(TensorRequest(name=name, kind="barrier", process_set=_number(process_set)), None)
    current.submit(entry)
    entry.wait()


def poll(handle: int) -> bool:
    """Return whether `synchronize` would return at once; if so, release the name."""
    entries = _entries_of(_handles.get(handle))
    if not entries:
        return True
    release()
    is_done = all(each.is_done for each in entries)
    if is_done:
        for entry in entries:
            entry.let_go()
    return is_done


def give_up(handle: int) -> None:
    """Drop a handle without waiting for it."""
    for entry in _entries_of(_handles.pop(handle, None)):
        entry.let_go()


def _entries_of(found: list[SubmittedTensor] | SubmittedTensor | None) -> list[SubmittedTensor]:
    if isinstance(found, list):
        return found
    return [] if found is None else [found]


def synchronize(handle: int) -> Any:
    """Wait for a handle's result, and return it; None after the first wait.

    Raises:
        HorovodInternalError: the collective failed, on all ranks.
    """
    entries = _handles.pop(handle, None)
    if entries is None:
        return None
    if isinstance(entries, list):
        return [entry.wait() for entry in entries]
    return entries.wait()


def _number(process_set: ProcessSet) -> int:
    number = process_set.process_set_id
    if number is None:
        raise ValueError(f"{process_set} has not been added; give it to init() or add_process_set() [R716]")
    return number


def _engine_of(process_set: ProcessSet) -> Engine:
    """Return the engine, if this rank is a member of the process set.

    Raises:
        ValueError: the rank is not a member.
    """
    current = engine()
    if current.place.rank not in current.sets.get(_number(process_set), ()):
        raise ValueError(f"rank {current.place.rank} is not a member of {process_set} [R716]")
    return current


def _with_rows(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.dim():
        raise ValueError(
            "a tensor without dimensions has no rows to be exchanged; give it one: tensor[None] [R718]"
        )
    return tensor.detach().contiguous()


def _entries(
    current: Engine,
    kind: Kind,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    process_set: ProcessSet,
    *,
    grouped: bool = False,
    fields: dict[str, Any] | None = None,
) -> list[SubmittedTensor]:
    """Make an entry for each tensor; names in a group get a numeric suffix."""
    base = current.name_for(f"grouped_{kind}" if grouped else kind, name)
    group, size = (base, len(tensors)) if grouped else ("", 0)
    given = tuple(fields.items()) if fields else ()
    number, found = _number(process_set), list[SubmittedTensor]()
    for place, tensor in enumerate(tensors):
        label = f"{base}.{place}" if grouped else base
        told = label, kind, tensor.dtype, tensor.device.type, tensor.shape, number, group, size
        found.append(SubmittedTensor(_request(*told, given), tensor))
    return found


@functools.lru_cache(maxsize=1 << 14)
def _request(  # noqa: PLR0913 - the fields of a request
    name: str,
    kind: Kind,
    dtype: torch.dtype,
    device: str,
    shape: torch.Size,
    process_set: int,
    group: str,
    group_size: int,
    fields: tuple[tuple[str, Any], ...],
) -> TensorRequest:
    """Make a request, cached: training submits equal requests in every step."""
    return TensorRequest(
        name=name,
        kind=kind,
        dtype=str(dtype).removeprefix("torch."),
        device=device,
        shape=tuple(shape),
        nbytes=shape.numel() * dtype.itemsize,
        process_set=process_set,
        group=group,
        group_size=group_size,
        **dict(fields),
    )


def _submitted(
    current: Engine, entries: list[SubmittedTensor], *, grouped: bool = False, held: bool = False
) -> int:
    current.submit(*entries, held=held)
    handle = next(_numbers)
    _handles[handle] = entries if grouped else entries[0]
    return handle
