"""Table of all units, and the parameters in them.

A script creates and deletes models; it gives parameters other memory, another dtype, device, shape or class.
Ranks follow such changes together, at points that all of them reach.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ronde.comm.process_group import Comm
from ronde.shards.copied_unit import CopiedMember, CopiedUnit, copy_unit
from ronde.shards.mapped_unit import map_unit
from ronde.shards.partition import Partition, by_kind
from ronde.shards.spec import ShardSpec
from ronde.shards.unit import Member, Unit, can_be_sharded
from ronde.sync.memory_home import Home

__all__ = ["Fate", "Find", "UnitTable"]

Find = Callable[[torch.nn.Module], Iterable[list[torch.Tensor]]]


class Fate(enum.Enum):
    """Consequence for a unit of changes to its parameters by the script.

    STAYS: as it is, if perhaps in other memory.
    CUT_ANEW: parameters have another dtype, device or shape now.
    DISSOLVES: its parameters are whole on every rank from now on, or until they are cut anew.
    """

    STAYS = "stays"
    CUT_ANEW = "cut anew"
    DISSOLVES = "dissolves"


class UnitTable:
    """All units of a session.

    Args:
        partition: the elements that each rank has.
        home: placement of shards.
        find: splits the parameters of a module that are to be cut into units.

    Attributes:
        units: units in the order in which they were made.
    """

    def __init__(self, comm: Comm, partition: Partition, home: Home, find: Find) -> None:
        self.units: list[Unit] = []
        self._find = find
        self._comm = comm
        self._partition = partition
        self._home = home
        self._count = 0
        self._of: dict[int, tuple[Member, Unit]] = {}
        self._by_storage: dict[int, tuple[Member, Unit]] = {}
        # Those that could not be cut, by their ids; and those that may be cut anew.
        self._whole: dict[int, weakref.ref[torch.Tensor]] = {}
        self._dissolved: list[weakref.ref[torch.Tensor]] = []

    def entry(self, value: Any) -> tuple[Member, Unit] | None:
        """Return a parameter's member and unit; None for a value in no unit."""
        found = self._of.get(id(value))
        return found if found is not None and found[0].ref() is value else None

    def units_of(self, values: Iterable[Any]) -> list[Unit]:
        """Return the units of sharded parameters among values, each once."""
        found = (self.entry(value) for value in values)
        return list(dict.fromkeys(entry[1] for entry in found if entry is not None))

    def lying_in(self, storage: int) -> tuple[Member, Unit] | None:
        """Return the member and unit that own this memory."""
        return self._by_storage.get(storage)

    def uncut_bytes(self, module: torch.nn.Module) -> int:
        return sum(each.numel() * each.element_size() for each in self.uncut(module) if _has_elements(each))

    def uncut(self, module: torch.nn.Module) -> list[torch.Tensor]:
        """Parameters that are in no unit."""
        return [each for each in module.parameters() if self.entry(each) is None]

    def has_new(self, parts: Iterable[torch.nn.Module]) -> bool:
        """Return whether any of these modules has a parameter never tried for cutting.

        Present parameters are checked one by one; nothing is cached by module, since the script could have
        changed it.
        """
        # Most parameters are sharded and so have another class; this cheapest check comes first.
        return any(
            type(each) is torch.nn.Parameter
            and self.entry(each) is None
            and not self._stays_whole(each)
            and not each.is_meta
            for part in parts
            for each in part._parameters.values()
        )

    def cut_module(self, module: torch.nn.Module) -> Iterator[Unit]:
        """Cut new parameters of a module; yield the units, still whole, one by one."""
        together = self._together(self.uncut(module))
        for found in self._find(module):
            new = [each for each in found if self.entry(each) is None and id(each) not in together]
            unit = self._cut(new)
            if unit is not None:
                yield unit
        for each in module.parameters():
            if self.entry(each) is None and _has_elements(each):
                self._leave_whole(each)

    def cut_again(self, tensors: Sequence[torch.Tensor]) -> Iterator[Unit]:
        """Cut parameters of a former unit again; see `cut_module`."""
        together = self._together(tensors)
        for members in by_kind([each for each in tensors if id(each) not in together]):
            unit = self._cut(members)
            if unit is not None:
                yield unit

    def adopt(self, tensors: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> Unit:
        """Make a unit of tensors with existing shards, and free the tensors' memory.

        Args:
            parts: elements of each tensor on this rank, by the spec that the partition has for it.
        """
        pairs = zip(tensors, self._partition.assign(tensors), strict=True)
        members = [CopiedMember(tensor, spec, self._comm.rank) for tensor, spec in pairs if spec is not None]
        return self._register(CopiedUnit(self._count, members, self._comm, self._home, parts))

    def look_again(self, dissolved: Sequence[torch.Tensor]) -> None:
        """Allow another try at parameters that could not be cut before."""
        self._dissolved = [*map(weakref.ref, [*dissolved, *self._uncut()])]
        self._whole.clear()

    def lying_with(self, tensors: Iterable[torch.Tensor]) -> list[Unit]:
        """Return the units of other parameters that share memory with these."""
        found = ((each, self.lying_in(_memory(each))) for each in tensors if _has_elements(each))
        return list(
            dict.fromkeys(
                entry[1] for each, entry in found if entry is not None and entry[0].ref() is not each
            )
        )

    def gone(self) -> list[Unit]:
        """Return units without a live parameter on any rank. A collective."""
        there = self._comm.votes([bool(unit.parameters) for unit in self.units])
        return [unit for unit, count in zip(self.units, there, strict=True) if not count]

    def drop(self, unit: Unit) -> None:
        self.units.remove(unit)
        self._of = {key: found for key, found in self._of.items() if found[1] is not unit}
        self._by_storage = {key: found for key, found in self._by_storage.items() if found[1] is not unit}

    def locate(self, unit: Unit) -> None:
        """Record the memory of its members."""
        elsewhere = {key: found for key, found in self._by_storage.items() if found[1] is not unit}
        self._by_storage = elsewhere | {member.cdata: (member, unit) for member in unit.members}

    def follow(self, unit: Unit) -> Fate:
        """Follow the script's changes to the parameters of a whole unit. A collective."""
        for member, tensor in unit.parameters:
            if type(tensor) is not torch.nn.Parameter:
                return Fate.DISSOLVES
            if member.stands(tensor) and not member.moved(tensor):
                continue
            # A change of one changes the other from now on.
            if self.lying_with([tensor]) or self._together([tensor]):
                return Fate.DISSOLVES
            if not member.stands(tensor):
                return Fate.CUT_ANEW
            if not can_be_sharded(tensor) or self._is_saved(member) or not unit.takes_over(member, tensor):
                return Fate.DISSOLVES
            unit.written = True
            self.locate(unit)
        return Fate.STAYS

    def _is_saved(self, member: Member) -> bool:
        """Return whether backward may need a member's former elements. A collective."""
        return self._comm.votes([member.is_saved]) != [0]

    def _stays_whole(self, tensor: torch.Tensor) -> bool:
        found = self._whole.get(id(tensor))
        return found is not None and found() is tensor

    def _uncut(self) -> list[torch.Tensor]:
        """Return all known tensors that are in no unit, each once."""
        found = [tensor for ref in (*self._whole.values(), *self._dissolved) if (tensor := ref()) is not None]
        return list({id(each): each for each in found if self.entry(each) is None}.values())

    def _together(self, tensors: Sequence[torch.Tensor]) -> set[int]:
        """Return the ids of tensors that share memory with another, given or uncut.

        In separate units they would be updated separately. A collective: another tensor may be gone on one
        rank.
        """
        by_memory: dict[int, set[int]] = {}
        for each in filter(_has_elements, [*tensors, *self._uncut()]):
            by_memory.setdefault(_memory(each), set()).add(id(each))
        shared = set().union(*(keys for keys in by_memory.values() if len(keys) > 1))
        counts = self._comm.votes([id(each) in shared for each in tensors])
        return {id(each) for each, count in zip(tensors, counts, strict=True) if count}

    def _leave_whole(self, tensor: torch.Tensor) -> None:
        key = id(tensor)
        self._whole[key] = weakref.ref(tensor, lambda gone: self._forget(key, gone))

    def _forget(self, key: int, gone: weakref.ref[torch.Tensor]) -> None:
        if self._whole.get(key) is gone:
            del self._whole[key]

    def _cut(self, tensors: Sequence[torch.Tensor]) -> Unit | None:
        """Make a whole unit of the parameters that can be cut.

        They have one dtype and device.
        """
        new = [each for each in tensors if can_be_sharded(each)]
        pairs = zip(new, self._partition.assign(new), strict=True)
        found = [(each, spec) for each, spec in pairs if spec is not None]
        return self._add(*map(list, zip(*found, strict=True))) if found else None

    def _add(self, tensors: Sequence[torch.Tensor], specs: Sequence[ShardSpec]) -> Unit:
        copied = self._home.on_host or any(spec.cut is not None or spec.has_copies for spec in specs)
        mapped = None if copied else map_unit(self._count, tensors, specs, self._comm)
        unit: Unit = (
            copy_unit(self._count, tensors, specs, self._comm, self._home) if mapped is None else mapped
        )
        return self._register(unit)

    def _register(self, unit: Unit) -> Unit:
        self._count += 1
        self.units.append(unit)
        for member, tensor in unit.parameters:
            self._of[id(tensor)] = self._by_storage[member.cdata] = member, unit
        return unit


def _has_elements(tensor: torch.Tensor) -> bool:
    """Return False for lazy and meta parameters."""
    return not is_lazy(tensor) and not tensor.is_meta


def _memory(tensor: torch.Tensor) -> int:
    """Identify the memory of a tensor."""
    return tensor.untyped_storage()._cdata
