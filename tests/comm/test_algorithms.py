"""Ring and trees against sums by torch, on ranks that are threads: any number of ranks, any size."""

from __future__ import annotations

import math

import pytest
import torch

from ronde.comm import ring, tree
from ronde.comm.split import even_parts

from .messages import Post, ThreadTransport, on_threads

WORLDS = [1, 2, 3, 4, 5, 8]
SIZES = [0, 1, 7, 1001]


def inputs(world_size: int, numel: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(world_size * 10007 + numel)
    return [torch.randn(numel, generator=generator) for _ in range(world_size)]


def reduced(algorithm, world_size: int, numel: int, piece_bytes: int) -> tuple[list[torch.Tensor], Post]:
    post, ranks = Post(), range(world_size)
    tensors = inputs(world_size, numel)

    def work(rank: int) -> torch.Tensor:
        algorithm(ThreadTransport(post, ranks, rank), tensors[rank], piece_bytes)
        return tensors[rank]

    return on_threads(world_size, work), post


@pytest.mark.parametrize("algorithm", [ring, tree], ids=["ring", "tree"])
@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("numel", SIZES)
def test_all_ranks_hold_the_same_bits_and_the_sum(algorithm, world_size: int, numel: int):
    got, post = reduced(algorithm.all_reduce, world_size, numel, 64)
    expected = torch.stack(inputs(world_size, numel)).double().sum(0)
    for tensor in got:
        assert torch.equal(tensor, got[0])
    torch.testing.assert_close(got[0].double(), expected, rtol=1e-5, atol=1e-5)
    assert post.idle


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("numel", SIZES)
def test_the_rings_halves_are_its_whole(world_size: int, numel: int):
    tensors = inputs(world_size, numel)
    post = Post()

    def work(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        transport = ThreadTransport(post, range(world_size), rank)
        flat = tensors[rank]
        ring.reduce_scatter(transport, flat, 64)
        begin, end = even_parts(numel, world_size)[rank]
        part = flat[begin:end].clone()
        gathered = torch.full_like(flat, math.nan)
        gathered[begin:end] = part
        ring.all_gather(transport, gathered, 64)
        return part, gathered

    done = on_threads(world_size, work)
    whole, _ = reduced(ring.all_reduce, world_size, numel, 64)
    for part, gathered in done:
        assert torch.equal(torch.cat([each for each, _ in done]), gathered)
        assert torch.equal(gathered, whole[0])
        assert part.numel() <= -(-numel // world_size)


def test_a_ring_sends_the_least_that_is_possible():
    numel, world_size = 1200, 4
    _, post = reduced(ring.all_reduce, world_size, numel, 256)
    each = 2 * (world_size - 1) * numel // world_size * 4
    assert dict(post.bytes) == {(rank, (rank + 1) % world_size): each for rank in range(world_size)}


@pytest.mark.parametrize("world_size", WORLDS)
def test_trees_reach_every_rank_and_few_are_inner_in_both(world_size: int):
    nodes = [tree.two_trees(rank, world_size) for rank in range(world_size)]
    for which in (0, 1):
        roots = [rank for rank, both in enumerate(nodes) if both[which].parent is None]
        assert len(roots) == 1
        reached, ahead = set(), roots
        while ahead:
            rank = ahead.pop()
            reached.add(rank)
            for child in nodes[rank][which].children:
                assert nodes[child][which].parent == rank
                ahead.append(child)
        assert reached == set(range(world_size))
        assert all(len(both[which].children) <= 2 for both in nodes)
    inner_in_both = sum(all(node.children for node in both) for both in nodes)
    assert inner_in_both <= 1


def test_a_tree_is_as_deep_as_the_logarithm():
    for world_size in (2, 5, 16, 33, 100):
        for which in (0, 1):
            for rank in range(world_size):
                depth, at = 0, rank
                while (parent := tree.two_trees(at, world_size)[which].parent) is not None:
                    depth, at = depth + 1, parent
                assert depth <= math.ceil(math.log2(world_size)) + 1
