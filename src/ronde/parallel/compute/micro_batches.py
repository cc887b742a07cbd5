"""`micro-batches=k`: a model's rows in k pieces, with one piece's activations at a time.

The pieces are checkpoints: forward keeps only arguments and output of each, and backward recomputes the
pieces, last to first, each freed before the next. The last keeps its graph, because backward begins there.
The loss, and any other use of the output, sees all rows at once: there is nothing to rescale, and any loss is
right. The model draws for each piece what one device draws for its rows; but dropout inside of a kernel, as
in CUDA's attention, is drawn for each piece anew where `rng=per-rank` allows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ronde.errors import UsageError
from ronde.modules.sharded_call import ShardedCall
from ronde.parallel.compute.micro_batch_pieces import RunOn, given_to, in_pieces, joined, rows_of, run_on
from ronde.parallel.compute.replay import Replay
from ronde.rng.device_states import same_draws
from ronde.tensor.layout import Layout
from ronde.tensor.tree import leaves

__all__ = ["MicroBatches"]


class MicroBatches:
    """Executor of calls in micro-batches.

    Args:
        pieces: number of pieces of each rank's rows; at most as many as there are rows.
        again: callback whenever a piece has been recomputed.
        run: function that runs a piece.
    """

    def __init__(self, pieces: int, again: Callable[[], object] = lambda: None, run: RunOn = run_on) -> None:
        self._pieces = pieces
        self._run_on = run
        self._asked = f"micro-batches={pieces}"
        self._replay = Replay(self._asked, again)

    def __call__(self, call: ShardedCall) -> Any:
        if call.verdict.joint and call.cut.rows > call.cut.world_size:
            raise UsageError(
                "micro-batches cannot give the single-device answer for a model with batch norm: the "
                "statistics are those of the whole batch, and a piece has others; leave micro-batches out "
                "and take recompute=full, which saves memory too, or a norm that does not mix rows, such as "
                "GroupNorm [R380]"
            )
        cut = in_pieces(call, self._pieces)
        if cut.world_size < 2 or not self._divides(call):
            with call.drawing(call.cut):
                return self._run_on(call, list(leaves(call.given)))
        return self._in_pieces(call, cut)

    def _divides(self, call: ShardedCall) -> bool:
        """Return whether a call can run in pieces."""
        # A batch norm counts its calls, and refuses pieces by itself.
        if call.verdict.keeps and not call.verdict.joint:
            call.calls.notes.say(
                f"{type(call.module).__name__} runs in one piece, without {self._asked}: each of its calls "
                f"changes state ({call.verdict.keeps}), which several pieces would change several times "
                "[R313]"
            )
            return False
        if (kernel := call.drawn_in_kernels) and call.stream is None:
            call.calls.notes.say(
                f"{type(call.module).__name__} runs in one piece, without {self._asked}: {kernel} draws "
                "random numbers inside of its kernel, where they cannot be cut into rows; with rng=per-rank "
                "each piece draws its own [R313]"
            )
            return False
        # A single layer keeps only its argument, which a checkpoint would keep as well.
        return any(True for _ in call.module.children())

    def _in_pieces(self, call: ShardedCall, cut: Layout) -> Any:
        *before, last = range(cut.world_size)
        outputs: list[tuple[Any, ...]] = []
        for piece in before:
            # The next piece gets its rows of the same draws, if the draws have rows.
            cuts = bool(call.verdict.draws) and not call.drawn_in_kernels
            same = same_draws(on_device=call.context.comm.on_cuda, enabled=cuts)
            with same, call.drawing(rows_of(call, cut, piece)):
                outputs.append(self._first(call, given_to(call, cut, piece)))
        with call.drawing(rows_of(call, cut, last)):
            output = self._run_on(call, given_to(call, cut, last))
        outputs.append(tuple(leaves(output)))
        return joined(call, output, outputs, cut)

    def _first(self, call: ShardedCall, values: list[Any]) -> tuple[Any, ...]:
        """Return the leaves of the output of a piece before the last."""

        def run(*given: Any) -> tuple[Any, ...]:
            return tuple(leaves(self._run_on(call, given)))

        if not torch.is_grad_enabled():
            return run(*values)
        draws = bool(call.verdict.draws)
        return self._replay(call.module, run, values, draws=draws)
