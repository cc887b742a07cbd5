"""Context parallelism by hand: each rank has its tokens of every sequence.

torch's `context_parallel` refuses the kernel of attention on the CPU (torch 2.13), so this is its form on
CUDA devices by hand, which is that of Llama 3: keys and values are gathered, and rank r has pieces r and
2N - 1 - r of 2N, by which causal work is even. The group is ronde's shared memory, as under `context=N`.
"""

from typing import Any

import shared_memory_group
import torch
import torch.distributed as dist
from gpt import GPT
from torch import nn
from torch.nn import functional as F
from training import Twin, train
from with_ddp import global_mean

_Function: Any = torch.autograd.Function


def pieces(length, rank):
    """A rank's positions, as two ranges that rise."""
    ranks = dist.get_world_size()
    piece = length // (2 * ranks)
    return [range(place * piece, (place + 1) * piece) for place in (rank, 2 * ranks - 1 - rank)]


class Gathered(_Function):
    """Keys and values `[2, batch, heads, tokens, width]` of all ranks, in their order."""

    @staticmethod
    def forward(ctx, own):
        parts = own.new_empty(dist.get_world_size(), *own.shape)
        dist.all_gather_into_tensor(parts, own.contiguous())
        halves = [part.chunk(2, -2) for part in parts.unbind(0)]
        return torch.cat([first for first, _ in halves] + [second for _, second in reversed(halves)], -2)

    @staticmethod
    def backward(ctx, *gradients):
        (whole,) = gradients
        parts = [
            torch.cat(
                [whole[..., piece.start : piece.stop, :] for piece in pieces(whole.shape[-2], rank)], -2
            )
            for rank in range(dist.get_world_size())
        ]
        own = torch.empty_like(parts[0])
        dist.reduce_scatter_tensor(own, torch.stack(parts))
        return own


class OfOwnTokens(nn.Module):
    """A block with attention to gathered keys and values."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        block = self.block
        batch, length, width = x.shape
        qkv = block.qkv(block.norm_1(x)).view(batch, length, 3, block.heads, width // block.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        keys, values = Gathered.apply(torch.stack((k, v)))
        parts = []
        for rows, piece in zip(q.chunk(2, -2), pieces(keys.shape[-2], dist.get_rank()), strict=True):
            seen = torch.ones(len(piece), piece.stop, dtype=torch.bool).tril(piece.start)
            before = (..., slice(0, piece.stop), slice(None))
            parts.append(F.scaled_dot_product_attention(rows, keys[before], values[before], seen))
        attended = torch.cat(parts, -2)
        x = x + block.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + block.feed_forward(block.norm_2(x))


class OwnTokens(nn.Module):
    """The model, of this rank's tokens."""

    def __init__(self, model):
        super().__init__()
        assert isinstance(model, GPT)
        self.model = model
        model.blocks = nn.Sequential(*(OfOwnTokens(block) for block in model.blocks))

    def forward(self, words, places):
        model = self.model
        return model.head(model.norm(model.blocks(model.tokens(words) + model.positions(places))))


def gradients_in_one(model):
    """One tensor in which the gradients of all parameters lie."""
    parameters = list(model.parameters())
    flat = torch.zeros(sum(each.numel() for each in parameters))
    for parameter, part in zip(parameters, flat.split([each.numel() for each in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
    return flat


class ByContext(Twin):
    log_every = None

    def __init__(self):
        shared_memory_group.register()
        dist.init_process_group(shared_memory_group.NAME)
        self.rank = dist.get_rank()

    def prepare(self, workload, args):
        model = OwnTokens(workload.model())
        self.gradients = gradients_in_one(model)
        return model, workload.optimizer(model.parameters())

    def step(self, workload, model, optimizer, inputs, targets):
        own = pieces(inputs.shape[1], self.rank)
        places = torch.cat([torch.arange(piece.start, piece.stop) for piece in own])
        loss = workload.loss(model(inputs[:, places], places), targets[:, places].contiguous())
        self.gradients.zero_()
        loss.backward()
        dist.all_reduce(self.gradients)
        self.gradients.div_(dist.get_world_size())
        optimizer.step()
        return loss

    def mean(self, loss):
        return global_mean(loss)

    def close(self):
        dist.destroy_process_group()


if __name__ == "__main__":
    train(ByContext)
