"""The names of `byteps.torch`."""

from ronde.compat.byteps.basics import init, local_rank, local_size, rank, resume, shutdown, size, suspend
from ronde.compat.byteps.operations import (
    DistributedOptimizer,
    broadcast_optimizer_state,
    broadcast_parameters,
    declare,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
)
from ronde.compat.byteps.operations import (
    push_pull_async_inplace as byteps_push_pull,
)
from ronde.compat.horovod.compression import Compression
from ronde.compat.horovod.functions import broadcast_object
from ronde.compat.horovod.operations import poll, synchronize
