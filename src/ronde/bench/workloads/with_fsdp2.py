"""The twin of `plain.py` with sharded parameters, by torch's documentation of FSDP2."""

from torch import nn
from torch.distributed.fsdp import fully_shard
from training import train
from with_ddp import Ddp


def blocks(model):
    """Return the members of the outermost container with several of one class."""
    for module in model.modules():
        if not isinstance(module, (nn.Sequential, nn.ModuleList)):
            continue
        members = [part for part in module if any(True for _ in part.parameters())]
        if len(members) > 1 and len({type(part) for part in members}) == 1:
            return members
    return []


class Fsdp2(Ddp):
    def distributed(self, model):
        # Each repeated block is a unit, the rest another.
        for block in blocks(model):
            fully_shard(block)
        return fully_shard(model)


if __name__ == "__main__":
    train(Fsdp2)
