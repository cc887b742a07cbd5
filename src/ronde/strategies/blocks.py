"""Blocks of a cut model's parameters, with ZeRO inside of each block."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, final

import torch

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.parallel.tensor.deferred_init import Building
from ronde.patching.modes_first import modes_first
from ronde.patching.patches import Patches
from ronde.policies.units import find_units
from ronde.policies.zero import RUNS, divided, in_equal_parts, replica_spec, zero_within
from ronde.shards import gradients
from ronde.shards.block_gradients import BlockGradients, ParameterBlock, Scattered
from ronde.shards.nested_parameters import NestedParameters
from ronde.shards.optimizer_shards import OptimizerShards, ParameterShards, Replicas
from ronde.shards.partition import Partition
from ronde.shards.saved_parameters import SavedParameters
from ronde.shards.sharded_parameters import ShardedParameters
from ronde.shards.sharded_update import ShardedUpdate
from ronde.shards.spec import ShardSpec
from ronde.shards.unit_table import Find
from ronde.strategies.block_ranks import BlockRanks
from ronde.strategies.memory_homes import homes
from ronde.strategies.replica_group import ReplicaGroup
from ronde.strategies.session_parts import SessionParts
from ronde.strategies.sharded_state import ShardedState, all_of
from ronde.strategies.zero import is_worth_sharding
from ronde.sync.memory_home import OnDevice
from ronde.sync.reduced_gradients import ReducedGradients
from ronde.sync.reducer import Reducer
from ronde.tensor.context import Context, Region
from ronde.tensor.tensor_table import TensorTable

__all__ = ["Cutting", "ModelBlocks", "Reduced"]


class Reduced(enum.Enum):
    """Selects the blocks with gradients that the reducer averages; the strategy averages others."""

    ALL = enum.auto()
    COPIES = enum.auto()
    NONE = enum.auto()

    def has(self, spec: ShardSpec) -> bool:
        return self is Reduced.ALL or (self is Reduced.COPIES and spec.has_copies)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cutting:
    """Mesh axes that cut models, as far as blocks are concerned.

    Attributes:
        partition: block of each rank.
        find: function that decides on the parameters of a model, and returns the units of cut ones.
        item: plan item by which messages name the axes.
        reduces: selection of the blocks with gradients that the reducer averages.
        cuts_whole: whether `zero3` cuts parameters outside of blocks too, and gathers them over rows for a
            call.
    """

    partition: Partition
    find: Find
    item: str
    reduces: Reduced = Reduced.ALL
    cuts_whole: bool = True


def _find_nothing(module: torch.nn.Module) -> list[list[torch.Tensor]]:
    return []


def _adopt_none(leaf: torch.Tensor) -> None:
    """Ignore a leaf.

    Ranks that gather parameters exchange no values of the script.
    """


@final
class ModelBlocks:
    """Sharded parameters of cut models: this rank's blocks, with ZeRO inside.

    Args:
        ranks: process groups; the ranks of `group` have other blocks.
        cutting: mesh axes that cut models.

    Attributes:
        comm: context of the ranks that have other blocks.
        gradients: blocks with their gradients.
        parameters: store that gathers whole parameters.
        state: all shards.
    """

    def __init__(
        self,
        parts: SessionParts,
        ranks: BlockRanks,
        cutting: Cutting,
    ) -> None:
        plan, note = parts.plan, parts.note
        reducer, context = parts.reducer, parts.context
        self._script, self._ranks, self._note = context, ranks, note
        self._reducer, self._cutting = reducer, cutting
        self._axis = plan.state.on(ranks.rows.world_size)
        self._home, self._home_of_shards = homes(self._axis)
        # Leaves that the reducer does not handle.
        self._alone: TensorTable[bool] = TensorTable()
        # A separate context, in which the model's cut values are whole: nothing of the batch is cut there.
        self.comm = Context.within_rows(ranks.group, ranks.sequences)
        partition, find = cutting.partition, self._built_whole(cutting.find)
        # All ranks, for tensors that are cut over the replicas of blocks too.
        everybody = Context(comm=ranks.everybody, adopt=_adopt_none)
        self._among = everybody if self._axis.cuts_optimizer else self.comm
        runs = RUNS.get(self._axis.placement, in_equal_parts)
        self._of_rows = divided(runs, ranks.rows.world_size)
        self._nested = zero_within(partition, self._of_rows, ranks.places, runs, ranks.copies)
        # The ranks with other rows, and among them the ranks with the same experts.
        whole = self._built_whole(self._find_whole) if cutting.cuts_whole else _find_nothing
        self._rows = self._replicas(ranks.rows, ranks.row_ranks, reducer, parts.replicas, whole)
        self._experts: ReplicaGroup | None = None
        if (few := ranks.replica_group) is not None:
            gathering = None if ranks.gathering is None else Context(comm=ranks.gathering, adopt=_adopt_none)
            self._experts = self._replicas(few, ranks.replicas, reducer.of_fewer(few), gathering)
        self._groups = [each for each in (self._rows, self._experts) if each is not None]
        self.gradients = BlockGradients(ranks.group, self._adopt, self._mean, self._give, self._scattered())
        # Blocks are cut once more only where several ranks have the same block.
        sharing = self._groups if cutting.reduces is not Reduced.NONE else self._groups[1:]
        self._sharing = [each for each in sharing if each.divides]
        self._nests = self._axis.cuts_parameters and bool(self._sharing)
        if self._nests:
            kept = Partition(self._kept, partition)
            self.parameters = ShardedParameters(everybody, kept, self._home_of_shards, note, find, context)
        else:
            self.parameters = ShardedParameters(self.comm, partition, OnDevice(), note, find, context)
        # Stores of blocks that are cut once more; the replicas gather them.
        self._leaves = [each.leaves for each in self._groups if each.leaves is not None]
        # A layer's place in a model is unknown before the model's call: until then it is spread evenly.
        evenly = divided(in_equal_parts, ranks.everybody.world_size)
        self._built = ShardedParameters(everybody, evenly, OnDevice(), note, find_units, context)
        stores = [self.parameters, *self._leaves, self._built]
        self._saved = SavedParameters(*stores)
        self.state = ShardedState(
            parameters=stores,
            gradients=(self.gradients,),
            blocks=self.gradients,
            update=self._update(),
            saved=self._saved,
            building=Building(self.comm, self._built.cut_new),
        )
        reducer.instead_of = self._leaf_of
        reducer.on_averaged = self.gradients.end_backward
        reducer.beside = self.gradients.beside
        if cutting.reduces is not Reduced.NONE:
            reducer.reduce_to(encoded=self._encoded)

    def _replicas(
        self,
        comm: Comm,
        ranks: Sequence[int],
        reducer: Reducer,
        gathering: Context | None,
        find: Find = _find_nothing,
    ) -> ReplicaGroup:
        """Create the gradient and parameter shards of a replica group.

        Gradients are divided under zero2 and zero3, parameters under zero3.

        Args:
            gathering: context of the same ranks, for gathers in an order of its own.
            find: function that cuts tensors over these ranks that are not in blocks.
        """
        home, gradients, leaves = self._home_of_shards, None, None
        if self._axis.cuts_gradients:
            gradients = ReducedGradients(comm, self._rows_of, home)
            reducer.reduce_to(shards=gradients)
        if self._axis.cuts_parameters and gathering is not None:
            leaves = ShardedParameters(gathering, self._of_rows, home, self._note, find, self._script)
        return ReplicaGroup(comm=comm, ranks=ranks, reducer=reducer, gradients=gradients, leaves=leaves)

    def _scattered(self) -> Scattered | None:
        """Create the shards to which gradients of blocks are reduced (zero2, zero3)."""
        gradients = [each.gradients for each in self._groups if each.gradients is not None]
        if not gradients:
            return None
        blocks = [place.block for place in self._ranks.places]
        return Scattered(gradients, self._nested, self._ranks.everybody, blocks, self._keep)

    def _keep(self, block: ParameterBlock, gradient: torch.Tensor) -> bool:
        group, spec = self._group_of(block.spec), self._of_rows.spec(block.leaf)
        if group is None or group.gradients is None or spec is None:
            return False
        group.gradients.keep(block.leaf, spec, gradient)
        return True

    def _update(self) -> ShardedUpdate:
        """Create the sharded optimizer step that the plan's state axis asks for."""
        ranks, note, home = self._ranks, self._note, self._home
        if not self._axis.cuts_optimizer:
            blocks, rank = self._cutting.partition, ranks.group.rank
            held = OptimizerShards(blocks, rank, home, self.gradients, self.parameters, whole_too=False)
            return ShardedUpdate(self.comm, held, self._has_blocks, note)
        parameters: ParameterShards = self.parameters
        if self._leaves:
            parameters = NestedParameters(self.parameters, self._leaves[0], self._leaves[1:], self._leaf_of)
        replicas = [
            Replicas(each.comm, each.ranks, self.parameters, functools.partial(self._is_in, each))
            for each in (() if self._nests else self._sharing)
        ]
        held = OptimizerShards(
            self._nested, ranks.everybody.rank, home, self.gradients, parameters, replicas=replicas
        )
        return ShardedUpdate(self._among, held, self._takes, note)

    def _group_of(self, spec: ShardSpec) -> ReplicaGroup | None:
        """Return the group of ranks that have this rank's block, or None."""
        return self._rows if self._cutting.reduces.has(spec) else self._experts

    def _is_in(self, group: ReplicaGroup, parameter: torch.Tensor) -> bool:
        spec = self._cutting.partition.spec(parameter)
        return spec is not None and self._group_of(spec) is group

    def _is_divided(self, spec: ShardSpec) -> bool:
        """Return whether other ranks have this rank's block."""
        group = self._group_of(spec)
        return group is not None and group.divides

    def _kept(self, members: Sequence[torch.Tensor]) -> list[ShardSpec]:
        """Return the elements of block parameters that each rank keeps."""
        found: list[ShardSpec] = []
        for each, nested in zip(members, self._nested.assign(members), strict=True):
            spec = self._cutting.partition.spec(each)
            assert spec is not None
            assert nested is not None
            blocks = [place.block for place in self._ranks.places]
            found.append(nested if self._is_divided(spec) else spec.of(blocks))
        return found

    def _find_whole(self, module: torch.nn.Module) -> list[list[torch.Tensor]]:
        """Return the units of parameters that are not in blocks."""
        units = [[each for each in unit if not self.has(each)] for unit in find_units(module)]
        return [unit for unit in units if unit]

    def _rows_of(self, tensors: Sequence[torch.Tensor]) -> list[ShardSpec | None]:
        """Return the cut over rows of gradients, of blocks and whole parameters.

        Tensors are cut one by one, because gradients that complete together on one stage may not do so on the
        next.
        """
        return [spec for each in tensors for spec in self._of_rows.assign([each])]

    def _encoded(self) -> Collection[int]:
        """Return ids of the leaves with gradients that a compressor may encode.

        Copies on ranks with the same rows would drift apart, as each rank encodes them together with other
        blocks.
        """
        places, rank = self._ranks.places, self._ranks.everybody.rank
        alike = [place.block for place in places if place.row == places[rank].row]
        reduced = [block for block in self.gradients.blocks if self.is_reduced(block)]
        return {id(block.leaf) for block in reduced if not block.spec.of(alike).has_copies}

    def install(self, patches: Patches) -> None:
        among = self._among if self._axis.cuts_gradients else self.comm
        gradients.install(patches, among, self.gradients, self._saved.lasting)
        self.state.install(patches)
        self._refuse_hooks(patches)

    @property
    def computes_whole(self) -> bool:
        """Return whether every rank computes the whole model (observed or compared call)."""
        return self._script.region is Region.OBSERVED or self._script.compared

    @contextmanager
    def whole_call(self, module: torch.nn.Module) -> Iterator[None]:
        """Gather the whole model for a call.

        Its gradients are accumulated in whole parameters.
        """
        if self._cutting.reduces is not Reduced.NONE and torch.is_grad_enabled():
            self._reducer.expect_parts()
        self._rest_leaves()
        with self._using_leaves(module), self.parameters.calling(module):
            yield

    def cut_call(self, module: torch.nn.Module) -> AbstractContextManager[object]:
        """Prepare a call in which every rank computes with its blocks."""
        self.parameters.rest(keep_last=False)  # writes of the script to whole parameters go to blocks
        self._rest_leaves()
        return self._using_leaves(module)

    def _rest_leaves(self) -> None:
        for each in self._leaves:
            each.rest(keep_last=False)

    def _using_leaves(self, module: torch.nn.Module) -> AbstractContextManager[object]:
        return all_of([each.calling(module) for each in self._leaves])

    def gather_experts(self, parameters: Iterable[torch.Tensor]) -> None:
        """Gather this rank's elements of experts. A collective of their replicas."""
        leaves = None if self._experts is None else self._experts.leaves
        if leaves is not None:
            leaves.touch([leaf for each in parameters if (leaf := self._leaf_of(each)) is not None])

    def send_experts(self, parameters: Iterable[torch.Tensor]) -> None:
        """Reduce gradients of this rank's elements of experts. A collective of their replicas."""
        if self._experts is not None:
            leaves = [leaf for each in parameters if (leaf := self._leaf_of(each)) is not None]
            self._experts.reducer.passed(leaves)

    @property
    def backwards(self) -> int:
        """Number of backwards that have ended."""
        return self._reducer.backwards

    @contextmanager
    def around_backward(self) -> Iterator[None]:
        self.gradients.begin_backward()
        with self.state.around_backward():
            yield

    def cut_new(self, module: torch.nn.Module) -> None:
        """Cut the new parameters of a module. A collective."""
        built = [each for each in module.parameters() if self._built.own(each) is not None]
        new: dict[int, tuple[torch.Tensor, ShardSpec, torch.Tensor]] = {}
        for parameter in self.parameters.cut(module, again=bool(built)):
            spec, part = self._cutting.partition.spec(parameter), self.parameters.own(parameter)
            block = self.gradients.block(parameter)
            # By identity, which changes on all ranks: some have no elements, and no address.
            if spec is not None and part is not None and (block is None or block.part is not part):
                new[id(parameter)] = parameter, spec, part
        for unit in find_units(module) if new else ():
            known = [each for each in unit if id(each) in new]
            taken = [self._take_block(*new[id(each)]) for each in known]
            if self._axis.cuts_gradients:
                self._divide(unit, known, taken)
        if built and self._rows.leaves is not None:
            self._rows.leaves.cut(module, again=True)
        for each in built:
            self._built.dissolve(each)

    def are_in_parts(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether some of `tensors` were cut while they were built."""
        return any(self._built.own(each) is not None for each in tensors)

    def _built_whole(self, find: Find) -> Find:
        """Wrap `find` to gather parameters that were cut while they were built.

        Each unit is gathered when it is reached.
        """

        def found(module: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
            for unit in find(module):
                for each in unit:
                    self._built.dissolve(each)
                yield unit

        return found

    def _take_block(self, parameter: torch.Tensor, spec: ShardSpec, part: torch.Tensor) -> ParameterBlock:
        optimizer = self._reducer.let_go(parameter)
        shape = spec.shape(parameter.shape, self._ranks.group.rank)
        if self._nests and self._is_divided(spec):
            room = torch.empty(shape, dtype=part.dtype, device=parameter.device)
            leaf: torch.Tensor = torch.nn.Parameter(room)
        else:
            leaf = part.view(shape).detach()
        block = self.gradients.add_block(parameter, spec, part, leaf)
        if not self.is_reduced(block):
            self._alone.set(leaf, True)
        self.gradients.take_part(parameter)
        group = self._group_of(spec)
        if group is not None and group.reducer.averages(leaf):
            group.reducer.adopt(leaf, optimizer)
        return block

    def _divide(
        self, unit: Sequence[torch.Tensor], known: Sequence[torch.Tensor], blocks: Sequence[ParameterBlock]
    ) -> None:
        """Cut the new blocks of a unit over their replicas. A collective.

        Args:
            known: parameters of the blocks.
        """
        there: dict[int, list[ParameterBlock]] = {id(group): [] for group in self._sharing}
        for block, spec in zip(blocks, self._nested.assign(known), strict=True):
            group = self._group_of(block.spec)
            if spec is None or group is None or not group.divides:
                continue
            of_block = block.spec[self._ranks.group.rank]
            self._of_rows.decide(block.leaf, replica_spec(spec, of_block, group.ranks))
            if block.leaf.numel():
                there[id(group)].append(block)
        self._of_rows.assign([each for each in unit if not self.has(each)])
        for group in self._sharing:
            mine = there[id(group)]
            if self._nests and group.leaves is not None and mine:
                group.leaves.adopt([each.leaf for each in mine], [each.part for each in mine])

    def make_whole(self, parameter: torch.Tensor, module: torch.nn.Module) -> None:
        """Replicate a parameter of a model on every rank from now on. A collective."""
        self.gradients.forget(parameter)
        self._cutting.partition.decide(parameter, None)
        self.parameters.dissolve(parameter)
        if parameter.numel():
            self._reducer.adopt(parameter)
        self.cut_new(module)  # parameters that were in one unit with it
        self.parameters.rest(keep_last=False)

    def _adopt(self, block: ParameterBlock) -> None:
        group = self._group_of(block.spec)
        if group is not None and block.leaf.numel():
            group.reducer.adopt(block.leaf)

    def _give(self, block: ParameterBlock, gradient: torch.Tensor) -> bool:
        return self.is_reduced(block) and self._reducer.give(block.leaf, gradient)

    def is_reduced(self, block: ParameterBlock) -> bool:
        """Return whether the reducer of all rows averages the gradient of a block."""
        return self._cutting.reduces.has(block.spec)

    def _mean(self, gradient: torch.Tensor) -> torch.Tensor:
        rows = self._ranks.rows
        return gradient if rows.world_size == 1 else rows.all_reduce(gradient).div_(rows.world_size)

    def _leaf_of(self, parameter: torch.Tensor) -> torch.Tensor | None:
        if parameter in self._alone:
            return parameter
        block = self.gradients.block(parameter)
        return None if block is None else block.leaf

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is a parameter in blocks."""
        return self.gradients.block(tensor) is not None

    def _takes(self, optimizer: Any) -> bool:
        return self._has_blocks(optimizer) or is_worth_sharding(self._axis, optimizer)

    def _has_blocks(self, optimizer: Any) -> bool:
        return any(self.has(tensor) for group in optimizer.param_groups for tensor in group["params"])

    def _refuse_hooks(self, patches: Patches) -> None:
        plain: Any = torch.Tensor.register_hook
        item = self._cutting.item

        def register_hook(tensor: torch.Tensor, hook: Any) -> Any:
            if self.has(tensor):
                raise UsageError(
                    f"a hook was registered on a parameter of shape {list(tensor.shape)}, whose gradient is "
                    f"in blocks under {item}; register it before the model's first call, so that the "
                    "parameter stays whole [R228]"
                )
            return plain(tensor, hook)

        patches.set(torch.Tensor, "register_hook", modes_first(register_hook))
