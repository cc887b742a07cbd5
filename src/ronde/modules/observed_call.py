"""Observed calls of a model, run by all ranks as if rows were independent.

Each rank runs on its own rows.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from ronde.errors import RondeError
from ronde.modules.held_output import HeldOutput
from ronde.modules.pyro_handlers import effects_refused
from ronde.modules.sharded_call import ShardedCall, drawing
from ronde.patching.torch_internals import disable_current_modes, saved_tensor_hooks
from ronde.rng.draws import Draw
from ronde.rowwise.comparison import ComparisonMode
from ronde.rowwise.normalize import Elsewhere
from ronde.rowwise.observe import Observation
from ronde.rowwise.sequence import Sequence as Steps
from ronde.rowwise.verdict import Verdict
from ronde.tensor.context import Context, Region
from ronde.tensor.global_tensor import StrayBatch
from ronde.tensor.graph import now
from ronde.tensor.tree import Opaque, caches, map_leaves
from ronde.trace.try_statements import TryStatements

__all__ = [
    "Around",
    "Observed",
    "compare",
    "few_rows",
    "in_checkpoint",
    "observe",
    "try_out",
]

# Context manager around the call of the module.
Around = Callable[[Region, ShardedCall], AbstractContextManager[None]]
# Function that returns the variables that the module's code names, with their values.
Outside = Callable[[], "list[tuple[str, Any]]"]


@dataclasses.dataclass(frozen=True, slots=True)
class Observed:
    """Result of an observed call.

    Attributes:
        output: output of the model, on this rank's rows; None where the call was unwound.
        stands: whether the call was accepted; otherwise it was unwound.
        verdict: verdict about its rows.
        steps: operations with which later calls are compared.
        start: point in time before the graph of the output was made.
    """

    verdict: Verdict
    output: Any = None
    stands: bool = False
    steps: Steps | None = None
    start: int = 0


@dataclasses.dataclass
class _Ranks:
    """Numbers of rows, and results, of an observed call on all ranks.

    Attributes:
        rows: number of rows of the whole batch.
        mine: number of this rank's rows.
        tries: `try` statements of models.
        draws: draws for rows so far, from which this rank's rows are taken.
        problem: problem on which ranks have agreed, which ends the call; "" until then.
    """

    context: Context
    rows: int
    mine: int
    tries: TryStatements
    draws: list[Draw] = dataclasses.field(default_factory=list)
    problem: str = ""

    def draw(self, func: Any, args: Any, kwargs: Any, draw: Draw) -> Any:
        self.draws.append(draw)
        return func(*args, **kwargs)  # the mode around the observation takes this rank's rows of it

    def agree(self, problem: str) -> str:
        # All ranks: those with the same rows may fail alone too, and gather parameters with the others.
        everybody = self.context.everybody
        # Known already, the others do not come again: a handler of the model's has gone on.
        if not self.problem and everybody.votes([bool(problem)]) != [0]:
            self.problem = next(filter(None, everybody.all_gather_object(problem)))
        return self.problem

    def normalizes(self, func: Any) -> bool:
        return getattr(func, "normalizes_whole_batch", False)

    def looks_up(self, func: Any) -> bool:
        return getattr(func, "looks_up_rows", False)

    def catches(self) -> bool:
        return self.tries.catch(sys._getframe(1), _run.__code__)

    def together(self, work: Callable[[], Any]) -> Any:
        """Run work that needs all ranks, unless one has left its observed call."""
        with disable_current_modes():
            if problem := self.agree(""):
                raise Elsewhere(problem)
            return work()


def observe(call: ShardedCall, around: Around, outside: Outside) -> Observed:
    """Run a call and watch it; unwind it if rows depend on each other.

    Args:
        call: call with the axes of its arguments in the verdict, of which nothing else is known.
    """
    mine = call.cut.count(call.context.rank)
    ranks = _Ranks(call.context, call.cut.rows, mine, call.calls.tries)
    with drawing(call.context, call.stream, ranks.draws, call.cut):
        return _observed(call, call.given, ranks, around, outside, stands=True)


def try_out(call: ShardedCall, around: Around, outside: Outside, given: Any, rows: int) -> Observed:
    """Find the verdict on a few rows, and unwind the trial.

    Args:
        given: the arguments, of a batch as many rows as `rows` says.
    """
    ranks = _Ranks(call.context, rows * max(call.context.world_size, 2), rows, call.calls.tries)
    if in_checkpoint():
        with _aside():
            return _observed(call, given, ranks, around, outside, stands=False)
    try:
        with saved_tensors_hooks(lambda saved: None, _asked_back):
            return _observed(call, given, ranks, around, outside, stands=False)
    except _AskedBack:
        ranks.draws.clear()
        return _observed(call, given, ranks, around, outside, stands=False)


def in_checkpoint() -> bool:
    """Return whether torch's checkpoint counts tensors saved by the present operations."""
    top = saved_tensor_hooks._top_saved_tensors_default_hooks(True)
    return top is not None and getattr(top[0], "__module__", "") == "torch.utils.checkpoint"


def _aside() -> saved_tensors_hooks:
    """Hide saved tensors from a checkpoint, inside the block."""
    return saved_tensors_hooks(lambda saved: (saved.detach(),), lambda packed: packed[0])


class _AskedBack(RondeError):
    """Raised when an unwound call needs saved tensors in a backward."""


def _asked_back(_: None) -> Any:
    raise _AskedBack


def _observed(
    call: ShardedCall, given: Any, ranks: _Ranks, around: Around, outside: Outside, *, stands: bool
) -> Observed:
    said, start = HeldOutput(), now()
    args, kwargs = given
    with (
        around(Region.OBSERVED, call),
        _together(call.context, ranks.together),
        said.holding(),
        effects_refused(),
    ):
        # Inside the call, where parameters are replaced by those that have passed the Enter edge.
        observe_once = functools.partial(
            Observation,
            *(call.module, given, call.verdict.inputs, ranks, outside, call.calls.sizes),
            stands=stands,
        )
        observation = observe_once()
        output, verdict, steps = observation.run(functools.partial(_run, call, args, kwargs))
        if verdict.sharded and not stands:
            if verdict.keeps:
                verdict = dataclasses.replace(
                    verdict, keeps=_changed_again(observe_once(), call, (args, kwargs))
                )
            observation.unwind()
    error = verdict.raised
    if isinstance(error, StrayBatch):
        verdict = dataclasses.replace(verdict, reason=str(error), raised=None)
    elif isinstance(error, RondeError):
        raise error
    if verdict.sharded and stands:
        said.release()
        return Observed(verdict, output, True, steps, start)
    return Observed(verdict, steps=steps)


def _run(call: ShardedCall, args: Any, kwargs: Any) -> Any:
    output = call.run(args, kwargs)
    for cache in () if call.calls.caches else caches(output):
        raise Opaque(type(cache).__name__)
    return output


def _changed_again(observation: Observation, call: ShardedCall, given: Any) -> str:
    """Find state that a second call changes again, beyond state created once."""
    args, kwargs = given
    _, verdict, _ = observation.run(lambda: call.run(args, kwargs))
    if verdict.sharded:
        observation.unwind()
    return verdict.keeps if verdict.sharded else "its state"


def compare(call: ShardedCall, around: Around, outside: Outside, steps: Steps) -> Observed | None:
    """Run a later call, and compare it with the observed one.

    None if it takes another path on some rank: it was unwound.
    """
    context = call.context
    ranks = _Ranks(context, call.cut.rows, call.cut.count(context.rank), call.calls.tries)
    # Its normalizations are checked, as in the observed call.
    call = dataclasses.replace(call, verdict=dataclasses.replace(call.verdict, batchless=False))
    comparison = ComparisonMode(call.module, call.given, call.verdict.inputs, ranks, steps, outside())
    said, start = HeldOutput(), now()
    args, kwargs = call.given
    with (
        around(Region.SHARDED, call),
        _together(context, comparison.together),
        said.holding(),
        call.drawing(call.cut),
    ):
        output, problem = comparison.run(lambda: call.run(args, kwargs))
    if problem:
        return None
    said.release()
    return Observed(call.verdict, output, True, steps, start)


class _Together:
    """Runner of work with collectives, on all ranks or on none.

    An object, as a function that names itself would keep the observed call's tensors until a collection.
    """

    def __init__(self, context: Context, together: Callable[[Callable[[], Any]], Any]) -> None:
        self._context, self._together = context, together

    def __call__(self, work: Callable[[], Any]) -> Any:
        self._context.together = None  # all ranks have agreed to run the whole of it
        try:
            return self._together(work)
        finally:
            self._context.together = self


@contextmanager
def _together(context: Context, together: Callable[[Callable[[], Any]], Any]) -> Iterator[None]:
    """Let collectives inside of the block run on all ranks or on none."""

    context.together = _Together(context, together)
    try:
        # A rank with a problem leaves the module before others do.
        with context.comm.at_one_line(), context.everybody.at_one_line():
            yield
    finally:
        context.together = None


def few_rows(given: Any, axes: Sequence[int | None], rows: int, inner: int) -> Any:
    """Copy the first rows of cut arguments; a single row is repeated.

    Args:
        given: arguments with plain tensors.
        inner: entries of the axis for each row.
    """
    remaining = iter(axes)

    def few(value: Any) -> Any:
        axis = next(remaining)
        if axis is None:
            return value
        whole = value.detach()
        if whole.shape[axis] == inner < rows * inner:
            whole = torch.cat([whole] * rows, axis)
        taken = whole.narrow(axis, 0, rows * inner).clone()
        return taken.requires_grad_(value.requires_grad)

    return map_leaves(few, given)
