"""Replacement of `byteps.torch`, with `CrossBarrier` in place of `DistributedOptimizer`."""

from byteps.torch import (
    Compression,
    broadcast_optimizer_state,
    broadcast_parameters,
    byteps_push_pull,
    init,
    local_rank,
    local_size,
    poll,
    rank,
    shutdown,
    size,
    synchronize,
)
from ronde.compat.byteps.cross_barrier import CrossBarrier
