"""A model's call on this rank's rows, and functions that run it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from ronde.errors import RondeError
from ronde.modules.absent_cache import AbsentCache
from ronde.modules.batch_arguments import BatchArguments
from ronde.modules.calls import Calls
from ronde.patching.other_threads import others_run
from ronde.patching.torch_internals import TorchDispatchMode
from ronde.rng.by_parts import carry_out, takes_functions
from ronde.rng.draws import Draw, SlicedDraws, drawn_in_kernels, draws_from_default
from ronde.rng.rank_stream import RankStream
from ronde.rowwise.compiled import is_compiled
from ronde.rowwise.verdict import Verdict
from ronde.tensor.context import Context
from ronde.tensor.layout import Layout
from ronde.tensor.tree import replace_caches
from ronde.trace.step_clock import Activity

__all__ = ["ShardedCall", "Way", "another_form", "at_once", "drawing"]


@dataclasses.dataclass(frozen=True, slots=True)
class ShardedCall:
    """A call that is about to be run.

    Attributes:
        plain: calls a module as torch does.
        module: the model.
        given: its positional arguments, and those by name; a batch among them holds this rank's rows.
        verdict: verdict of its observed call.
        batch: the batch among the arguments.
        stream: the rank's own generator for draws inside models, or None for `rng=global`.
    """

    calls: Calls
    plain: Callable[..., Any]
    module: torch.nn.Module
    given: tuple[Any, Any]
    verdict: Verdict
    batch: BatchArguments
    stream: RankStream | None

    @property
    def context(self) -> Context:
        return self.calls.context

    @property
    def drawn_in_kernels(self) -> str:
        """Return the operation that draws random numbers inside of a kernel, or "".

        Pieces of this rank's rows then draw other numbers.
        """
        return drawn_in_kernels(self.verdict.draws)

    @property
    def cut(self) -> Layout:
        """Return the layout of the whole batch's rows over the ranks."""
        return self.context.layout(0, self.batch.rows)

    def run(self, args: Any, kwargs: Any) -> Any:
        """Run the module itself on the given rows."""
        clock = self.context.clock
        before = clock.enter(Activity.MODEL) if clock.armed else None
        output = self.plain(self.module, *args, **kwargs)
        if before is not None:
            clock.enter(before)
        if self.calls.caches or not torch.is_grad_enabled():
            return output
        return replace_caches(output, AbsentCache())

    def drawing(self, cut: Layout) -> Any:
        """Draw as one device does for the rows of `cut` on this rank.

        A context manager around the model.
        """
        if not self.verdict.draws:
            return _NoDraws(self.calls, self.module)
        return drawing(self.context, self.stream, self.verdict.draws, cut)


def drawing(context: Context, stream: RankStream | None, draws: Sequence[Draw], cut: Layout) -> Any:
    """Draw as one device does for this rank's rows of `cut`, inside the block.

    Args:
        draws: draws in order; they may be added as they come.
    """
    if cut.count(context.rank) == cut.rows:  # the whole batch, as on one device
        return nullcontext()
    if cut.world_size == 1 and stream is not None and drawn_in_kernels(draws):
        return nullcontext()
    if stream is not None and cut.world_size > 1:  # pieces of one device's rows have its draws
        return stream.drawing(draws, cut)
    return SlicedDraws(draws, cut, context.rank)


Way = Callable[[ShardedCall], Any]
"""Carries a call out, and gives the model's output for all of this rank's rows."""


def at_once(call: ShardedCall) -> Any:
    """Run all of this rank's rows in one piece."""
    args, kwargs = call.given
    with call.drawing(call.cut):
        return call.run(args, kwargs)


class _NoDraws(TorchDispatchMode):
    """Guard for a call without draws in its observation.

    A draw would differ between ranks, and is detected: it moves the generator.

    Other threads of the script may move it too. While there are any, operations are watched instead, except
    in compiled code.
    """

    supports_higher_order_operators = True

    def __init__(self, calls: Calls, module: torch.nn.Module) -> None:
        super().__init__()
        self._calls = calls
        self._beside = others_run()
        self._watches = self._beside and not any(map(is_compiled, module.modules()))

    def __enter__(self) -> Any:
        self._before = _generator()
        self._outside, self._calls.draws_nothing = self._calls.draws_nothing, True
        return super().__enter__() if self._watches else self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if takes_functions(func):
            return carry_out(self, func, args, kwargs)
        if draws_from_default(func, args, kwargs):
            raise _drew()
        return func(*args, **(kwargs or {}))

    def __exit__(self, kind: Any, *raised: Any) -> None:
        self._calls.draws_nothing = self._outside
        if self._watches:
            super().__exit__(kind, *raised)
        elif kind is None and not (self._beside or torch.equal(self._before, _generator())):
            raise _drew()


_generator = torch.default_generator.get_state


def _drew() -> RondeError:
    return RondeError(
        "a model drew random numbers that it did not draw in its first call; ranks would draw different "
        "ones. Let it draw at every call, or keep the condition in an attribute of the module, as a number "
        "or flag [R370]"
    )


def another_form(module: torch.nn.Module) -> RondeError:
    return RondeError(
        f"{type(module).__name__} returned another form of output than in its first call, under the same "
        "modes and attributes; keep the condition in an attribute of the module, as a number or flag [R370]"
    )
