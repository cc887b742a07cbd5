"""The compute axis: precision, micro-batches, recomputation, schedule, compilation."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from ronde.plan.key import Flag, Integer, Spelled, check_fields, choice

__all__ = ["Compute", "Precision", "Recompute", "Schedule"]

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Recompute = Literal["none", "selective", "full"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Compute:
    """Execution of forward and backward; one device with the same values is the reference.

    Attributes:
        precision: `fp32` computes in the script's own dtypes.
        micro_batches: pieces into which a batch is cut, one after another.
        recompute: activations computed again in backward instead of kept.
        schedule: order of micro-batches through a pipeline; None leaves it to the pipeline.
        compile: pass the model through torch.compile.
    """

    precision: Annotated[Precision, Spelled("precision", choice(Precision))] = "fp32"
    micro_batches: Annotated[int, Spelled("micro-batches", Integer(at_least=1))] = 1
    recompute: Annotated[Recompute, Spelled("recompute", choice(Recompute))] = "none"
    schedule: Annotated[Schedule | None, Spelled("schedule", choice(Schedule))] = None
    compile: Annotated[bool, Spelled("compile", Flag())] = False

    def __post_init__(self) -> None:
        check_fields(self)
