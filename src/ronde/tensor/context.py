"""The ranks, and where on this rank the script's execution stands."""

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

__all__ = ["Context", "Region", "Standing", "carries_tangents", "in_transform"]


class Region(enum.Enum):
    """Where execution stands.

    SCRIPT: values are global (the script itself, and the body of a module run in parts).
    SHARDED: inside a model that runs on this rank's rows.
    OBSERVED: the same, in a call that is watched, and unwound if the rows are not independent.
    REPLICATED: inside a model that runs on the whole batch on every rank.
    SAMPLES: every rank reads the same samples of a data set; what modules do there is no call on a batch.
    """

    SCRIPT = "script"
    SHARDED = "sharded"
    OBSERVED = "observed"
    REPLICATED = "replicated"
    SAMPLES = "samples"


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """Where the main thread's execution stands.

    Attributes:
        rows: global rows of the sharded call under way, and of the batch of a module run in parts.
        batchless: what the sharded call under way normalizes has no rows of the batch.
        function: which `torch.autograd.Function` the script has applied, while its forward runs.
        resuming: what is to stand around what is computed here again in backward.
    """

    region: Region
    rows: int | None = None
    batchless: bool = False
    function: str = ""
    resuming: Callable[[], AbstractContextManager[None]] = nullcontext


class Context:
    """The ranks among which tensors are cut, and this rank's standing; one per session.

    Attributes:
        comm: collectives of global tensors, apart from the reducer's: their order is the script's.
        adopt: tells the reducer of a leaf tensor whose gradient differs between ranks.
        clock: is told, where it is armed, what runs.
        standing: where the main thread's execution stands.
        loss_is_scaled: the script scales its loss to the edge of what float16 holds.
        gradients_watched: the script may look at gradients in the midst of a backward.
        compares: what the script gives to models and losses may differ between ranks, as it has started
            threads or processes.
        compared: the operations of the sharded call under way are compared with those of an observed one.
        together: in an observed call, has all ranks do what needs all of them, or none of them.
        weight: how many times the true one the local gradient of a shard is; see `edges`.
        on_whole: hears of each function that is carried out on whole values, with its arguments.
        attempt: does what may raise on some ranks only, and has all raise what the script would catch; see
            `SharedExceptions.attempt`.
        attempting: such a thing is under way, and the script would catch what it raises.
        averages_leaves: gradients of leaves that enter shards whole become their mean over ranks by `adopt`.
        averaged_later: tells leaves whose gradients the reducer averages over this context's ranks too.
        stand_ins: tensors that stand for such leaves in one call.
        cuts_rows: what is cut is a batch, along its rows; else values inside of models.
        outer: of values whose shards this context's values may be; None where there is no such context.
    """

    averages_leaves = True
    cuts_rows = True

    def __init__(
        self, *, comm: Comm, adopt: Callable[[torch.Tensor], None], clock: StepClock | None = None
    ) -> None:
        self.comm = comm
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
        """Ranks that compute on the same rows: what they have whole is alike, and so are its gradients."""
        context = cls(comm=comm, adopt=lambda leaf: None)
        context.weight, context.outer = 1, outer
        context.averages_leaves = context.cuts_rows = False
        return context

    def is_averaged_later(self, tensor: torch.Tensor) -> bool:
        """Tell whether the reducer makes the mean of a tensor's gradients."""
        return not tensor._backward_hooks and (tensor in self.stand_ins or self.averaged_later(tensor))

    def stand_in(self, tensor: torch.Tensor, leaf: torch.Tensor) -> None:
        """Treat a tensor as the leaf that its gradient comes to."""
        if self.is_averaged_later(leaf):
            self.stand_ins.set(tensor, True)

    @property
    def gradient_factor(self) -> int:
        """How many times the true one the local gradient of a shard is; see `loss_scale`."""
        return 1 if self.loss_is_scaled and not self.gradients_watched else self.weight

    @property
    def region(self) -> Region:
        """Where execution stands; other threads of the script are never inside what its main one is in."""
        if torch.compiler.is_dynamo_compiling():  # which knows no threads, and guards by what it reads
            return self.standing.region
        return self.standing.region if self.is_in_step() else Region.SCRIPT

    def on_main_thread(self) -> bool:
        """Only the script's main thread is in lockstep with the other ranks, and no fork of it."""
        return threading.get_ident() == self._thread

    def is_in_step(self) -> bool:
        """On the script's main thread, or on that which works for its backward."""
        return self.on_main_thread() or _in_backward()

    def script_computes(self) -> bool:
        """Whether what runs now is the script's own on all ranks, and no part of a backward."""
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
        """Whether no other of the script's threads has read what needs all ranks and is still there."""
        here = threading.current_thread()
        before, self._reader = self._reader() or here, weakref.ref(here)
        return before is here or not before.is_alive()

    def layout(self, dim: int, rows: int, *, outer: int = 1, inner: int = 1) -> Layout:
        return Layout(dim, rows, self.world_size, outer, inner)

    @contextmanager
    def enter(self, standing: Standing | Region, rows: int | None = None) -> Iterator[None]:
        """Execute elsewhere."""
        before = self.standing
        if isinstance(standing, Region):
            standing = Standing(standing, rows)
        self.standing = standing
        try:
            yield
        finally:
            self.standing = before


def _do(work: Callable[[], Any], *_: Any, **__: Any) -> Any:
    return work()


_AT_FIRST = Standing(Region.SCRIPT)
_contexts: weakref.WeakSet[Context] = weakref.WeakSet()


def in_transform() -> bool:
    """Inside `torch.func`: tensors are wrapped there, and cannot be sent."""
    return peek_interpreter_stack() is not None


def carries_tangents() -> bool:
    """Inside `torch.autograd.forward_ad`: tangents go along with tensors, and are not sent with them."""
    return forward_ad_level() >= 0


def _fall_out_of_step() -> None:
    """In a process that was forked, as workers that load samples: ranks meet in their own only."""
    for context in _contexts:
        context._thread = 0


os.register_at_fork(after_in_child=_fall_out_of_step)


def _in_backward() -> bool:
    """Whether this is the thread in which autograd works for a CUDA device, while the script's thread waits.

    Python has not started it; in one that it has started, the script would call backward by itself.
    """
    return current_graph_task_id() != -1 and isinstance(threading.current_thread(), threading._DummyThread)
