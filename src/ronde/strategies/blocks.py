"""Blocks of the parameters of cut models, as the axes of the mesh cut these, and ZeRO within the blocks."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, final

import torch

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.parallel.building import Building
from ronde.patching.modes_first import modes_first
from ronde.patching.patches import Patches
from ronde.policies.units import find_units
from ronde.policies.zero import RUNS, Place, divided, in_equal_parts, replica_spec, zero_within
from ronde.shards import gradients
from ronde.shards.block_gradients import Block, BlockGradients, Scattered
from ronde.shards.nested_parameters import NestedParameters
from ronde.shards.optimizer_shards import OptimizerShards, ParameterShards, Replicas
from ronde.shards.partition import Partition
from ronde.shards.saved_parameters import SavedParameters
from ronde.shards.sharded_parameters import ShardedParameters
from ronde.shards.sharded_update import ShardedUpdate
from ronde.shards.spec import ShardSpec
from ronde.shards.unit_table import Find
from ronde.strategies.homes import homes
from ronde.strategies.parts import Parts
from ronde.strategies.sharded_state import ShardedState
from ronde.strategies.zero import is_worth_sharding
from ronde.sync.averaging.protocol import average_gradients
from ronde.sync.home import Home, OnDevice
from ronde.sync.reduced_gradients import ReducedGradients
from ronde.tensor.context import Context, Region
from ronde.tensor.tensor_table import TensorTable

__all__ = ["BlockRanks", "Cutting", "ModelBlocks", "Reduced"]


class Reduced(enum.Enum):
    """The blocks of which the reducer averages gradients; of others the strategy does."""

    ALL = enum.auto()
    COPIES = enum.auto()
    NONE = enum.auto()

    def has(self, spec: ShardSpec) -> bool:
        return self is Reduced.ALL or (self is Reduced.COPIES and spec.has_copies)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BlockRanks:
    """The groups among which blocks are spread.

    Attributes:
        rows: the reducer's group: ranks with the same blocks and other rows.
        group: ranks with other blocks and the same rows.
        everybody: all ranks.
        places: of each of these.
        row_ranks: those of `rows`, among all.
        replica_group: ranks with the same blocks, where these are fewer than `rows`.
        copies: of all ranks the places for parameters of which ranks of `rows` have the same blocks, where
            they have other blocks of other parameters; None without such.
        sequences: in which values inside of models are cut too; None without.
    """

    rows: Comm
    group: Comm
    everybody: Comm
    places: Sequence[Place]
    row_ranks: Sequence[int]
    replica_group: Comm | None = None
    copies: Sequence[Place] | None = None
    sequences: Context | None = None

    @property
    def replicas(self) -> list[int]:
        """The replicas of this rank's blocks, in the order of their group."""
        block = self.places[self.everybody.rank].block
        same = [rank for rank, place in enumerate(self.places) if place.block == block]
        return sorted(same, key=lambda rank: self.places[rank].replica)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cutting:
    """Axes of the mesh that cut models, as far as blocks are concerned.

    Attributes:
        partition: the block of each rank.
        find: decides on the parameters of a model, and returns the units of those that are cut.
        item: of the plan, by which messages name the axes.
        reduces: the blocks of which the reducer averages gradients.
        cuts_whole: `zero3` cuts parameters that are in no block too, and gathers them over rows for a call.
    """

    partition: Partition
    find: Find
    item: str
    reduces: Reduced = Reduced.ALL
    cuts_whole: bool = True


@final
class ModelBlocks:
    """This rank's blocks of cut models, with ZeRO within them as the plan's state axis says.

    Args:
        ranks: `group` has other blocks.
        cutting: the axes of the mesh that cut models.

    Attributes:
        comm: of the ranks that have other blocks.
        gradients: the blocks, with their gradients.
        parameters: gathers whole parameters.
        state: all shards.
    """

    def __init__(
        self,
        parts: Parts,
        ranks: BlockRanks,
        cutting: Cutting,
    ) -> None:
        plan, note = parts.plan, parts.note
        reducer, context = parts.reducer, parts.context
        self._script, self._ranks, self._note = context, ranks, note
        self._reducer, self._cutting = reducer, cutting
        self._axis = plan.state.on(ranks.rows.world_size)
        self._home, home_of_shards = homes(self._axis)
        # Leaves that the reducer leaves alone.
        self._alone: TensorTable[bool] = TensorTable()
        # A group of its own, in which the model's cut values are whole: nothing of the batch is cut there.
        self.comm = Context.within_rows(ranks.group, ranks.sequences)
        partition, find = cutting.partition, self._built_whole(cutting.find)
        # All ranks, for what is cut over the replicas of blocks too.
        everybody = Context(comm=ranks.everybody, adopt=lambda leaf: None)
        self._among = everybody if self._axis.cuts_optimizer else self.comm
        runs = RUNS.get(self._axis.placement, in_equal_parts)
        self._of_rows = divided(runs, ranks.rows.world_size)
        self._nested = zero_within(partition, self._of_rows, ranks.places, runs, ranks.copies)
        scattered = self._scattered(home_of_shards)
        self.gradients = BlockGradients(ranks.group, self._adopt, self._mean, self._give, scattered)
        # Whether blocks are cut once more: there is nothing to divide where one rank has a block.
        divides = ranks.copies is not None or len(ranks.replicas) == ranks.rows.world_size > 1
        self._nests = self._axis.cuts_parameters and divides
        if self._nests:
            kept = Partition(self._kept, partition)
            self.parameters = ShardedParameters(everybody, kept, home_of_shards, note, find)
        else:
            self.parameters = ShardedParameters(self.comm, partition, OnDevice(), note, find)
        # Blocks that are cut once more, gathered by the ranks that have the same.
        self._leaves: ShardedParameters | None = None
        if self._axis.cuts_parameters:
            whole = self._built_whole(self._find_whole) if cutting.cuts_whole else _find_nothing
            self._leaves = ShardedParameters(parts.replicas, self._of_rows, home_of_shards, note, whole)
        # A layer's place in a model is not known before the model's call: until then it is spread evenly.
        evenly = divided(in_equal_parts, ranks.everybody.world_size)
        self._built = ShardedParameters(everybody, evenly, OnDevice(), note, find_units)
        stores = [each for each in (self.parameters, self._leaves, self._built) if each is not None]
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
        reducer.on_averaged = self._end_backward
        reducer.beside = self.gradients.beside
        if cutting.reduces is Reduced.ALL:
            reducer.encoded = self._encoded

    def _scattered(self, home: Home) -> Scattered | None:
        """The shards to which gradients of blocks are reduced over rows, under zero2 and zero3."""
        if not self._axis.cuts_gradients:
            return None
        ranks = self._ranks
        reduced = ReducedGradients(ranks.rows, self._rows_of, home)
        self._reducer.reduce_to(shards=reduced)
        return Scattered(reduced, self._nested, ranks.everybody, [place.block for place in ranks.places])

    def _update(self) -> ShardedUpdate:
        """Cut the steps of optimizers as the plan's state axis says."""
        ranks, note, home = self._ranks, self._note, self._home
        if not self._axis.cuts_optimizer:
            held = OptimizerShards(
                self._cutting.partition,
                ranks.group.rank,
                home,
                self.gradients,
                self.parameters,
                whole_too=False,
            )
            return ShardedUpdate(self.comm, held, self._has_blocks, note)
        parameters: ParameterShards = self.parameters
        if self._leaves is not None:
            parameters = NestedParameters(self.parameters, self._leaves, self._leaf_of)
        replicas: list[Replicas] = []
        if len(ranks.replicas) > 1 and not (self._nests and ranks.copies is None):
            group = ranks.replica_group or ranks.rows
            replicas.append(
                Replicas(group, ranks.replicas, self.parameters, lambda each: not self._is_copied(each))
            )
        if ranks.copies is not None and not self._nests:
            replicas.append(Replicas(ranks.rows, ranks.row_ranks, self.parameters, self._is_copied))
        held = OptimizerShards(
            self._nested, ranks.everybody.rank, home, self.gradients, parameters, replicas=replicas
        )
        return ShardedUpdate(self._among, held, self._takes, note)

    def _sharers(self, spec: ShardSpec) -> Sequence[int]:
        """The ranks of `rows`, where all have this rank's block; else none."""
        ranks = self._ranks
        if ranks.copies is not None:
            return ranks.row_ranks if spec.has_copies else ()
        return ranks.replicas if len(ranks.replicas) == ranks.rows.world_size > 1 else ()

    def _kept(self, members: Sequence[torch.Tensor]) -> list[ShardSpec]:
        """The elements of parameters in blocks that each of all ranks keeps."""
        found: list[ShardSpec] = []
        for each, nested in zip(members, self._nested.assign(members), strict=True):
            spec = self._cutting.partition.spec(each)
            assert spec is not None
            assert nested is not None
            spans = tuple(spec[place.block] for place in self._ranks.places)
            found.append(nested if self._sharers(spec) else dataclasses.replace(spec, spans=spans))
        return found

    def _is_copied(self, parameter: torch.Tensor) -> bool:
        """Whether other ranks of `rows` have the same block, though not of all parameters."""
        spec = self._cutting.partition.spec(parameter)
        return self._ranks.copies is not None and spec is not None and spec.has_copies

    def _find_whole(self, module: torch.nn.Module) -> list[list[torch.Tensor]]:
        """The units of the parameters that are not in blocks."""
        units = [[each for each in unit if not self.has(each)] for unit in find_units(module)]
        return [unit for unit in units if unit]

    def _rows_of(self, tensors: Sequence[torch.Tensor]) -> list[ShardSpec | None]:
        """How gradients of blocks, and of whole parameters, are cut over rows.

        One by one: the ranks of a stage may have other gradients together than those of the next.
        """
        return [spec for each in tensors for spec in self._of_rows.assign([each])]

    def _encoded(self) -> Collection[int]:
        """Return ids of the leaves whose gradients may be encoded.

        Copies would drift apart: each rank encodes them beside other blocks."""
        return {id(block.leaf) for block in self.gradients.blocks if not block.spec.has_copies}

    def install(self, patches: Patches) -> None:
        among = self._among if self._axis.cuts_gradients else self.comm
        gradients.install(patches, among, self.gradients, self._saved.lasting)
        self.state.install(patches)
        self._refuse_hooks(patches)

    @property
    def computes_whole(self) -> bool:
        """Whether the script's model is observed or compared, so that every rank computes all of it."""
        return self._script.region is Region.OBSERVED or self._script.compared

    @contextmanager
    def whole_call(self, module: torch.nn.Module) -> Iterator[None]:
        """Around a call for which every rank gathers the model; gradients of it come to whole parameters."""
        if self._cutting.reduces is not Reduced.NONE and torch.is_grad_enabled():
            self._reducer.expect_parts()
        with self._using_leaves(module), self.parameters.calling(module):
            yield

    def cut_call(self, module: torch.nn.Module) -> AbstractContextManager[None]:
        """Around a call in which every rank has its blocks."""
        self.parameters.rest(keep_last=False)  # what the script has written to whole parameters is in blocks
        if self._leaves is not None:
            self._leaves.rest(keep_last=False)
        return self._using_leaves(module)

    def _using_leaves(self, module: torch.nn.Module) -> AbstractContextManager[None]:
        return nullcontext() if self._leaves is None else self._leaves.calling(module)

    @contextmanager
    def around_backward(self) -> Iterator[None]:
        self.gradients.begin_backward()
        with self.state.around_backward():
            yield

    def _end_backward(self) -> None:
        """What the reducer averages is there: average what it does not, over its replicas."""
        group = self._ranks.replica_group
        if group is not None:
            blocks = self.gradients.everywhere(self._ranks.everybody)
            alone = [block.leaf for block in blocks if not self.is_reduced(block) and block.leaf.numel()]
            average_gradients(group, alone)
        self.gradients.end_backward()

    def cut_new(self, module: torch.nn.Module) -> None:
        """Cut what is new in a module. A collective."""
        built = [each for each in module.parameters() if self._built.own(each) is not None]
        new: dict[int, tuple[torch.Tensor, ShardSpec, torch.Tensor]] = {}
        for parameter in self.parameters.cut(module, again=bool(built)):
            spec, part = self._cutting.partition.spec(parameter), self.parameters.own(parameter)
            block = self.gradients.block(parameter)
            # By the object, which is another one on all ranks: some have no elements, and no address.
            if spec is not None and part is not None and (block is None or block.part is not part):
                new[id(parameter)] = parameter, spec, part
        for unit in find_units(module) if new else ():
            known = [each for each in unit if id(each) in new]
            taken = [self._take_block(*new[id(each)]) for each in known]
            if self._axis.cuts_gradients:
                self._divide(unit, known, taken)
        if built and self._leaves is not None:
            self._leaves.cut(module, again=True)
        for each in built:
            self._built.dissolve(each)

    def _built_whole(self, find: Find) -> Find:
        """Units one by one, of which what was cut as it was built is whole by then."""

        def found(module: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
            for unit in find(module):
                for each in unit:
                    self._built.dissolve(each)
                yield unit

        return found

    def _take_block(self, parameter: torch.Tensor, spec: ShardSpec, part: torch.Tensor) -> Block:
        optimizer = self._reducer.let_go(parameter)
        shape = spec.shape(parameter.shape, self._ranks.group.rank)
        if self._nests and self._sharers(spec):
            leaf: torch.Tensor = torch.nn.Parameter(
                torch.empty(shape, dtype=part.dtype, device=parameter.device)
            )
        else:
            leaf = part.view(shape).detach()
        block = self.gradients.add_block(parameter, spec, part, leaf)
        if not self.is_reduced(block):
            self._alone.set(leaf, True)
        self.gradients.take_part(parameter)
        if self._reducer.averages(leaf):
            self._reducer.adopt(leaf, optimizer)
        return block

    def _divide(
        self, unit: Sequence[torch.Tensor], known: Sequence[torch.Tensor], blocks: Sequence[Block]
    ) -> None:
        """Cut the new blocks of a unit over their replicas. A collective.

        Args:
            known: the parameters of the blocks.
        """
        divided: list[Block] = []
        for block, spec in zip(blocks, self._nested.assign(known), strict=True):
            sharers = self._sharers(block.spec)
            if spec is not None and sharers:
                of_block = block.spec[self._ranks.group.rank]
                self._of_rows.decide(block.leaf, replica_spec(spec, of_block, sharers))
                divided.append(block)
        self._of_rows.assign([each for each in unit if not self.has(each)])
        there = [block for block in divided if block.leaf.numel()]
        if self._nests and self._leaves is not None and there:
            self._leaves.adopt([each.leaf for each in there], [each.part for each in there])

    def make_whole(self, parameter: torch.Tensor, module: torch.nn.Module) -> None:
        """Have a parameter of a model on every rank from now on. A collective."""
        self.gradients.forget(parameter)
        self._cutting.partition.decide(parameter, None)
        self.parameters.dissolve(parameter)
        if parameter.numel():
            self._reducer.adopt(parameter)
        self.cut_new(module)  # those that were in one unit with it
        self.parameters.rest(keep_last=False)

    def _adopt(self, block: Block) -> None:
        if self.is_reduced(block) and block.leaf.numel():
            self._reducer.adopt(block.leaf)

    def _give(self, block: Block, gradient: torch.Tensor) -> bool:
        return self.is_reduced(block) and self._reducer.give(block.leaf, gradient)

    def is_reduced(self, block: Block) -> bool:
        """Whether the reducer averages the gradient of a block."""
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
        """Whether a tensor is a parameter in blocks."""
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
                    f"a hook was registered on a parameter of shape {list(tensor.shape)}, of whose gradient "
                    f"{item} gives each rank a block; register it before the model's first call, then the "
                    f"parameter stays whole"
                )
            return plain(tensor, hook)

        patches.set(torch.Tensor, "register_hook", modes_first(register_hook))


def _find_nothing(module: torch.nn.Module) -> list[list[torch.Tensor]]:
    return []
