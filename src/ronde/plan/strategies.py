"""Names of strategies that carry out plans; `ronde.strategies` has a class for each."""

from __future__ import annotations

from typing import Literal

from ronde.plan.plan import Plan

__all__ = ["WORK", "StrategyName", "strategies_of"]

StrategyName = Literal["servers", "rows", "zero", "context", "tensor", "pipeline", "expert"]

WORK: dict[StrategyName, str] = {
    "servers": "gradients go to parameter servers, which sum them, or step optimizers",
    "rows": "rows of sparse embeddings are spread over ranks, and looked up where they are",
    "zero": "shards of optimizer state, gradients or parameters, as `state` and `offload` say",
    "context": "sequences are cut inside of calls of models",
    "tensor": "matrices are blocks inside of calls of models, with the shards of `state` within blocks",
    "pipeline": "a rank carries out its stage, with blocks, experts and shards of `state` within it",
    "expert": "tokens go to the ranks of their experts, with the shards of `state` within these",
}
"""By strategy its work on a model."""


def strategies_of(plan: Plan, ranks: int) -> tuple[StrategyName, ...]:
    """Return the strategies on `ranks` ranks, outermost around a call first; may be empty."""
    mesh = plan.for_ranks(ranks).mesh
    sequences: tuple[StrategyName, ...] = ("context",) if mesh.context > 1 else ()
    if mesh.pipeline > 1:
        return ("pipeline", *sequences)
    if mesh.expert > 1:
        return ("expert", *sequences)
    if mesh.tensor > 1:
        return ("tensor", *sequences)
    # A rank that trains by itself has its state whole.
    return (*(() if plan.in_local_view else _of_state(plan, (mesh.data or 1) * mesh.context)), *sequences)


def _of_state(plan: Plan, ranks: int) -> tuple[StrategyName, ...]:
    if plan.state.placement == "server":
        return ("servers",)
    if plan.state.on(ranks).cuts_optimizer:
        return ("zero",)
    return ("rows",) if _spreads_rows(plan, ranks) else ()


def _spreads_rows(plan: Plan, ranks: int) -> bool:
    """Return whether rows of torch's sparse embeddings are spread over ranks.

    They are not spread for a compiled model, which bypasses look-ups of rows, with a float16 loss scale,
    which needs whole gradients, and for a cut model, whose optimizer steps on blocks.
    """
    compute = plan.compute
    plain = compute.precision != "fp16" and not compute.compile
    return plan.state.sparse == "sharded" and ranks > 1 and plain and plan.mesh.cuts_models is None
