"""What joins a model of whose parameters ranks of a group have blocks, as the axes of the mesh cut it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.parallel.building import Building
from ronde.patching.modes_first import modes_first
from ronde.patching.patches import Patches
from ronde.plan import Plan
from ronde.policies.units import find_units
from ronde.policies.zero import RUNS, Place, divided, in_equal_parts, replica_spec, zero_within
from ronde.runtime.sharding import Sharding
from ronde.shards import gradients, opaque
from ronde.shards.block_gradients import Block, BlockGradients, Scattered
from ronde.shards.nested_parameters import NestedParameters
from ronde.shards.optimizer_shards import OptimizerShards, ParameterShards, Replicas
from ronde.shards.partition import Partition
from ronde.shards.saved_parameters import SavedParameters
from ronde.shards.sharded_parameters import ShardedParameters
from ronde.shards.sharded_update import ShardedUpdate
from ronde.shards.spec import ShardSpec
from ronde.shards.unit_table import Find
from ronde.sync.home import OnDevice
from ronde.sync.reduced_gradients import ReducedGradients
from ronde.sync.reducer import Reducer
from ronde.tensor.context import Context, Region

__all__ = ["BlockRanks", "BlockSharding"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BlockRanks:
    """Who has which blocks.

    Attributes:
        rows: the reducer's group, of the ranks that have the same blocks and other rows.
        group: of those that have other blocks and the same rows.
        everybody: all ranks.
        places: of each of these.
        replica_group: of those that have the same blocks, where these are fewer than `rows`.
    """

    rows: Comm
    group: Comm
    everybody: Comm
    places: Sequence[Place]
    replica_group: Comm | None = None

    @property
    def replicas(self) -> list[int]:
        """The replicas of this rank's blocks, in the order of their group."""
        block = self.places[self.everybody.rank].block
        same = [rank for rank, place in enumerate(self.places) if place.block == block]
        return sorted(same, key=lambda rank: self.places[rank].replica)


class BlockSharding(Sharding):
    """What is cut on this rank.

    Args:
        partition: the block of each rank.
        find: decides on the parameters of a model, and returns the units of those that are cut.
        item: the key of the plan that cuts.
    """

    def __init__(
        self,
        plan: Plan,
        ranks: BlockRanks,
        note: Callable[[str], None],
        *,
        partition: Partition,
        find: Find,
        item: str,
    ) -> None:
        super().__init__(plan, ranks.rows, note)
        self._rows, group = ranks.rows, ranks.group
        self._item = item
        # A group of its own, in which the model's cut values are whole: nothing of the batch is cut there.
        self._group = context = Context.within_rows(group)
        self._reducer: Reducer | None = None
        self._script: Context | None = None
        self._partition = partition
        self._ranks = ranks
        # Whether the replicas of a block are the ranks over which gradients are averaged.
        self._reduces_replicas = len(ranks.replicas) == ranks.rows.world_size > 1
        # All ranks, for what is cut over the replicas of blocks too.
        everybody = Context(comm=ranks.everybody, adopt=lambda leaf: None)
        self._among = everybody if self._state.cuts_optimizer else context
        runs = RUNS.get(self._state.placement, in_equal_parts)
        self._of_rows = divided(runs, ranks.rows.world_size)
        self._nested = zero_within(partition, self._of_rows, ranks.places, runs)
        scattered = None
        if self._state.cuts_gradients:
            self.gradients = ReducedGradients(ranks.rows, self._rows_of, self._home_of_parts)
            blocks = [place.block for place in ranks.places]
            scattered = Scattered(self.gradients, self._nested, ranks.everybody, blocks)
        self._blocks = BlockGradients(group, self._adopt, self._mean, scattered)
        self._in_parts = [self._blocks]
        # Whether blocks are cut once more: there is nothing to divide where one rank has a block.
        self._nests = self._state.cuts_parameters and self._reduces_replicas
        if self._nests:
            self._cut = ShardedParameters(everybody, self._nested, self._home_of_parts, note, find)
        else:
            self._cut = ShardedParameters(context, partition, OnDevice(), note, find)
        self._parameters = self._cut
        self._saved = SavedParameters(self._cut)
        self._building = Building(context, self._cut_new)

    def _update_of(self) -> ShardedUpdate:
        """Cut the steps of optimizers as the plan's state axis says."""
        ranks, note, home = self._ranks, self._note, self._home
        if not self._state.cuts_optimizer:
            held = OptimizerShards(
                self._partition, ranks.group.rank, home, self._blocks, self._cut, whole_too=False
            )
            return ShardedUpdate(self._group, held, self._has_blocks, note)
        parameters: ParameterShards = self._cut
        if self._leaves is not None:
            parameters = NestedParameters(self._cut, self._leaves, self._leaf_of)
        replicas = None
        if not self._nests and len(ranks.replicas) > 1:
            replicas = Replicas(ranks.replica_group or ranks.rows, ranks.replicas, self._cut)
        held = OptimizerShards(
            self._nested, ranks.everybody.rank, home, self._blocks, parameters, replicas=replicas
        )
        return ShardedUpdate(self._among, held, self._takes, note)

    def _find_whole(self, module: torch.nn.Module) -> list[list[torch.Tensor]]:
        """The units of the parameters that are not in blocks."""
        units = [[each for each in unit if not self._is_cut(each)] for unit in find_units(module)]
        return [unit for unit in units if unit and self.cuts_whole_parameters]

    def _rows_of(self, tensors: Sequence[torch.Tensor]) -> list[ShardSpec | None]:
        """How gradients of blocks, and of whole parameters, are cut over rows.

        One by one: the ranks of a stage may have other gradients together than those of the next.
        """
        return [spec for each in tensors for spec in self._of_rows.assign([each])]

    #: Whether `zero3` cuts parameters that are in no blocks too, and gathers them over rows for a call.
    cuts_whole_parameters = True

    def bind(self, context: Context) -> None:
        """What is cut has the group's context; this is the script's."""
        self._script = context
        if self._state.cuts_parameters:
            home, find = self._home_of_parts, self._find_whole
            self._leaves = ShardedParameters(context, self._of_rows, home, self._note, find)
            self._saved = SavedParameters(self._cut, self._leaves)
        self._update = self._update_of()

    def average_by(self, reducer: Reducer) -> None:
        """Blocks are averaged over rows by this one, and whole parameters that are cut are not."""
        self._reducer = reducer
        reducer.instead_of = self._leaf_of
        reducer.on_averaged = self._blocks.end_backward
        reducer.encoded = self._encoded

    def _encoded(self) -> Collection[int] | None:
        """Return ids of the leaves whose gradients may be encoded.

        Copies would drift apart: each rank encodes them beside other blocks."""
        return {id(block.leaf) for block in self._blocks.blocks if not block.spec.has_copies}

    def held(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        self._cut.rest(keep_last=False)
        found = [each if (leaf := self._leaf_of(each)) is None else leaf for each in parameters]
        return [each for each in found if each.numel()]

    def parameters_of_leaves(self) -> dict[int, int]:
        return {id(block.leaf): id(block.parameter.tensor) for block in self._blocks.blocks}

    @property
    def kept_gradients(self) -> BlockGradients:
        return self._blocks

    def install(self, patches: Patches, context: Context) -> None:
        assert self._update is not None
        assert self._saved is not None
        assert self._building is not None
        self._update.install(patches)
        among = self._among if self._state.cuts_gradients else self._group
        gradients.install(patches, among, self._blocks, self._saved.lasting)
        self._building.install(patches)
        for parameters in self._sharded:
            opaque.install(patches, parameters, self._saved)
        self._saved.install(patches)
        self._install_hooks(patches)

    @contextmanager
    def calling(self, module: torch.nn.Module) -> Iterator[None]:
        self._cut_new(module)
        script = self._script
        if script is not None and (script.region is Region.OBSERVED or script.compared):
            # Whether its rows are independent is seen of the model as one device computes it.
            with self._calling_whole(module):
                yield
            return
        self._cut.rest(keep_last=False)  # what the script has written to whole parameters is in blocks then
        if self._leaves is not None:
            self._leaves.rest(keep_last=False)
        with self._using_leaves(module), self._calling_cut(module):
            yield

    def _using_leaves(self, module: torch.nn.Module) -> AbstractContextManager[None]:
        return nullcontext() if self._leaves is None else self._leaves.calling(module)

    @contextmanager
    def _calling_whole(self, module: torch.nn.Module) -> Iterator[None]:
        """Around a call for which every rank gathers the model."""
        with self._using_leaves(module), self._cut.calling(module):
            yield

    @contextmanager
    def _calling_cut(self, module: torch.nn.Module) -> Iterator[None]:
        """Around a call in which every rank has its blocks."""
        yield

    @contextmanager
    def backward(self) -> Iterator[None]:
        self._blocks.begin_backward()
        with super().backward():
            yield

    def note_whole_state(self, optimizer: Any) -> None:
        """The state of a whole parameter is whole; of a block, an optimizer of any kind may keep all."""

    def _cut_new(self, module: torch.nn.Module) -> None:
        new: dict[int, Block] = {}
        for parameter in self._cut.cut(module):
            spec, part = self._partition.spec(parameter), self._cut.own(parameter)
            block = self._blocks.block(parameter)
            # By the object, which is another one on all ranks: some have no elements, and no address.
            if spec is not None and part is not None and (block is None or block.part is not part):
                new[id(parameter)] = self._take_block(parameter, spec, part)
        if self._state.cuts_gradients and new:
            self._divide(module, new)

    def _take_block(self, parameter: torch.Tensor, spec: ShardSpec, part: torch.Tensor) -> Block:
        optimizer = None if self._reducer is None else self._reducer.let_go(parameter)
        shape = spec.shape(parameter.shape, self._ranks.group.rank)
        if self._nests:
            leaf: torch.Tensor = torch.nn.Parameter(
                torch.empty(shape, dtype=part.dtype, device=parameter.device)
            )
        else:
            leaf = part.view(shape).detach()
        block = self._blocks.add_block(parameter, spec, part, leaf)
        self._blocks.take_part(parameter)
        if self._reducer is not None and self._reducer.averages(leaf):
            self._reducer.adopt(leaf, optimizer)
        return block

    def _divide(self, module: torch.nn.Module, new: Mapping[int, Block]) -> None:
        """Cut new blocks over their replicas, unit by unit. A collective."""
        replicas = self._ranks.replicas
        for unit in find_units(module):
            known = [each for each in unit if id(each) in new]
            for each, spec in zip(known, self._nested.assign(known), strict=True):
                block = new[id(each)]
                if spec is not None and self._reduces_replicas:
                    of_block = block.spec[self._ranks.group.rank]
                    self._of_rows.decide(block.leaf, replica_spec(spec, of_block, replicas))
            self._of_rows.assign([each for each in unit if not self._is_cut(each)])
            blocks = [block for each in known if (block := new[id(each)]).leaf.numel()]
            if self._nests and self._leaves is not None and blocks:
                self._leaves.adopt([each.leaf for each in blocks], [each.part for each in blocks])

    def _adopt(self, leaf: torch.Tensor) -> None:
        if self._reducer is not None and leaf.numel():
            self._reducer.adopt(leaf)

    def _mean(self, gradient: torch.Tensor) -> torch.Tensor:
        if self._rows.world_size == 1:
            return gradient
        return self._rows.all_reduce(gradient).div_(self._rows.world_size)

    def _leaf_of(self, parameter: torch.Tensor) -> torch.Tensor | None:
        block = self._blocks.block(parameter)
        return None if block is None else block.leaf

    def _is_cut(self, tensor: torch.Tensor) -> bool:
        return self._blocks.block(tensor) is not None

    def _takes(self, optimizer: Any) -> bool:
        return self._has_blocks(optimizer) or super()._takes(optimizer)

    def _has_blocks(self, optimizer: Any) -> bool:
        return any(self._is_cut(tensor) for group in optimizer.param_groups for tensor in group["params"])

    def _install_hooks(self, patches: Patches) -> None:
        plain: Any = torch.Tensor.register_hook

        def register_hook(tensor: torch.Tensor, hook: Any) -> Any:
            if self._is_cut(tensor):
                raise UsageError(
                    f"a hook was registered on a parameter of shape {list(tensor.shape)}, of whose gradient "
                    f"{self._plan.item(self._item)} gives each rank a block; register it before the model's "
                    f"first call, then the parameter stays whole"
                )
            return plain(tensor, hook)

        patches.set(torch.Tensor, "register_hook", modes_first(register_hook))
