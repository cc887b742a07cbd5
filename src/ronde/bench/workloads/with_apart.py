"""The twin without communication: processes train on their shares alone.

They begin together, and the group is left alone until the clock has stopped.
"""

import torch
import torch.distributed as dist
from training import train
from with_ddp import Ddp, global_mean


class Apart(Ddp):
    def distributed(self, model):
        dist.barrier()
        return model

    def elapsed(self, seconds):
        return global_mean(torch.tensor(seconds, dtype=torch.float64))


if __name__ == "__main__":
    train(Apart)
