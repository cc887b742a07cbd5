"""Keys and values of other ranks under `context`: gathered, gathered again, or sent around."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ronde.planner.candidates import Candidates
from ronde.planner.graph import Attention
from ronde.planner.software import Software

__all__ = ["gathered_again", "gathered_bytes", "goes_round"]

Floats = NDArray[np.float64]

# Under `auto` few ranks gather, and so do any for few bytes, which they keep (`parallel/context/rules.py`).
_FEW = 3
_LITTLE = 1 << 20


def goes_round(
    attention: Attention, candidates: Candidates, software: Software, samples: Floats
) -> NDArray[np.bool_]:
    """Return whether keys and values travel around a ring, by candidate.

    Args:
        samples: samples of a micro-batch on a rank.
    """
    if software.context_attention != "auto":
        return np.full(len(candidates), software.context_attention == "ring")
    much = attention.keys * samples * software.itemsize >= _LITTLE
    return much & (candidates.context > _FEW)


def gathered_bytes(
    attention: Attention, candidates: Candidates, software: Software, samples: Floats
) -> Floats:
    """Return the bytes of keys and values that a rank gathers."""
    heads = candidates.tensor if attention.divided else 1
    gathers = (candidates.context > 1) & ~goes_round(attention, candidates, software, samples)
    return np.where(gathers, attention.keys * samples * software.itemsize / heads, 0.0)


def gathered_again(attention: Attention, software: Software, samples: Floats) -> NDArray[np.bool_]:
    """Return whether they are given back after forward, and gathered for backward."""
    much = attention.keys * samples * software.itemsize >= _LITTLE
    return much & software.gathers_keys_again
