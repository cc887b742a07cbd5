"""Sharded parameters, gathered unit by unit on use (ZeRO stage 3, FSDP).

No hooks on modules: a parameter without elements detects its own use by the model, a method past forward, the
script or an optimizer, and backward asks for the parameters that autograd has saved. So any script is
correct; its price is memory where the script itself holds on to whole parameters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ronde.errors import UsageError
from ronde.launch.allocator import give_back
from ronde.modules.fast_path import may_take_fast_path
from ronde.patching.torch_internals import (
    DisableTorchFunction,
    disable_current_modes,
    temporarily_clear_interpreter_stack,
)
from ronde.rowwise.compiled import is_compiled
from ronde.shards.partition import Partition
from ronde.shards.prefetch import Prefetch
from ronde.shards.sharded_parameter import sharded_parameter
from ronde.shards.spec import Span
from ronde.shards.unit import LEAST_BYTES, Member, Unit, of_several_processes
from ronde.shards.unit_table import Fate, Find, UnitTable
from ronde.shards.untraced import untraced
from ronde.sync.memory_home import Home
from ronde.tensor.context import Context, Region, in_transform
from ronde.trace.resident import Census

__all__ = ["ShardedParameters"]

# Units that are whole at a time, besides those that one operation needs together: the unit in use, and the
# next or the previous one.
_WHOLE_UNITS = 2


class ShardedParameters:
    """All units of a session.

    Args:
        partition: the elements that each rank has.
        home: placement of shards.
        find: splits the parameters of a module that are to be cut into units.
        script: context of the script, whose observed calls ranks may end at different lines; by default
            `context`.
    """

    def __init__(
        self,
        context: Context,
        partition: Partition,
        home: Home,
        note: Callable[[str], None],
        find: Find,
        script: Context | None = None,
    ) -> None:
        self._context, self._script = context, script or context
        self._note = note
        self._kind: Any = sharded_parameter(self.holding, self._address)
        self._table = UnitTable(context.comm, partition, home, find)
        # Whole units, least recently used first, with references to their parameters: all ranks must treat
        # these alike, so none may be garbage-collected on one rank only.
        self._whole: dict[Unit, list[torch.Tensor]] = {}
        self._pinned: set[Unit] = set()
        self._pins_new = False  # units cut from now on are pinned too
        # Units with a view held on any rank when the update began.
        self._lingering: list[Unit] = []
        # Units that running operations need; those of inner operations come last.
        self._held: list[Unit] = []
        self._reading = False
        self._prefetch = Prefetch()
        self._on_use: Callable[[torch.Tensor], None] | None = None

    @property
    def are_there(self) -> bool:
        """Return whether any parameter has been cut."""
        return bool(self._table.units)

    @contextmanager
    def calling(self, module: torch.nn.Module) -> Iterator[None]:
        """Unshard units around an outermost call of a model, and reshard after it."""
        parts = list(module.modules())
        self._shard(module, parts)
        before = set(self._pinned)
        if any(map(_is_opaque, parts)):
            self.pin(module.parameters())
        for part in filter(may_take_fast_path, parts):
            self.pin(part.parameters())
        try:
            with self.using():
                yield
        finally:
            self._pinned = before
            self.rest(keep_last=self._keeps_last())

    @contextmanager
    def using(self) -> Iterator[None]:
        """Prefetch by the order of uses in a forward, and reshard after each use."""
        self._prefetch.begin()
        try:
            yield
        finally:
            self.rest(keep_last=self._keeps_last())

    def _keeps_last(self) -> bool:
        """Return whether the last unit stays whole after a call, for its backward.

        Ranks that end an observed or compared call at different lines have not the same last one.
        """
        watched = self._script.region is Region.OBSERVED or self._script.compared
        return torch.is_grad_enabled() and not watched

    def adopt(self, tensors: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> None:
        """Take over tensors with existing shards on this rank, as one unit. A collective.

        Args:
            parts: flat, by the spec that the partition has for each tensor; they stay where they are.
        """
        with DisableTorchFunction(), _aside(self._context):
            unit = self._table.adopt(tensors, parts)
            for _, tensor in unit.parameters:
                tensor.__class__ = self._kind

    def cut(self, module: torch.nn.Module, *, again: bool = False) -> list[torch.Tensor]:
        """Cut new parameters of a module; return its sharded parameters.

        Args:
            again: whether to look at all parameters, even those that do not look new.
        """
        parts = list(module.modules())
        self._shard(module, parts, again=again)
        return [each for each in module.parameters() if self._table.entry(each) is not None]

    def cut_new(self, module: torch.nn.Module) -> None:
        """Cut new parameters of a module, if they are large enough.

        Smaller ones wait for their neighbours.
        """
        if self._table.uncut_bytes(module) >= LEAST_BYTES:
            self._shard(module, module.modules())

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Run a backward: units gathered inside are read, and not written."""
        before, self._reading = self._reading, True
        self._prefetch.begin()
        try:
            yield
        finally:
            self._reading = before
            self.rest(keep_last=False)

    def pin(self, parameters: Iterable[torch.Tensor] | None = None) -> None:
        """Keep the units of these parameters, or all, whole until the next update."""
        units = list(self._table.units) if parameters is None else self._table.units_of(parameters)
        self._pins_new = self._pins_new or parameters is None
        self._pinned.update(units)
        for unit in units:
            self._unshard(unit, units)

    @contextmanager
    def holding(self, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Keep the units of these parameters whole inside the `with` block."""
        self.touch(tensors)
        depth = len(self._held)
        self._held += self._table.units_of(tensors)
        try:
            yield
        finally:
            del self._held[depth:]

    def unpin(self) -> None:
        """End all pins, before an update of any kind."""
        self._pinned.clear()
        self._pins_new = False

    @contextmanager
    def watched(self, on_use: Callable[[torch.Tensor], None]) -> Iterator[None]:
        """Report each sharded parameter that an operation needs, inside the `with` block.

        `on_use` gets the parameter, and may raise.
        """
        before, self._on_use = self._on_use, on_use
        try:
            yield
        finally:
            self._on_use = before

    def touch(self, values: Iterable[Any]) -> None:
        """Gather the units of parameters among values that an operation needs together."""
        if self._on_use is not None:
            values = list(values)
            for value in values:
                if self._table.entry(value) is not None:
                    self._on_use(value)
        units = self._table.units_of(values)
        for unit in units:
            self._unshard(unit, units)

    def lasting(self, value: Any) -> Any:
        """Return the value to store in a place that bypasses a parameter's class.

        A sharded parameter is replaced by a view of it, which keeps it whole.
        """
        return value if self._table.entry(value) is None else value.detach()

    def shown(self, tensor: torch.Tensor) -> None:
        """Assume from now on that a parameter may be written without a version change."""
        found = self._table.entry(tensor)
        if found is not None and found[1].whole:
            found[1].written = True

    def need(self, member: Member) -> None:
        """Gather the unit of a member that autograd has saved."""
        found = self._table.lying_in(member.cdata)
        if found is not None:  # perhaps another member, if a unit was cut again
            self._unshard(found[1], [found[1]])

    def left(self, member: Member, tensor: torch.Tensor) -> bool:
        """Return whether a parameter's memory was replaced since its member was made."""
        found = self._table.entry(tensor)
        return found is None or found[0] is not member or (found[1].whole and member.moved(tensor))

    def own(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return this rank's elements of a sharded parameter, flat; None if whole.

        They may be empty.
        """
        found = self._table.entry(tensor)
        return None if found is None else found[0].part

    def span(self, tensor: torch.Tensor) -> Span:
        """The span of this rank's elements of a sharded parameter."""
        found = self._table.entry(tensor)
        return (0, 0) if found is None else found[0].own

    def latest(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return `own` with writes to views of the whole; None while it is whole."""
        found = self._table.entry(tensor)
        if found is None or found[1].whole:
            return None
        found[1].refresh()
        return found[0].part

    def saved(self, tensor: torch.Tensor) -> tuple[Member, Unit] | None:
        """Return the member and unit that own a tensor's memory."""
        return self._table.lying_in(tensor.untyped_storage()._cdata)

    def _address(self, tensor: torch.Tensor) -> int:
        found = self._table.entry(tensor)
        return 0 if found is None else found[0].cdata

    def begin_update(self) -> None:
        """Copy writes to whole parameters into the shards, before an update. A collective."""
        self.unpin()
        self.rest(keep_last=False)
        with _aside(self._context):
            # Garbage is collected at different moments on each rank, so a unit aliased here may not be on
            # another. Ranks synchronize here in any case: until then a rank may be reading elements that
            # another updates.
            lingers = self._context.comm.votes([unit.lingers for unit in self._table.units])
            self._lingering = [unit for unit, count in zip(self._table.units, lingers, strict=True) if count]
            for unit in self._lingering:
                unit.begin_update()

    def end_update(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy updated shards of these parameters into aliased memory of the whole. A collective."""
        with _aside(self._context):
            if self._context.comm.shares_host:
                self._context.comm.barrier()  # updates of other ranks may be read from now on
            for unit in self._lingering:
                unit.end_update()
            self._lingering = []
        for tensor in tensors:
            if self._table.entry(tensor) is not None:
                with DisableTorchFunction():
                    torch.autograd.graph.increment_version(tensor)

    def rest(self, *, keep_last: bool) -> None:
        """Reshard whole units, except perhaps the last, and aliased ones."""
        self._abandon()
        keep_last = keep_last and not self._context.comm.shares_host  # which are free to gather again
        for unit in list(self._whole)[: -1 if keep_last else None]:
            self._reshard(unit)
        for unit in self._whole:
            unit.written = unit.written or not unit.aliased  # the script still has it in use
        with _aside(self._context):
            for unit in self._table.units:
                if unit.let_go():
                    self._table.locate(unit)

    def settle(self) -> None:
        """Release units gathered on some ranks only, after an exception on all. A collective."""
        with _aside(self._context):
            comm = self._context.comm
            units = list(self._table.units)
            for unit, count in zip(units, comm.votes([unit.whole for unit in units]), strict=True):
                if unit.whole and count < comm.world_size:
                    unit.written = False  # it was only read, and a write would cost a collective
        self.rest(keep_last=False)

    def dissolve(self, tensor: torch.Tensor) -> None:
        """Make the unit of a parameter whole, until its parameters are cut anew. A collective."""
        found = self._table.entry(tensor)
        if found is not None:
            self._dissolve(found[1])

    def release(self) -> None:
        """Make everything whole again, for good. A collective."""
        for unit in list(self._table.units):
            if unit in self._table.units:  # dissolving one may have dissolved another
                self._dissolve(unit)

    def tell(self, census: Census) -> None:
        """Count this rank's shards; whole parameters are counted elsewhere."""
        for unit in self._table.units:
            unit.tell(census)

    def _shard(
        self, module: torch.nn.Module, parts: Iterable[torch.nn.Module], *, again: bool = False
    ) -> None:
        """Cut new parameters of a module.

        Args:
            parts: the module, and all modules inside it.
            again: see `cut`.
        """
        if not (again or self._table.has_new(parts)):
            return
        with DisableTorchFunction(), _aside(self._context):
            for unit in self._table.gone():
                self._drop(unit)
            for unit in self._table.lying_with(self._table.uncut(module)):
                self._dissolve(unit)
            for unit in self._table.cut_module(module):
                self._keep_whole(unit)
                if self._pins_new:
                    self._pinned.add(unit)
                self._reshard(unit)  # before the next one is sharded
        if any(of_several_processes(each) for each in self._table.uncut(module) if not is_lazy(each)):
            self._note(
                "parameters in memory of several processes (share_memory()) stay whole on every rank, "
                "because other processes read their new values there [R311]"
            )
        self.rest(keep_last=False)
        give_back()  # frees the former memory of parameters

    def _keep_whole(self, unit: Unit) -> None:
        """Register a whole unit, to be resharded in its turn."""
        self._whole[unit] = [tensor for _, tensor in unit.parameters]

    def _unshard(self, unit: Unit, together: Sequence[Unit]) -> None:
        if unit.whole:
            if unit in self._whole:
                self._whole[unit] = self._whole.pop(unit)
            return
        context = self._context
        if not context.is_in_step():
            raise UsageError(
                "a parameter that is spread over the ranks was used in another thread than the script's main "
                "one, where ranks are not in step; use it in the main thread [R374]"
            )
        if (meet := self._script.together) is not None:
            meet(lambda: None)  # do not wait for a rank that has left an observed call
        if not self._prefetch.arrived(unit):
            self._abandon()
        self._make_room(together)
        if unit.whole:  # permanently: the dissolved unit shares its memory
            return
        with _aside(context):
            unit.gather()
            in_model = context.region in (Region.SHARDED, Region.OBSERVED)
            unit.written = not (unit.aliased or in_model or self._reading)
            for member, tensor in unit.parameters:
                tensor.__class__ = torch.nn.Parameter
                member.version = tensor._version
        self._keep_whole(unit)
        if not unit.written and not context.comm.shares_host:
            self._have_next(unit, together)

    def _have_next(self, unit: Unit, together: Sequence[Unit]) -> None:
        """Prefetch the unit that will follow this one."""
        self._prefetch.note(unit, backward=self._reading)
        following = self._prefetch.next_of(unit, backward=self._reading)
        if following is None or len(together) > 1:
            return
        self._make_room([unit])
        if len(self._whole) < _WHOLE_UNITS and not following.whole:
            with _aside(self._context):
                self._prefetch.start(following)

    def _abandon(self) -> None:
        if self._prefetch.coming is not None:
            with _aside(self._context):
                self._prefetch.abandon(self._table.locate)

    def _make_room(self, together: Sequence[Unit]) -> None:
        others = [unit for unit in self._whole if unit not in together]
        for unit in others[: max(0, len(self._whole) + 1 - _WHOLE_UNITS)]:
            self._reshard(unit)

    def _reshard(self, unit: Unit) -> None:
        if unit in self._pinned or unit in self._held or unit not in self._whole:
            return
        with _aside(self._context):
            fate = self._table.follow(unit)
            if fate is Fate.DISSOLVES:
                return self._dissolve(unit)
            if fate is Fate.CUT_ANEW:
                return self._cut_anew(unit)
            for member, tensor in unit.parameters:
                unit.written = unit.written or tensor._version != member.version
            if unit.rest():
                self._table.locate(unit)
            for tensor in self._whole.pop(unit):
                tensor.__class__ = self._kind

    def _dissolve(self, unit: Unit) -> None:
        """Make a unit's parameters whole on every rank, until they are cut anew.

        Units whose memory they share are dissolved too.
        """
        going, tensors = [unit], list[torch.Tensor]()
        while going:
            each = going.pop()
            self._unshard(each, [each])
            if each not in self._table.units:  # dissolving another has dissolved it
                continue
            mine = [tensor for _, tensor in each.parameters]
            going += self._table.lying_with(mine)
            self._drop(each)
            tensors += mine
        self._table.look_again(tensors)

    def _cut_anew(self, unit: Unit) -> None:
        """Cut a unit again after some parameters have changed dtype, device or shape."""
        tensors = [tensor for _, tensor in unit.parameters]
        self._drop(unit)
        for new in self._table.cut_again(tensors):
            self._keep_whole(new)
            self._reshard(new)

    def _drop(self, unit: Unit) -> None:
        self._table.drop(unit)
        self._whole.pop(unit, None)
        self._pinned.discard(unit)
        self._prefetch.forget(unit)


def _is_opaque(part: torch.nn.Module) -> bool:
    """Return whether a module runs code that bypasses the class of parameters."""
    return isinstance(part, torch.jit.ScriptModule) or is_compiled(part)


@contextmanager
def _aside(context: Context) -> Iterator[None]:
    """Hide the block's operations from autograd, modes, tracers and transforms."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(DisableTorchFunction())
        stack.enter_context(disable_current_modes())
        stack.enter_context(untraced())
        if in_transform():
            stack.enter_context(temporarily_clear_interpreter_stack())
        yield
