"""What is known of the script's calls of modules, beside the calls themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ronde.rowwise.kept_sizes import KeptSizes
from ronde.tensor.context import Context
from ronde.trace.notes import Notes
from ronde.trace.tally import Tally
from ronde.trace.try_statements import INSTALLED, TryStatements

__all__ = ["Calls", "SmallBatches"]


class Calls:
    """One per session.

    Args:
        batch_dim: which dimension of a model's arguments is the batch, None where that is to be found.
        pieces: into how many pieces each rank's rows are cut, at most.

    Attributes:
        caches: caches of keys and values that models return are whole, or rows, on every rank.
        called: carries out each call of the script's that no other call is around, where it is set.
        heard: is given each module that the script, or a module in parts, has called, and its output.
        on_call: hears of each call of a module on a batch, while it is set.
        on_evaluation: hears of each call in shards without gradients.
        draws_nothing: the module that runs draws no random numbers, as far as is known.
        uncut: it has been said why modules were not cut.
        explained: it has been said of some module why it is not cut.
        beside: modules were called in another thread than the main one, where nothing is cut.
        tries: where the script's own modules catch exceptions.
        sizes: sizes of the batch that modules keep as attributes.
        in_functions: each `torch.autograd.Function` in whose forward modules were called, uncut.
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
        self.draws_nothing = False
        self.uncut = False
        self.explained = False
        self.beside = False
        self.tries = TryStatements(*torch.__path__, *INSTALLED)
        self.sizes = KeptSizes()
        self.in_functions: dict[str, None] = {}

    def fewest(self, rows: int) -> int:
        """Of a batch of so many rows, the fewest on which a model is called: a piece of the smallest part."""
        return max(rows // self.context.world_size // self.pieces, 1)


class SmallBatches:
    """Counts calls in training on fewer rows than there are ranks, which every rank computes whole.

    Of the calls that no other module's call is around; one per session.
    """

    def __init__(self) -> None:
        self._calls = self._small = 0

    def count(self, *, small: bool) -> None:
        self._calls += 1
        self._small += small

    def sentence(self, ranks: int) -> str:
        """What the user is told at the end where most of them were so; else empty."""
        if ranks == 1 or 2 * self._small <= self._calls:
            return ""
        return (
            f"{self._small} of {self._calls} calls of modules in training were on fewer rows than there are "
            f"ranks ({ranks}): every rank computed them whole, right but no faster; larger batches can be cut"
        )
