"""Twelve faults for the ranks of a run; `ronde verify` must catch each.

It must name the right clause. Each is an extension, `support.faults:NAME`, loaded before the recorder.
They are the mistakes that distributed training is known for; see FAULTS for the clause of each.
"""

from __future__ import annotations

import dataclasses
import gc
from types import SimpleNamespace
from typing import Any

import torch

from ronde.batches.loader import LoaderEdge
from ronde.modules import batch_norm, sharded_call
from ronde.patching.patches import Patches
from ronde.rng.draws import SlicedDraws
from ronde.runtime import backward
from ronde.runtime.session import Session
from ronde.shards.hooked_step import replace_step
from ronde.sync.bucket import Bucket
from ronde.tensor import layout
from ronde.tensor.deferred import defer
from ronde.tensor.rules import losses

__all__ = ["FAULTS", "Fault", "after_reduction", "replace"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        name: the function of this module that installs it.
        clause: the clause of the law that must be reported as broken.
        holding: clauses that the fault does not touch.
        mention: words that the report of the first divergence must have.
        module: module of the function.
    """

    name: str
    clause: str
    holding: tuple[str, ...] = ()
    mention: str = ""
    module: str = __name__

    @property
    def extension(self) -> str:
        return f"{self.module}:{self.name}"


FAULTS = (
    Fault(name="gradient_not_reduced", clause="L2", holding=("L1", "L6"), mention="step 1"),
    Fault(name="mean_instead_of_sum", clause="L2", holding=("L1", "L6"), mention="step 1"),
    Fault(name="batch_doubled", clause="L1", holding=("L6",), mention="batch 3"),
    Fault(name="rank_one_batch_behind", clause="L1", holding=("L6",), mention="batch 2"),
    Fault(name="local_batch_norm", clause="L2", holding=("L1", "L6"), mention="step 1"),
    Fault(name="local_clip_norm", clause="L3", holding=("L1", "L6"), mention="clip_grad_norm_"),
    Fault(name="local_item", clause="L3", holding=("L1", "L2", "L4", "L6"), mention="item"),
    Fault(name="wrong_slice_order", clause="L1", holding=("L6",), mention="batch 2"),
    Fault(name="dropout_masks_alike", clause="L2", holding=("L1", "L6"), mention="step"),
    Fault(
        name="file_written_twice", clause="L5", holding=("L1", "L2", "L3", "L4", "L6"), mention="ranks 0, 1"
    ),
    Fault(name="tied_weight_halved", clause="L2", holding=("L1", "L6"), mention="step 1"),
    Fault(name="step_skipped", clause="L2", holding=("L1",), mention="rank 1, step 3"),
)


def gradient_not_reduced(session: Session) -> None:
    """Keep this rank's own gradient of one parameter in every bucket."""
    deliver = Bucket.deliver

    def deliver_all_but_one(bucket: Bucket) -> list[torch.Tensor]:
        last = bucket.tensors[-1]
        own = None if last.grad is None else last.grad.clone()
        given = deliver(bucket)
        if own is not None and last.grad is not None:
            last.grad.copy_(own)
        return given

    replace(Bucket, "deliver", deliver_all_but_one)


def mean_instead_of_sum(session: Session) -> None:
    """Average the gradients of ranks' rows, where they should be summed."""
    after_reduction(lambda parameter: parameter.grad.div_(session.config.place.world_size))


def batch_doubled(session: Session) -> None:
    """Repeat the second batch in place of the third."""
    _replace_index_batch(lambda number, previous, index: previous if number == 3 else index)


def rank_one_batch_behind(session: Session) -> None:
    """Let rank 1 load its rows from the batch before."""
    if session.config.place.rank == 1:
        _replace_index_batch(lambda number, previous, index: previous)


def local_batch_norm(session: Session) -> None:
    """Take statistics of this rank's rows only, as torch's own layer does."""
    global_batch_norm = batch_norm._global_batch_norm
    comm = SimpleNamespace(all_gather=lambda own: own[None], all_reduce=lambda own: own)
    alone: Any = SimpleNamespace(comm=comm)
    replace(batch_norm, "_global_batch_norm", lambda context, *rest: global_batch_norm(alone, *rest))


def local_clip_norm(session: Session) -> None:
    """Clip gradients by the norm of this rank's own, before reduction."""
    launch = Bucket.launch
    squares: dict[int, float] = {}

    def launch_and_measure(bucket: Bucket) -> None:
        for parameter in bucket.tensors:
            if parameter.grad is not None:
                squares[id(parameter)] = float(parameter.grad.detach().square().sum())
        launch(bucket)

    def clip_grad_norm_(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> torch.Tensor:
        clipped = list(parameters)
        norm = sum(squares[id(parameter)] for parameter in clipped) ** 0.5
        for parameter in clipped:
            parameter.grad.mul_(min(1.0, max_norm / (norm + 1e-6)))
        return torch.tensor(norm)

    replace(Bucket, "launch", launch_and_measure)
    replace(torch.nn.utils, "clip_grad_norm_", clip_grad_norm_)


def local_item(session: Session) -> None:
    """Read a loss as that of this rank's rows, with right gradients."""
    sum_ranks = losses.sum_ranks_deferred

    def locally_valued(*args: Any, **kwargs: Any) -> Any:
        deferred = sum_ranks(*args, **kwargs)
        return defer(deferred._context, deferred._stand_in, lambda: deferred._stand_in)

    replace(losses, "sum_ranks_deferred", locally_valued)
    # If the script has threads, ranks compare losses and would end the run here; `ronde verify` must find the
    # fault without that.
    replace(backward, "compare_losses", lambda *_: None)


def wrong_slice_order(session: Session) -> None:
    """Take ranks' rows from a batch's end, but join them from the start."""
    even_part = layout.even_part
    replace(layout, "even_part", lambda rows, size, rank: even_part(rows, size, size - 1 - rank))


def dropout_masks_alike(session: Session) -> None:
    """Give every rank the first rank's rows of draws in the model."""
    # Only in later calls, because the observed call draws in another way.
    replace(sharded_call, "SlicedDraws", lambda draws, rows, rank: SlicedDraws(draws, rows, 0))


def file_written_twice(session: Session) -> None:
    """Let every rank write the script's files."""
    session.files.uninstall()


def tied_weight_halved(session: Session) -> None:
    """Halve the gradient of a parameter that two modules share."""

    def halve(parameter: torch.Tensor) -> None:
        if _is_tied(parameter):
            parameter.grad.div_(2)  # pyright: ignore[reportOptionalMemberAccess]

    after_reduction(halve)


def step_skipped(session: Session) -> None:
    """Let rank 1 leave out the third step of SGD."""
    if session.config.place.rank != 1:
        return
    taken = 0

    def around(step: Any) -> Any:
        def skipping(optimizer: Any, closure: Any = None) -> Any:
            nonlocal taken
            taken += 1
            return None if taken == 3 else step(optimizer, closure)

        return skipping

    replace_step(Patches(), torch.optim.SGD, around)


def replace(owner: Any, name: str, replacement: Any) -> None:
    """Patch without undo; the process exists only for this fault."""
    Patches().set(owner, name, replacement)


def after_reduction(change: Any) -> None:
    """Call `change` with every parameter with a gradient, after its bucket's reduction."""
    deliver = Bucket.deliver

    def deliver_and_change(bucket: Bucket) -> list[torch.Tensor]:
        given = deliver(bucket)
        with torch.no_grad():
            for parameter in bucket.tensors:
                if parameter.grad is not None:
                    change(parameter)
        return given

    replace(Bucket, "deliver", deliver_and_change)


def _replace_index_batch(choose: Any) -> None:
    """Let `choose(number, previous, index)` say which index batch is loaded."""
    cut = LoaderEdge._cut
    number = 0
    previous: Any = None

    def replaced(edge: LoaderEdge, iterator: Any, index: Any) -> Any:
        nonlocal number, previous
        number += 1
        chosen = index if previous is None or len(previous) != len(index) else choose(number, previous, index)
        previous = index
        return cut(edge, iterator, chosen)

    replace(LoaderEdge, "_cut", replaced)


def _is_tied(parameter: torch.Tensor) -> bool:
    owners = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
    return sum(parameter is value for owner in owners for value in owner._parameters.values()) > 1
