"""Comparison of a later call with the observed one, before differences take effect.

An observed call cannot reveal a counter that decides a branch, or a factor that changes with each call. So
some later calls are compared by their operations and the numbers in them. One that differs is unwound like an
observed one, and then observed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from ronde.patching.torch_internals import (
    DisableTorchFunction,
    HigherOrderOperator,
    TorchDispatchMode,
    current_dispatch_modes,
    disable_current_modes,
    pop_dispatch_mode,
)
from ronde.rng.by_parts import carry_out as by_parts
from ronde.rng.by_parts import is_made_of_others
from ronde.rowwise.backward import applied_by, ends_recomputation
from ronde.rowwise.compiled import aside
from ronde.rowwise.labels import Marks
from ronde.rowwise.operation import tensors, written
from ronde.rowwise.sequence import Sequence, Step, follow, follow_function, is_same, step_of
from ronde.rowwise.undo import Undo
from ronde.rowwise.watch import Ranks
from ronde.tensor.tree import leaves

__all__ = ["ComparisonMode"]


class _Differs(BaseException):
    """Raised when the call differs from the observed one."""


class ComparisonMode(TorchDispatchMode):
    """A dispatch mode that compares each operation with the observed one in its place.

    Args:
        module, call, axes, ranks: the same as for an observation.
        sequence: operations of the observed call.
        outside: variables outside of the module that its code names, with their values.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        module: torch.nn.Module,
        call: Any,
        axes: Iterable[int | None],
        ranks: Ranks,
        sequence: Sequence,
        outside: Iterable[tuple[str, Any]] = (),
    ) -> None:
        super().__init__()
        self._module, self._ranks, self._sequence = module, ranks, sequence
        self._undo, self._marks = Undo(module, call, outside), Marks()
        for value, axis in zip(leaves(call), axes, strict=True):
            if axis is not None:
                self._marks.hold_rows(value)
        self._place = 0
        self._away = False
        # Whether all ranks know of the problem.
        self._agreed = False
        self._problem = ""

    def run(self, plain: Callable[[], Any]) -> tuple[Any, str]:
        """Run the call; return its output and "".

        If it differs on some rank, return None and the difference, with all state restored.
        """
        output, steps = None, self._sequence.steps
        try:
            with aside(self._module), applied_by(self._apply), self:
                output = plain()
            if self._place < len(steps):
                self._problem = self._problem or f"{steps[self._place][0]} is missing"
        except _Differs:
            pass
        except Exception as error:
            if ends_recomputation(error):
                raise
            # TorchScript raises its own error in place of `_Differs`.
            self._problem = self._problem or f"it failed ({type(error).__name__})"
        if not self._agreed:
            self._problem = self._ranks.agree(self._problem)
        if self._problem:
            self._undo.unwind()
            return None, self._problem
        return output, ""

    def together(self, work: Callable[[], Any]) -> Any:
        """Run a collective in mid-call, if all ranks agree with the observed call."""
        with self._collective(), disable_current_modes():
            return work()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_made_of_others(func):
            return by_parts(self, func, args, kwargs)
        if isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)
        with DisableTorchFunction():
            self._compare(func, args, kwargs)
            result = func(*args, **kwargs)
            follow(self._marks, func, args, kwargs, result)
            return result

    def seen(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Compare an operation that bypassed the dispatcher, such as a recurrent layer."""
        self._compare(func, args, kwargs)
        follow(self._marks, func, args, kwargs, result)

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Implement `Onlooker.unseen`; raises `_Differs` if a rank differs."""
        with self._collective(), disable_current_modes():
            yield

    def as_one(self, name: str, given: Any, run: Callable[[], Any]) -> Any:
        """Implement `Onlooker.as_one`."""
        if self._away:
            return run()
        self._step((name, ()))
        with self.unseen():
            result = run()
        with DisableTorchFunction():
            follow_function(self._marks, list(leaves(given)), list(leaves(result)))
        return result

    def _compare(self, func: Any, args: Any, kwargs: Any) -> None:
        self._undo.keep(written(func, args, kwargs), self._marks)
        if not self._away and (step := step_of(self._marks, func, args, kwargs)) is not None:
            self._step(step)

    def _apply(self, plain: Callable[..., Any], kind: Any, args: Any, kwargs: Any) -> Any:
        """Compare a function that is a collective, and let ranks agree before it."""
        normalizes = self._ranks.normalizes(kind)
        joins = normalizes or self._ranks.looks_up(kind)
        if joins:
            self._step((kind.__name__, ()))
        with (
            self._collective() if joins else nullcontext(),
            self._beneath(args) if normalizes else nullcontext(),
        ):
            result = plain(*args, **kwargs)
        with DisableTorchFunction():
            follow_function(self._marks, args, result)
        return result

    @contextmanager
    def _beneath(self, args: Any) -> Iterator[None]:
        """Run a batch norm unwatched: its many small operations are always the same."""
        with DisableTorchFunction():
            _, *others = tensors(args)
            # Its running statistics are all that it writes to.
            self._undo.keep([each for each in others if not each.requires_grad], self._marks)
        # The mode of a selective checkpoint stays: in the recomputation it expects the same operations.
        with pop_dispatch_mode() if current_dispatch_modes()[-1:] == [self] else nullcontext():
            yield

    def _step(self, step: Step) -> None:
        """Compare the next step with the observed one."""
        known = self._sequence.steps[self._place : self._place + 1]
        if not known or not is_same(step, known[0], self._ranks.mine, self._sequence.rows):
            self._problem = f"{step[0]} is another"
            raise _Differs
        self._place += 1

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """Enclose a collective inside of the call; raises `_Differs` if a rank differs."""
        before, self._away = self._away, True
        try:
            if problem := self._ranks.agree(""):
                self._problem, self._agreed = problem, True
                raise _Differs
            yield
        finally:
            self._away = before
