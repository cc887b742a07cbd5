"""What joins a model of whose parameters ranks of a group have blocks, as the axes of the mesh cut it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.parallel import gradients, opaque
from ronde.parallel.block_gradients import BlockGradients
from ronde.parallel.building import Building
from ronde.parallel.optimizer_shards import OptimizerShards, Replicas
from ronde.parallel.saved_parameters import SavedParameters
from ronde.parallel.sharded_parameters import ShardedParameters
from ronde.parallel.sharded_update import ShardedUpdate
from ronde.parallel.unit_table import Find
from ronde.patching.modes_first import modes_first
from ronde.patching.patches import Patches
from ronde.plan import Plan
from ronde.policies.zero import zero_within
from ronde.runtime.sharding import Sharding
from ronde.shards.partition import Partition
from ronde.shards.spec import ShardSpec
from ronde.sync.home import OnDevice
from ronde.sync.reducer import Reducer
from ronde.tensor.context import Context, Region
from ronde.trace.resident import Resident

__all__ = ["BlockRanks", "BlockSharding"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BlockRanks:
    """Who has which blocks.

    Attributes:
        rows: the reducer's group, of the ranks that have the same blocks and other rows.
        group: of those that have other blocks and the same rows.
        everybody: all ranks.
        places: of each of these, its place in the groups that are like `group` and like `rows`.
    """

    rows: Comm
    group: Comm
    everybody: Comm
    places: Sequence[tuple[int, int]]

    @property
    def replicas(self) -> Replicas:
        """The ranks that have the same blocks as this one."""
        block = self.places[self.everybody.rank][0]
        same = [rank for rank, (each, _) in enumerate(self.places) if each == block]
        return Replicas(self.rows, sorted(same, key=lambda rank: self.places[rank][1]))


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
        context = Context(comm=group, adopt=lambda leaf: None)
        context.weight, context.averages_leaves = 1, False
        self._group = context
        self._reducer: Reducer | None = None
        self._script: Context | None = None
        self._partition = partition
        self._blocks = BlockGradients(group, self._adopt, self._mean)
        self._in_parts = [self._blocks]
        parameters = ShardedParameters(context, partition, OnDevice(), note, find)
        self._cut = parameters
        self._parameters = parameters
        self._saved = SavedParameters(parameters)
        self._building = Building(context, self._cut_new)
        if self._state.cuts_optimizer:
            held = OptimizerShards(
                zero_within(partition, ranks.places),
                ranks.everybody.rank,
                OnDevice(),
                self._blocks,
                parameters,
                replicas=ranks.replicas,
            )
            among = Context(comm=ranks.everybody, adopt=lambda leaf: None)
            self._update = ShardedUpdate(among, held, self._takes, note)
        else:
            held = OptimizerShards(
                partition, group.rank, OnDevice(), self._blocks, parameters, whole_too=False
            )
            self._update = ShardedUpdate(context, held, self._has_blocks, note)

    def bind(self, context: Context) -> None:
        """What is cut has the group's context; this is the script's."""
        self._script = context

    def average_by(self, reducer: Reducer) -> None:
        """Blocks are averaged over rows by this one, and whole parameters that are cut are not."""
        self._reducer = reducer
        reducer.instead_of = self._leaf_of
        reducer.on_averaged = self._blocks.end_backward
        reducer.encoded = self._encoded

    def _encoded(self) -> Collection[int] | None:
        """A parameter that several ranks of a model have would be encoded beside other blocks on each."""
        return self.parameters_of_leaves()

    def parameters_of_leaves(self) -> dict[int, int]:
        return {id(block.leaf): id(block.parameter.tensor) for block in self._blocks.blocks}

    @property
    def kept_gradients(self) -> BlockGradients:
        return self._blocks

    @property
    def residents(self) -> list[Resident]:
        return [self._blocks, self._cut]

    def install(self, patches: Patches, context: Context) -> None:
        assert self._update is not None
        assert self._saved is not None
        assert self._building is not None
        self._update.install(patches)
        gradients.install(patches, self._group, self._blocks, self._cut.lasting)
        self._building.install(patches)
        opaque.install(patches, self._cut, self._saved)
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
        with self._calling_cut(module):
            yield

    @contextmanager
    def _calling_whole(self, module: torch.nn.Module) -> Iterator[None]:
        """Around a call for which every rank gathers the model."""
        with self._cut.calling(module):
            yield

    @contextmanager
    def _calling_cut(self, module: torch.nn.Module) -> Iterator[None]:
        """Around a call in which every rank has its blocks."""
        yield

    @contextmanager
    def backward(self) -> Iterator[None]:
        self._blocks.begin_backward()
        with self._cut.backward():
            yield

    def note_whole_state(self, optimizer: Any) -> None:
        """The state of a whole parameter is whole; of a block, an optimizer of any kind may keep all."""

    def _cut_new(self, module: torch.nn.Module) -> None:
        for parameter in self._cut.cut(module):
            spec, part = self._partition.spec(parameter), self._cut.own(parameter)
            if spec is not None and part is not None:
                self._take_block(parameter, spec, part)

    def _take_block(self, parameter: torch.Tensor, spec: ShardSpec, part: torch.Tensor) -> None:
        block = self._blocks.block(parameter)
        # By the object, which is another one on all ranks: some have no elements, and no address.
        if block is None or block.part is not part:
            optimizer = None if self._reducer is None else self._reducer.let_go(parameter)
            self._blocks.add_block(parameter, spec, part)
            self._blocks.take_part(parameter)
            leaf = self._leaf_of(parameter)
            if self._reducer is not None and leaf is not None and self._reducer.averages(leaf):
                self._reducer.adopt(leaf, optimizer)

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
