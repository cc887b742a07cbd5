"""Pipelined calls of models that compute their loss in forward.

Such a model returns a scalar, which has no rows, so its call cannot be cut into micro-batches. Its layers
can: they are called as a separate model, `LayersBeforeLoss`, which ends with the output of the last layer.
Then the forward runs once more to compute the loss alone: in it each layer returns at once, the last one its
output and the others tensors without elements. The layers and the form of their outputs are recorded in the
first call of a form, which runs in parts.
"""

from __future__ import annotations

import collections
import dataclasses
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn, final

import torch
from torch import nn

from ronde.errors import UsageError
from ronde.modules.calls import Calls
from ronde.parallel.compute.micro_batch_pieces import form_of
from ronde.parallel.holding import forwards
from ronde.parallel.pipeline.schedules import StepByTurns, WentBack
from ronde.patching.torch_internals import FakeTensor, FakeTensorMode
from ronde.tensor.context import Region
from ronde.tensor.global_tensor import materialize
from ronde.tensor.tree import Opaque, leaves, map_leaves

__all__ = ["LayersBeforeLoss", "LossInside"]

Schedule = Callable[[nn.Module, Callable[[Any, Any], torch.Tensor]], StepByTurns | None]
"""Creates scheduled steps of layers and a loss of their output; None for GPipe."""


class LossInside:
    """Runs models that compute their loss; one per session.

    Args:
        calls: the script's calls of modules.
        schedule: factory of a model's scheduled steps.
        quiet: context manager around the forward that computes the loss: no layer is checkpointed there.
    """

    def __init__(
        self, calls: Calls, schedule: Schedule, quiet: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self._calls, self._schedule, self._quiet = calls, schedule, quiet
        self._forms: weakref.WeakKeyDictionary[nn.Module, dict[Any, _Split | None]] = (
            weakref.WeakKeyDictionary()
        )

    def __call__(self, model: nn.Module, args: Any, kwargs: Any, body: Callable[[], Any]) -> Any:
        """Return the output of a model that would run in parts.

        Args:
            body: function that runs it in parts.
        """
        if not torch.is_grad_enabled():
            return body()
        forms = self._forms.setdefault(model, {})
        form = _form(model, args, kwargs)
        if form not in forms:
            return self._learn(model, forms, form, body)
        split = forms[form]
        if split is None:
            return body()
        state = torch.get_rng_state()
        try:
            return split(args, kwargs)
        except _CannotSplit:
            forms[form] = None
            torch.set_rng_state(state)
            return body()

    def _learn(
        self, model: nn.Module, forms: dict[Any, _Split | None], form: Any, body: Callable[[], Any]
    ) -> Any:
        heard: list[tuple[nn.Module, Any]] = []
        self._calls.heard = lambda module, output: heard.append((module, _described(output)))
        try:
            output = body()
        finally:
            self._calls.heard = None
        record = _recorded(model, heard, output)
        forms[form] = None if record is None else _Split(self._calls, record, self._schedule, self._quiet)
        return output


class _CannotSplit(Exception):
    """Raised when the layers of a model cannot be called apart from its loss."""


class LayersBeforeLoss(nn.Module):
    """A model up to the output of its last layer.

    Attributes:
        is_the_scripts: False, as messages name parameters by modules of the script, and this is not one.
        runs_in_parts: whether its rows depend on one another, or on their number.
    """

    is_the_scripts = False

    def __init__(self, model: nn.Module, last: nn.Module, calls: Calls) -> None:
        super().__init__()
        self.model = model
        self.runs_in_parts = False
        # In a tuple: the last layer is registered once, as a part of the model.
        self._given = last, calls

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        last, calls = self._given
        if calls.context.region is Region.SCRIPT:
            self.runs_in_parts = True
        forward = last.forward

        def ends(*args: Any, **kwargs: Any) -> NoReturn:
            raise _Ends(forward(*args, **kwargs))

        try:
            with forwards({last: ends}):
                self.model.forward(*args, **kwargs)
        except _Ends as ended:
            return ended.output
        raise _CannotSplit


class _Ends(BaseException):
    """Raised when the last layer has returned. No `except Exception` of the model catches it."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


class _Shape:
    """Shape of a tensor in a module's output."""

    __slots__ = ("dtype", "shape")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype

    def stand_in(self, rows: int, now: int) -> torch.Tensor:
        """Create a tensor without elements.

        Args:
            rows: recorded number of rows.
            now: number of rows now, in place of `rows`.
        """
        shape = (now, *self.shape[1:]) if self.shape[:1] == (rows,) else self.shape
        with FakeTensorMode(allow_non_fake_inputs=True):
            return torch.empty(shape, dtype=self.dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class _Record:
    """Record of a call that ran in parts.

    Attributes:
        returned: modules in the order of their returns, with their outputs; the last layer last.
        rows: first dimension of the last layer's output.
        loss: index of the loss among the leaves of the output.
    """

    model: nn.Module
    returned: Sequence[tuple[nn.Module, Any]]
    rows: int
    loss: int


@final
class _Split:
    """Splits a model's call into its layers and the rest of its forward.

    Attributes:
        result: output of the last forward that computed a loss.
    """

    def __init__(
        self,
        calls: Calls,
        record: _Record,
        schedule: Schedule,
        quiet: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._calls, self._record, self._quiet = calls, record, quiet
        last, _ = record.returned[-1]
        kind = type(type(record.model).__name__, (LayersBeforeLoss,), {})  # messages name it by this class
        self._layers: LayersBeforeLoss = kind(record.model, last, calls)
        self._step = schedule(self._layers, self._loss)
        self.result: Any = None

    def __call__(self, args: Any, kwargs: Any) -> Any:
        """Return the model's output.

        Raises:
            _CannotSplit: its layers cannot be called apart from its loss.
        """
        self._layers.train(self._record.model.training)
        try:
            if self._step is None:
                output = self._layers(*args, **kwargs)
            else:
                output = self._step.forward(args, kwargs, (args, kwargs))
        except UsageError as error:  # the plan refuses state that the layers keep, say
            raise _CannotSplit from error
        if self._layers.runs_in_parts:
            raise _CannotSplit
        if isinstance(output, WentBack):
            return self._delivered(output)
        output, args, kwargs = map_leaves(materialize, (output, args, kwargs))
        state = torch.get_rng_state()
        try:
            result = self._rest(output, args, kwargs)
        except Exception as error:  # an error of the script is raised again in parts
            raise _CannotSplit from error
        if not torch.equal(state, torch.get_rng_state()):
            raise _CannotSplit  # it has repeated random draws of the layers' forward
        return result

    def _loss(self, output: Any, target: Any) -> torch.Tensor:
        self.result = self._rest(output, *target)
        return list(leaves(self.result))[self._record.loss]

    def _rest(self, output: Any, args: Any, kwargs: Any) -> Any:
        """Run the model's forward on the output of its last layer.

        Raises:
            ValueError: the result depends on the output of another layer.
        """
        returned = self._stand_ins(output)
        with self._calls.context.enter(Region.REPLICATED), self._quiet(), forwards(returned):
            result = self._record.model.forward(*args, **kwargs)
        if any(isinstance(leaf, FakeTensor) for leaf in leaves(result)):
            raise ValueError(
                "the model's output depends on another layer's output than the last one's [R223]"
            )
        return result

    def _stand_ins(self, output: Any) -> dict[nn.Module, Callable[..., Any]]:
        rows, now = self._record.rows, len(output)
        waiting: dict[nn.Module, collections.deque[Any]] = {}
        for module, described in self._record.returned[:-1]:
            waiting.setdefault(module, collections.deque()).append(described)

        def next_of(module: nn.Module) -> Callable[..., Any]:
            def forward(*_: Any, **__: Any) -> Any:
                described = waiting[module].popleft()
                return map_leaves(
                    lambda leaf: leaf.stand_in(rows, now) if isinstance(leaf, _Shape) else leaf, described
                )

            return forward

        last, _ = self._record.returned[-1]
        return {**{module: next_of(module) for module in waiting}, last: lambda *_, **__: output}

    def _delivered(self, gone: WentBack) -> Any:
        """Return the model's output; its loss has the gradients of all micro-batches."""
        place = iter(range(sum(1 for _ in leaves(self.result))))
        anchor = gone.loss.new_zeros((), requires_grad=True)
        loss = _Delivered.apply(gone.loss, gone.gradients, anchor, *gone.tensors)
        dtype = next(leaf for at, leaf in enumerate(leaves(self.result)) if at == self._record.loss).dtype

        def leaf(value: Any) -> Any:
            if next(place) == self._record.loss:
                return loss.to(dtype)
            if not isinstance(value, torch.Tensor):
                return value
            return _Spent.apply(value.detach(), anchor) if value.requires_grad else value

        result, self.result = self.result, None
        return map_leaves(leaf, result, always=True)


class _Delivered(torch.autograd.Function):
    """Loss with known parameter gradients, which backward multiplies by its own."""

    @staticmethod
    def forward(
        ctx: Any, loss: torch.Tensor, gradients: Sequence[torch.Tensor], anchor: torch.Tensor, *_: Any
    ) -> torch.Tensor:
        ctx.gradients, ctx.anchor = gradients, torch.zeros_like(anchor)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> Any:
        return None, None, ctx.anchor, *(each * given[0] for each in ctx.gradients)


class _Spent(torch.autograd.Function):
    """An output of layers that have run their backward already."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        del ctx, anchor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> NoReturn:
        raise UsageError(
            "the script's loss uses another output of the model beside the loss that the model returns, and "
            "this schedule has run backward from that loss only; use schedule=gpipe [R237]"
        )


def _recorded(model: nn.Module, heard: Sequence[tuple[nn.Module, Any]], output: Any) -> _Record | None:
    """Return the record of a model's call that computes its loss, or None."""
    try:
        made = list(leaves(output))
    except Opaque:
        return None
    losses = [at for at, leaf in enumerate(made) if isinstance(leaf, torch.Tensor) and _is_loss(leaf)]
    layers = [at for at, (module, _) in enumerate(heard) if next(module.parameters(), None) is not None]
    if len(losses) != 1 or not layers:
        return None
    returned = heard[: layers[-1] + 1]
    last, described = returned[-1]
    once = [module for module, _ in returned].count(last) == 1
    if not (once and isinstance(described, _Shape) and described.shape and described.dtype.is_floating_point):
        return None
    return _Record(model, returned, described.shape[0], losses[0])


def _is_loss(leaf: torch.Tensor) -> bool:
    return leaf.dim() == 0 and leaf.requires_grad


def _described(output: Any) -> Any:
    """Return a module's output without elements."""
    try:
        return map_leaves(
            lambda leaf: _Shape(leaf) if isinstance(leaf, torch.Tensor) else leaf,
            output,
        )
    except Opaque:
        return None


def _form(model: nn.Module, args: Any, kwargs: Any) -> Any:
    """Return a key of calls that have the same layers."""
    return form_of(list(leaves((args, kwargs)))), tuple(kwargs), model.training
