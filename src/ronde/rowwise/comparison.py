"""A later call is compared with the observed one, before anything that differs is carried out.

A counter that decides a branch, a factor that is another one at each call: an observed call shows none of
these. So some later calls are compared by their operations and the numbers in them. One that differs is
unwound as an observed one is, and then observed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ronde.rowwise.backward import ends_recomputation
from ronde.rowwise.compiled import aside
from ronde.rowwise.sequence import Sequence, Step, is_same, step_of
from ronde.rowwise.undo import Keeping, Undo
from ronde.rowwise.watch import Ranks

__all__ = ["Comparison"]


class _Differs(BaseException):
    """The call goes another way; the message says where."""


class Comparison:
    """One call that is compared.

    Args:
        module, call, ranks: as of an observation.
        sequence: what the observed call did.
        outside: variables beside the module that its code names, and what they hold.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        call: Any,
        ranks: Ranks,
        sequence: Sequence,
        outside: Iterable[tuple[str, Any]] = (),
    ) -> None:
        self._module, self._ranks = module, ranks
        self._undo = Undo(module, call, outside)
        self._compared = _Compared(sequence, ranks, self._undo)

    def together(self, work: Callable[[], Any]) -> Any:
        """Do what needs all ranks, if each goes the same way."""
        with self._compared.collective(), _disable_current_modes():
            return work()

    def run(self, plain: Callable[[], Any]) -> tuple[Any, str]:
        """Carry the call out: what it returns, and "".

        Where it differs on some rank, nothing is returned but what does, and all is as it was before.
        """
        output, problem, ranks = None, "", self._ranks
        try:
            with aside(self._module), _collectives_asked(self._compared, ranks), self._compared:
                output = plain()
            problem = self._compared.problem or self._compared.missing()
        except _Differs as found:
            problem = str(found)
        except Exception as error:
            if ends_recomputation(error):
                raise
            # TorchScript tells of an error of its own in place of what differs
            problem = self._compared.problem or f"it failed ({type(error).__name__})"
        if not self._compared.agreed:
            problem = ranks.agree(problem)
        if problem:
            self._undo.unwind()
            return None, problem
        return output, ""


class _Compared(Keeping):
    """Holds each operation against the one that was in its place.

    Attributes:
        agreed: all ranks know that one differs.
        problem: what differs.
    """

    def __init__(self, sequence: Sequence, ranks: Ranks, undo: Undo) -> None:
        super().__init__(undo)
        self._sequence, self._ranks = sequence, ranks
        self._place = 0
        self._away = False
        self.agreed = False
        self.problem = ""

    def missing(self) -> str:
        """What the observed call did after all that this one did."""
        steps = self._sequence.steps
        return f"{steps[self._place][0]} is missing" if self._place < len(steps) else ""

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Around a collective in the midst of the call, if each rank goes the same way."""
        if problem := self._ranks.agree(""):
            self.agreed = True
            raise self._differs(problem)
        before, self._away = self._away, True
        try:
            yield
        finally:
            self._away = before

    def _differs(self, problem: str) -> _Differs:
        self.problem = problem
        return _Differs(problem)

    def seen(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """An operation was carried out without being handed over: a recurrent layer."""
        self.before(func, args, kwargs)

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        super().before(func, args, kwargs)
        if not self._away:
            self.step(step_of(func, args, kwargs))

    def step(self, step: Step) -> None:
        """The next operation."""
        known = self._sequence.steps[self._place : self._place + 1]
        if not known or not is_same(step, known[0], self._ranks.mine, self._sequence.rows):
            raise self._differs(f"{step[0]} is another")
        self._place += 1


@contextmanager
def _collectives_asked(compared: _Compared, ranks: Ranks) -> Iterator[None]:
    """Inside, ranks ask each other before a collective."""
    plain = torch.autograd.Function.__dict__["apply"]

    def apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
        if not ranks.normalizes(kind):
            return plain.__func__(kind, *args, **kwargs)
        compared.step((kind.__name__, ()))
        with compared.collective():
            return plain.__func__(kind, *args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = plain  # type: ignore[assignment]
