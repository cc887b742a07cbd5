"""Loss scale under `precision=fp16`: without it float16 gradients would vanish.

Only inside backward gradients are S times as large: accumulated gradients are divided by S before the script
sees them, so the script clips, reads and accumulates true gradients. If gradients of an optimizer are not all
finite, its step is skipped, and S is halved; S is doubled after 2000 steps in a row without that. A script
with a `GradScaler` of its own scales by that alone.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ronde.errors import UsageError
from ronde.patching.patches import Patches
from ronde.patching.stacks import ADD_PARAM_GROUP, BACKWARD
from ronde.patching.torch_internals import foreach_norm
from ronde.sync.gradient_shards import GradientShards
from ronde.tensor.graph import reached
from ronde.tensor.loss_scale import divided, multiply

__all__ = ["LossScaling"]

_FIRST = 2.0**16
_INTERVAL = 2000


class LossScaling:
    """One loss scale for all losses of a process.

    Args:
        agreed: function that returns whether any rank says yes.
        parts: gradient shards of this rank; None where it has whole gradients.
        scaled_as_parts: function that returns ids of tensors whose gradients contain these shards, so that
            they are scaled with them.

    Attributes:
        scale: factor of the losses.
        skipped: number of optimizer steps that updated nothing.
    """

    def __init__(
        self,
        agreed: Callable[[bool], bool],
        parts: GradientShards | None = None,
        scaled_as_parts: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self.scale = _FIRST
        self.skipped = 0
        self._agreed = agreed
        self._parts = parts
        self._scaled_as_parts = scaled_as_parts
        self._good = 0
        self._off = False
        self._busy = False
        # By optimizer, whether there was a backward since its last step.
        self._fresh: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        self._aside: list[tuple[torch.Tensor, torch.Tensor]] = []

    def install(self, patches: Patches) -> None:
        """Install the hooks on optimizers; a script's own scaler takes precedence."""
        self._install_optimizers(patches)
        self._install_stand_aside(patches)
        patches.undo(register_optimizer_step_pre_hook(self._before_step).remove)
        patches.undo(register_optimizer_step_post_hook(self._after_step).remove)

    def install_backward(self, patches: Patches) -> None:
        """Scale in `torch.autograd.backward` itself, for a process without a boundary."""

        def around(plain: Callable[..., Any]) -> Callable[..., Any]:
            def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
                leaves = reached(tensors, torch.float16) if self.active else []
                with self.backward([each.leaf for each in leaves]) as factor:
                    if factor != 1:
                        grad_tensors = divided(tensors, grad_tensors, 1 / factor)
                    plain(tensors, grad_tensors, *args, **kwargs)

            return backward

        patches.layer(BACKWARD, "loss scaling", around)

    @property
    def active(self) -> bool:
        """True if a backward that begins now must be scaled.

        False inside of another backward, and where scripts scale by themselves.
        """
        return not (self._off or self._busy)

    @contextmanager
    def backward(self, leaves: Sequence[torch.Tensor]) -> Iterator[float]:
        """Surround a backward that reaches these leaves.

        Yields:
            The factor to multiply its initial gradient by.
        """
        if not self.active:
            yield 1.0
            return
        leaves = list(self._with_members(leaves))
        scale, self._busy = self.scale, True
        self._multiply(leaves, scale)  # accumulated gradients are brought to the scale of new ones
        try:
            yield scale
        finally:
            self._busy = False
            self._multiply(leaves, 1 / scale)
        for optimizer in self._fresh:
            self._fresh[optimizer] = True

    def _multiply(self, leaves: Iterable[torch.Tensor], factor: float) -> None:
        with self._aside_from_parts():
            multiply(leaves, factor)
        if self._parts is not None:
            self._parts.scale(factor)

    def _aside_from_parts(self) -> AbstractContextManager[None]:
        """Read gradients without gathering shards inside the `with` block."""
        return nullcontext() if self._parts is None else self._parts.aside()

    def _with_members(self, leaves: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Yield every tensor that this backward may accumulate into, except `parts`."""
        known = set(self._scaled_as_parts())
        members = (
            tensor
            for optimizer in self._fresh
            for group in optimizer.param_groups
            for tensor in group["params"]
        )
        for tensor in (*leaves, *members):
            if id(tensor) not in known:
                known.add(id(tensor))
                yield tensor

    def _install_optimizers(self, patches: Patches) -> None:

        def around(plain: Callable[..., Any]) -> Callable[..., Any]:
            def add_param_group(optimizer: Any, param_group: Any) -> None:
                plain(optimizer, param_group)
                self._fresh.setdefault(optimizer, False)

            return add_param_group

        patches.layer(ADD_PARAM_GROUP, "loss scaling", around)

    def _install_stand_aside(self, patches: Patches) -> None:
        plain_init: Any = torch.amp.GradScaler.__init__

        @functools.wraps(plain_init)
        def init(scaler: Any, *args: Any, **kwargs: Any) -> None:
            plain_init(scaler, *args, **kwargs)
            self._off = self._off or scaler.is_enabled()

        def register_post_accumulate_grad_hook(tensor: Any, hook: Any) -> Any:
            raise UsageError(
                "precision=fp16 scales the loss, and a register_post_accumulate_grad_hook would see scaled "
                "gradients; use precision=bf16, which needs no scale, or step the optimizer after "
                "backward [R382]"
            )

        patches.set(torch.amp.GradScaler, "__init__", init)
        patches.set(torch.Tensor, "register_post_accumulate_grad_hook", register_post_accumulate_grad_hook)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._put_back()
        if self._off:
            return
        if any(callable(value) for value in (*args[1:], *kwargs.values())):
            raise UsageError(
                f"precision=fp16 cannot skip a step of {type(optimizer).__name__} that computes the loss "
                f"itself (step(closure)); use precision=bf16, which needs no scale [R382]"
            )
        if not self._fresh.get(optimizer):
            return
        self._fresh[optimizer] = False
        members = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        with self._aside_from_parts():
            gradients = [tensor.grad for tensor in members if tensor.grad is not None]
        gradients += [] if self._parts is None else self._parts.parts(members)
        if not self._agreed(not _finite(gradients)):
            self._good += 1
            if self._good == _INTERVAL:
                self.scale, self._good = self.scale * 2, 0
            return
        self.scale, self._good, self.skipped = self.scale / 2, 0, self.skipped + 1
        # An optimizer skips parameters without a gradient, with all of their state.
        found = [(tensor, tensor.grad) for tensor in members]
        self._aside = [(tensor, gradient) for tensor, gradient in found if gradient is not None]
        for tensor, _ in self._aside:
            tensor.grad = None

    def _after_step(self, *_: Any) -> None:
        self._put_back()

    def _put_back(self) -> None:
        for tensor, gradient in self._aside:
            tensor.grad = gradient
        self._aside = []


@torch.no_grad()
def _finite(gradients: Sequence[torch.Tensor]) -> bool:
    """Return whether all gradients are finite."""
    values = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
    values = [value for value in values if value.numel()]
    norms = [norm.to(values[0].device) for norm in foreach_norm(values, torch.inf)] if values else []
    return not norms or bool(torch.isfinite(torch.stack(norms)).all())
