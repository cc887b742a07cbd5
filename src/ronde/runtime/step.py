"""`ronde.Step`: a training step in one call, scheduled by the pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ronde.runtime.api import active
from ronde.runtime.session import Session

__all__ = ["Step"]


class Step:
    """One training step: zeroed gradients, forward, loss, backward, optimizer step.

    >>> model = nn.Linear(2, 1)
    >>> step = Step(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.mse_loss)
    >>> step(torch.zeros(4, 2), target=torch.zeros(4, 1)).shape
    torch.Size([])

    In plain python, and under plans without a pipeline, it is just these calls. Under
    `pipeline=N,micro-batches=M,schedule=1f1b` backward of a micro-batch begins as soon as its forward has
    passed all stages, so a stage keeps the activations of at most N micro-batches; with a separate
    `loss.backward()` it keeps all M. `schedule=zero-bubble` computes gradients of weights while a stage would
    otherwise wait. Code that clips or reads gradients belongs in a hook of the optimizer
    (`optimizer.register_step_pre_hook`).

    Args:
        model: module that is called with the step's arguments, rows of a batch along the first dimension.
        optimizer: optimizer of the model's parameters. Its learning rate is that of one device.
        loss_fn: function called as `loss_fn(output, target)`; without a target as `loss_fn(output)`. Returns
            a tensor of shape []. Under these schedules it is called for each micro-batch too, so it should
            keep nothing and draw by torch's default generator alone; if it is not a weighted sum over rows,
            steps run GPipe's, and the run says so.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, loss_fn: Callable[..., torch.Tensor]
    ) -> None:
        self._model, self._optimizer, self._loss_fn = model, optimizer, loss_fn
        self._scheduled: Callable[[Any, Any, Any], torch.Tensor] | None = None
        self._asked = False

    def __call__(self, *args: Any, target: Any = None, **kwargs: Any) -> torch.Tensor:
        """Train on one batch.

        Args:
            args, kwargs: arguments of the model: the whole batch on every rank, tensors of shape [rows, ...].
            target: second argument of the loss, of shape [rows, ...]; so the model itself has no argument of
                this name.

        Returns:
            The loss of the whole batch before the step, of shape [], without a graph; the same on every rank.

        Raises:
            Exception: the model, the loss or the optimizer has raised; on all ranks, without a step.
        """
        scheduled = self._of_session()
        self._optimizer.zero_grad()
        if scheduled is not None:
            loss = scheduled(args, kwargs, target)
        else:
            loss = self._loss(self._model(*args, **kwargs), target)
            loss.backward()
        self._optimizer.step()
        return loss.detach()

    def _loss(self, output: Any, target: Any) -> torch.Tensor:
        return self._loss_fn(output) if target is None else self._loss_fn(output, target)

    def _of_session(self) -> Callable[[Any, Any, Any], torch.Tensor] | None:
        if not self._asked:
            self._asked, session = True, active()
            if isinstance(session, Session):
                self._scheduled = session.scheduled(self._model, self._loss)
        return self._scheduled
