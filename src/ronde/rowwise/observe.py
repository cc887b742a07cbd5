"""Observation of a first call: does each output row depend on one batch row?

The call runs for real, once, on this rank's rows, as if rows were independent. If they are not, its effects
are undone, and the caller runs it in another way.
"""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ronde.patching.torch_internals import DisableTorchFunction
from ronde.rng.draws import UnknownDraw
from ronde.rowwise.backward import ends_recomputation, functions_tried
from ronde.rowwise.compiled import aside
from ronde.rowwise.escaped_rows import VisibleRows, check_tree, check_variables
from ronde.rowwise.functions import Functions
from ronde.rowwise.kept_sizes import KeptSizes, ObservedSizes
from ronde.rowwise.labels import Drawn, Orders
from ronde.rowwise.normalize import Elsewhere
from ronde.rowwise.observer import Observer
from ronde.rowwise.operation import tensors
from ronde.rowwise.outputs import axes_of, same_as
from ronde.rowwise.rows_int import RowCounts, Unhashable
from ronde.rowwise.sequence import Sequence as Steps
from ronde.rowwise.undo import Undo
from ronde.rowwise.verdict import BACKWARD, COUNTS, MIXES, MixesRows, Verdict
from ronde.rowwise.watch import Away, CallWatch, Ranks
from ronde.tensor.tree import Opaque, leaves

__all__ = ["Observation"]

Outside = Callable[[], "list[tuple[str, Any]]"]


class Observation:
    """One observed call.

    Args:
        module: module that is called.
        call: positional and keyword arguments; batches hold this rank's rows.
        axes: batch axis of each leaf of these, None for leaves without one.
        ranks: the ranks of the run.
        outside: function that returns the variables outside of the module that its code names, with values.
        sizes: registry of batch sizes that modules keep.
        stands: whether the call's changes may stay.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        call: Any,
        axes: Sequence[int | None],
        ranks: Ranks,
        outside: Outside = list,
        sizes: KeptSizes | None = None,
        *,
        stands: bool = True,
    ) -> None:
        self._module, self._axes, self._outside = module, tuple(axes), outside
        self._values = list(leaves(call))
        counts = RowCounts.of(ranks.rows, ranks.mine)
        self._watch = CallWatch(counts, ranks, Undo(module, call, outside()), Orders(counts))
        self._watch.sequence = Steps(ranks.mine, [], counts.branches)
        self._sizes = ObservedSizes(sizes or KeptSizes(), module, counts, keeps=stands)
        self._apart = False

    def run(self, plain: Callable[[], Any]) -> tuple[Any, Verdict, Steps]:
        """Run the call; return its output, a verdict, and its operations for later comparison.

        If rows are not independent, it restores all state and returns None for the output.
        """
        watch = self._watch
        try:
            return self._run(plain)
        finally:
            watch.counts.over = True

    def _run(self, plain: Callable[[], Any]) -> tuple[Any, Verdict, Steps]:
        watch = self._watch
        output = None
        try:
            output, verdict = self._tried(plain)
        except Elsewhere as found:
            verdict = self._refused(str(found))
            watch.undo.unwind()
            return None, verdict, watch.sequence
        except MixesRows as found:
            verdict = self._refused(str(found))
        except Exception as error:
            if ends_recomputation(error):
                raise
            verdict = self._failed(error)
        problem = watch.ranks.agree(verdict.reason)
        if problem:
            verdict = dataclasses.replace(verdict, sharded=False, reason=problem)
            output = None
            watch.undo.unwind()
        else:
            self._sizes.know()
        return output, verdict, watch.sequence

    def unwind(self) -> None:
        """Restore all state from before the call."""
        self._watch.undo.unwind()

    def _tried(self, plain: Callable[[], Any]) -> tuple[Any, Verdict]:
        watch = self._watch
        self._begin()
        kept = VisibleRows(self._values, watch.counts)
        torch.clear_autocast_cache()
        with _watched(watch, self._module, kept):
            box = [plain()]
        watch.away = Away.ENDED
        if watch.counts.problem:  # the model caught the exception and went on
            raise MixesRows(watch.counts.problem)
        if watch.undo.has_gradients():
            raise MixesRows(BACKWARD)
        results = list(leaves(box[0]))
        outputs = axes_of(watch, results)
        self._apart = True
        same = same_as(results, self._values)
        del results
        sizes = self._sizes.settle()
        check_tree(watch, self._module)
        check_variables(watch, self._outside())
        kept.check(box)
        if watch.undo.generators[0].moved():
            raise MixesRows("it draws random numbers by other generators than torch's default one [R349]")
        return box[0], self._verdict(
            outputs=outputs,
            draws=tuple(watch.draws),
            same_as=same,
            foreign=bool(watch.foreign),
            keeps=watch.undo.changes(),
            sizes=sizes,
        )

    def _verdict(self, reason: str = "", **found: Any) -> Verdict:
        watch = self._watch
        batchless = watch.batchless and not watch.joint
        marks = {"joint": watch.joint, "batchless": batchless, "apart": self._apart}
        return Verdict(not reason, reason, self._axes, **marks, **found)

    def _refused(self, reason: str) -> Verdict:
        return self._verdict(reason, raised=self._watch.failed if reason.startswith(MIXES) else None)

    def _failed(self, error: Exception) -> Verdict:
        if self._watch.counts.problem:  # TorchScript raises its own error in its place
            return self._refused(self._watch.counts.problem)
        if isinstance(error, Unhashable):
            return self._refused(COUNTS)
        if isinstance(error, Opaque):
            return self._refused(f"it returns tensors inside a {error} [R345]")
        if isinstance(error, UnknownDraw):
            return self._refused(f"its random draws cannot be cut ({error}) [R349]")
        lines = str(error).strip().splitlines() or [""]
        said = f"{type(error).__name__}: {lines[0][:120]}"
        reason = f"it failed on {self._watch.counts.mine} rows ({said}) [R334]"
        return self._verdict(reason, raised=error.with_traceback(None))

    def _begin(self) -> None:
        watch = self._watch
        others = [value for value, axis in zip(self._values, self._axes, strict=True) if axis is None]
        for tensor in (*[each for _, each in watch.undo.module.tensors], *tensors(others)):
            if tensor.layout is torch.strided:
                watch.put(tensor, Drawn(watch.undo.called(tensor) or "a tensor of its own"))
        for value, axis in zip(self._values, self._axes, strict=True):
            if axis is None or not isinstance(value, torch.Tensor):
                continue
            with DisableTorchFunction():
                times = value.shape[axis] // watch.counts.mine
                watch.label(value, watch.orders.repeated(1, times), axis)
                watch.marks.hold_rows(value)
        self._sizes.show()


@contextmanager
def _watched(watch: CallWatch, module: torch.nn.Module, kept: VisibleRows) -> Iterator[None]:
    with ExitStack() as around:
        around.enter_context(aside(module))
        around.enter_context(functions_tried(watch))
        around.enter_context(_lengths_watched())
        around.enter_context(Observer(watch, kept.note))
        around.enter_context(Functions(watch, kept.note))
        yield


@contextmanager
def _lengths_watched() -> Iterator[None]:
    """Make `len` of a tensor with rows return `Rows` inside the `with` block."""
    plain = builtins.len

    def length(value: Any, /) -> int:
        if isinstance(value, torch.Tensor) and value.dim():
            return value.size(0)
        return plain(value)

    builtins.len = length
    try:
        yield
    finally:
        builtins.len = plain
