"""Mixtures of experts as one operation each, validated before use.

A mixture's call is given this rank's rows, and under `context` its part of their sequences, if the output for
a part equals that part of the output for the whole.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol, final

import torch

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.parallel.expert.token_exchange import Cannot
from ronde.parallel.expert.trial import MixtureInputs, alike, all_equal, try_call
from ronde.policies.expert_structure import Mixture
from ronde.rowwise.joint import onlooker
from ronde.rowwise.operation import tensors
from ronde.strategies.session_parts import SessionParts
from ronde.tensor.context import Context, Region
from ronde.tensor.edges import gather_data
from ronde.tensor.global_tensor import GlobalTensor, cut, is_global, localize, materialize
from ronde.tensor.rules.common import enter, is_sharded, rewrap
from ronde.tensor.tree import leaves, map_leaves

__all__ = ["Experts", "Plain", "TriedMixtures"]

_INSIDE = (Region.OBSERVED, Region.SHARDED)

Plain = Callable[..., Any]
"""Calls a mixture as the model has it, with the parameters that its modules hold."""


class Experts(Protocol):
    """Calls experts of mixtures on tokens, wherever the experts are."""

    def watching(self, mixture: Mixture) -> AbstractContextManager[object]:
        """Return a context that observes how the call on one device calls experts."""
        ...

    def problem(self, mixture: Mixture) -> str:
        """Explain why experts cannot be called on this rank's tokens; "" where they can."""
        ...

    def is_here(self, mixture: Mixture) -> bool:
        """Return whether this rank has experts to be tried."""
        ...

    def carried_out(self, mixture: Mixture, plain: Plain, call: tuple[Any, Any], *, cut: bool) -> Any:
        """Call experts on tokens of this rank and of others.

        Args:
            cut: whether the tokens are of parts of sequences.
        """
        ...

    def of_parts(self, mixture: Mixture, plain: Plain, call: tuple[Any, Any], sequences: Context) -> Any:
        """Call experts on parts of sequences, and sum gradients of common parameters."""
        ...

    def not_any_more(self, mixture: Mixture, why: str) -> UsageError:
        """Create the error of a later call that cannot run as the first did."""
        ...

    def made_anew(self, mixture: Mixture) -> UsageError:
        """Create the error of a first call that a stage alone makes."""
        ...


@final
class TriedMixtures:
    """Calls of mixtures in models that run on this rank's rows; one per session.

    Args:
        together: ranks that call a mixture at the same time, and succeed or fail together.
        sequences: ranks that have parts of the same sequences, or None.
        in_stages: whether other ranks have other mixtures, which they alone call once a model is known.

    Attributes:
        tried: reason why ranks cannot have their own tokens, or "", by mixture and mode of training.
    """

    def __init__(
        self,
        parts: SessionParts,
        experts: Experts,
        *,
        together: Comm,
        sequences: Context | None,
        in_stages: bool,
    ) -> None:
        self._script, self._everybody, self._plan = parts.context, parts.everybody, parts.plan
        self._experts = experts
        self._together, self._sequences, self._in_stages = together, sequences, in_stages
        self.tried: weakref.WeakKeyDictionary[torch.nn.Module, dict[bool, str]]
        self.tried = weakref.WeakKeyDictionary()
        # Mixtures for whose trial a call has been observed, by mode of training.
        self._sought: tuple[weakref.WeakSet[torch.nn.Module], ...] = weakref.WeakSet(), weakref.WeakSet()
        self._cut_tried: weakref.WeakKeyDictionary[torch.nn.Module, set[bool]] = weakref.WeakKeyDictionary()

    def around(self, find: Callable[[torch.nn.Module], Mixture | None]) -> Callable[[Plain], Plain]:
        """Return a layer of module calls that carries out calls of mixtures.

        Args:
            find: returns the mixture of a module, or None; called inside of models only.
        """

        def around(plain: Plain) -> Plain:
            def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
                mixture = find(module) if self._script.region in _INSIDE else None
                if mixture is None or not _has_tokens((*args, *kwargs.values())):
                    return plain(module, *args, **kwargs)
                return self.call(mixture, functools.partial(plain, module), (args, kwargs))

            return call

        return around

    def are_untried(self, found: Iterable[Mixture]) -> bool:
        """Return whether a call is to try some of these.

        True once for each, and for each mode of training.
        """
        modules = [each.module for each in found]
        new = [
            each
            for each in modules
            if each.training not in self.tried.get(each, {}) and each not in self._sought[each.training]
        ]
        for each in new:
            self._sought[each.training].add(each)
        return bool(new)

    def call(self, mixture: Mixture, plain: Plain, call: tuple[Any, Any]) -> Any:
        """Call a mixture with (args, kwargs)."""
        module, looks_on = mixture.module, onlooker()
        together = self._script.together or _at_once
        tried = self.tried.setdefault(module, {})
        if module.training not in tried:
            observed = self._script.region is Region.OBSERVED
            if self._in_stages and not observed:
                raise self._experts.made_anew(mixture)
            with looks_on.unseen():
                why = together(lambda: self._try(mixture, plain, call))
            if why and not observed:
                raise self._experts.not_any_more(mixture, why)
            tried[module.training] = why
        if tried[module.training]:
            args, kwargs = call
            return plain(*args, **kwargs)
        made = functools.partial(self._made, mixture, plain, call)
        return looks_on.as_one(type(module).__name__, call, lambda: together(made))

    def _try(self, mixture: Mixture, plain: Plain, call: tuple[Any, Any]) -> str:
        """Explain why ranks cannot have their own tokens, or "". A collective of all ranks.

        The call of one device is compared with the ranks' calls on their own tokens.
        """
        given = MixtureInputs.of(self._script.comm, self._of_whole_sequences(call))
        with self._experts.watching(mixture):
            expected, why = self._of_all_ranks(mixture, plain, given)
        why = why or self._experts.problem(mixture)
        if not why and self._experts.is_here(mixture):
            why = self._tokens_depend(mixture, plain, given, expected)
        return next(filter(None, self._everybody.all_gather_object(why)), "")

    def _of_whole_sequences(self, call: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return arguments without a graph, all sequences whole. A collective where some are cut."""
        sequences = self._sequences

        def whole(value: Any) -> Any:
            if sequences is None or not is_sharded(value, sequences):
                return materialize(value)
            return gather_data(sequences, materialize(localize(value)), value._layout)

        with torch.no_grad():
            return map_leaves(whole, call)

    def _of_all_ranks(self, mixture: Mixture, plain: Plain, given: MixtureInputs) -> tuple[Any, str]:
        """Return this rank's rows of one device's output, and a problem or ""."""
        args, kwargs = given.whole()
        with self._script.enter(Region.REPLICATED):
            return try_call(mixture.module, lambda: given.own(plain(*args, **kwargs)))

    def _tokens_depend(self, mixture: Mixture, plain: Plain, given: MixtureInputs, expected: Any) -> str:
        """Explain why ranks cannot have their own tokens, or "". Answers may differ."""
        module, carried_out = mixture.module, self._experts.carried_out
        made, why = try_call(module, lambda: carried_out(mixture, plain, given.call, cut=False))
        if not why and not alike(made, expected):
            why = "its rows are not independent"
        told = self._together.all_gather_object(why)
        if any(told):
            return next(filter(None, told))
        equal = given.of_equal_tokens()
        made, why = try_call(module, lambda: carried_out(mixture, plain, equal, cut=False))
        if why or all_equal(made, given.axis):
            return why
        return "an expert may have no room for its tokens"

    def _made(self, mixture: Mixture, plain: Plain, call: tuple[Any, Any]) -> Any:
        """Call experts on this rank's tokens."""
        if self._in_stages and self._script.region is Region.OBSERVED:
            # A call that is unwound, in which all ranks reach all mixtures.
            return self._of_all_ranks(mixture, plain, MixtureInputs.of(self._script.comm, call))[0]
        try:
            like = self._like(call)
            if like is None:
                return self._experts.carried_out(mixture, plain, call, cut=False)
            return self._cut(mixture, plain, call, like)
        except Cannot as cannot:
            raise self._experts.not_any_more(mixture, str(cannot)) from None

    def _like(self, call: tuple[Any, Any]) -> GlobalTensor | None:
        """Return the first argument with this rank's part of sequences, if any is cut."""
        sequences = self._sequences
        if sequences is None:
            return None
        return next((each for each in leaves(call) if is_sharded(each, sequences)), None)

    def _cut(self, mixture: Mixture, plain: Plain, call: tuple[Any, Any], like: GlobalTensor) -> Any:
        """Call experts on this rank's part of sequences.

        Raises:
            Cannot: the output is not of tokens.
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
                self._try_cut(mixture, plain, call, own, like)
            self._cut_tried[mixture.module].add(mixture.module.training)
        size = layout.local_size(sequences.rank)
        made = self._experts.of_parts(mixture, plain, own, sequences)

        def over(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if value.dim() <= layout.dim or value.shape[layout.dim] != size:
                raise Cannot("its output is not one row per token [R256]")
            return rewrap(like, value, layout)

        return map_leaves(over, made)

    def _try_cut(
        self,
        mixture: Mixture,
        plain: Plain,
        call: tuple[Any, Any],
        own: tuple[Any, Any],
        like: GlobalTensor,
    ) -> None:
        """Compare the output for whole sequences with the outputs of ranks for their parts."""
        sequences, layout = like._context, like._layout
        module, carried_out = mixture.module, self._experts.carried_out
        of_whole = self._of_whole_sequences(call)
        expected, why = try_call(module, lambda: carried_out(mixture, plain, of_whole, cut=False))
        made, problem = try_call(module, lambda: carried_out(mixture, plain, own, cut=True))
        own_part = (layout.take(each, sequences.rank) for each in tensors(list(leaves(expected))))
        apart = not (why or problem) and alike(tensors(list(leaves(made))), list(own_part))
        if self._together.votes([not apart]) != [0]:
            raise UsageError(
                f"{self._plan.item('context')} cuts sequences over ranks, and in "
                f"{type(mixture.module).__name__} the output of a token depends on other tokens of its "
                "sequence; take a plan without context [R250]"
            )


def _at_once(work: Callable[[], Any]) -> Any:
    return work()


def _has_tokens(values: Iterable[Any]) -> bool:
    """Return whether a tensor with an axis is among arguments."""
    return any(isinstance(each, torch.Tensor) and each.dim() for each in values)
