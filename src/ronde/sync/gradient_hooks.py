"""Post-accumulate hooks of the user, such as an optimizer step in backward.

torch runs them as each gradient is accumulated, which is before it has been averaged over ranks. Here they
run when backward ends: every gradient is the average then. The order is the same on all ranks: that in which
backward reached the leaves on the lowest rank that reached them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.sync.leaf import Leaf

__all__ = ["GradientHooks", "has_hooks"]

_GONE, _NOT_REACHED = -2, -1


class _Later:
    """A user's hook, delayed to the end of backward.

    Only torch references it, so it lives as long as the leaf.
    """

    def __init__(
        self, owner: GradientHooks, leaf: torch.Tensor, hook: Callable[[torch.Tensor], None]
    ) -> None:
        self.owner = owner
        self.leaf = Leaf(leaf)
        self.hook = hook

    def __call__(self, leaf: torch.Tensor) -> None:
        if self.owner.waiting:
            self.owner.reached(self)
        else:
            self.hook(leaf)


def has_hooks(leaf: torch.Tensor) -> bool:
    """Return whether the user has registered hooks on this leaf's gradient."""
    found: Any = leaf._post_accumulate_grad_hooks
    return any(isinstance(hook, _Later) for hook in (found or {}).values())


class GradientHooks:
    """Hooks of `Tensor.register_post_accumulate_grad_hook`; one registry per reducer.

    Attributes:
        waiting: whether a backward is under way, at the end of which the hooks will run.
    """

    def __init__(self) -> None:
        self.waiting = False
        # In order of registration, which is the same on all ranks.
        self._registered: list[weakref.ref[_Later]] = []
        self._reached: list[_Later] = []
        # Kept here, because a session replaces the method for scripts.
        self._register: Any = torch.Tensor.register_post_accumulate_grad_hook

    def register(self, leaf: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> Any:
        """Call `hook(leaf)` after every backward that reached `leaf` on some rank."""
        later = _Later(self, leaf, hook)
        self._registered.append(weakref.ref(later))
        return self._register(leaf, later)

    def reached(self, later: _Later) -> None:
        """A gradient has been accumulated in a backward that is being reduced.

        Raises:
            UsageError: a gradient is accumulated a second time, and torch would have called the hook in
                between.
        """
        if later in self._reached:
            raise UsageError(
                f"the gradient of a tensor of shape {list(later.leaf.shape)} is accumulated in several parts "
                "within one backward, as re-entrant checkpointing does it, and its "
                "register_post_accumulate_grad_hook would run for each, before the sum over ranks; use "
                "checkpoint(..., use_reentrant=False), or step the optimizer after backward [R377]"
            )
        self._reached.append(later)

    def forget(self) -> None:
        """Discard the reached leaves of a failed backward."""
        self.waiting = False
        self._reached.clear()

    def run(self, comm: Comm) -> None:
        """Run the hooks of all leaves that a backward reached, on averaged gradients."""
        self.waiting = False
        reached, self._reached = self._reached, []
        if not self._registered:
            return
        for later in self._agreed(reached, comm):
            leaf = None if later is None else later.leaf.tensor
            if later is not None and leaf is not None:
                later.hook(leaf)

    def _agreed(self, reached: list[_Later], comm: Comm) -> list[_Later | None]:
        """Return the hooks that any rank reached, ordered as on the lowest such rank.

        Hooks that are gone on every rank are forgotten. A collective.
        """
        hooks = [reference() for reference in self._registered]
        arrival = {id(later): place for place, later in enumerate(reached)}
        mine = [_GONE if hook is None else arrival.get(id(hook), _NOT_REACHED) for hook in hooks]
        everywhere = comm.all_gather(torch.tensor(mine, device=comm.control_device)).t().tolist()
        order: list[tuple[int, int, int]] = []
        for place, arrivals in enumerate(everywhere):
            found = [(rank, arrived) for rank, arrived in enumerate(arrivals) if arrived >= 0]
            if found:
                order.append((*found[0], place))
        kept = [any(arrived != _GONE for arrived in arrivals) for arrivals in everywhere]
        self._registered = [each for each, keep in zip(self._registered, kept, strict=True) if keep]
        return [hooks[place] for _, _, place in sorted(order)]
