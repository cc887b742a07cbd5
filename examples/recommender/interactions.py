"""What both data sets are to a model: numbers, ids and a click for each sample, in the order of time."""

from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import TensorDataset


class Interactions(NamedTuple):
    """`dense` is [samples, numbers], `ids` int64 [samples, fields], `clicked` [samples] of 0 and 1."""

    dense: torch.Tensor
    ids: torch.Tensor
    clicked: torch.Tensor
    crosses: list[tuple[int, int]]  # pairs of fields whose pairs of ids are worth remembering

    def split(self, validate=False, tested=0.1):
        """What there is to learn from, and the samples after it, to be tested on: a share of all.

        They are the last ones. To validate, they are the last before those: settings are chosen by them.
        """
        tensors = (self.dense, self.ids, self.clicked)
        ends = [round(len(self.clicked) * (1 - share * tested)) for share in (2, 1, 0)]
        first, last = ends[:2] if validate else ends[1:]
        return TensorDataset(*(t[:first] for t in tensors)), TensorDataset(*(t[first:last] for t in tensors))


def hashed(field, values):
    """An id for each (field, value): 64 bits of a hash, so that all fields may share a table."""
    mixed = np.asarray(values).astype(np.uint64) + np.uint64(field << 40)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(factor)
    return (mixed ^ (mixed >> np.uint64(33))).view(np.int64)


def tensors(dense, ids, clicked, crosses):
    """Interactions in torch's default precision, of arrays of numpy."""
    floats = torch.get_default_dtype()
    return Interactions(
        torch.as_tensor(dense).to(floats), torch.as_tensor(ids), torch.as_tensor(clicked).to(floats), crosses
    )
