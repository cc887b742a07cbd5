"""The twin of `plain.py` by hand on two axes: FSDP2 over `data`, `parallelize_module` over `tensor`.

Blocks are cut as in `with_tensor.py`, and each block is a unit of `fully_shard`, as torch's tutorial of 2D
parallelism has it. The groups are ronde's shared memory, as under `data=D,tensor=2,zero3`.
"""

import shared_memory_group
import torch
import torch.distributed as dist
from command_line import arguments
from plain import batches
from stopwatch import Stopwatch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from with_ddp import global_mean
from with_tensor import cut

TENSOR = 2


def sharded(model, mesh):
    model = cut(model, mesh["tensor"])
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    return model


def main():
    shared_memory_group.register()
    dist.init_process_group(shared_memory_group.NAME)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    args = arguments(ranks=ranks // TENSOR)
    workload = args.workload
    torch.manual_seed(0)
    data = workload.data(args.samples)
    mesh = init_device_mesh("cpu", (ranks // TENSOR, TENSOR), mesh_dim_names=("data", "tensor"))
    model = sharded(workload.model(), mesh)
    optimizer = workload.optimizer(model.parameters())
    stopwatch = Stopwatch(
        args.warm_up,
        speaks=rank == 0,
        mean=lambda loss: global_mean(loss.full_tensor() if isinstance(loss, DTensor) else loss),
        log_every=None,
        reads_loss=False,
        trajectory=args.trajectory,
    )
    row, rows = rank // TENSOR, ranks // TENSOR
    for inputs, targets in batches(data, args):
        with loss_parallel():
            loss = workload.loss(model(inputs.chunk(rows)[row]), targets.chunk(rows)[row])
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        stopwatch.step(loss)
    stopwatch.report(args.name, args.batch_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
