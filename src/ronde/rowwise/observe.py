"""The first call of a module, watched: is each row of its output made of one row of the batch?

It runs for real, once, on this rank's rows, as if they were independent. If they are not, it is unwound, and
the caller carries it out in another way.
"""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ronde.boundary.randomness.draws import UnknownDraw
from ronde.boundary.tree import Opaque, leaves
from ronde.rowwise.backward import functions_tried
from ronde.rowwise.forms import Forms
from ronde.rowwise.functions import Functions
from ronde.rowwise.kept import Kept, check_tree
from ronde.rowwise.mixes_rows import BACKWARD, MixesRows, cannot_draw
from ronde.rowwise.normalize import Elsewhere
from ronde.rowwise.observer import Observer
from ronde.rowwise.order import Orders
from ronde.rowwise.outputs import axes_of, same_as
from ronde.rowwise.prints import HeldBack
from ronde.rowwise.rows import Counts
from ronde.rowwise.uncompiled import uncompiled
from ronde.rowwise.undo import Undo
from ronde.rowwise.verdict import Verdict
from ronde.rowwise.watch import Away, Ranks, Watch

__all__ = ["Observation"]

_SPARSE = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


class Observation:
    """One observed call.

    Args:
        module: what is called.
        call: its positional arguments and those by name; what is a batch holds this rank's rows.
        axes: the batch axis of each leaf of these, None for leaves that enter whole.
        ranks: the run in which it is called.
        forms: what an earlier call of the module learnt; None for its first.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        call: Any,
        axes: Sequence[int | None],
        ranks: Ranks,
        forms: Forms | None = None,
    ) -> None:
        self._module, self._axes = module, tuple(axes)
        self._values = list(leaves(call))
        counts = Counts.of(ranks.rows, ranks.mine)
        found = {} if forms is None else dict(forms.found)
        self._watch = Watch(
            counts, ranks, Undo(module, call), Orders(counts), forms=Forms(found, counts.branches)
        )
        # Random operations on rows so far.
        self.draws = self._watch.draws
        self._prints = HeldBack()
        self._apart = False
        self.kept: Kept | None = None

    def run(self, plain: Callable[[], Any]) -> tuple[Any, Verdict, Forms]:
        """Carry the call out: what it returns, what was found, and what the next observed call begins with.

        Where rows are not independent nothing is returned, and all is as it was before.
        """
        watch = self._watch
        output = None
        try:
            output, verdict = self._tried(plain)
        except Elsewhere as found:
            verdict = self._refused(str(found))
            watch.undo.unwind()
            return None, verdict, watch.forms
        except MixesRows as found:
            verdict = self._refused(str(found))
        except Exception as error:
            verdict = self._failed(error)
        problem = watch.ranks.agree(verdict.reason)
        if problem:
            verdict = dataclasses.replace(verdict, sharded=False, reason=problem)
            output = None
            watch.undo.unwind()
        else:
            self._prints.say()
        return output, verdict, watch.forms

    def _tried(self, plain: Callable[[], Any]) -> tuple[Any, Verdict]:
        watch = self._watch
        self._begin()
        kept = Kept(self._values, watch.counts)
        torch.clear_autocast_cache()
        with self._prints, _watched(watch, self._module, kept):
            box = [plain()]
        watch.away = Away.ENDED
        if watch.counts.problem:  # and the model has gone on
            raise MixesRows(watch.counts.problem)
        if watch.undo.has_gradients():
            raise MixesRows(BACKWARD)
        results = list(leaves(box[0]))
        outputs = axes_of(watch, results)
        self._apart = True
        same = same_as(results, self._values)
        del results
        check_tree(watch, self._module)
        kept.check(box)
        if watch.undo.generators.others_moved():
            raise MixesRows("it draws random numbers by other means than torch's own generator")
        self.kept = kept
        found = Verdict(True, "", self._axes, outputs, tuple(watch.draws), same, watch.foreign)
        return box[0], self._with_marks(found)

    def _with_marks(self, verdict: Verdict) -> Verdict:
        watch = self._watch
        return dataclasses.replace(
            verdict,
            joint=watch.joint,
            batchless=watch.batchless and not watch.joint,
            drew=watch.drew,
            apart=self._apart and not verdict.sharded,
        )

    def _refused(self, reason: str) -> Verdict:
        return self._with_marks(Verdict(False, reason, self._axes))

    def _failed(self, error: Exception) -> Verdict:
        if self._watch.counts.problem:  # TorchScript tells of an error of its own in its place
            return self._refused(self._watch.counts.problem)
        if isinstance(error, Opaque):
            return self._refused(f"it returns tensors inside a {error}")
        if isinstance(error, UnknownDraw):
            return self._refused(cannot_draw(str(error)))
        lines = str(error).strip().splitlines() or [""]
        said = f"{type(error).__name__}: {lines[0][:120]}"
        found = self._refused(f"it failed on {self._watch.counts.mine} rows ({said})")
        return dataclasses.replace(found, raised=error.with_traceback(None))

    def _begin(self) -> None:
        watch = self._watch
        if any(part._backward_hooks or part._backward_pre_hooks for part in self._module.modules()):
            raise MixesRows("it has hooks, which are to see the whole batch")
        if any(map(torch.nn.parameter.is_lazy, (*self._module.parameters(), *self._module.buffers()))):
            raise MixesRows("its parameters are made in its first call")
        for value, axis in zip(self._values, self._axes, strict=True):
            if axis is None or not isinstance(value, torch.Tensor):
                continue
            if value.layout in _SPARSE:
                raise MixesRows("one of its arguments is a sparse matrix, which is not cut into rows")
            with torch._C.DisableTorchFunction():
                times = value.shape[axis] // watch.counts.mine
                watch.label(value, watch.orders.repeated(1, times), axis)


@contextmanager
def _watched(watch: Watch, module: torch.nn.Module, kept: Kept) -> Iterator[None]:
    with ExitStack() as around:
        around.enter_context(uncompiled(module))
        around.enter_context(functions_tried(watch))
        around.enter_context(_lengths_watched(watch))
        around.enter_context(Observer(watch))
        around.enter_context(Functions(watch, kept.note))
        yield


@contextmanager
def _lengths_watched(watch: Watch) -> Iterator[None]:
    """Inside, the length of a tensor of rows is such a number."""
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
