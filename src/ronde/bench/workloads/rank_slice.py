"""What a DDP script written by hand needs to cut each global batch among its ranks."""

import torch.distributed as dist


class RankSlice:
    """A batch sampler that gives this rank its equal part of every batch of another batch sampler."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        for batch in self.batches:
            share = len(batch) // world_size
            yield batch[rank * share : (rank + 1) * share]


def global_mean(loss):
    """The mean over all ranks' equal slices."""
    total = loss.detach().clone()
    dist.all_reduce(total)
    return (total / dist.get_world_size()).item()


def refuse_uneven(batch_size):
    """Equal slices are what makes the mean of the ranks' means the batch's mean."""
    if batch_size % dist.get_world_size():
        raise SystemExit(f"a batch of {batch_size} cannot be cut into {dist.get_world_size()} equal slices")
