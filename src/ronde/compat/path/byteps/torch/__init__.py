"""The names of `byteps.torch`."""

from ronde.compat.byteps.operations import (
    DistributedOptimizer,
    declare,
    init,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
    resume,
    suspend,
)
from ronde.compat.byteps.operations import (
    push_pull_async_inplace as byteps_push_pull,
)
from ronde.compat.horovod.basics import local_rank, local_size, rank, shutdown, size
from ronde.compat.horovod.compression import Compression
from ronde.compat.horovod.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from ronde.compat.horovod.operations import poll, synchronize
