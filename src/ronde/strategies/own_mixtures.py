"""Calls of mixtures on a rank's own tokens, with all experts on all ranks.

The routing is read on the host, so ranks may call different experts. All ranks join in the gradients of every
expert that some rank has called.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.parallel.expert.token_exchange import linked
from ronde.parallel.holding import holding
from ronde.patching.patches import Patches
from ronde.patching.stacks import MODULE_CALL
from ronde.policies.expert_structure import Mixture, mixtures
from ronde.strategies.session_parts import SessionParts
from ronde.strategies.tried_mixtures import Plain, TriedMixtures
from ronde.tensor.context import Context
from ronde.tensor.global_tensor import materialize
from ronde.tensor.graph import nodes_behind, now
from ronde.tensor.rules.common import enter
from ronde.tensor.shard import innermost, innermost_rows
from ronde.tensor.tree import leaves, map_leaves

__all__ = ["OwnMixtures"]


@final
class OwnMixtures:
    """Runs the mixtures of models on each rank's own tokens; one per session.

    Args:
        item: plan item that treats models as one piece.
        gathered: context manager that gathers the parameters of a module. A collective.
        together, sequences, in_stages: groups and mode of `TriedMixtures`.
    """

    def __init__(
        self,
        parts: SessionParts,
        item: str,
        gathered: Callable[[torch.nn.Module], AbstractContextManager[object]],
        *,
        together: Comm,
        sequences: Context | None,
        in_stages: bool,
    ) -> None:
        self._script, self._item, self._gathered = parts.context, item, gathered
        self._calls = TriedMixtures(parts, self, together=together, sequences=sequences, in_stages=in_stages)
        self._seen: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._known: weakref.WeakKeyDictionary[torch.nn.Module, Mixture] = weakref.WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        patches.layer(MODULE_CALL, "mixtures", self._calls.around(self._find))

    def take(self, model: torch.nn.Module) -> None:
        """Treat the mixtures of a model as one operation each from now on."""
        if model not in self._seen:
            self._seen.add(model)
            self._known.update({each.module: each for each in mixtures(model, 1)})

    def found_in(self, model: torch.nn.Module) -> list[Mixture]:
        """Return the mixtures of a model."""
        self.take(model)
        return [self._known[part] for part in model.modules() if part in self._known]

    def are_untried(self, module: torch.nn.Module) -> bool:
        return self._calls.are_untried(filter(None, map(self._find, module.modules())))

    def _find(self, module: torch.nn.Module) -> Mixture | None:
        return self._known.get(module) if self._known else None

    def watching(self, mixture: Mixture) -> AbstractContextManager[object]:
        return nullcontext()

    def problem(self, mixture: Mixture) -> str:
        return ""

    def is_here(self, mixture: Mixture) -> bool:
        return True

    def carried_out(self, mixture: Mixture, plain: Plain, call: tuple[Any, Any], *, cut: bool) -> Any:
        args, kwargs = map_leaves(materialize, call)
        # Gathered together, as another rank may call other experts.
        with self._gathered(mixture.module):
            return plain(*args, **kwargs)

    def of_parts(self, mixture: Mixture, plain: Plain, call: tuple[Any, Any], sequences: Context) -> Any:
        """Call experts on parts, and sum gradients of all parameters of the mixture."""
        start, entered = now(), list[torch.Tensor]()

        def used(parameter: torch.Tensor) -> torch.Tensor:
            found = enter(sequences, parameter)
            if found is not parameter:
                entered.append(innermost_rows(found))
            return found

        with self._gathered(mixture.module), holding(mixture.module, used):
            made = self.carried_out(mixture, plain, call, cut=True)
        if not entered:
            return made
        values = [each for each in leaves(made) if isinstance(each, torch.Tensor)]
        nodes = set(nodes_behind(map(innermost_rows, values), start))
        counts = sequences.comm.votes([each.grad_fn in nodes for each in entered])
        # With these links gradients arrive even where this rank has used none of them; others stay without
        # any.
        links = [each for each, count in zip(entered, counts, strict=True) if count]
        first = next(each for each in values if each.is_floating_point())
        tied = innermost(lambda rows: linked(rows, *links), first)
        return map_leaves(lambda each: tied if each is first else each, made)

    def not_any_more(self, mixture: Mixture, why: str) -> UsageError:
        return UsageError(
            f"{self._item} has cut the tokens of {type(mixture.module).__name__} in earlier calls, and "
            f"cannot in this one: {why}; take a plan without {self._item.partition('=')[0]} [R259]"
        )

    def made_anew(self, mixture: Mixture) -> UsageError:
        return UsageError(
            f"{type(mixture.module).__name__} was created after the first call of an equal model, in which "
            f"{self._item} checked whether its tokens are independent; make one model, or take a plan "
            "without pipeline [R260]"
        )
