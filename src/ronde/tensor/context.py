"""What every part of the boundary shares: the ranks, and where execution stands."""

from __future__ import annotations

import dataclasses
import enum
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.autograd.forward_ad

from ronde.comm.process_group import Comm
from ronde.tensor.layout import Layout
from ronde.tensor.script_values import ScriptValues
from ronde.trace.tally import Tally

__all__ = ["Context", "Region", "TrialBackward"]


class Region(enum.Enum):
    """Where execution stands.

    SCRIPT: values are global (the script itself, and the body of a module run in parts).
    SHARDED: inside a model that runs on this rank's rows.
    REPLICATED: inside a model that runs on the whole batch on every rank.
    REHEARSAL: inside a trial run of a copy of a model.
    """

    SCRIPT = "script"
    SHARDED = "sharded"
    REPLICATED = "replicated"
    REHEARSAL = "rehearsal"


@dataclasses.dataclass(frozen=True, slots=True)
class TrialBackward:
    """The backward of a trial, while it is under way.

    Attributes:
        nested: takes the place of `torch.autograd.backward` in it.
        around: what is to stand around code of the user's that runs in it.
    """

    nested: Callable[..., None]
    around: Callable[[], AbstractContextManager[object]]


class Context:
    """The boundary's ranks and state; one per session.

    Attributes:
        comm: collectives of the boundary, apart from the reducer's: their order is the script's.
        batch_dim: which dimension of a model's arguments is the batch, None where that is to be found.
        adopt: tells the reducer of a leaf tensor whose gradient differs between ranks.
        main_region: where the main thread's execution stands.
        rows: global rows of the sharded call under way, and of the batch of a module run in parts.
        notes: sentences to be said once, in order.
        tally: counts batches and calls that were cut.
        clock: is told, where it is armed, what runs.
        model_calls: calls of models on a batch so far.
        on_call: hears of each of these calls, while it is set.
        on_backward: hears of each backward or `grad` that the script is about to begin.
        on_evaluation: hears of each call of a model in shards without gradients.
        loss_is_scaled: the script scales its loss to the edge of what float16 holds.
        gradients_watched: the script may look at gradients in the midst of a backward.
        uncut: it has been said why modules were not cut.
        explained: it has been said of some module why it is not cut.
        batchless: what the sharded call under way normalizes has no rows of the batch.
        in_pieces: a model runs on a piece of its rows, and on the others before or after it.
        pieces: into how many of them each rank's rows are cut, at most.
        trial_backward: that of a trial, while one is under way.
        function_tried: the trial under way has come by a `torch.autograd.Function` of the user's.
        draws_nothing: the model that runs draws no random numbers, as its rehearsal has shown.
        samples: samples of a data set are being read, and what modules do there is no call on a batch.
        others_began: the script has started threads or processes: what they give may differ between ranks.
        script_values: what the script puts into its computations, to be compared before backward.
        called_beside: modules were called in another thread than the main one, where nothing is cut.
        function: which `torch.autograd.Function` the script has applied, while its forward runs.
        called_in: those in whose forward modules were called, where nothing is cut.
    """

    def __init__(
        self,
        *,
        comm: Comm,
        batch_dim: int | None,
        adopt: Callable[[torch.Tensor], None],
        tally: Tally | None = None,
        pieces: int = 1,
    ) -> None:
        self.comm = comm
        self.rank = comm.rank
        self.world_size = comm.world_size
        self.batch_dim = batch_dim
        self.adopt = adopt
        self.main_region = Region.SCRIPT
        self.rows: int | None = None
        self.notes: dict[str, None] = {}
        self.tally = tally or Tally()
        self.clock = self.tally.clock
        self.model_calls = 0
        self.on_call: Callable[[torch.nn.Module], None] | None = None
        self.on_backward: Callable[[], None] = lambda: None
        self.on_evaluation: Callable[[], None] = lambda: None
        self.loss_is_scaled = False
        self.gradients_watched = False
        self.batchless = False
        self.in_pieces = False
        self.pieces = pieces
        self.trial_backward: TrialBackward | None = None
        self.function_tried = False
        self.draws_nothing = False
        self.samples = False
        self.others_began = False
        self.script_values = ScriptValues()
        self.called_beside = False
        self.function = ""
        self.called_in: dict[str, None] = {}
        self.uncut = False
        self.explained = False
        self._thread = threading.get_ident()
        self._reader: Callable[[], threading.Thread | None] = lambda: None
        _contexts.add(self)

    @property
    def gradient_factor(self) -> int:
        """How many times the true one the local gradient of a shard is; see `loss_scale`."""
        return 1 if self.loss_is_scaled and not self.gradients_watched else self.world_size

    @property
    def region(self) -> Region:
        """Where execution stands; other threads of the script are never inside what its main one is in."""
        if torch.compiler.is_dynamo_compiling():  # which knows no threads, and guards by what it reads
            return self.main_region
        return self.main_region if self.is_in_step() else Region.SCRIPT

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
            self.main_region is Region.SCRIPT
            and self.world_size > 1
            and self.on_main_thread()
            and not (self.samples or self.comm.alone)
            and torch._C._current_graph_task_id() == -1
            and not self.in_transform()
        )

    def note_values(self, given: Any) -> None:
        """What the script gives to an operation beside batches and outputs; ranks may differ in that."""
        if self.script_computes():
            self.script_values.note(given)

    def reads_alone(self) -> bool:
        """Whether no other of the script's threads has read what needs all ranks and is still there."""
        here = threading.current_thread()
        before, self._reader = self._reader() or here, weakref.ref(here)
        return before is here or not before.is_alive()

    def in_transform(self) -> bool:
        """Inside `torch.func`: tensors are wrapped there, and cannot be sent."""
        return torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]

    def carries_tangents(self) -> bool:
        """Inside `torch.autograd.forward_ad`: tangents go along with tensors, and are not sent with them."""
        return torch.autograd.forward_ad._current_level >= 0

    def layout(self, dim: int, rows: int, *, outer: int = 1, inner: int = 1) -> Layout:
        return Layout(dim, rows, self.world_size, outer, inner)

    def fewest(self, rows: int) -> int:
        """Of a batch of so many rows, the fewest on which a model is called: a piece of the smallest part."""
        return max(rows // self.world_size // self.pieces, 1)

    @contextmanager
    def enter(self, region: Region, rows: int | None, *, batchless: bool = False) -> Iterator[None]:
        """Execute in another region."""
        before = self.main_region, self.rows, self.batchless
        self.main_region, self.rows, self.batchless = region, rows, batchless
        try:
            yield
        finally:
            self.main_region, self.rows, self.batchless = before

    @contextmanager
    def applying(self, function: str) -> Iterator[None]:
        """In the forward of a `torch.autograd.Function` that the script applies: on whole values."""
        before, self.function = self.function, function
        try:
            with self.enter(Region.REPLICATED, None):
                yield
        finally:
            self.function = before

    def note(self, sentence: str) -> None:
        """Remember a sentence for the user; each is said once."""
        self.notes.setdefault(sentence)

    def take_back(self, sentence: str) -> None:
        """A sentence that is said for nothing, as more is known now."""
        self.notes.pop(sentence, None)

    def note_instead(self, before: str, sentence: str) -> None:
        """Remember a sentence in the place of another, of which more is known now."""
        self.notes = {sentence if each == before else each: None for each in self.notes}


_contexts: weakref.WeakSet[Context] = weakref.WeakSet()


def _fall_out_of_step() -> None:
    """In a process that was forked, as workers that load samples: ranks meet in their own only."""
    for context in _contexts:
        context._thread = 0


os.register_at_fork(after_in_child=_fall_out_of_step)


def _in_backward() -> bool:
    """Whether this is the thread in which autograd works for a CUDA device, while the script's thread waits.

    Python has not started it; in one that it has started, the script would call backward by itself.
    """
    return torch._C._current_graph_task_id() != -1 and isinstance(
        threading.current_thread(), threading._DummyThread
    )
