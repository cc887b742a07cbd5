"""Twelve small faults for the ranks of a run.

Each changes a number by about a thousandth or less. Training hides such mistakes: the loss falls all the
same. They are extensions like those of `faults.py`, and `ronde verify` must catch each in double precision
and in single.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ronde.modules import batch_norm
from ronde.patching.patches import Patches
from ronde.patching.torch_internals import VF
from ronde.runtime.session import Session
from ronde.shards.hooked_step import replace_step
from ronde.tensor.deferred import defer
from ronde.tensor.edges import SumRanks
from ronde.tensor.global_tensor import GlobalTensor, localize
from ronde.tensor.rules import losses
from support.faults import Fault, after_reduction, replace

__all__ = ["SMALL_FAULTS"]

SMALL_FAULTS = tuple(
    Fault(name=name, clause=clause, holding=("L1", "L6"), mention=mention, module=__name__)
    for name, clause, mention in (
        ("gradient_scaled", "L3", "step 1, gradient norm of head.weight"),
        ("row_counted_twice", "L3", "step 1, gradient norm of"),
        ("last_batch_by_ranks", "L3", "step 3, gradient norm of"),
        ("variance_biased", "L5", "norm.running_var"),
        ("epsilon_outside_the_root", "L3", ""),
        ("epsilon_inside_the_root", "L2", "step 1"),
        ("gradient_rounded", "L3", "step 1, gradient norm of"),
        ("decay_left_out", "L2", "rank 1, step"),
        ("gradient_stale", "L3", "step 2, gradient norm of"),
        ("dropout_scaled", "L3", ""),
        ("loss_read_off", "L3", "item (value 1)"),
        ("update_scaled", "L2", "rank 1, step"),
    )
)


# Function as torch defines it.
_cross_entropy: Any = F.cross_entropy


def gradient_scaled(session: Session) -> None:
    """Enlarge one parameter's gradient by a ten-thousandth."""
    after_reduction(_of_the_head(lambda gradient: gradient.mul_(1 + 1e-4)))


def row_counted_twice(session: Session) -> None:
    """Count the first row of a batch of 64 twice in the loss."""

    def with_first_row(context: Any, rows: torch.Tensor, targets: torch.Tensor, count: int) -> Any:
        local = _cross_entropy(rows, targets, reduction="sum")
        if context.rank == 0:
            local = local + _cross_entropy(rows[:1], targets[:1], reduction="sum")
        return SumRanks.apply(local, context) / count

    _replace_loss(with_first_row)


def last_batch_by_ranks(session: Session) -> None:
    """Average the means over each rank's rows: wrong for an uneven batch."""

    def mean_of_means(context: Any, rows: torch.Tensor, targets: torch.Tensor, count: int) -> Any:
        return SumRanks.apply(_cross_entropy(rows, targets), context) / context.world_size

    _replace_loss(mean_of_means)


def variance_biased(session: Session) -> None:
    """Use the biased variance for the running variance of a batch norm."""
    forward = batch_norm._Normalize.forward

    def biased(
        ctx: Any, input: Any, weight: Any, bias: Any, running: Any, momentum: float, *rest: Any
    ) -> Any:
        _, var = running
        before = var.clone()
        result = forward(ctx, input, weight, bias, running, momentum, *rest)
        count = int(ctx.context.comm.all_reduce(torch.tensor([float(len(input))], dtype=torch.float64)))
        added = (var.data - before * (1 - momentum)) * (count - 1) / count
        var.data.copy_(before * (1 - momentum) + added)
        return result

    replace(batch_norm._Normalize, "forward", staticmethod(biased))


def epsilon_outside_the_root(session: Session) -> None:
    """Divide by `sqrt(variance) + eps` in a batch norm."""
    scale_and_shift = batch_norm._scale_and_shift

    def shifted(value: Any, scale: Any, shift: Any, mean: Any, variance: Any, eps: float) -> Any:
        return scale_and_shift(value, scale, shift, mean, (variance.sqrt() + eps).square() - eps, eps)

    replace(batch_norm, "_scale_and_shift", shifted)


def epsilon_inside_the_root(session: Session) -> None:
    """Divide by `sqrt(average + eps ** 2)` in Adam, not by `sqrt(average) + eps`."""

    def around(step: Any) -> Any:
        def stepping(optimizer: Any, closure: Any = None) -> Any:
            result = step(optimizer, closure)
            for parameter, state, group in _states(optimizer):
                (beta1, beta2), taken, eps = group["betas"], float(state["step"]), group["eps"]
                mean = state["exp_avg"] / (1 - beta1**taken)
                square = state["exp_avg_sq"] / (1 - beta2**taken)
                wrong = mean / (square + eps**2).sqrt() - mean / (square.sqrt() + eps)
                parameter.data.sub_(wrong, alpha=group["lr"])
            return result

        return stepping

    replace_step(Patches(), torch.optim.Adam, around)


def gradient_rounded(session: Session) -> None:
    """Send one parameter's gradient in bfloat16."""
    after_reduction(_of_the_head(lambda gradient: gradient.copy_(gradient.to(torch.bfloat16))))


def decay_left_out(session: Session) -> None:
    """Omit the decay of one parameter on rank 1."""
    if session.config.place.rank == 1:
        _after_each_step(
            lambda parameter, before, group: parameter.add_(before, alpha=group["lr"] * group["weight_decay"])
        )


def gradient_stale(session: Session) -> None:
    """Mix a thousandth of the last gradient into one parameter's."""
    before: list[torch.Tensor] = []

    def mix(gradient: torch.Tensor) -> None:
        own = gradient.clone()
        if before:
            gradient.lerp_(before.pop(), 1e-3)
        before.append(own)

    after_reduction(_of_the_head(mix))


def dropout_scaled(session: Session) -> None:
    """Scale outputs of dropout by 1.001 on rank 1."""
    if session.config.place.rank == 1:
        # As Python's function calls it, which an observed call runs twice.
        own: Any = VF
        dropout = own.dropout
        replace(own, "dropout", lambda x, p, training: dropout(x, p, training) * (1.001 if training else 1.0))


def loss_read_off(session: Session) -> None:
    """Let the script read a loss that is too large by a ten-thousandth."""
    sum_ranks = losses.sum_ranks_deferred

    def off(*args: Any, **kwargs: Any) -> Any:
        deferred = sum_ranks(*args, **kwargs)
        return defer(deferred._context, deferred._stand_in, lambda: deferred._arrive() * (1 + 1e-4))

    replace(losses, "sum_ranks_deferred", off)


def update_scaled(session: Session) -> None:
    """Update one parameter too far by a thousandth, on rank 1."""
    if session.config.place.rank == 1:
        _after_each_step(lambda parameter, before, group: parameter.lerp_(before, -1e-3))


def _of_the_head(change: Callable[[torch.Tensor], object]) -> Callable[[Any], None]:
    """Change the gradient of the head's weight [5, 16] only."""

    def change_head(parameter: Any) -> None:
        if tuple(parameter.shape) == (5, 16):
            change(parameter.grad)

    return change_head


def _replace_loss(loss: Callable[..., Any]) -> None:
    """Replace the loss by `loss(context, rows, targets, count)`.

    That is the mean over a batch of which a rank has some rows.
    """

    def replaced(input: Any, target: torch.Tensor) -> Any:
        if not isinstance(input, GlobalTensor) or input._local is None:
            return _cross_entropy(input, target)
        context, layout = input._context, input._layout
        whole = not isinstance(target, GlobalTensor)
        targets = layout.take(target, context.rank) if whole else localize(target)
        return loss(context, input._local, targets, len(target))

    replace(F, "cross_entropy", replaced)


def _after_each_step(change: Callable[[torch.Tensor, torch.Tensor, dict[str, Any]], object]) -> None:
    """Call `change(parameter, before, group)` with the first parameter's data, now and before the step."""

    def around(step: Any) -> Any:
        def stepping(optimizer: Any, closure: Any = None) -> Any:
            group = optimizer.param_groups[0]
            parameter = group["params"][0].data
            before = parameter.clone()
            result = step(optimizer, closure)
            change(parameter, before, group)
            return result

        return stepping

    replace_step(Patches(), torch.optim.Adam, around)


def _states(optimizer: Any) -> list[tuple[Any, dict[str, Any], dict[str, Any]]]:
    return [
        (parameter, optimizer.state[parameter], group)
        for group in optimizer.param_groups
        for parameter in group["params"]
    ]
