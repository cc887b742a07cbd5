"""Rank group of global tensors, and the execution state of this rank."""

from __future__ import annotations

import dataclasses
import enum
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.autograd.forward_ad

from ronde.comm.process_group import Comm
from ronde.patching.torch_internals import current_graph_task_id, forward_ad_level, peek_interpreter_stack
from ronde.tensor.layout import Layout
from ronde.tensor.tensor_table import TensorTable
from ronde.trace.step_clock import StepClock

__all__ = ["Context", "MainThreadState", "Region", "carries_tangents", "in_transform"]


class Region(enum.Enum):
    """Region of code in which the main thread executes.

    SCRIPT: values are global (the script itself, and the body of a module run in parts).
    SHARDED: inside a model that runs on this rank's rows.
    OBSERVED: the same, in a call that is watched, and unwound if the rows are not independent.
    REPLICATED: inside a model that runs on the whole batch on every rank.
    SAMPLES: every rank reads the same samples of a data set; a module call in there is not a call on a batch.
    """

    SCRIPT = "script"
    SHARDED = "sharded"
    OBSERVED = "observed"
    REPLICATED = "replicated"
    SAMPLES = "samples"


@dataclasses.dataclass(frozen=True, slots=True)
class MainThreadState:
    """Execution state of the main thread.

    Attributes:
        rows: global batch size of the sharded call under way, or of the batch of a module run in parts.
        batchless: whether the sharded call under way normalizes only tensors without rows, such as weights.
        function: name of the script's `torch.autograd.Function` while its forward runs, else "".
        resuming: context manager to enter around a recomputation of this region in backward.
    """

    region: Region
    rows: int | None = None
    batchless: bool = False
    function: str = ""
    resuming: Callable[[], AbstractContextManager[None]] = nullcontext


class Context:
    """Rank group over which tensors are sharded, with this rank's execution state.

    Attributes:
        comm: collectives of global tensors, apart from the reducer's: their order is the script's.
        everybody: all ranks that carry out the script's calls at the same time.
        adopt: callback that reports to the reducer a leaf whose gradient differs between ranks.
        clock: step clock that records, while armed, which part of the program runs.
        standing: execution state of the main thread.
        loss_is_scaled: whether the script scales its loss to the edge of what float16 holds.
        gradients_watched: whether the script may read gradients during a backward.
        compares: whether inputs of models and losses may differ between ranks, as the script has started
            threads or processes.
        compared: whether operations of the sharded call under way are compared with an observed call.
        together: function that, in an observed call, runs work with collectives on all ranks or on none; None
            outside of such calls and inside of such work.
        weight: factor W of a shard's local gradient over the true one; see `edges`.
        on_whole: callback for each function that is carried out on whole values, with its arguments.
        on_copy: callback for a rule's copy in place of a view.
        copied_from: tensors of which a rule has made such copies.
        attempt: function that runs work which may raise on some ranks only, and makes all ranks raise an
            exception that the script would catch; see `SharedExceptions.attempt`.
        attempting: whether such work is under way and the script would catch its exception.
        averages_leaves: whether gradients of leaves that enter shards whole are averaged over ranks by
            `adopt`.
        averaged_later: predicate for leaves whose gradients the reducer averages over this context's ranks
            too.
        stand_ins: tensors that replace such leaves in one call.
        cuts_rows: whether tensors are batches cut along their rows; else they are values inside of models.
        outer: context of the global tensors whose shards may be global tensors of this context, or None.
    """

    averages_leaves = True
    cuts_rows = True

    def __init__(
        self,
        *,
        comm: Comm,
        adopt: Callable[[torch.Tensor], None],
        clock: StepClock | None = None,
        everybody: Comm | None = None,
    ) -> None:
        self.comm = comm
        self.everybody = everybody or comm
        self.rank = comm.rank
        self.world_size = self.weight = comm.world_size
        self.adopt = adopt
        self.clock = clock or StepClock()
        self.standing = _AT_FIRST
        self.loss_is_scaled = False
        self.gradients_watched = False
        self.compares = False
        self.compared = False
        self.on_whole: Callable[[Any, Any], None] | None = None
        self.on_copy: Callable[[torch.Tensor], None] = lambda made: None
        self.copied_from: TensorTable[bool] = TensorTable()
        self.together: Callable[[Callable[[], Any]], Any] | None = None
        self.attempt: Callable[..., Any] = _do
        self.attempting = False
        self.outer: Context | None = None
        self.averaged_later: Callable[[torch.Tensor], bool] = lambda leaf: False
        self.stand_ins: TensorTable[bool] = TensorTable()
        self._thread = threading.get_ident()
        self._reader: Callable[[], threading.Thread | None] = lambda: None
        _contexts.add(self)

    @classmethod
    def within_rows(cls, comm: Comm, outer: Context | None = None) -> Context:
        """Create the context of ranks that compute on the same rows (tensor parallelism).

        Replicated values and their gradients are equal on these ranks, so `weight` is 1 and leaves are not
        averaged.

        Args:
            outer: context that cuts the batch over other ranks, if there is one.
        """
        context = cls(comm=comm, adopt=lambda leaf: None)
        context.weight, context.outer = 1, outer
        context.averages_leaves = context.cuts_rows = False
        return context

    def is_averaged_later(self, tensor: torch.Tensor) -> bool:
        """Return whether the reducer averages a tensor's gradients."""
        return not tensor._backward_hooks and (tensor in self.stand_ins or self.averaged_later(tensor))

    def stand_in(self, tensor: torch.Tensor, leaf: torch.Tensor) -> None:
        """Treat a tensor as the leaf that its gradient reaches."""
        if self.is_averaged_later(leaf):
            self.stand_ins.set(tensor, True)

    @property
    def gradient_factor(self) -> int:
        """Factor of a shard's local gradient over the true one; see `loss_scale`."""
        return 1 if self.loss_is_scaled and not self.gradients_watched else self.weight

    @property
    def region(self) -> Region:
        """Region of the current thread.

        That of the main thread, for itself and its backward; `SCRIPT` for other threads of the script.
        """
        # Dynamo does not support threads, and makes a guard of each value that it reads
        if torch.compiler.is_dynamo_compiling():
            return self.standing.region
        return self.standing.region if self.is_in_step() else Region.SCRIPT

    def on_main_thread(self) -> bool:
        """Return whether this is the script's main thread.

        Only this thread is in lockstep with other ranks. False in a forked process too.
        """
        return threading.get_ident() == self._thread

    def is_in_step(self) -> bool:
        """Return whether this is the main thread, or the autograd thread of its backward."""
        return self.on_main_thread() or _in_backward()

    def script_computes(self) -> bool:
        """Return whether the script itself computes on several ranks now.

        False inside of models, backward and `torch.func` transforms. Where it is true all ranks run the same
        code in the same order, so a collective is possible.
        """
        if torch.compiler.is_dynamo_compiling():
            return False
        return (
            self.standing.region is Region.SCRIPT
            and self.world_size > 1
            and self.on_main_thread()
            and not self.comm.alone
            and current_graph_task_id() == -1
            and not in_transform()
        )

    def reads_alone(self) -> bool:
        """Return whether no other living thread has read values that need a collective."""
        here = threading.current_thread()
        before, self._reader = self._reader() or here, weakref.ref(here)
        return before is here or not before.is_alive()

    def layout(self, dim: int, rows: int, *, outer: int = 1, inner: int = 1) -> Layout:
        return Layout(dim, rows, self.world_size, outer, inner)

    @contextmanager
    def enter(self, standing: MainThreadState | Region, rows: int | None = None) -> Iterator[None]:
        """Execute in another region inside the `with` block."""
        before = self.standing
        if isinstance(standing, Region):
            standing = MainThreadState(standing, rows)
        self.standing = standing
        try:
            yield
        finally:
            self.standing = before


def _do(work: Callable[[], Any], *_: Any, **__: Any) -> Any:
    return work()


_AT_FIRST = MainThreadState(Region.SCRIPT)
_contexts: weakref.WeakSet[Context] = weakref.WeakSet()


def in_transform() -> bool:
    """Return whether a `torch.func` transform is active: its wrapped tensors cannot be sent."""
    return peek_interpreter_stack() is not None


def carries_tangents() -> bool:
    """Return whether forward-mode AD is active: tangents would not be sent along with tensors."""
    return forward_ad_level() >= 0


def _fall_out_of_step() -> None:
    """Mark a forked process, such as a DataLoader worker, as out of lockstep."""
    for context in _contexts:
        context._thread = 0


os.register_at_fork(after_in_child=_fall_out_of_step)


def _in_backward() -> bool:
    """Return whether this is an autograd thread of a CUDA device.

    The script's thread waits for it. Python has not started such a thread. In one that it has started, the
    script would call backward by itself.
    """
    return current_graph_task_id() != -1 and isinstance(threading.current_thread(), threading._DummyThread)
