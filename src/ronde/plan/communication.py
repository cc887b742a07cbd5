"""The communication axis: how are gradients sent?"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from ronde.plan.key import Flag, Integer, Number, Spelled, check_fields, choice

__all__ = ["Algorithm", "Communication", "Compressed", "Compressor", "Reduction"]

Algorithm = Literal["auto", "ring", "tree", "hierarchical", "shared-memory"]
Compressor = Literal["none", "fp16", "bf16", "int8", "onebit", "twobit", "topk", "randomk", "powersgd"]
Compressed = Literal["gradient", "momentum"]
Reduction = Literal["mean", "sum", "adasum"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Communication:
    """Communication of gradients between ranks.

    Attributes:
        algorithm: all-reduce algorithm; `auto` leaves it to the backend (Gloo's and NCCL's own).
        compressor: encoding of messages. Every one but `none` loses something.
        compressed: the value that is encoded: the gradient, or the optimizer's momentum.
        error_feedback: add the encoding error of a message to the next one.
        density: share of the elements that `topk` and `randomk` send; 0.001 by default.
        threshold: threshold of `twobit`, as in MXNet; by default the levels of each tensor that lose least.
        low_rank: columns of the factors of `powersgd`; 2 by default.
        reduction: combination of all ranks' gradients. `mean` equals one device's gradient; `sum` is that
            times the number of ranks, `adasum` something between the two.
        predivide: divisor of gradients before ranks sum; the sum is divided by the remaining factor of the
            number of ranks.
        bucket_mb: gradients travel in buckets of about this many MiB, overlapped with backward; the first is
            no larger than 1. `auto` is 25, and 4 where gradients are cut: these take memory twice while they
            are sent.
    """

    algorithm: Annotated[Algorithm, Spelled("algorithm", choice(Algorithm))] = "auto"
    compressor: Annotated[Compressor, Spelled("compressor", choice(Compressor))] = "none"
    compressed: Annotated[Compressed, Spelled("compressed", choice(Compressed))] = "gradient"
    error_feedback: Annotated[bool, Spelled("error-feedback", Flag())] = False
    density: Annotated[float | None, Spelled("density", Number())] = None
    threshold: Annotated[float | None, Spelled("threshold", Number())] = None
    low_rank: Annotated[int | None, Spelled("low-rank", Integer(at_least=1))] = None
    reduction: Annotated[Reduction, Spelled("reduction", choice(Reduction))] = "mean"
    predivide: Annotated[float | None, Spelled("predivide", Number())] = None
    bucket_mb: Annotated[float | None, Spelled("bucket-mb", Number(open_word="auto"))] = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def as_it_is(self) -> bool:
        """Return whether gradients are sent uncompressed, as a mean with one division."""
        return self.compressor == "none" and self.reduction == "mean" and self.predivide is None
