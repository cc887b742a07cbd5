"""The twin of `plain.py` under tensor parallelism by hand: torch's parallelize_module on DTensor.

The cuts are those of Megatron and of `tensor=N`: attention by heads, feed-forward in pairs, the vocabulary of
embedding and head. The group is ronde's shared memory, as under `tensor=N`, so that what is compared is the
rest. Every rank has the whole batch.
"""

import shared_memory_group
import torch
import torch.distributed as dist
from gpt import GPT
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle
from training import Twin, arguments, train
from with_ddp import global_mean


class ByHeads(nn.Module):
    """A block's attention with matrices that can be cut by heads."""

    def __init__(self, block, ranks):
        super().__init__()
        width = block.out.in_features
        self.heads = block.heads // ranks
        self.norm_1, self.norm_2, self.feed_forward = block.norm_1, block.norm_2, block.feed_forward
        self.out = block.out
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        with torch.no_grad():
            for place, part in enumerate((self.q, self.k, self.v)):
                part.weight.copy_(block.qkv.weight[place * width : (place + 1) * width])
                part.bias.copy_(block.qkv.bias[place * width : (place + 1) * width])

    def forward(self, x):
        batch, length, _ = x.shape
        normed = self.norm_1(x)
        q, k, v = (
            part(normed).view(batch, length, self.heads, -1).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, -1))
        return x + self.feed_forward(self.norm_2(x))


def cut(model, mesh):
    assert isinstance(model, GPT)
    with torch.random.fork_rng():  # batches are drawn after this, the same as those of the plain script
        model.blocks = nn.Sequential(*(ByHeads(block, mesh.size()) for block in model.blocks))
    plan: dict[str, ParallelStyle] = {"tokens": RowwiseParallel(input_layouts=Replicate())}
    plan["head"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    for place in range(len(model.blocks)):
        for name in ("q", "k", "v", "feed_forward.0"):
            plan[f"blocks.{place}.{name}"] = ColwiseParallel()
        for name in ("out", "feed_forward.2"):
            plan[f"blocks.{place}.{name}"] = RowwiseParallel()
    parallelize_module(model, mesh, plan)
    model.head.weight = model.tokens.weight  # tied, both cut by the vocabulary
    return model


def over_all_ranks(model):
    return cut(model, init_device_mesh("cpu", (dist.get_world_size(),)))


class ByTensor(Twin):
    """Ranks by tensor; `same_rows` neighbours have the same rows of a batch."""

    log_every = None

    def __init__(self, distributed=over_all_ranks, same_rows=None):
        shared_memory_group.register()
        dist.init_process_group(shared_memory_group.NAME)
        self.rank = dist.get_rank()
        self.same_rows = same_rows or dist.get_world_size()
        self.slices = dist.get_world_size() // self.same_rows
        self.distributed = distributed

    def arguments(self):
        return arguments(ranks=self.slices)

    def prepare(self, workload, args):
        model = self.distributed(workload.model())
        return model, workload.optimizer(model.parameters())

    def step(self, workload, model, optimizer, inputs, targets):
        own = self.rank // self.same_rows
        with loss_parallel():
            loss = workload.loss(model(inputs.chunk(self.slices)[own]), targets.chunk(self.slices)[own])
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        return loss

    def mean(self, loss):
        return global_mean(loss.full_tensor() if isinstance(loss, DTensor) else loss)

    def close(self):
        dist.destroy_process_group()


if __name__ == "__main__":
    train(ByTensor)
