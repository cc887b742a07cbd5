"""Tables of the plan keys that the cost model prices, or does not.

Every key is in one of the two.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["NOT_MODELLED", "PRICED"]

PRICED: Mapping[str, str] = {
    "data": "samples of a rank, sums of gradients",
    "tensor": "products cut by columns or rows, all-reduces of activations",
    "pipeline": "stages, bubble, micro-batches in flight, sends",
    "context": "tokens of a rank, exchange of keys and values",
    "context-attention": "a gather before attention, or a ring beside it, which sends keys again in backward",
    "expert": "experts of a rank and who shares them, two exchanges of tokens a layer each way",
    "state": "bytes of parameters, gradients and optimizer state; what is gathered and scattered",
    "servers": "bytes through the servers' network cards",
    "algorithm": "rings, trees, or sums on nodes before sums across them",
    "compressor": "bytes that travel, and passes to encode and decode",
    "error-feedback": "two more passes",
    "bucket-mb": "how many collectives, and their buffers",
    "update": "how often and with whom ranks exchange, and whether they wait",
    "every": "steps between exchanges",
    "peers": "two ranks or all",
    "precision": "peak of the device, bytes of values",
    "micro-batches": "sizes of products, activations, bubble",
    "sequence-parallel": "activations and element-wise work between cut matrices",
    "compile": "operations that the host starts; bytes that fused operations save are not counted",
    "recompute": "activations kept, forward computed again",
    "schedule": "bubble and micro-batches in flight",
}
"""Keys with a cost, and the priced effects."""

NOT_MODELLED: Mapping[str, str] = {
    "tensor-cuts": "the matrices are assumed to be cut that are cut without it",
    "density": "a thousandth is assumed",
    "threshold": "how many elements are above it depends on the gradients; two bits travel for each",
    "low-rank": "two columns are assumed",
    "reduction": "an addition for each element, beside its bytes",
    "predivide": "an addition for each element, beside its bytes",
    "warm-up": "the first steps are not the rest's",
    "sparse": "how many rows a step touches depends on the data",
    "offload": "the link to host memory is not a constant of a cluster file",
    "compressed": "a momentum has the bytes of a gradient",
    "adaptive": "k is found as the training goes; 8 is assumed",
    "staleness": "how ranks drift apart depends on noise",
    "optimizer-on": "the update's time is the same on either side",
    "rng": "draws take no time beside the rest",
    "batch-dim": "a layout, not an amount",
    "loading": "the loader's rate is a constant of the cluster file",
}
"""Keys without a cost, and the reason."""
