"""The twin of `start_up.py` for torchrun; each rank has half of the batch."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from stopwatch import Stopwatch
from torch.nn.parallel import DistributedDataParallel
from with_ddp import global_mean


def main():
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    stopwatch = Stopwatch(warm_up=0, speaks=rank == 0, mean=global_mean, log_every=None)
    model = DistributedDataParallel(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = torch.randn(4, 8), torch.tensor([0, 1, 0, 1])
    loss = F.cross_entropy(model(images[rank::ranks]), labels[rank::ranks])
    loss.backward()
    optimizer.step()
    stopwatch.step(loss)
    stopwatch.report("start-up", 4)
    dist.barrier()  # torch aborts now and then where one rank leaves the group before the other
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
