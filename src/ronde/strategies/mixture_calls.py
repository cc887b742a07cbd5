"""Calls of mixtures inside of models: tokens go to the ranks of their experts.

A mixture's call is one operation of a model that runs on this rank's rows, or on its part of their sequences.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, final

import torch

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.parallel.expert_calls import Outputs, call_fused, call_listed, noting
from ronde.parallel.expert_exchange import Cannot, true_gradient
from ronde.parallel.expert_shares import Among, Shares, nothing
from ronde.parallel.expert_trial import Given, alike, all_equal, try_call
from ronde.parallel.holding import holding
from ronde.patching.patches import Patches
from ronde.patching.stacks import MODULE_CALL
from ronde.policies.expert import can_be_spread
from ronde.policies.expert_structure import Mixture, mixtures
from ronde.rowwise.joint import onlooker
from ronde.rowwise.operation import tensors
from ronde.strategies.blocks import ModelBlocks
from ronde.strategies.held_experts import HeldExperts
from ronde.strategies.parts import Parts
from ronde.tensor.context import Context, Region
from ronde.tensor.edges import gather_data
from ronde.tensor.global_tensor import GlobalTensor, cut, is_global, localize, materialize
from ronde.tensor.rules.common import enter, is_sharded, rewrap
from ronde.tensor.tensor_table import TensorTable
from ronde.tensor.tree import leaves, map_leaves

__all__ = ["MixtureCalls", "MixtureRanks"]

_INSIDE = (Region.OBSERVED, Region.SHARDED)


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MixtureRanks:
    """The ranks of a mixture's call.

    Attributes:
        experts: those over which its experts are spread.
        together: those that call it at once, and go on together, or not.
        replicas: how many ranks have the same experts.
        tensor: those with the same tokens and other blocks of matrices; None without.
        alike: those with the same tokens where sequences are whole; None where each has its own.
        sequences: those that have parts of the same sequences; None without.
        in_stages: other ranks have other mixtures, which they alone call once a model is known.
    """

    experts: Comm
    together: Comm
    replicas: int
    tensor: Context | None
    alike: Context | None
    sequences: Context | None
    in_stages: bool

    def among(self, held: HeldExperts, *, cut: bool) -> Among:
        """The ranks of a call on whole sequences, or on parts of these.

        Args:
            held: the experts of this rank.
        """
        everybody = None if self.together.world_size == self.experts.world_size else self.together
        shares = Shares(self.tensor if cut else self.alike)
        return Among(
            comm=self.experts, everybody=everybody, shares=shares, gather=held.gather, passed=held.passed
        )


@final
class MixtureCalls:
    """Sees to the mixtures of models; one per session.

    Args:
        blocks: has the experts of this rank.
        inside: around a mixture's call, has its other modules hold what this rank has of their parameters.
    """

    def __init__(
        self,
        parts: Parts,
        ranks: MixtureRanks,
        blocks: ModelBlocks,
        inside: Callable[[torch.nn.Module], AbstractContextManager[None]],
    ) -> None:
        self._script, self._recompute = parts.context, parts.recompute
        self._ranks, self._blocks, self._inside = ranks, blocks, inside
        self._everybody = parts.everybody
        self._plan = parts.plan
        self._item = parts.plan.item("expert")
        self._known: weakref.WeakKeyDictionary[torch.nn.Module, Mixture] = weakref.WeakKeyDictionary()
        # What stands for parameters in a stage's modules, and whether it is the leaf of gradients itself.
        self._standing: TensorTable[bool] = TensorTable()
        self._held: weakref.WeakKeyDictionary[torch.nn.Module, HeldExperts] = weakref.WeakKeyDictionary()
        self._experts: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._of: TensorTable[weakref.ref[torch.nn.Module]] = TensorTable()
        # Models in which no mixture was found, by their class.
        self._without: dict[str, None] = {}
        # By module, for training and evaluation: why its experts are not spread after all; "" if they are.
        self._tried: weakref.WeakKeyDictionary[torch.nn.Module, dict[bool, str]]
        self._tried = weakref.WeakKeyDictionary()
        # Those that a model in parts calls by itself, by their class.
        self._apart: dict[str, None] = {}
        self._leaves_out = False
        self._cut_tried: weakref.WeakKeyDictionary[torch.nn.Module, set[bool]] = weakref.WeakKeyDictionary()
        self._outputs: weakref.WeakKeyDictionary[torch.nn.Module, Outputs] = weakref.WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        patches.layer(MODULE_CALL, "mixtures", self._layer)

    def found_in(self, model: torch.nn.Module) -> list[Mixture]:
        """The mixtures of a model whose experts can be spread."""
        found = mixtures(model, self._ranks.experts.world_size)
        if not found and not self._known:
            self._without.setdefault(type(model).__name__)
        return [each for each in found if can_be_spread(each)]

    def take(self, mixture: Mixture) -> None:
        """The experts of a mixture are about to be spread."""
        self._known[mixture.module] = mixture
        self._held[mixture.module] = HeldExperts(self._blocks, [each for each, _ in mixture.parameters])
        self._experts.update(mixture.parts)
        for tensor, _ in mixture.parameters:
            self._of.set(tensor, weakref.ref(mixture.module))

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a parameter of spread experts."""
        return tensor in self._of

    def is_part(self, module: torch.nn.Module) -> bool:
        """Whether a module is a mixture, or of an expert."""
        return module in self._known or module in self._experts

    def computes_whole(self, module: torch.nn.Module) -> bool:
        """Whether a call of a module is one of whole experts, too, which every rank gathers."""
        used = [part for part in module.modules() if part in self._experts]
        if not used or self._script.region is Region.REPLICATED:
            return bool(used)
        taken = [self._known[part] for part in module.modules() if part in self._known]
        spread = {id(part) for each in taken if self._is_spread(each) for part in each.parts}
        return any(id(part) not in spread for part in used)

    def _is_spread(self, mixture: Mixture) -> bool:
        return self._tried.get(mixture.module, {}).get(mixture.module.training) == ""

    def notes(self) -> list[str]:
        said: list[str] = []
        for module, found in list(self._tried.items()):
            said += [
                f"{self._item} does not spread the experts of {type(module).__name__}: {why}"
                for why in found.values()
                if why
            ]
        said += [
            f"{self._item} does not spread the experts of {name}: a model that runs in parts calls it, and "
            f"{self._plan.item('pipeline')} has stages of what is one piece"
            for name in self._apart
        ]
        if not (self._tried or self._apart) and self._without:
            names = ", ".join(self._without)
            said.append(f"{self._item} spreads nothing of {names}: no mixture of experts was found in it")
        return list(dict.fromkeys(said))

    def stand_in(self, parameter: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor | None:
        """What stands in modules of a stage for a parameter of experts; None where it is not to be used.

        Args:
            leaf: this rank's elements.
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
        """Inside, experts are called as the model has it: all ranks gather each."""
        before, self._leaves_out = self._leaves_out, True
        try:
            yield
        finally:
            self._leaves_out = before

    def _is_left_out(self, module: torch.nn.Module) -> bool:
        if self._leaves_out:
            self._apart.setdefault(type(module).__name__)
        return self._leaves_out

    def _layer(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            mixture = self._known.get(module) if self._known else None
            if mixture is None or self._script.region not in _INSIDE or self._is_left_out(module):
                return plain(module, *args, **kwargs)
            if not any(isinstance(each, torch.Tensor) and each.dim() for each in (*args, *kwargs.values())):
                return plain(module, *args, **kwargs)
            return self._call(mixture, functools.partial(plain, module), (args, kwargs))

        return call

    def _call(self, mixture: Mixture, plain: Callable[..., Any], call: tuple[Any, Any]) -> Any:
        module, looks_on = mixture.module, onlooker()
        tried = self._tried.setdefault(module, {})
        if module.training not in tried:
            observed = self._script.region is Region.OBSERVED
            if self._ranks.in_stages and not observed:
                raise UsageError(
                    f"{type(module).__name__} was made anew after the first call of a model like the one "
                    f"that has it, in which {self._plan.item('pipeline')},{self._item} has tried what is "
                    f"spread; make one model, or take a plan without pipeline"
                )
            with looks_on.unseen():
                why = self._try(mixture, plain, call)
            if why and not observed:
                raise self._not_any_more(mixture, why)
            tried[module.training] = why
        if tried[module.training]:
            args, kwargs = call
            return plain(*args, **kwargs)
        made = functools.partial(self._made, mixture, plain, call)
        return looks_on.as_one(type(module).__name__, call, made)

    def _not_any_more(self, mixture: Mixture, why: str) -> UsageError:
        return UsageError(
            f"{self._item} has spread the experts of {type(mixture.module).__name__} in earlier calls, and "
            f"cannot in this one: {why}; take a plan without expert"
        )

    def _try(self, mixture: Mixture, plain: Callable[..., Any], call: tuple[Any, Any]) -> str:
        """Why ranks cannot have their own tokens, or "". A collective of all ranks.

        The call of one device is compared with what ranks make of their own tokens.
        """
        outputs = self._outputs[mixture.module] = Outputs()
        given = Given.of(self._script.comm, self._of_whole_sequences(call))
        with nullcontext() if mixture.is_fused else noting(mixture, outputs):
            expected, why = self._of_all_ranks(mixture, plain, given)
        if not why and not mixture.is_fused and not outputs.are_known:
            why = "its experts were not called, or do not return a row for each token"
        self._blocks.parameters.rest(keep_last=False)  # all ranks have gathered some
        if not why and self._has_experts(mixture):
            why = self._tokens_depend(mixture, given, expected)
        return next(filter(None, self._everybody.all_gather_object(why)), "")

    def _of_whole_sequences(self, call: tuple[Any, Any]) -> tuple[Any, Any]:
        """Arguments without a graph, of which no sequence is cut. A collective, where some are."""
        sequences = self._ranks.sequences

        def whole(value: Any) -> Any:
            if sequences is None or not is_sharded(value, sequences):
                return materialize(value)
            return gather_data(sequences, materialize(localize(value)), value._layout)

        with torch.no_grad():
            return map_leaves(whole, call)

    def _of_all_ranks(self, mixture: Mixture, plain: Callable[..., Any], given: Given) -> tuple[Any, str]:
        """This rank's rows of what one device makes of all tokens; and why it cannot be so cut, or ""."""
        args, kwargs = given.whole()
        with self._script.enter(Region.REPLICATED):
            return try_call(mixture.module, lambda: given.own(plain(*args, **kwargs)))

    def _has_experts(self, mixture: Mixture) -> bool:
        """Whether this rank has some of a mixture's experts: in stages of a pipeline, others may have all."""
        blocks = [self._blocks.gradients.block(tensor) for tensor, _ in mixture.parameters]
        return any(block is not None and block.leaf.numel() for block in blocks)

    def _tokens_depend(self, mixture: Mixture, given: Given, expected: Any) -> str:
        """Why ranks cannot have their own tokens, or "". A collective; answers may differ."""
        module, together = mixture.module, self._ranks.together
        made, why = try_call(module, lambda: self._carried_out(mixture, given.call, cut=False))
        if not why and not alike(made, expected):
            why = "its rows are not independent"
        told = together.all_gather_object(why)
        if any(told):
            return next(filter(None, told))
        equal = given.of_equal_tokens()
        made, why = try_call(module, lambda: self._carried_out(mixture, equal, cut=False))
        if why or all_equal(made, given.axis):
            return why
        return "an expert may have no room for its tokens"

    def _made(self, mixture: Mixture, plain: Callable[..., Any], call: tuple[Any, Any]) -> Any:
        """What is made of this rank's tokens."""
        if self._ranks.in_stages and self._script.region is Region.OBSERVED:
            # A call that is unwound, in which all ranks come to all mixtures.
            return self._of_all_ranks(mixture, plain, Given.of(self._script.comm, call))[0]
        try:
            like = self._like(call)
            if like is None:
                return self._carried_out(mixture, call, cut=False)
            return self._cut(mixture, call, like)
        except Cannot as cannot:
            raise self._not_any_more(mixture, str(cannot)) from None

    def _like(self, call: tuple[Any, Any]) -> GlobalTensor | None:
        """The first argument with this rank's part of sequences, if any is cut."""
        sequences = self._ranks.sequences
        if sequences is None:
            return None
        return next((each for each in leaves(call) if is_sharded(each, sequences)), None)

    def _cut(self, mixture: Mixture, call: tuple[Any, Any], like: GlobalTensor) -> Any:
        """What is made of this rank's part of sequences.

        Raises:
            Cannot: it is not of tokens.
        """
        sequences, layout = like._context, like._layout

        def local(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if is_global(value, sequences):
                return materialize(localize(value))
            spans = value.dim() > layout.dim and value.shape[layout.dim] == layout.size
            return materialize(cut(sequences, value, layout) if spans else enter(sequences, value))

        own = map_leaves(local, call)
        if mixture.module.training not in self._cut_tried.setdefault(mixture.module, set()):
            with onlooker().unseen():
                self._try_cut(mixture, call, own, like)
            self._cut_tried[mixture.module].add(mixture.module.training)
        size = layout.local_size(sequences.rank)
        with self._entered(mixture, sequences):
            made = self._carried_out(mixture, own, cut=True)

        def over(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if value.dim() <= layout.dim or value.shape[layout.dim] != size:
                raise Cannot("what it returns is not of tokens")
            return rewrap(like, value, layout)

        return map_leaves(over, made)

    def _try_cut(
        self, mixture: Mixture, call: tuple[Any, Any], own: tuple[Any, Any], like: GlobalTensor
    ) -> None:
        """Compare what is made of whole sequences with what ranks make of their parts."""
        sequences, layout = like._context, like._layout

        of_whole = self._of_whole_sequences(call)
        expected, why = try_call(mixture.module, lambda: self._carried_out(mixture, of_whole, cut=False))
        made, problem = try_call(mixture.module, lambda: self._carried_out(mixture, own, cut=True))
        own_part = (layout.take(each, sequences.rank) for each in tensors(list(leaves(expected))))
        apart = not (why or problem) and alike(tensors(list(leaves(made))), list(own_part))
        if self._ranks.together.votes([not apart]) != [0]:
            raise UsageError(
                f"{self._plan.item('context')} cuts sequences over ranks, and what "
                f"{type(mixture.module).__name__} makes of a token depends on others of its sequence; take a "
                f"plan without context"
            )

    @contextmanager
    def _entered(self, mixture: Mixture, sequences: Context) -> Iterator[None]:
        """Inside, parameters beside experts are used for this rank's tokens; their gradients are summed."""
        experts = {id(each) for part in mixture.parts for each in part._parameters.values()}
        with holding(mixture.module, lambda each: None if id(each) in experts else enter(sequences, each)):
            yield

    def _carried_out(self, mixture: Mixture, call: tuple[Any, Any], *, cut: bool) -> Any:
        """What experts make of tokens, which this rank and others have.

        Args:
            cut: they are of parts of sequences.
        """
        args, kwargs = map_leaves(materialize, call)
        among = self._ranks.among(self._held[mixture.module], cut=cut)
        if any(self._standing.get(each) is False for each in mixture.module.parameters()):
            among = dataclasses.replace(among, passed=nothing)  # gradients come when a schedule has ended
        if not self._ranks.in_stages:
            self._blocks.parameters.rest(keep_last=False)
        if mixture.is_fused:
            with self._inside(mixture.module):
                return call_fused(mixture, among, self._leaf, args, kwargs)
        outputs = self._outputs[mixture.module]
        watched = self._blocks.parameters.watched(_refuse_use)
        with self._inside(mixture.module), watched, self._by_calls(False):
            return call_listed(mixture, among, self._leaf, outputs, args, kwargs, self._run)

    def _by_calls(self, yes: bool) -> AbstractContextManager[None]:
        return nullcontext() if self._recompute is None else self._recompute.by_calls(yes)

    def _run(self, expert: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
        """Call an expert; the mixture's own calls of experts are no more than questions."""
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
    """Ranks have tokens of their own, so not all of them come to what a mixture does for an idle expert."""
    raise Cannot("its forward uses parameters of an expert itself, not by calling it")
