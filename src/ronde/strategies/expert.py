"""`expert=N`: the experts of a model's mixtures are spread over ranks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, final

import torch

from ronde.parallel.expert_calls import Outputs, call_fused, call_listed, noting
from ronde.parallel.expert_exchange import Cannot, true_gradient
from ronde.patching.patches import Patches
from ronde.policies.expert import can_be_spread, expert_specs
from ronde.policies.expert_structure import Mixture, mixtures
from ronde.rowwise.undo import Held
from ronde.shards.partition import Partition
from ronde.strategies.blocks import BlockRanks, Cutting, ModelBlocks
from ronde.strategies.parts import Parts
from ronde.strategies.strategy import Strategy
from ronde.sync.averaging.protocol import average_gradients
from ronde.tensor.context import Region
from ronde.tensor.global_tensor import GlobalTensor, localize
from ronde.tensor.rules.common import is_sharded, local_operand, rewrap
from ronde.tensor.tree import leaves, map_leaves

__all__ = ["ExpertStrategy"]

# How far an answer may lie from that of one device, as a part of its largest entry, by its dtype.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
_OF_HALVES = 0.05


@final
class ExpertStrategy(Strategy):
    """Calls of mixtures of which this rank has some experts.

    Args:
        ranks: `group` are those over which experts are spread, each with its own rows; `replica_group` have
            the same experts, one rank of each such group.
    """

    name = "expert"

    def __init__(self, parts: Parts, ranks: BlockRanks) -> None:
        self._ranks, self._script, self._recompute = ranks, parts.context, parts.recompute
        self._item = parts.plan.item("expert")
        self._partition = Partition()
        # An expert's gradient is that of its group's tokens when it is made; see `_average_replicas`.
        cutting = Cutting(partition=self._partition, find=self._find, item=self._item, reduces=False)
        self._blocks = ModelBlocks(parts, ranks, cutting)
        self.state = self._blocks.state
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
        if not found and not self._mixtures:
            self._without.setdefault(type(model).__name__)
        return list(units.values())

    def _average_replicas(self) -> None:
        assert self._ranks.replica_group is not None
        gradients = self._blocks.gradients
        blocks = gradients.everywhere(self._ranks.rows)
        averaged = [block.leaf for block in blocks if block.leaf.numel()]
        average_gradients(self._ranks.replica_group, averaged)
        gradients.end_backward()

    def install(self, patches: Patches) -> None:
        self._blocks.install(patches)

    @contextmanager
    def around_call(self, module: torch.nn.Module) -> Iterator[None]:
        """A model that is one piece, or a part of one, has all of its experts."""
        self._blocks.cut_new(module)
        with self._blocks.whole_call(module):
            yield

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
            return self._carry_out(mixture, args, kwargs)
        except Cannot as cannot:
            self._tried[module][module.training] = str(cannot)
            return NotImplemented

    def _try(self, mixture: Mixture, args: Any, kwargs: Any, whole: Callable[[], Any]) -> Any:
        """The first call, as one device does it; what ranks make of their own tokens is compared."""
        outputs = self._outputs[mixture.module] = Outputs()
        why = ""
        try:
            with nullcontext() if mixture.is_fused else noting(mixture, outputs):
                expected = whole()
        except Cannot as cannot:
            why, expected = str(cannot), whole()
        if not why and not mixture.is_fused and not outputs.are_known:
            why = "its experts were not called, or do not return a row for each token"
        if not why:
            why = self._compare(mixture, args, kwargs, expected)
        everywhere = self._ranks.rows.all_gather_object((why, outputs.called))
        told = [each for each, _ in everywhere if each]
        self._tried[mixture.module][mixture.module.training] = told[0] if told else ""
        if torch.is_grad_enabled():
            # An expert that no rank has called would keep gradients waiting for its own.
            called = set[int]().union(*(each for _, each in everywhere))
            self._blocks.lend([each for each, expert in mixture.parameters if expert < 0 or expert in called])
        return expected

    def _compare(self, mixture: Mixture, args: Any, kwargs: Any, expected: Any) -> str:
        module = mixture.module
        with torch.no_grad():
            buffers = [(each, each.clone()) for each in module.buffers()]
            state, held = _generators(), Held.by(module)
            try:
                found = self._carry_out(mixture, args, kwargs)
            except Cannot as cannot:
                return str(cannot)
            finally:
                drawn = not all(map(torch.equal, state, _generators()))
                changed = any(not torch.equal(each, before) for each, before in buffers)
                for each, before in buffers:
                    each.copy_(before)
                kept = next(held.changes(), "")
                held.restore()
            if kept:
                return f"each call keeps something on it ({kept})"
            if drawn:
                return "it draws random numbers"
            if changed:
                return "its calls change its buffers"
            return (
                "" if _alike(list(leaves(found)), list(leaves(expected))) else "its rows are not independent"
            )

    def _carry_out(self, mixture: Mixture, args: Any, kwargs: Any) -> Any:
        script = self._script
        shards = [each for each in leaves((args, kwargs)) if is_sharded(each, script)]
        first: GlobalTensor = shards[0]
        layout = first._layout
        from_end = layout.at(layout.dim - first.dim())

        def local(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if isinstance(value, GlobalTensor) or value.dim() != first.dim():
                return localize(value) if isinstance(value, GlobalTensor) else value
            return local_operand(script, value, from_end)

        args, kwargs = map_leaves(local, (args, kwargs))
        self._blocks.parameters.rest(keep_last=False)
        comm = self._ranks.group
        with script.enter(Region.SHARDED, layout.rows):
            if mixture.is_fused:
                output = call_fused(mixture, comm, self._leaf, args, kwargs)
            else:
                outputs = self._outputs[mixture.module]
                with self._blocks.parameters.watched(_refuse_use), self._by_calls(False):
                    everybody = None if self._ranks.replica_group is None else self._ranks.rows
                    output = call_listed(
                        mixture, comm, self._leaf, outputs, args, kwargs, everybody, self._run
                    )
        size = layout.local_size(script.rank)

        def of_rows(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if value.dim() <= layout.dim or value.shape[layout.dim] != size:
                raise Cannot("what it returns is not of tokens")
            return rewrap(first, value, layout)

        return map_leaves(of_rows, output)

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


def _generators() -> list[torch.Tensor]:
    """The states of torch's default generators."""
    on_device = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *on_device]


def _alike(found: list[Any], expected: list[Any]) -> bool:
    if len(found) != len(expected):
        return False
    for one, other in zip(found, expected, strict=True):
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            if one is not other and one != other:
                return False
            continue
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if not one.is_floating_point():
            if not torch.equal(one, other):
                return False
            continue
        allowed = _TOLERANCE.get(one.dtype, _OF_HALVES)
        distance, size = (one - other).abs().max(), other.abs().max()
        if not bool(distance <= allowed * size):
            return False
    return True
