"""`expert=N`: the experts of a model's mixtures are spread over ranks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch

from ronde.comm.process_group import Comm
from ronde.parallel.expert_calls import Outputs, call_fused, call_listed, noting
from ronde.parallel.expert_exchange import Cannot, true_gradient
from ronde.parallel.expert_shares import Among, Shares
from ronde.parallel.expert_trial import Given, alike, all_equal, try_call
from ronde.patching.patches import Patches
from ronde.plan.cuts import cuts_by_pattern
from ronde.policies.expert import can_be_spread, expert_specs, matrix_spec
from ronde.policies.expert_structure import Mixture, mixtures
from ronde.policies.tensor_structure import placements
from ronde.shards.partition import Partition
from ronde.strategies.blocks import BlockRanks, Cutting, ModelBlocks, Reduced
from ronde.strategies.parts import Parts
from ronde.strategies.strategy import Strategy
from ronde.strategies.tensor_calls import TensorCalls
from ronde.sync.averaging.protocol import average_gradients
from ronde.tensor.context import Context, Region
from ronde.tensor.rules.common import is_sharded
from ronde.tensor.tree import leaves

__all__ = ["ExpertStrategy"]


@final
class ExpertStrategy(Strategy):
    """Calls of mixtures of which this rank has some experts.

    Args:
        ranks: `group` are those over which experts are spread; `replica_group` have the same experts, one
            rank of each such group.
        tensor: ranks of `group` that have the same rows, and other blocks of all matrices but the experts';
            None where each has rows of its own.
    """

    name = "expert"

    def __init__(self, parts: Parts, ranks: BlockRanks, tensor: Comm | None) -> None:
        self._ranks, self._script, self._recompute = ranks, parts.context, parts.recompute
        self._item = parts.plan.item("expert")
        self._override = cuts_by_pattern(parts.plan.mesh.cuts)
        self._partition = Partition()
        # An expert's gradient is that of its group's tokens when it is made; see `_average_replicas`.
        reduces = Reduced.NONE if tensor is None else Reduced.COPIES
        cutting = Cutting(partition=self._partition, find=self._find, item=self._item, reduces=reduces)
        self._blocks = ModelBlocks(parts, ranks, cutting)
        self.state = self._blocks.state
        group = None if tensor is None else Context.within_rows(tensor)
        everybody = None if ranks.replica_group is None else ranks.rows
        self._among = Among(comm=ranks.group, everybody=everybody, shares=Shares(group))
        self._matrices = None if group is None else TensorCalls(parts.context, group, self._blocks)
        self._expert_parts: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        if ranks.replica_group is not None:
            parts.reducer.on_averaged = self._average_replicas
        self._mixtures: weakref.WeakKeyDictionary[torch.nn.Module, Mixture] = weakref.WeakKeyDictionary()
        # Models in which no mixture was found, by their class.
        self._without: dict[str, None] = {}
        # By module, for training and evaluation: why its experts are not spread after all; "" if they are.
        self._tried: weakref.WeakKeyDictionary[torch.nn.Module, dict[bool, str]]
        self._tried = weakref.WeakKeyDictionary()
        self._outputs: weakref.WeakKeyDictionary[torch.nn.Module, Outputs] = weakref.WeakKeyDictionary()

    def _find(self, model: torch.nn.Module) -> list[list[torch.Tensor]]:
        """Decide on the parameters of a model's experts; those of an expert are a unit."""
        ranks = self._ranks.group.world_size
        found = mixtures(model, ranks)
        units: dict[tuple[str, int], list[torch.Tensor]] = {}
        for mixture in filter(can_be_spread, found):
            self._mixtures[mixture.module] = mixture
            for tensor, spec in expert_specs(mixture, ranks):
                self._partition.decide(tensor, spec)
            for tensor, expert in mixture.parameters:
                units.setdefault((mixture.name, expert), []).append(tensor)
            for expert in mixture.experts or (mixture.module,):
                self._expert_parts.update(expert.modules())
        if not found and not self._mixtures:
            self._without.setdefault(type(model).__name__)
        spread = {id(tensor) for members in units.values() for tensor in members}
        return [*units.values(), *([each] for each in self._cut_matrices(model, spread))]

    def _cut_matrices(self, model: torch.nn.Module, spread: Collection[int]) -> Iterator[torch.Tensor]:
        """Decide on the matrices that are no experts'."""
        context, ranks = self._among.shares.context, self._ranks.group.world_size
        for each in () if context is None else placements(model, context.world_size, self._override):
            if each.cut is not None and id(each.parameter) not in spread:
                self._partition.decide(each.parameter, matrix_spec(each.cut, each.parameter.shape, ranks))
                yield each.parameter

    def _average_replicas(self) -> None:
        assert self._ranks.replica_group is not None
        gradients = self._blocks.gradients
        blocks = gradients.everywhere(self._ranks.rows)
        blocks = [block for block in blocks if not self._blocks.is_reduced(block)]
        averaged = [block.leaf for block in blocks if block.leaf.numel()]
        average_gradients(self._ranks.replica_group, averaged)
        gradients.end_backward()

    def install(self, patches: Patches) -> None:
        self._blocks.install(patches)
        if self._matrices is not None:
            self._matrices.install(patches)

    def around_call(self, module: torch.nn.Module) -> AbstractContextManager[None]:
        """A model that is one piece, or a part of one, has all of its experts."""
        self._blocks.cut_new(module)
        if self._matrices is None:
            return self._blocks.whole_call(module)
        has_experts = any(part in self._expert_parts for part in module.modules())
        whole = has_experts or self._blocks.computes_whole
        return self._matrices.whole(module) if whole else self._matrices.cut(module)

    def around_backward(self) -> AbstractContextManager[object]:
        return self._blocks.around_backward()

    def before_first_step(self, optimizer: Any) -> None:
        """Blocks are cut for optimizers of any kind, so a note would be wrong."""

    def notes(self) -> list[str]:
        said: list[str] = []
        for module, found in list(self._tried.items()):
            said += [
                f"{self._item} does not spread the experts of {type(module).__name__}: {why}"
                for why in found.values()
                if why
            ]
        if not self._tried and self._without:
            names = ", ".join(self._without)
            said.append(f"{self._item} spreads nothing of {names}: no mixture of experts was found in it")
        return list(dict.fromkeys(said))

    def spread(self, module: torch.nn.Module, args: Any, kwargs: Any, whole: Callable[[], Any]) -> Any:
        """As `ronde.modules.model_edge.Spread`: a mixture's call on the rows of all ranks."""
        mixture = self._mixtures.get(module)
        if mixture is None or not any(is_sharded(each, self._script) for each in leaves((args, kwargs))):
            return NotImplemented
        why = self._tried.setdefault(module, {}).get(module.training)
        if why is None:
            return self._try(mixture, args, kwargs, whole)
        if why:
            return NotImplemented
        try:
            given = Given.of(self._script, (args, kwargs))
            return given.made_global(self._carry_out(mixture, given))
        except Cannot as cannot:
            self._tried[module][module.training] = str(cannot)
            return NotImplemented

    def _try(self, mixture: Mixture, args: Any, kwargs: Any, whole: Callable[[], Any]) -> Any:
        """The first call, as one device does it; what ranks make of their own tokens is compared."""
        outputs = self._outputs[mixture.module] = Outputs()
        given = Given.of(self._script, (args, kwargs))  # by then it may have been read, and be whole
        why = ""
        try:
            with nullcontext() if mixture.is_fused else noting(mixture, outputs):
                expected = whole()
        except Cannot as cannot:
            why, expected = str(cannot), whole()
        if not why and not mixture.is_fused and not outputs.are_known:
            why = "its experts were not called, or do not return a row for each token"
        if not why:
            why = self._tokens_depend(mixture, given, expected)
        everywhere = self._ranks.rows.all_gather_object((why, outputs.called))
        told = [each for each, _ in everywhere if each]
        self._tried[mixture.module][mixture.module.training] = told[0] if told else ""
        if torch.is_grad_enabled():
            # An expert that no rank has called would keep gradients waiting for its own.
            called = set[int]().union(*(each for _, each in everywhere))
            self._blocks.lend([each for each, expert in mixture.parameters if expert < 0 or expert in called])
        return expected

    def _tokens_depend(self, mixture: Mixture, given: Given, expected: Any) -> str:
        """Why ranks cannot have their own tokens, or "". A collective; answers may differ."""
        module, equal = mixture.module, given.of_equal_tokens(self._script.rank)
        made, why = try_call(module, lambda: given.made_global(self._carry_out(mixture, given)))
        if not why and not alike(made, expected):
            why = "its rows are not independent"
        told = self._ranks.rows.all_gather_object(why)
        if any(told):
            return next(filter(None, told))
        made, why = try_call(module, lambda: self._carry_out(mixture, equal))
        return why if why or all_equal(equal, made) else "an expert may have no room for its tokens"

    def _carry_out(self, mixture: Mixture, given: Given) -> Any:
        """What is made of this rank's tokens."""
        args, kwargs = given.call
        self._blocks.parameters.rest(keep_last=False)
        holding = nullcontext() if self._matrices is None else self._matrices.inside(mixture.module)
        with self._script.enter(Region.SHARDED, given.layout.rows), holding:
            if mixture.is_fused:
                return call_fused(mixture, self._among, self._leaf, args, kwargs)
            outputs = self._outputs[mixture.module]
            with self._blocks.parameters.watched(_refuse_use), self._by_calls(False):
                return call_listed(mixture, self._among, self._leaf, outputs, args, kwargs, self._run)

    def _by_calls(self, yes: bool) -> AbstractContextManager[None]:
        return nullcontext() if self._recompute is None else self._recompute.by_calls(yes)

    def _run(self, expert: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
        """Call an expert; the mixture's own calls of experts are no more than questions."""
        with self._by_calls(True):
            return expert(rows)

    def _leaf(self, parameter: torch.Tensor) -> torch.Tensor | None:
        gradients = self._blocks.gradients
        block = gradients.block(parameter)
        if block is None or not block.leaf.numel():
            return None
        group = self._ranks.replica_group
        replicas = 1 if group is None else group.world_size
        leaf = gradients.demand(block, gradient=parameter.requires_grad)
        return true_gradient(self._script, leaf, replicas)


def _refuse_use(parameter: torch.Tensor) -> None:
    """Ranks have tokens of their own, so not all of them come to what a mixture does for an idle expert."""
    raise Cannot("its forward uses parameters of an expert itself, not by calling it")
