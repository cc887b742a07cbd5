"""The verdict of an observed call: whether its module may run on shards.

`observe` runs the call; `observer` and `repeat` analyse its operations.
"""

from __future__ import annotations

import dataclasses

from ronde.rng.draws import Draw
from ronde.tensor.output_axis import OutputAxis

__all__ = [
    "BACKWARD",
    "CATCHES",
    "COUNTS",
    "HOST_READ",
    "MIXES",
    "NO_AXIS",
    "Attribute",
    "MixesRows",
    "Verdict",
    "meet",
]

# Path of a module, name of its attribute, and the multiples of the number of rows in it.
Attribute = tuple[str, str, tuple[int, ...]]

MIXES = "rows of its output depend on other rows, or on their number [R330]"
COUNTS = "it depends on the number of rows [R332]"
HOST_READ = "its forward reads a value of the batch on the host [R335]"
CATCHES = "its forward catches exceptions of operations (try) [R336]"
BACKWARD = "its forward runs backward [R339]"
NO_AXIS = "its output has no batch axis [R331]"


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """The result of an observation: whether a module may run on this rank's rows.

    Attributes:
        sharded: whether it may.
        reason: reason against it, as the end of a sentence; "" if it may.
        inputs: batch axis of every leaf of the arguments, in order.
        outputs: batch axis of every leaf of the output, in order.
        draws: random operations on rows, in order.
        same_as: index of the identical argument leaf, or None, for every leaf of the output.
        foreign: whether it uses leaves with a gradient other than its own parameters.
        candidate: index of the possible batch placement that this is about.
        raised: exception of the module on this rank's rows, without its traceback.
        joint: whether it normalizes by statistics of the whole batch, a collective.
        batchless: whether it normalizes only tensors without rows, such as weights.
        keeps: name of state that each call changes, independent of the rows; "" for none.
        sizes: attributes that it has set to batch sizes.
        apart: whether its outputs are rows of the batch, even if it must not be sharded.
    """

    sharded: bool
    reason: str = ""
    inputs: tuple[int | None, ...] = ()
    outputs: tuple[OutputAxis, ...] = ()
    draws: tuple[Draw, ...] = ()
    same_as: tuple[int | None, ...] = ()
    foreign: bool = False
    candidate: int = 0
    raised: Exception | None = None
    joint: bool = False
    batchless: bool = False
    keeps: str = ""
    sizes: tuple[Attribute, ...] = ()
    apart: bool = False


class MixesRows(BaseException):
    """Raised when the module must not run on shards. The message is the reason, as the end of a sentence.

    It is a `BaseException`, so that an `except Exception` of the model cannot continue with one rank's rows.
    """


def meet(name: str) -> str:
    """Return the reason that an operation mixes rows."""
    return f"{MIXES} ({name})"
