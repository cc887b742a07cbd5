"""Whether a model may be cut: what an observed call found out, and the reasons why it must not be.

`observe` carries a call out and finds it; `observer` and `repeat` look at each operation for that.
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

# The path of a module, the name of its attribute, and how many times the number of rows each number in it is.
Attribute = tuple[str, str, tuple[int, ...]]

MIXES = "rows of its output depend on other rows, or on their number"
COUNTS = "what it does depends on how many rows there are"
HOST_READ = "its forward reads a value of the batch on the host"
CATCHES = "its forward catches what an operation raises (try)"
BACKWARD = "its forward runs backward"
NO_AXIS = "its output has no batch axis"


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a module may run on this rank's rows.

    Attributes:
        sharded: it may.
        reason: why not, as the end of a sentence; empty when it may.
        inputs: the batch axis of every leaf of the arguments, in order.
        outputs: the axis of every leaf of the output, in order.
        draws: the random operations on rows, in order.
        same_as: for every leaf of the output, which leaf of the arguments it is itself, or None.
        foreign: it uses leaves with a gradient that are no parameters of its own.
        candidate: which of the places where the batch could lie this is about.
        raised: what the module raised on this rank's rows, without its traceback.
        joint: it normalizes by statistics of the whole batch, for which ranks meet inside it.
        batchless: it normalizes, but nothing with rows of the batch (its weights, say).
        keeps: something on itself or beside it that each call changes, the same way for whatever rows.
        sizes: attributes that it has set to sizes of the batch.
        apart: its outputs are rows of the batch, be it cut or not.
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
    """The module must not be cut; the message is the reason, as the end of a sentence.

    A `BaseException`, so that no `except Exception` of the model's goes on with one rank's rows.
    """


def meet(name: str) -> str:
    """That an operation makes something of several rows."""
    return f"{MIXES} ({name})"
