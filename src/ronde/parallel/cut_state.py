"""An optimizer's state of which each rank holds the part that it updates."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.parallel.flat import flat, flat_like, is_dense, overlapping
from ronde.parallel.partition import partition
from ronde.plan.resident import Census

__all__ = ["CutState", "Piece"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Elements:
    """Stands, in what ranks tell each other, for a tensor of which every rank has its elements."""

    dtype: torch.dtype


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Scalar:
    """A tensor without dimensions (a count of steps), which is the same for all elements."""

    value: Any
    dtype: torch.dtype
    device: torch.device


class Piece:
    """A parameter that is updated in parts.

    Attributes:
        tensor: the whole parameter.
        ranges: for each rank its elements, in the order in which they lie in memory.
        own: a view of this rank's elements, which the optimizer takes for a parameter; None without any.
        bytes: for each rank a view of the bytes of its elements, where it has any.
    """

    __slots__ = ("_device", "_dtype", "_pointer", "_shape", "_stride", "bytes", "own", "ranges", "tensor")

    def __init__(self, tensor: torch.Tensor, ranges: Sequence[tuple[int, int] | None], rank: int) -> None:
        self.tensor = tensor
        self.ranges = tuple(ranges)
        self._dtype, self._shape, self._stride = tensor.dtype, tensor.shape, tensor.stride()
        self._device = tensor.device
        self.follow(rank)

    @property
    def stands(self) -> bool:
        """Whether it can still be cut as it was: the same kind of tensor, and of gradient."""
        tensor = self.tensor
        return (
            tensor.dtype is self._dtype
            and tensor.device == self._device
            and tensor.shape == self._shape
            and tensor.stride() == self._stride
            and _fits(tensor.grad, tensor)
        )

    @property
    def moved(self) -> bool:
        """Whether the parameter has other memory now."""
        return self.tensor.data_ptr() != self._pointer

    def follow(self, rank: int) -> None:
        """Take views of where the parameter lies now."""
        self._pointer = self.tensor.data_ptr()
        whole = flat(self.tensor)
        parts = [None if held is None else whole[slice(*held)] for held in self.ranges]
        self.own = parts[rank]
        self.bytes = [None if part is None else part.view(torch.uint8) for part in parts]


class CutState:
    """The state of one optimizer, in parts.

    Reading it whole is a collective: all ranks read alike, as all run one script.

    Args:
        state: the whole state, of which nothing is kept but this rank's part.

    Attributes:
        local: what the optimizer's step finds: entries of `Piece.own`, and of tensors that are not cut.
        pieces: by id of the parameter.
    """

    def __init__(self, comm: Comm, state: Any) -> None:
        self._comm = comm
        self.local: defaultdict[Any, Any] = defaultdict(dict)
        self.local.update(state)
        self.pieces: dict[int, Piece] = {}
        # Keys of the whole state, in the order in which they came; those that are not cut stay in `local`.
        self._keys: dict[int, Any] = {id(key): key for key in state}
        # By id, those that lie in one memory with others: they are updated one after the other, which ranks
        # apart cannot do.
        self._entwined: dict[int, torch.Tensor] = {}

    @property
    def stands(self) -> bool:
        """Whether all pieces can still be cut as they were."""
        pieces = self.pieces.values()
        if not all(piece.stands for piece in pieces):
            return False
        return not any(piece.moved for piece in pieces) or not self._entwined_with([])

    def admit(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Cut those that can be and are new here, so that ranks have equal shares of what comes together.

        Returns:
            False where one lies in the memory of a piece, so that all must be cut anew.
        """
        known = self.pieces.keys() | self._entwined.keys()
        new = [tensor for tensor in tensors if id(tensor) not in known and _suits(tensor)]
        if not new:
            return True
        entwined = self._entwined_with(new)
        if entwined & self.pieces.keys():
            return False
        kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for tensor in new:
            self._keys.setdefault(id(tensor), tensor)
            if id(tensor) in entwined:
                self._entwined[id(tensor)] = tensor
            else:
                kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        for members in kinds.values():
            cut = partition([tensor.numel() for tensor in members], self._comm.world_size)
            ranges = [{part.tensor: (part.start, part.stop) for part in parts} for parts in cut]
            for place, tensor in enumerate(members):
                piece = Piece(tensor, [each.get(place) for each in ranges], self._comm.rank)
                self.pieces[id(tensor)] = piece
                self._cut(piece)
        return True

    def tell(self, census: Census) -> None:
        """Count this rank's part."""
        for entry in self.local.values():
            for value in entry.values():
                if isinstance(value, torch.Tensor):
                    census.count("optimizer", value)

    def _entwined_with(self, new: Sequence[torch.Tensor]) -> set[int]:
        return overlapping(
            [*(piece.tensor for piece in self.pieces.values()), *self._entwined.values(), *new]
        )

    def _cut(self, piece: Piece) -> None:
        entry = self.local.pop(piece.tensor, None)
        if entry is None or piece.own is None:
            return
        start, stop = piece.ranges[self._comm.rank] or (0, 0)
        self.local[piece.own] = {
            key: flat_like(value, piece.tensor)[start:stop].clone()
            if _is_elements(value, piece.tensor)
            else value
            for key, value in entry.items()
        }

    def present(self, tensors: Iterable[torch.Tensor]) -> list[Piece]:
        """The pieces among parameters that have a gradient, with views of where they lie now."""
        pieces = [
            self.pieces[id(tensor)]
            for tensor in tensors
            if tensor.grad is not None and id(tensor) in self.pieces
        ]
        for piece in pieces:
            if piece.moved:
                before = piece.own
                piece.follow(self._comm.rank)
                if before in self.local:
                    self.local[piece.own] = self.local.pop(before)
        return pieces

    def share(self, pieces: Sequence[Piece]) -> None:
        """Every rank has updated its part of these parameters; on return they are whole on all."""
        self._comm.share(
            [
                [part for piece in pieces if (part := piece.bytes[rank]) is not None]
                for rank in range(self._comm.world_size)
            ]
        )

    @torch.no_grad()
    def whole(self) -> defaultdict[Any, Any]:
        """The state of the single device, gathered from all ranks."""
        pieces = list(self.pieces.values())
        told: dict[int, dict[Any, Any]] = {}
        for described in self._comm.all_gather_object(self._describe(pieces)):
            told = {**described, **told}
        wanted: list[tuple[Piece, torch.Tensor]] = []
        entries: dict[int, dict[Any, Any]] = {}
        for place in sorted(told):
            piece = pieces[place]
            entry = entries[id(piece.tensor)] = {}
            for key, value in told[place].items():
                if not isinstance(value, _Elements):
                    entry[key] = _undescribed(value)
                    continue
                entry[key] = torch.empty_like(piece.tensor, dtype=value.dtype, requires_grad=False)
                wanted.append((piece, flat(entry[key])))
                self._write_own(wanted[-1][1], piece, key)
        self._comm.share(
            [
                [whole[slice(*held)] for piece, whole in wanted if (held := piece.ranges[rank]) is not None]
                for rank in range(self._comm.world_size)
            ]
        )
        state: defaultdict[Any, Any] = defaultdict(dict)
        for key, tensor in self._keys.items():
            if key in entries:
                state[tensor] = entries[key]
            elif tensor in self.local:
                state[tensor] = self.local[tensor]
        own = {id(piece.own) for piece in pieces}
        state.update(
            {key: entry for key, entry in self.local.items() if key not in state and id(key) not in own}
        )
        return state

    def _write_own(self, whole: torch.Tensor, piece: Piece, key: Any) -> None:
        if piece.own is not None:
            whole[slice(*piece.ranges[self._comm.rank] or ())] = self.local[piece.own][key]

    def _describe(self, pieces: Sequence[Piece]) -> dict[int, dict[Any, Any]]:
        """Entries by number of the piece, less the elements; the first rank that has any of a piece tells."""
        told: dict[int, dict[Any, Any]] = {}
        for place, piece in enumerate(pieces):
            first = next(rank for rank, held in enumerate(piece.ranges) if held is not None)
            own = piece.own
            if first == self._comm.rank and own is not None and own in self.local:
                told[place] = {key: _described(value, own) for key, value in self.local[own].items()}
        return told


def _suits(tensor: torch.Tensor) -> bool:
    """Whether a parameter, and its gradient where it has one, can be cut anywhere.

    One without dimensions is not worth it, and its state could not be told from a count of steps.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not tensor.dim() or not tensor.numel():
        return False
    return _fits(tensor.grad, tensor) and is_dense(tensor)


def _fits(gradient: torch.Tensor | None, tensor: torch.Tensor) -> bool:
    return gradient is None or (gradient.layout is torch.strided and gradient.dtype is tensor.dtype)


def _is_elements(value: Any, tensor: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == tensor.shape


def _described(value: Any, own: torch.Tensor) -> Any:
    if _is_elements(value, own):
        return _Elements(dtype=value.dtype)
    if isinstance(value, torch.Tensor) and not value.dim():
        return _Scalar(value=value.item(), dtype=value.dtype, device=value.device)
    return value


def _undescribed(value: Any) -> Any:
    if isinstance(value, _Scalar):
        return torch.tensor(value.value, dtype=value.dtype, device=value.device)
    return value
