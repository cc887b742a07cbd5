"""Bytes that a training stack keeps and sends for each parameter or value."""

from __future__ import annotations

import dataclasses

from ronde.plan import Plan
from ronde.plan.compute import Precision
from ronde.plan.mesh import ContextAttention
from ronde.planner.cluster import Cluster
from ronde.planner.graph import CostGraph, Kernels

__all__ = ["Software", "ronde_software", "software_of"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Software:
    """Constants of a training stack, in bytes for each parameter or value.

    Attributes:
        precision: the precision of compute.
        itemsize: bytes of an activation.
        parameter, gradient, optimizer: bytes kept for each parameter; a master copy counts to the optimizer.
        copy: bytes of a narrow copy of a weight that forward keeps for backward.
        wire_parameter, wire_gradient: bytes that travel for each parameter where it is gathered or summed.
        sequence_parallel: whether tensor parallelism divides the parts between products by the sequence too.
        fixed: bytes of workspaces on every rank.
        tied_copy: bytes for each number of a shared embedding on a last stage, beside its state.
        keeps_results: whether `recompute=selective` keeps results of products only (ronde); if not it drops
            attention's scores only (Megatron-LM).
        bucket: bytes of gradients that travel together.
        overlaps: whether sums of gradients run beside backward.
        pieces_again: whether micro-batches without a pipeline are computed again in backward, so that the
            script sees one output and one loss (ronde, decision 60).
        kernels: the way in which operations of a block start: each by itself (`eager`); one for all that lies
            between two products (`fused`); all of a stage at once, as a captured graph (`captured`).
        loop: operations of the training loop for each micro-batch on a stage, beside the model's own.
        stops_early: whether full recomputation ends with the last value that backward needs, before a block's
            last product and its all-reduce (torch's `use_reentrant=False`, which ronde takes).
        waits: whether the host waits for the device after each exchange between stages, and starts the loop's
            operations while the device has nothing to do (Megatron-LM's `p2p_communication`).
        context_attention: the plan's `context-attention`: one gather of keys and values before attention, or
            a ring beside it.
        gathers_keys_again: whether many gathered keys and values are given back after forward, and gathered
            for backward (ronde on CPUs).
        gathers_again: share of tensor parallelism's values, divided by tokens, that backward gathers once
            more and waits for; 0 where it does so beside a product.
        update_moves: bytes that an update reads and writes for each parameter; 0 for those of its state, its
            parameter and its gradient.
        fused_heads: number that the heads of all samples on a rank must be a multiple of for a fused softmax
            (Megatron-LM's `FusedScaleMaskSoftmax`: 4); 1 for any.
    """

    precision: Precision
    itemsize: float
    parameter: float
    gradient: float
    optimizer: float
    copy: float = 0.0
    wire_parameter: float
    wire_gradient: float
    sequence_parallel: bool = False
    fixed: float = 0.0
    tied_copy: float = 0.0
    keeps_results: bool = True
    bucket: float = 25 * 2.0**20
    overlaps: bool = True
    pieces_again: bool = False
    kernels: Kernels = "eager"
    loop: float = 0.0
    stops_early: bool = False
    waits: bool = False
    update_moves: float = 0.0
    context_attention: ContextAttention = "gather"
    gathers_keys_again: bool = False
    gathers_again: float = 0.0
    fused_heads: int = 1


def ronde_software(
    precision: Precision,
    slots: int,
    itemsize: int,
    bucket: float,
    *,
    kernels: Kernels = "eager",
    sequence_parallel: bool = False,
    context_attention: ContextAttention = "gather",
    gathers_keys_again: bool = False,
) -> Software:
    """Return ronde's own: parameters in the script's dtype, products under autocast.

    >>> ronde_software("bf16", 2, 4, 1e6).optimizer
    8.0
    """
    narrow = precision in ("bf16", "fp16") and itemsize > 2
    return Software(
        precision=precision,
        itemsize=2.0 if narrow else float(itemsize),
        parameter=float(itemsize),
        gradient=float(itemsize),
        optimizer=float(itemsize * slots),
        copy=2.0 if narrow else 0.0,
        wire_parameter=float(itemsize),
        wire_gradient=float(itemsize),
        bucket=bucket,
        pieces_again=True,
        stops_early=True,
        kernels=kernels,
        sequence_parallel=sequence_parallel,
        context_attention=context_attention,
        gathers_keys_again=gathers_keys_again,
        gathers_again=float(sequence_parallel),
    )


def software_of(plan: Plan, graph: CostGraph, cluster: Cluster) -> Software:
    """Return ronde's constants under a plan, for the optimizer and dtype of a graph."""
    compute, tokens = plan.compute, plan.mesh.sequence_parallel
    return ronde_software(
        compute.precision,
        graph.slots,
        graph.itemsize,
        float(plan.bucket_bytes),
        kernels="fused" if compute.compile and graph.kernels == "eager" else graph.kernels,
        context_attention=plan.mesh.context_attention,
        gathers_keys_again=cluster.backend == "gloo",
        # Values of a mebibyte and more are divided by default where NCCL sums them; a layer's are.
        sequence_parallel=tokens == "on" or (tokens == "auto" and cluster.backend == "nccl"),
    )
