"""The mesh axis: degrees by which the work is cut."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from ronde.plan.cuts import Cuts
from ronde.plan.key import Integer, Spelled, check_fields, choice

__all__ = ["ContextAttention", "Mesh", "SequenceParallel"]

ContextAttention = Literal["auto", "gather", "ring"]
SequenceParallel = Literal["auto", "on", "off"]
_DEGREE = Integer(at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """Degrees of the mesh. Their product, without `expert`, is the number of ranks.

    Attributes:
        data: copies of the model, each with its share of the batch; None takes the ranks that
            the other degrees leave.
        tensor: cuts of each layer's matrices.
        pipeline: consecutive stages of layers.
        context: cuts of the sequence.
        expert: groups of experts; cuts the ranks of `data` and `context` rather than adding to them.
        cuts: dimensions that `tensor` cuts, by patterns of parameter names; None leaves all to the recognised
            structure of the model.
        context_attention: attention across ranks of a sequence: keys are gathered, or visited one rank's at a
            time (ring); `auto` takes the one that needs less memory.
        sequence_parallel: whether ranks of a tensor group have some tokens each between cut matrices; `auto`
            where values are large, on CUDA devices.
    """

    data: Annotated[int | None, Spelled("data", Integer(at_least=1, open_word="auto"))] = None
    tensor: Annotated[int, Spelled("tensor", _DEGREE)] = 1
    pipeline: Annotated[int, Spelled("pipeline", _DEGREE)] = 1
    context: Annotated[int, Spelled("context", _DEGREE)] = 1
    expert: Annotated[int, Spelled("expert", _DEGREE)] = 1
    cuts: Annotated[str | None, Spelled("tensor-cuts", Cuts())] = None
    context_attention: Annotated[ContextAttention, Spelled("context-attention", choice(ContextAttention))] = (
        "auto"
    )
    sequence_parallel: Annotated[SequenceParallel, Spelled("sequence-parallel", choice(SequenceParallel))] = (
        "auto"
    )

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def model_ranks(self) -> int:
        """Number of ranks that together hold one copy of the model."""
        return self.tensor * self.pipeline * self.context

    @property
    def cuts_models(self) -> str | None:
        """Return the first key that cuts models, or the sequences given to them."""
        return next(
            (key for key in ("tensor", "pipeline", "context", "expert") if getattr(self, key) > 1), None
        )
