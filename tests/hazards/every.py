"""Every hazard by room and name."""

from __future__ import annotations

from hazards import (
    arguments,
    around,
    backward,
    beside,
    books,
    hooks,
    inference,
    kept,
    lengths,
    loading,
    numbers,
    outputs,
    outside,
    randomness,
    rows,
    second_axis,
    sizes,
    unasked,
    unnamed,
)
from hazards.harness import Hazard

__all__ = ["HAZARDS"]

HAZARDS: dict[str, dict[str, Hazard]] = {
    "rows": rows.HAZARDS,
    "second axis": second_axis.HAZARDS,
    "kept": kept.HAZARDS,
    "arguments": arguments.HAZARDS,
    "around": around.HAZARDS,
    "hooks": hooks.HAZARDS,
    "inference": inference.HAZARDS,
    "backward": backward.HAZARDS,
    "numbers": numbers.HAZARDS,
    "outputs": outputs.HAZARDS,
    "outside": outside.HAZARDS,
    "randomness": randomness.HAZARDS,
    "loading": loading.HAZARDS,
    "unasked": unasked.HAZARDS,
    "beside": beside.HAZARDS,
    "books": books.HAZARDS,
    "lengths": lengths.HAZARDS,
    "sizes": sizes.HAZARDS,
    "unnamed": unnamed.HAZARDS,
}
