"""The communication axis: how do bytes travel?"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from ronde.plan.key import Flag, Number, Spelled, check_fields, choice

__all__ = ["Algorithm", "Communication", "Compressed", "Compressor"]

Algorithm = Literal["auto", "ring", "tree", "hierarchical", "shared-memory"]
Compressor = Literal["none", "fp16", "bf16", "int8", "onebit", "twobit", "topk", "randomk", "powersgd"]
Compressed = Literal["gradient", "momentum"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Communication:
    """How gradients travel between ranks.

    Attributes:
        algorithm: of the all-reduce; `auto` leaves it to the backend (Gloo's and NCCL's own).
        compressor: what a message is encoded as. Every one but `none` loses something.
        compressed: what is encoded: the gradient, or the optimizer's momentum.
        error_feedback: add to the next message what encoding lost of this one.
        bucket_mb: gradients travel in buckets of about this many MiB, overlapped with backward; the first is
            no larger than 1. `auto` is 25, and 4 where gradients are cut: these take memory twice while they
            are sent.
    """

    algorithm: Annotated[Algorithm, Spelled("algorithm", choice(Algorithm))] = "auto"
    compressor: Annotated[Compressor, Spelled("compressor", choice(Compressor))] = "none"
    compressed: Annotated[Compressed, Spelled("compressed", choice(Compressed))] = "gradient"
    error_feedback: Annotated[bool, Spelled("error-feedback", Flag())] = False
    bucket_mb: Annotated[float | None, Spelled("bucket-mb", Number(open_word="auto"))] = None

    def __post_init__(self) -> None:
        check_fields(self)
