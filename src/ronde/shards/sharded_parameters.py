"""Parameters live in parts, and are gathered unit by unit where somebody needs them (ZeRO stage 3, FSDP).

No hooks on modules: a parameter without elements says itself when it is used, by the model, a method past
forward, the script or an optimizer, and backward asks for what autograd has saved of it. So whatever a script
does is right; what it costs is memory where the script itself holds on to whole parameters.
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
from ronde.sync.home import Home
from ronde.tensor.context import Context, Region, in_transform
from ronde.trace.resident import Census

__all__ = ["ShardedParameters"]

# Whole at a time, beside those that one operation needs together: the one in use, and the next or the last.
_WHOLE_UNITS = 2


class ShardedParameters:
    """All units of a session.

    Args:
        partition: the elements that each rank has.
        home: where parts live.
        find: cuts what is to be cut of a module into units.
    """

    def __init__(
        self,
        context: Context,
        partition: Partition,
        home: Home,
        note: Callable[[str], None],
        find: Find,
    ) -> None:
        self._context = context
        self._note = note
        self._kind: Any = sharded_parameter(self.holding, self._address)
        self._table = UnitTable(context.comm, partition, home, find)
        # Units that are whole, the one whose turn was longest ago first, with their parameters: ranks do the
        # same about these, so none may be collected on one of them meanwhile.
        self._whole: dict[Unit, list[torch.Tensor]] = {}
        self._pinned: set[Unit] = set()
        self._pins_new = False  # what is cut from now on is pinned too
        # Those that somebody held a view of when the update began, on whatever rank.
        self._lingering: list[Unit] = []
        # What operations under way need, those inside others behind them.
        self._held: list[Unit] = []
        self._reading = False
        self._prefetch = Prefetch()
        self._on_use: Callable[[torch.Tensor], None] | None = None

    @property
    def are_there(self) -> bool:
        """Whether any parameter has been cut."""
        return bool(self._table.units)

    @contextmanager
    def calling(self, module: torch.nn.Module) -> Iterator[None]:
        """Around an outermost call of a model."""
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
            self.rest(keep_last=torch.is_grad_enabled())

    @contextmanager
    def using(self) -> Iterator[None]:
        """Prefetch by the order of uses in a forward, and reshard behind it."""
        self._prefetch.begin()
        try:
            yield
        finally:
            self.rest(keep_last=torch.is_grad_enabled())

    def adopt(self, tensors: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> None:
        """Take over tensors of which this rank's elements are there already, as one unit. A collective.

        Args:
            parts: flat, by the spec that the partition has for each tensor; they stay where they are.
        """
        with DisableTorchFunction(), _aside(self._context):
            unit = self._table.adopt(tensors, parts)
            for _, tensor in unit.parameters:
                tensor.__class__ = self._kind

    def cut(self, module: torch.nn.Module, *, again: bool = False) -> list[torch.Tensor]:
        """Cut what is new in a module; gives what of it is in parts.

        Args:
            again: look at all parameters, those too that do not look new.
        """
        parts = list(module.modules())
        self._shard(module, parts, again=again)
        return [each for each in module.parameters() if self._table.entry(each) is not None]

    def cut_new(self, module: torch.nn.Module) -> None:
        """Cut what is new in a module, if it is enough; what is smaller waits for its neighbours."""
        if self._table.uncut_bytes(module) >= LEAST_BYTES:
            self._shard(module, module.modules())

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Around a backward: what is gathered inside is read, and not written."""
        before, self._reading = self._reading, True
        self._prefetch.begin()
        try:
            yield
        finally:
            self._reading = before
            self.rest(keep_last=False)

    def pin(self, parameters: Iterable[torch.Tensor] | None = None) -> None:
        """Have the units of these parameters, or all, whole until the next update."""
        units = list(self._table.units) if parameters is None else self._table.units_of(parameters)
        self._pins_new = self._pins_new or parameters is None
        self._pinned.update(units)
        for unit in units:
            self._unshard(unit, units)

    @contextmanager
    def holding(self, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Inside, the units of these parameters are whole."""
        self.touch(tensors)
        depth = len(self._held)
        self._held += self._table.units_of(tensors)
        try:
            yield
        finally:
            del self._held[depth:]

    def unpin(self) -> None:
        """Have nothing whole any longer than it is used: an update, of whatever kind, is about to begin."""
        self._pinned.clear()
        self._pins_new = False

    @contextmanager
    def watched(self, on_use: Callable[[torch.Tensor], None]) -> Iterator[None]:
        """Inside, `on_use` is given each parameter in parts that an operation needs, and may raise."""
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
        """What is kept by somebody who never asks it again: a view, by which a parameter stays whole."""
        return value if self._table.entry(value) is None else value.detach()

    def shown(self, tensor: torch.Tensor) -> None:
        """Somebody may write to a parameter from now on, and no version will tell."""
        found = self._table.entry(tensor)
        if found is not None and found[1].whole:
            found[1].written = True

    def need(self, member: Member) -> None:
        """Gather what autograd has saved of."""
        found = self._table.lying_in(member.cdata)
        if found is not None:  # perhaps another member, where a unit was cut anew
            self._unshard(found[1], [found[1]])

    def left(self, member: Member, tensor: torch.Tensor) -> bool:
        """Whether the script has laid a parameter elsewhere since its member was made."""
        found = self._table.entry(tensor)
        return found is None or found[0] is not member or (found[1].whole and member.moved(tensor))

    def own(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """This rank's elements of a parameter in parts, flat, perhaps none; None for a whole one."""
        found = self._table.entry(tensor)
        return None if found is None else found[0].part

    def span(self, tensor: torch.Tensor) -> Span:
        """The span of this rank's elements of a sharded parameter."""
        found = self._table.entry(tensor)
        return (0, 0) if found is None else found[0].own

    def latest(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """As `own`, with what somebody has written to a view of the whole; None while it is whole."""
        found = self._table.entry(tensor)
        if found is None or found[1].whole:
            return None
        found[1].refresh()
        return found[0].part

    def saved(self, tensor: torch.Tensor) -> tuple[Member, Unit] | None:
        """Whose memory a tensor lies in."""
        return self._table.lying_in(tensor.untyped_storage()._cdata)

    def _address(self, tensor: torch.Tensor) -> int:
        found = self._table.entry(tensor)
        return 0 if found is None else found[0].cdata

    def begin_update(self) -> None:
        """Parts are about to be updated: what was written to the whole is in them from now on."""
        self.unpin()
        self.rest(keep_last=False)
        with _aside(self._context):
            # Ranks collect their garbage when they like, so what lingers here may not on another. They meet
            # here in any case: what one updates, another may be reading until then.
            lingers = self._context.comm.votes([unit.lingers for unit in self._table.units])
            self._lingering = [unit for unit, count in zip(self._table.units, lingers, strict=True) if count]
            for unit in self._lingering:
                unit.begin_update()

    def end_update(self, tensors: Iterable[torch.Tensor]) -> None:
        """Parts of these parameters have been updated: update what somebody holds of the whole."""
        with _aside(self._context):
            if self._context.comm.shares_host:
                self._context.comm.barrier()  # what another has updated may be read from now on
            for unit in self._lingering:
                unit.end_update()
            self._lingering = []
        for tensor in tensors:
            if self._table.entry(tensor) is not None:
                with DisableTorchFunction():
                    torch.autograd.graph.increment_version(tensor)

    def rest(self, *, keep_last: bool) -> None:
        """Let go of what is whole, but for the last unit perhaps, and what somebody holds."""
        self._abandon()
        keep_last = keep_last and not self._context.comm.shares_host  # where it costs nothing to have again
        for unit in list(self._whole)[: -1 if keep_last else None]:
            self._reshard(unit)
        for unit in self._whole:
            unit.written = unit.written or not unit.aliased  # the script has it before it
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
                    unit.written = False  # it was read only, and ranks would meet for what was written
        self.rest(keep_last=False)

    def dissolve(self, tensor: torch.Tensor) -> None:
        """Make the unit of a parameter whole, until its parameters are cut anew. All ranks come here."""
        found = self._table.entry(tensor)
        if found is not None:
            self._dissolve(found[1])

    def release(self) -> None:
        """Make everything whole again, for good. All ranks come here."""
        for unit in list(self._table.units):
            if unit in self._table.units:  # making room for one may have done so for another
                self._dissolve(unit)

    def tell(self, census: Census) -> None:
        """Count this rank's parts; what is whole is there to be counted."""
        for unit in self._table.units:
            unit.tell(census)

    def _shard(
        self, module: torch.nn.Module, parts: Iterable[torch.nn.Module], *, again: bool = False
    ) -> None:
        """Cut what is new in a module.

        Args:
            parts: it, and those inside it.
            again: as of `cut`.
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
                self._reshard(unit)  # before the next has parts too
        if any(of_several_processes(each) for each in self._table.uncut(module) if not is_lazy(each)):
            self._note(
                "parameters in memory of several processes (share_memory()) are whole on every rank, and not "
                "cut: the other processes read there what they become"
            )
        self.rest(keep_last=False)
        give_back()  # what parameters lay in until now

    def _keep_whole(self, unit: Unit) -> None:
        """It is whole until its turn to be let go of."""
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
                "one, where ranks are not in step; use it in the main thread"
            )
        if context.together is not None:
            context.together(lambda: None)  # no rank that has ended an observed call is waited for
        if not self._prefetch.arrived(unit):
            self._abandon()
        self._make_room(together)
        if unit.whole:  # for good: what made room lies in its memory
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
        """Send for what will be needed when this unit has been used."""
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
        """Its parameters are whole on every rank from now on, or until they are cut anew.

        So are those of units in whose memory they lie.
        """
        going, tensors = [unit], list[torch.Tensor]()
        while going:
            each = going.pop()
            self._unshard(each, [each])
            if each not in self._table.units:  # making room for it has dissolved it
                continue
            mine = [tensor for _, tensor in each.parameters]
            going += self._table.lying_with(mine)
            self._drop(each)
            tensors += mine
        self._table.look_again(tensors)

    def _cut_anew(self, unit: Unit) -> None:
        """Its parameters, or some, have another dtype, device or shape now."""
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
    """Whether code runs in it that does not ask parameters for their elements one by one."""
    return isinstance(part, torch.jit.ScriptModule) or is_compiled(part)


@contextmanager
def _aside(context: Context) -> Iterator[None]:
    """Neither autograd nor a mode, a tracer or a transform sees what is done inside."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(DisableTorchFunction())
        stack.enter_context(disable_current_modes())
        stack.enter_context(untraced())
        if in_transform():
            stack.enter_context(temporarily_clear_interpreter_stack())
        yield
