"""`expert=N`: the one place that joins what spreads the experts of a model's mixtures over ranks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.parallel.expert_calls import Outputs, call_fused, call_listed, noting
from ronde.parallel.expert_exchange import Cannot, true_gradient
from ronde.plan import Plan
from ronde.policies.expert import can_be_spread, expert_specs
from ronde.policies.expert_structure import Mixture, mixtures
from ronde.rowwise.undo import Held
from ronde.runtime.block_sharding import BlockRanks, BlockSharding
from ronde.shards.partition import Partition
from ronde.sync.averaging.protocol import average_gradients
from ronde.sync.reducer import Reducer
from ronde.tensor.context import Region
from ronde.tensor.global_tensor import GlobalTensor, localize
from ronde.tensor.rules.common import is_sharded, local_operand, rewrap
from ronde.tensor.tree import leaves, map_leaves

__all__ = ["ExpertSharding"]

# How far an answer may lie from that of one device, as a part of its largest entry, by its dtype.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
_OF_HALVES = 0.05


class ExpertSharding(BlockSharding):
    """What is spread on this rank.

    Args:
        ranks: `group` are those over which experts are spread, each with its own rows.
        replicas: the ranks that have the same experts, one of each such group; None where it is one group.
    """

    def __init__(
        self, plan: Plan, ranks: BlockRanks, note: Callable[[str], None], replicas: Comm | None
    ) -> None:
        self._replicas = replicas
        super().__init__(plan, ranks, note, partition=Partition(), find=self._find, item="expert")
        self._mixtures: weakref.WeakKeyDictionary[torch.nn.Module, Mixture] = weakref.WeakKeyDictionary()
        # Models in which no mixture was found, by their class.
        self._without: dict[str, None] = {}
        self.spread = self._spread_out
        # By module, for training and evaluation: why its experts are not spread after all; "" if they are.
        self._tried: weakref.WeakKeyDictionary[torch.nn.Module, dict[bool, str]]
        self._tried = weakref.WeakKeyDictionary()
        self._outputs: weakref.WeakKeyDictionary[torch.nn.Module, Outputs] = weakref.WeakKeyDictionary()

    def _find(self, model: torch.nn.Module) -> list[list[torch.Tensor]]:
        """Decide on the parameters of a model's experts; those of an expert are a unit."""
        ranks = self._group.world_size
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

    def average_by(self, reducer: Reducer) -> None:
        super().average_by(reducer)
        if self._replicas is not None:
            reducer.on_averaged = self._average_replicas

    def _average_replicas(self) -> None:
        assert self._replicas is not None
        blocks = self._blocks.everywhere(self._rows)
        average_gradients(self._replicas, [block.leaf for block in blocks if block.leaf.numel()])
        self._blocks.end_backward()

    @contextmanager
    def calling(self, module: torch.nn.Module) -> Iterator[None]:
        """A model that is one piece, or a part of one, has all of its experts."""
        self._cut_new(module)
        with self._calling_whole(module):
            yield

    def _spread_out(self, module: torch.nn.Module, args: Any, kwargs: Any, whole: Callable[[], Any]) -> Any:
        mixture = self._mixtures.get(module)
        if mixture is None or not any(map(is_sharded, leaves((args, kwargs)))):
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

    def notes(self) -> list[str]:
        said = super().notes()
        item = self._plan.item("expert")
        for module, found in list(self._tried.items()):
            said += [
                f"{item} does not spread the experts of {type(module).__name__}: {why}"
                for why in found.values()
                if why
            ]
        if not self._tried and self._without:
            names = ", ".join(self._without)
            said.append(f"{item} spreads nothing of {names}: no mixture of experts was found in it")
        return list(dict.fromkeys(said))

    def _encoded(self) -> None:
        """Every rank has other rows: whatever is averaged is averaged over all of them."""

    def _adopt(self, leaf: torch.Tensor) -> None:
        """An expert's gradient is that of its group's tokens when it is made; see `_average_replicas`."""

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
        told = [each for each in self._rows.all_gather_object(why) if each]
        self._tried[mixture.module][mixture.module.training] = told[0] if told else ""
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
        assert script is not None
        shards = [each for each in leaves((args, kwargs)) if is_sharded(each)]
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
        self._cut.rest(keep_last=False)
        comm = self._group.comm
        with script.enter(Region.SHARDED, layout.rows):
            if mixture.is_fused:
                output = call_fused(mixture, comm, self._leaf, args, kwargs)
            else:
                outputs = self._outputs[mixture.module]
                with self._cut.watched(_refuse_use), self._by_calls(False):
                    everybody = None if self._replicas is None else self._rows
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
        return nullcontext() if self.recompute is None else self.recompute.by_calls(yes)

    def _run(self, expert: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
        """Call an expert; the mixture's own calls of experts are no more than questions."""
        with self._by_calls(True):
            return expert(rows)

    def _leaf(self, parameter: torch.Tensor) -> torch.Tensor | None:
        block = self._blocks.block(parameter)
        if block is None or not block.leaf.numel():
            return None
        assert self._script is not None
        replicas = 1 if self._replicas is None else self._replicas.world_size
        leaf = self._blocks.demand(block, gradient=parameter.requires_grad)
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
