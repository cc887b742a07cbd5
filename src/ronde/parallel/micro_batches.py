"""`micro-batches=k`: a model's rows in k pieces, one after another; one piece's activations live at a time.

The pieces are checkpoints: forward keeps of each its arguments and output only, and backward computes the
pieces again, last to first, each freed before the next. The last keeps its graph, because backward begins
there. The loss, and whatever else the script does with the output, sees all rows at once: there is nothing to
rescale, and any loss is right. The model draws for each piece what one device draws for its rows; but dropout
inside of a kernel, as CUDA's attention has it, is drawn for each piece anew where `rng=per-rank` allows it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ronde.errors import UsageError
from ronde.modules.sharded_call import ShardedCall, another_form, at_once
from ronde.parallel.replay import Replay
from ronde.tensor.layout import Layout, Part, laid, memory_order
from ronde.tensor.output_axis import OutputAxis
from ronde.tensor.tensor_class import alike, as_plain
from ronde.tensor.tree import leaves, map_leaves

__all__ = ["MicroBatches"]


class MicroBatches:
    """The way of carrying out calls under this plan.

    Args:
        pieces: into which each rank's rows are cut; at most as many as there are rows.
        again: told whenever a piece has been computed again.
    """

    def __init__(self, pieces: int, again: Callable[[], object] = lambda: None) -> None:
        self._pieces = pieces
        self._asked = f"micro-batches={pieces}"
        self._replay = Replay(self._asked, again)

    def __call__(self, call: ShardedCall) -> Any:
        if call.verdict.joint and call.cut.rows > call.cut.world_size:
            raise UsageError(
                "micro-batches cannot give the single-device answer for a model with batch norm: the "
                "statistics are those of the whole batch, and a piece has others; leave micro-batches out "
                "and take recompute=full, which saves memory too, or a norm that does not mix rows, such as "
                "GroupNorm"
            )
        start, stop = call.cut.bounds(call.context.rank)
        pieces = min(self._pieces, stop - start)
        if pieces < 2 or not self._divides(call):
            return at_once(call)
        return self._in_pieces(call, Layout(0, stop - start, pieces))

    def _divides(self, call: ShardedCall) -> bool:
        """Whether a call is to run in pieces, or has to run in one."""
        # A batch norm counts its calls, and refuses pieces by itself.
        if call.verdict.keeps and not call.verdict.joint:
            call.calls.notes.say(
                f"{type(call.module).__name__} runs in one piece, without {self._asked}: each of its calls "
                f"leaves something behind, which several pieces would do several times ({call.verdict.keeps})"
            )
            return False
        if (kernel := call.drawn_in_kernels) and call.stream is None:
            call.calls.notes.say(
                f"{type(call.module).__name__} runs in one piece, without {self._asked}: {kernel} draws "
                "inside of its kernel, of which no rows can be taken; with rng=per-rank each piece draws anew"
            )
            return False
        # Of a single layer nothing is kept but its argument, which would be kept all the same.
        return any(True for _ in call.module.children())

    def _in_pieces(self, call: ShardedCall, cut: Layout) -> Any:
        devices = [torch.cuda.current_device()] if call.context.comm.on_cuda else []
        *before, last = range(cut.world_size)
        outputs: list[tuple[Any, ...]] = []
        for piece in before:
            # The next one is given its rows of the same draws, where rows of them can be taken.
            cuts = bool(call.verdict.draws) and not call.drawn_in_kernels
            same = torch.random.fork_rng(devices, enabled=cuts)
            with same, call.drawing(_rows(call, cut, piece)):
                outputs.append(self._first(call, _values(call, cut, piece)))
        with call.drawing(_rows(call, cut, last)):
            output = _run(call, _values(call, cut, last))
        outputs.append(tuple(leaves(output)))
        return _joined(call, output, outputs, cut)

    def _first(self, call: ShardedCall, values: list[Any]) -> tuple[Any, ...]:
        """The leaves of the output of a piece before the last."""

        def run(*given: Any) -> tuple[Any, ...]:
            return tuple(leaves(_run(call, given)))

        if not torch.is_grad_enabled():
            return run(*values)
        draws = bool(call.verdict.draws)
        return self._replay(call.module, run, values, draws=draws)


def _run(call: ShardedCall, values: Sequence[Any]) -> Any:
    remaining = iter(values)
    args, kwargs = map_leaves(lambda _: next(remaining), call.given, always=True)
    return call.run(args, kwargs)


def _rows(call: ShardedCall, cut: Layout, piece: int) -> Part:
    """Which rows of the whole batch are at hand."""
    whole = call.cut
    first, _ = whole.bounds(call.context.rank)
    start, stop = cut.bounds(piece)
    return Part(whole.dim, whole.rows, whole.world_size, start=first + start, stop=first + stop)


def _values(call: ShardedCall, cut: Layout, piece: int) -> list[Any]:
    """The leaves of the arguments, of a batch those rows that belong to this piece."""
    known: dict[int, Any] = {}
    values: list[Any] = []
    for value, axis in zip(leaves(call.given), call.verdict.inputs, strict=True):
        if axis is None:
            values.append(value)
            continue
        if id(value) not in known:
            layout = dataclasses.replace(cut, dim=axis, inner=call.batch.inner)
            with as_plain(value):
                rows = layout.take(value, piece)
                # Other axes than the first have gaps in memory, where the model may ask for a view.
                rows = rows if axis == 0 else rows.clone()
            known[id(value)] = alike(rows, value)
        values.append(known[id(value)])
    return values


def _joined(call: ShardedCall, form: Any, outputs: list[tuple[Any, ...]], cut: Layout) -> Any:
    """The model's output for all rows; `form` is that for one piece."""
    expected = call.verdict.outputs
    if any(len(output) != len(expected) for output in outputs):
        raise another_form(call.module)
    columns = zip(*outputs, strict=True)
    whole = iter([_whole(call, axis, parts, cut) for axis, parts in zip(expected, columns, strict=True)])
    return map_leaves(lambda _: next(whole), form, always=True)


def _whole(call: ShardedCall, axis: OutputAxis, parts: tuple[Any, ...], cut: Layout) -> Any:
    if axis.dim is None:
        return parts[-1]  # the same for every piece
    if any(not isinstance(part, torch.Tensor) or part.dim() != axis.dims for part in parts):
        raise another_form(call.module)
    rows = cut.count(cut.world_size - 1)
    # It lies in memory as a piece of several rows does: what the script draws for it runs through memory.
    order = axis.order if rows == 1 else memory_order(parts[-1])
    layout = axis.layout(parts[-1].shape, cut, rows).at(order.index(axis.dim))
    with as_plain(parts[-1]):
        whole = layout.assemble([laid(part, order).permute(order) for part in parts])
        whole = whole.permute([order.index(dim) for dim in range(whole.dim())])
    return alike(whole, parts[-1])
