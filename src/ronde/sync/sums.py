"""Sums over ranks of gradients, dense or sparse."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from ronde.comm.process_group import Comm
from ronde.sync.sparse_rows import sum_of_rows

__all__ = ["GradientForm", "sums_over_ranks"]


@dataclasses.dataclass(frozen=True, slots=True)
class GradientForm:
    """Form of a gradient, known also where a rank has computed none."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> GradientForm:
        """Return the form of this tensor's gradient."""
        return cls(tensor.shape, tensor.dtype, tensor.device)

    def zeros(self, layout: torch.layout = torch.strided) -> torch.Tensor:
        """Create a gradient of zeros; a sparse one has no rows."""
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device, layout=layout)


def sums_over_ranks(
    comm: Comm, gradients: Sequence[torch.Tensor | None], forms: Sequence[GradientForm]
) -> list[torch.Tensor | None]:
    """Sum each gradient over the ranks; None where no rank has one. A collective.

    Sums have memory of their own. A sum is sparse if every rank's gradient is sparse or missing.
    """
    known = [each is not None for each in gradients]
    dense = [each is not None and each.layout is torch.strided for each in gradients]
    counts = comm.votes([*known, *dense])
    sums: list[torch.Tensor | None] = []
    for gradient, form, count, denses in zip(
        gradients, forms, counts[: len(known)], counts[len(known) :], strict=True
    ):
        if not count:
            sums.append(None)
        elif denses:
            mine = form.zeros()
            if gradient is not None:
                mine += gradient
            sums.append(comm.all_reduce(mine))
        else:
            mine = form.zeros(torch.sparse_coo) if gradient is None else gradient
            sums.append(sum_of_rows(comm, mine.coalesce()))
    return sums
