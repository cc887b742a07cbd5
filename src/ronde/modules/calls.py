"""State that all calls of modules by the script share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ronde.rowwise.kept_sizes import KeptSizes
from ronde.tensor.context import Context
from ronde.trace.counters import Tally
from ronde.trace.notes import Notes
from ronde.trace.try_statements import INSTALLED, TryStatements

__all__ = ["Calls", "SmallBatches"]


class Calls:
    """State of module calls; one per session.

    Args:
        batch_dim: dimension of a model's arguments that is the batch, None to search for it.
        pieces: largest number of pieces into which each rank's rows are cut.

    Attributes:
        caches: whether caches of keys and values that models return are whole, or rows, on every rank.
        called: runs each outermost call of the script, where it is set.
        heard: callback for each module that the script, or a module in parts, has called, with its output.
        on_call: callback for each call of a module on a batch, while it is set.
        on_evaluation: callback for each call in shards without gradients.
        must_see: predicate for modules to observe, though calls of others like them are known.
        draws_nothing: whether the running module draws no random numbers, as far as is known.
        uncut: whether a note has been given on why modules were not cut.
        explained: whether a note has explained why some module is not cut.
        beside: whether modules were called outside of the main thread, where nothing is cut.
        tries: `try` statements of the script's own modules.
        sizes: sizes of the batch that modules keep as attributes.
        in_functions: each `torch.autograd.Function` that calls modules in forward, uncut.
    """

    def __init__(
        self, context: Context, notes: Notes, tally: Tally, *, batch_dim: int | None = None, pieces: int = 1
    ) -> None:
        self.context = context
        self.notes = notes
        self.tally = tally
        self.batch_dim = batch_dim
        self.pieces = pieces
        self.caches = True
        self.called: Callable[..., Any] | None = None
        self.heard: Callable[[torch.nn.Module, Any], None] | None = None
        self.on_call: Callable[[torch.nn.Module], None] | None = None
        self.on_evaluation: Callable[[], None] = lambda: None
        self.must_see: Callable[[torch.nn.Module], bool] = lambda module: False
        self.draws_nothing = False
        self.uncut = False
        self.explained = False
        self.beside = False
        self.tries = TryStatements(*torch.__path__, *INSTALLED)
        self.sizes = KeptSizes()
        self.in_functions: dict[str, None] = {}

    def fewest(self, rows: int) -> int:
        """Return the fewest of `rows` rows that a rank's model gets at once.

        That is the smallest piece of the smallest rank's part.
        """
        return max(rows // self.context.world_size // self.pieces, 1)


class SmallBatches:
    """Counts training calls on fewer rows than ranks, computed whole on every rank.

    Only outermost calls count; one per session.
    """

    def __init__(self) -> None:
        self._calls = self._small = 0

    def count(self, *, small: bool) -> None:
        self._calls += 1
        self._small += small

    def sentence(self, ranks: int) -> str:
        """Return a note if most calls had too few rows, else "".

        It is given at the end of the run.
        """
        if ranks == 1 or 2 * self._small <= self._calls:
            return ""
        return (
            f"{self._small} of {self._calls} calls of modules in training were on fewer rows than there are "
            f"ranks ({ranks}): every rank computed them whole, right but no faster; larger batches can be "
            "cut [R303]"
        )
