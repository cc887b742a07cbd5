"""Sharded state of an optimizer: each rank holds the part that it updates."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.patching.torch_internals import DisableTorchFunction
from ronde.shards.flat import flat, flat_like, is_dense, overlapping
from ronde.shards.optimizer_shards import OptimizerShards
from ronde.shards.spec import ShardSpec, by_rank
from ronde.sync.memory_home import Home
from ronde.trace.resident import Census

__all__ = ["CutParameter", "CutState", "StateInParts"]


class StateInParts(ABC):
    """Optimizer state that is sharded over ranks."""

    @abstractmethod
    def whole(self) -> Any:
        """Gather the whole state. A collective."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Elements:
    """Placeholder for a sharded tensor in messages between ranks."""

    dtype: torch.dtype


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Scalar:
    """A tensor without dimensions (a step count), equal for all elements."""

    value: Any
    dtype: torch.dtype
    device: torch.device


class CutParameter:
    """A parameter that is updated in shards.

    Attributes:
        tensor: the parameter.
        spec: each rank's elements.
        elements: elements of this rank, where they lie; None without any.
        own: the copy of `elements` at home that the optimizer takes for a parameter; None without any.
        bytes: views of the bytes of each rank's elements, by the ranks that have some; empty where the
            parameter itself is sharded.
    """

    __slots__ = ("_home", "_kind", "_pointer", "bytes", "elements", "own", "spec", "tensor")

    def __init__(
        self, tensor: torch.Tensor, spec: ShardSpec, rank: int, part: torch.Tensor | None, home: Home
    ) -> None:
        self.tensor = tensor
        self.spec = spec
        self._home = home
        self._kind = tensor.dtype, tensor.device, tensor.shape, tensor.stride()
        self.follow(rank, part)

    @property
    def has_own_order(self) -> bool:
        """Return whether its elements have another order than in memory."""
        return self.spec.cut is not None

    @property
    def stands(self) -> bool:
        """Return whether the tensor still has the cut dtype, device, shape and strides."""
        tensor = self.tensor
        return self._kind == (tensor.dtype, tensor.device, tensor.shape, tensor.stride())

    def room(self, dtype: torch.dtype) -> torch.Tensor:
        """Allocate memory for all elements of a value that was cut.

        It has the strides of the parameter at that time: the parameter may be another tensor now.
        """
        _, device, shape, stride = self._kind
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)

    def flat_of(self, value: torch.Tensor) -> torch.Tensor:
        """Flatten a value of the parameter's shape in the order of the spec."""
        if self.spec.cut is not None:
            return self.spec.cut.in_order(value.detach())
        return flat_like(value, self.tensor)

    def put_back(self, elements: torch.Tensor, whole: torch.Tensor) -> None:
        """Write elements back to the whole, if `flat_of` made a copy."""
        if self.spec.cut is not None:
            self.spec.cut.put_back(elements, whole)

    def moved(self, part: torch.Tensor | None) -> bool:
        """Return whether the parameter's elements have moved; `part` as for `follow`."""
        return _pointer(self.tensor, part) != self._pointer

    def follow(self, rank: int, part: torch.Tensor | None) -> None:
        """Locate the elements in `part`, this rank's own, or in the whole tensor."""
        self._pointer = _pointer(self.tensor, part)
        if part is not None:
            self.elements = part if part.numel() else None
            self.bytes: dict[int, torch.Tensor] = {}
        else:
            whole = flat(self.tensor)
            own = self.spec[rank]
            self.elements = None if own is None else whole[slice(*own)]
            self.bytes = self.spec.parts(whole)
        self.own = None if self.elements is None else self._home.lodge(self.elements)


def _pointer(tensor: torch.Tensor, part: torch.Tensor | None) -> tuple[bool, int]:
    return part is not None, (tensor if part is None else part).data_ptr()


class CutState(StateInParts):
    """Sharded state of one optimizer.

    Reading it whole is a collective: every rank runs the same script, and so reads at the same point.

    Args:
        state: the whole state, of which only this rank's part is kept.
        held: shards of parameters and gradients.

    Attributes:
        local: entries that the optimizer's step finds: those of `CutParameter.own`, and of uncut tensors.
        pieces: pieces by id of the parameter.
    """

    def __init__(self, comm: Comm, state: Any, held: OptimizerShards) -> None:
        self._comm = comm
        self._held = held
        self.local: defaultdict[Any, Any] = defaultdict(dict)
        self.local.update(state)
        self.pieces: dict[int, CutParameter] = {}
        # Keys of the whole state, sharded or not, in the order in which one device has them.
        self._keys: dict[int, Any] = {id(key): key for key in state}
        # Tensors by id that share memory with others: they must be updated one after another, which separate
        # ranks cannot do.
        self._entwined: dict[int, torch.Tensor] = {}

    @property
    def stands(self) -> bool:
        """Return whether all pieces can still be cut as before."""
        pieces = self.pieces.values()
        with DisableTorchFunction():
            if not all(piece.stands and self._held.stands(piece.tensor, piece.spec) for piece in pieces):
                return False
            moved = any(piece.moved(self._held.part(piece.tensor)) for piece in pieces)
            return not moved or not self._entwined_with([])

    def admit(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Cut new tensors that can be cut, balanced over ranks among each other.

        Returns:
            False if a tensor shares memory with a piece, so that all must be cut again.
        """
        known = self.pieces.keys() | self._entwined.keys()
        tensors = list(tensors)
        with DisableTorchFunction():
            for tensor in tensors:
                self._keys.setdefault(id(tensor), tensor)
            new = [each for each in tensors if id(each) not in known and self._suits(each)]
            if not new:
                return True
            entwined = self._entwined_with(new)
            if entwined & self.pieces.keys():
                return False
            self._entwined.update({id(tensor): tensor for tensor in new if id(tensor) in entwined})
            apart = [tensor for tensor in new if id(tensor) not in entwined]
            for tensor, spec in zip(apart, self._held.divide(apart), strict=True):
                if spec is None:
                    continue
                piece = CutParameter(tensor, spec, self._comm.rank, self._held.part(tensor), self._held.home)
                self.pieces[id(tensor)] = piece
                self._cut(piece)
        return True

    def _suits(self, tensor: torch.Tensor) -> bool:
        """Return whether a parameter and its gradient can be cut at any element."""
        if not isinstance(tensor, torch.nn.Parameter) and type(tensor) is not torch.Tensor:
            return False
        return bool(tensor.dim() and tensor.numel()) and self._held.fits(tensor) and is_dense(tensor)

    def tell(self, census: Census) -> None:
        """Count this rank's part, and copies of elements made for a step."""
        for entry in self.local.values():
            for value in entry.values():
                if isinstance(value, torch.Tensor):
                    census.count("optimizer", value)
        for piece in self.pieces.values():
            if piece.own is not piece.elements:
                census.count("buckets", piece.own)

    def _entwined_with(self, new: Sequence[torch.Tensor]) -> set[int]:
        tensors = [*(piece.tensor for piece in self.pieces.values()), *self._entwined.values(), *new]
        return overlapping([tensor for tensor in tensors if self._held.part(tensor) is None])

    def _cut(self, piece: CutParameter) -> None:
        entry = self.local.pop(piece.tensor, None)
        if entry is None or piece.own is None:
            return
        start, stop = piece.spec[self._comm.rank] or (0, 0)
        shape = piece.own.shape

        def cut(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            own = _is_elements(value, piece.tensor)
            part = piece.flat_of(value)[start:stop].view(shape) if own else value
            return self._held.home.keep(part)

        self.local[piece.own] = {key: cut(value) for key, value in entry.items()}

    def present(self, tensors: Iterable[torch.Tensor]) -> list[CutParameter]:
        """Return the pieces with a gradient, located in their present memory."""
        with DisableTorchFunction():
            pieces = [
                self.pieces[id(tensor)]
                for tensor in tensors
                if id(tensor) in self.pieces and self._held.has_gradient(tensor)
            ]
            for piece in pieces:
                self._held.agree(piece.tensor, piece.spec)
                part = self._held.part(piece.tensor)
                if piece.moved(part):
                    before = piece.own
                    piece.follow(self._comm.rank, part)
                    if before in self.local:
                        self.local[piece.own] = self.local.pop(before)
            return pieces

    def share(self, pieces: Sequence[CutParameter]) -> None:
        """Share the updated parts of these parameters; they are whole on return. A collective."""
        self._comm.share(by_rank((piece.bytes for piece in pieces), self._comm.world_size))

    @torch.no_grad()
    def whole(self) -> defaultdict[Any, Any]:
        """The state of the single device, gathered from all ranks."""
        with DisableTorchFunction():
            return self._whole()

    def _whole(self) -> defaultdict[Any, Any]:
        pieces = list(self.pieces.values())
        told: dict[int, dict[Any, Any]] = {}
        for described in self._comm.all_gather_object(self._describe(pieces)):
            told = {**described, **told}
        wanted: list[tuple[CutParameter, torch.Tensor]] = []
        wholes: list[torch.Tensor] = []
        entries: dict[int, dict[Any, Any]] = {}
        for place in sorted(told):
            piece = pieces[place]
            entry = entries[id(piece.tensor)] = {}
            for key, value in told[place].items():
                if not isinstance(value, _Elements):
                    entry[key] = _undescribed(value)
                    continue
                entry[key] = piece.room(value.dtype)
                wholes.append(entry[key])
                elements = flat(entry[key])
                wanted.append((piece, torch.empty_like(elements) if piece.has_own_order else elements))
                self._write_own(wanted[-1][1], piece, key)
        self._comm.share(
            [
                [whole[slice(*held)] for piece, whole in wanted if (held := piece.spec[rank]) is not None]
                for rank in range(self._comm.world_size)
            ]
        )
        for (piece, elements), whole in zip(wanted, wholes, strict=True):
            piece.put_back(elements, whole)
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

    def _write_own(self, whole: torch.Tensor, piece: CutParameter, key: Any) -> None:
        if piece.own is not None:
            whole[slice(*piece.spec[self._comm.rank] or ())].copy_(self.local[piece.own][key].view(-1))

    def _describe(self, pieces: Sequence[CutParameter]) -> dict[int, dict[Any, Any]]:
        """Describe entries, without elements, by number of the piece.

        The first rank that has elements of a piece describes it.
        """
        told: dict[int, dict[Any, Any]] = {}
        for place, piece in enumerate(pieces):
            first = next(rank for rank, held in enumerate(piece.spec) if held is not None)
            own = piece.own
            if first == self._comm.rank and own is not None and own in self.local:
                told[place] = {key: _described(value, own) for key, value in self.local[own].items()}
        return told


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
