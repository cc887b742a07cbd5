"""The twin of `plain.py` by hand with sharded parameters, as torch's documentation of FSDP2 says."""

from torch import nn
from torch.distributed.fsdp import fully_shard
from with_ddp import train


def sharded(model):
    """Each repeated block is a unit, what is left another."""
    for block in blocks(model):
        fully_shard(block)
    return fully_shard(model)


def blocks(model):
    """Members of one class of the outermost container that has several; else none."""
    for module in model.modules():
        if not isinstance(module, (nn.Sequential, nn.ModuleList)):
            continue
        members = [part for part in module if any(True for _ in part.parameters())]
        if len(members) > 1 and len({type(part) for part in members}) == 1:
            return members
    return []


if __name__ == "__main__":
    train(distributed=sharded)
