"""The twin of `plain.py` by hand on two axes: FSDP2 over `data`, `parallelize_module` over `tensor`.

Blocks are cut as in `with_tensor.py`, and each block is a unit of `fully_shard`, as torch's tutorial of 2D
parallelism has it. The groups are ronde's shared memory, as under `data=D,tensor=2,zero3`.
"""

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from training import train
from with_tensor import ByTensor, cut

TENSOR = 2


def sharded(model):
    mesh = init_device_mesh(
        "cpu", (dist.get_world_size() // TENSOR, TENSOR), mesh_dim_names=("data", "tensor")
    )
    model = cut(model, mesh["tensor"])
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    return model


if __name__ == "__main__":
    train(lambda: ByTensor(sharded, same_rows=TENSOR))
