"""Validation of plans under which ranks train by themselves and average parameters."""

from __future__ import annotations

from collections.abc import Iterator

from ronde.plan.contradiction import contradiction
from ronde.plan.values import Values

__all__ = ["among_ranks"]


def among_ranks(plan: Values, world_size: int | None) -> Iterator[str]:
    """Yield contradictions under updates by which ranks train by themselves."""
    rule, update = plan.update.rule, plan.item("update")
    if rule not in ("local", "decentralized", "async-average"):
        return
    if plan.compute.precision == "fp16":
        # Each rank would skip other steps, and results would be averaged.
        yield contradiction(update, "precision=fp16", f"{update},precision=bf16")
    if plan.state.sparse == "sharded":
        yield contradiction(update, plan.item("sparse"), f"{update},sparse=replicated")
    if plan.communication.error_feedback and plan.communication.compressor != "none":
        yield contradiction("error-feedback=true", update, f"{update},error-feedback=false")
    if rule == "decentralized":
        yield from _peers(plan, world_size)


def _peers(plan: Values, world_size: int | None) -> Iterator[str]:
    peers, compressor = plan.item("peers"), plan.communication.compressor
    if compressor == "int8" and plan.update.peers == "all":
        yield contradiction(peers, "compressor=int8", "peers=shift-one,compressor=int8")
    pairs = plan.update.peers == "shift-one"
    if pairs and plan.communication.algorithm != "auto":
        yield contradiction(plan.item("algorithm"), peers, f"{peers},algorithm=auto")
    if pairs and compressor == "none" and world_size is not None and world_size % 2 and world_size > 1:
        yield contradiction(
            peers, f"{world_size} ranks (an odd number)", f"{peers} on {world_size + 1} ranks"
        )
