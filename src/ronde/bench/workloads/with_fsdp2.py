"""The twin of `plain.py` by hand with sharded parameters, as torch's documentation of FSDP2 says."""

from torch.distributed.fsdp import fully_shard
from units import units
from with_ddp import train


def sharded(model):
    """Each repeated block is a unit, what is left another."""
    for block in units(model):
        fully_shard(block)
    return fully_shard(model)


if __name__ == "__main__":
    train(distributed=sharded)
