"""Tensors of one case on one rank, with values that show a wrong result.

Element i of rank r holds i mod 251 + r: small whole numbers, so that sums are exact in any order, with a
period that no chunk has, so that a misplaced one is noticed.
"""

from __future__ import annotations

import torch

from ronde.errors import BenchError

__all__ = ["Operand"]

_PERIOD = 251
_IN_PLACE = ("all-reduce", "broadcast")


class Operand:
    """The input and output of a rank; one tensor if in place.

    Args:
        elements: the size of the larger tensor; a multiple of the number of ranks.
        memory: the tensor for an operation in place; None to allocate one.
        mean: whether an all-reduce divides by the number of ranks.
        apart: whether an all-reduce puts its result into a second tensor.
    """

    def __init__(
        self,
        operation: str,
        elements: int,
        *,
        rank: int,
        ranks: int,
        memory: torch.Tensor | None = None,
        mean: bool = False,
        apart: bool = False,
    ) -> None:
        self._operation, self._rank, self._ranks, self._mean = operation, rank, ranks, mean
        self._part = elements // ranks
        given = self._part if operation == "all-gather" else elements
        self.given = torch.zeros(given) if memory is None else memory
        self.result = self.given
        if operation not in _IN_PLACE or (apart and operation == "all-reduce"):
            self.result = torch.zeros(self._part if operation == "reduce-scatter" else elements)

    def fill(self) -> None:
        """Write the input of this rank, and zeros into the rest."""
        self.clear()
        row = _row(0, 1.0, self._rank)
        body, end = _cut(self.given)
        body.copy_(row)
        end.copy_(row[: end.numel()])

    def clear(self) -> None:
        """Zero the output, so that sums of sums do not grow."""
        self.result.zero_()

    def check(self, root: int) -> None:
        """Compare the output after one call since `fill`; `root` has broadcast.

        Raises:
            BenchError: an element is wrong; the message has the first one.
        """
        for begin, part, row in self._expected(root):
            body, end = _cut(part)
            wrong = [
                *(body != row).any(1).nonzero().flatten().tolist()[:1],
                *([body.shape[0]] if not torch.equal(end, row[: end.numel()]) else []),
            ]
            if wrong:
                place = wrong[0] * _PERIOD
                found = part[place : place + _PERIOD]
                place += int((found != row[: found.numel()]).nonzero()[0])
                raise BenchError(
                    f"the result is wrong: element {begin + place} is {float(part[place])} where "
                    f"{float(row[place % _PERIOD])} is right; please report it to the authors of the library "
                    "[R854]"
                )

    def _expected(self, root: int) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
        """Return parts of the output: begin, tensor, and the row that repeats in it."""
        ranks, part = self._ranks, self._part
        sum_of_ranks = ranks * (ranks - 1) / 2
        if self._operation == "all-reduce":
            row = _row(0, ranks, sum_of_ranks)
            return [(0, self.result, row / ranks if self._mean else row)]
        if self._operation == "reduce-scatter":
            return [(0, self.result, _row(self._rank * part, ranks, sum_of_ranks))]
        if self._operation == "broadcast":
            return [(0, self.result, _row(0, 1.0, root))]
        offset = self._rank * part if self._operation == "all-to-all" else 0
        return [
            (each * part, self.result[each * part : (each + 1) * part], _row(offset, 1.0, each))
            for each in range(ranks)
            if part
        ]


def _row(offset: int, times: float, added: float) -> torch.Tensor:
    return (torch.arange(offset, offset + _PERIOD) % _PERIOD).float() * times + added


def _cut(flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return whole periods as rows, and the remainder."""
    whole = flat.numel() // _PERIOD * _PERIOD
    return flat[:whole].view(-1, _PERIOD), flat[whole:]
