"""Calls of mixtures with spread experts: tokens travel to the experts' ranks."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, final

import torch

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.parallel.expert.calls import Outputs, call_fused, call_listed, noting
from ronde.parallel.expert.token_exchange import Cannot, true_gradient
from ronde.parallel.expert.token_shares import Among, TokenShares, nothing
from ronde.parallel.holding import holding
from ronde.patching.patches import Patches
from ronde.patching.stacks import MODULE_CALL
from ronde.policies.expert import can_be_spread
from ronde.policies.expert_structure import Mixture, mixtures
from ronde.strategies.blocks import ModelBlocks
from ronde.strategies.held_experts import HeldExperts
from ronde.strategies.session_parts import SessionParts
from ronde.strategies.tried_mixtures import Plain, TriedMixtures
from ronde.tensor.context import Context, Region
from ronde.tensor.global_tensor import materialize
from ronde.tensor.rules.common import enter
from ronde.tensor.tensor_table import TensorTable
from ronde.tensor.tree import map_leaves

__all__ = ["MixtureCalls", "MixtureRanks"]


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MixtureRanks:
    """Process groups of a mixture's call.

    Attributes:
        experts: ranks over which its experts are spread.
        together: ranks that call it at the same time, and succeed or fail together.
        replicas: number of ranks that have the same experts.
        tensor: ranks with the same tokens and other blocks of matrices, or None.
        alike: ranks with the same tokens while sequences are whole; None if each rank has its own.
        sequences: ranks that have parts of the same sequences, or None.
        in_stages: whether other ranks have other mixtures, which they alone call once a model is known.
    """

    experts: Comm
    together: Comm
    replicas: int
    tensor: Context | None
    alike: Context | None
    sequences: Context | None
    in_stages: bool

    def among(self, held: HeldExperts, *, cut: bool) -> Among:
        """Return the ranks of a call on whole sequences, or on parts of sequences.

        Args:
            held: experts of this rank.
        """
        everybody = None if self.together.world_size == self.experts.world_size else self.together
        shares = TokenShares(self.tensor if cut else self.alike)
        return Among(
            comm=self.experts, everybody=everybody, shares=shares, gather=held.gather, passed=held.passed
        )


@final
class MixtureCalls:
    """Runs the mixtures of models on spread experts; one per session.

    Args:
        blocks: store with the experts of this rank.
        inside: context manager in which other modules of a mixture hold this rank's parts of their
            parameters.
    """

    def __init__(
        self,
        parts: SessionParts,
        ranks: MixtureRanks,
        blocks: ModelBlocks,
        inside: Callable[[torch.nn.Module], AbstractContextManager[None]],
    ) -> None:
        self._script, self._recompute = parts.context, parts.recompute
        self._ranks, self._blocks, self._inside = ranks, blocks, inside
        self._plan = parts.plan
        self._item = parts.plan.item("expert")
        self._known: weakref.WeakKeyDictionary[torch.nn.Module, Mixture] = weakref.WeakKeyDictionary()
        # Replacements of parameters in a stage's modules; True if it is the leaf of gradients itself.
        self._standing: TensorTable[bool] = TensorTable()
        self._held: weakref.WeakKeyDictionary[torch.nn.Module, HeldExperts] = weakref.WeakKeyDictionary()
        self._experts: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._of: TensorTable[weakref.ref[torch.nn.Module]] = TensorTable()
        # Classes of models in which no mixture was found.
        self._without: dict[str, None] = {}
        self._calls = TriedMixtures(
            parts,
            self,
            together=ranks.together,
            sequences=ranks.sequences,
            in_stages=ranks.in_stages,
        )
        # Classes of mixtures that a model in parts calls by itself.
        self._apart: dict[str, None] = {}
        self._leaves_out = False
        self._outputs: weakref.WeakKeyDictionary[torch.nn.Module, Outputs] = weakref.WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        patches.layer(MODULE_CALL, "mixtures", self._calls.around(self._find))

    def found_in(self, model: torch.nn.Module) -> list[Mixture]:
        """Return the mixtures of a model with experts that can be spread."""
        found = mixtures(model, self._ranks.experts.world_size)
        if not found and not self._known:
            self._without.setdefault(type(model).__name__)
        return [each for each in found if can_be_spread(each)]

    def take(self, mixture: Mixture) -> None:
        """Register the experts of a mixture that is about to be spread."""
        self._known[mixture.module] = mixture
        self._held[mixture.module] = HeldExperts(self._blocks, [each for each, _ in mixture.parameters])
        self._experts.update(mixture.parts)
        for tensor, _ in mixture.parameters:
            self._of.set(tensor, weakref.ref(mixture.module))

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is a parameter of spread experts."""
        return tensor in self._of

    def is_part(self, module: torch.nn.Module) -> bool:
        """Return whether a module is a mixture or part of an expert."""
        return module in self._known or module in self._experts

    def computes_whole(self, module: torch.nn.Module) -> bool:
        """Return whether a module's call needs whole experts, which every rank gathers."""
        used = [part for part in module.modules() if part in self._experts]
        if not used or self._script.region is Region.REPLICATED:
            return bool(used)
        taken = [self._known[part] for part in module.modules() if part in self._known]
        spread = {id(part) for each in taken if self._is_spread(each) for part in each.parts}
        return any(id(part) not in spread for part in used)

    def are_untried(self, module: torch.nn.Module) -> bool:
        return self._calls.are_untried(filter(None, map(self._known.get, module.modules())))

    def is_called_by(self, parts: Iterable[torch.nn.Module]) -> bool:
        """Return whether one of these has all experts, and gets choices."""
        return any((known := self._known.get(part)) is not None and known.is_fused for part in parts)

    def _is_spread(self, mixture: Mixture) -> bool:
        return self._calls.tried.get(mixture.module, {}).get(mixture.module.training) == ""

    def notes(self) -> list[str]:
        said: list[str] = []
        for module, found in list(self._calls.tried.items()):
            said += [
                f"{self._item} does not spread the experts of {type(module).__name__}: {why} [R256]"
                for why in found.values()
                if why
            ]
        said += [
            f"{self._item} does not spread the experts of {name}: it is called by a model that runs in "
            f"parts, which {self._plan.item('pipeline')} cannot cut into stages [R257]"
            for name in self._apart
        ]
        if not (self._calls.tried or self._apart) and self._without:
            names = ", ".join(self._without)
            said.append(
                f"{self._item} spreads nothing of {names}: no mixture of experts was found in it [R258]"
            )
        return list(dict.fromkeys(said))

    def stand_in(self, parameter: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor | None:
        """Return the replacement of an expert's parameter in modules of a stage, or None.

        None means that the parameter is not spread, or not used on this rank.

        Args:
            leaf: elements of this rank.
        """
        of = self._of.get(parameter)
        mixture = None if of is None or (module := of()) is None else self._known.get(module)
        if mixture is None or not self._is_spread(mixture) or not leaf.numel():
            return None
        block = self._blocks.gradients.block(parameter)
        self._standing.set(leaf, block is not None and block.leaf is leaf)
        return leaf

    def _true(self, leaf: torch.Tensor) -> torch.Tensor | None:
        return true_gradient(self._script, leaf, self._ranks.replicas) if leaf.numel() else None

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Call experts inside as the model does: all ranks gather each expert."""
        before, self._leaves_out = self._leaves_out, True
        try:
            yield
        finally:
            self._leaves_out = before

    def _find(self, module: torch.nn.Module) -> Mixture | None:
        mixture = self._known.get(module) if self._known else None
        if mixture is not None and self._leaves_out:
            self._apart.setdefault(type(module).__name__)
            return None
        return mixture

    @contextmanager
    def watching(self, mixture: Mixture) -> Iterator[None]:
        outputs = self._outputs[mixture.module] = Outputs()
        with nullcontext() if mixture.is_fused else noting(mixture, outputs):
            yield
        self._blocks.parameters.rest(keep_last=False)  # all ranks have gathered some

    def problem(self, mixture: Mixture) -> str:
        if mixture.is_fused or self._outputs[mixture.module].are_known:
            return ""
        return "its experts were not called, or do not return a row for each token"

    def is_here(self, mixture: Mixture) -> bool:
        """Return whether this rank has elements of a mixture's experts.

        In a pipeline, other ranks may have all of them.
        """
        blocks = [self._blocks.gradients.block(tensor) for tensor, _ in mixture.parameters]
        return any(block is not None and block.leaf.numel() for block in blocks)

    def carried_out(self, mixture: Mixture, plain: Plain, call: tuple[Any, Any], *, cut: bool) -> Any:
        args, kwargs = map_leaves(materialize, call)
        among = self._ranks.among(self._held[mixture.module], cut=cut)
        if any(self._standing.get(each) is False for each in mixture.module.parameters()):
            among = dataclasses.replace(among, passed=nothing)  # gradients arrive when a schedule has ended
        if not self._ranks.in_stages:
            self._blocks.parameters.rest(keep_last=False)
        if mixture.is_fused:
            with self._inside(mixture.module):
                return call_fused(mixture, among, self._leaf, args, kwargs)
        outputs = self._outputs[mixture.module]
        watched = self._blocks.parameters.watched(_refuse_use)
        with self._inside(mixture.module), watched, self._by_calls(False):
            return call_listed(mixture, among, self._leaf, outputs, args, kwargs, self._run)

    def of_parts(self, mixture: Mixture, plain: Plain, call: tuple[Any, Any], sequences: Context) -> Any:
        """Call experts on parts of sequences; see `Experts.of_parts`.

        Parameters outside of experts are equal on these ranks, so their gradients are summed.
        """
        experts = {id(each) for part in mixture.parts for each in part._parameters.values()}
        with holding(mixture.module, lambda each: None if id(each) in experts else enter(sequences, each)):
            return self.carried_out(mixture, plain, call, cut=True)

    def not_any_more(self, mixture: Mixture, why: str) -> UsageError:
        return UsageError(
            f"{self._item} has spread the experts of {type(mixture.module).__name__} in earlier calls, and "
            f"cannot in this one: {why}; take a plan without expert [R259]"
        )

    def made_anew(self, mixture: Mixture) -> UsageError:
        return UsageError(
            f"{type(mixture.module).__name__} was created after the first call of an equal model, in which "
            f"{self._plan.item('pipeline')},{self._item} decided what is spread; make one model, or take a "
            "plan without pipeline [R260]"
        )

    def _by_calls(self, yes: bool) -> AbstractContextManager[None]:
        return nullcontext() if self._recompute is None else self._recompute.by_calls(yes)

    def _run(self, expert: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
        """Call an expert on its rows.

        Calls of experts by the mixture's own forward only record the routing.
        """
        with self._by_calls(True):
            return expert(rows)

    def _leaf(self, parameter: torch.Tensor) -> torch.Tensor | None:
        if parameter in self._standing:
            return self._true(parameter)
        gradients = self._blocks.gradients
        block = gradients.block(parameter)
        if block is None:
            return None
        return self._true(gradients.demand(block, gradient=parameter.requires_grad))


def _refuse_use(parameter: torch.Tensor) -> None:
    """Raise an error for the use of an expert's parameter outside of the expert.

    Ranks have tokens of their own, so not all of them would reach a collective for an idle expert.
    """
    raise Cannot("its forward uses parameters of an expert directly, without calling the expert [R256]")
