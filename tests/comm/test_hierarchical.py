"""Sums over hosts, on ranks that are threads: even and uneven hosts, any size."""

from __future__ import annotations

import pytest
import torch

from ronde.comm import hierarchical
from ronde.comm.hierarchical import Hierarchical, sum_across
from ronde.comm.topology import Topology

from .messages import Post, ThreadHost, ThreadTransport, on_threads

HOSTS = [(1, 1), (2, 2), (2, 1), (1, 3), (3, 2), (2, 3, 1), (2, 2, 2), (3,)]
SIZES = [0, 1, 6, 501]


def reduced(sizes: tuple[int, ...], numel: int, chunk_bytes: int) -> tuple[list[torch.Tensor], Post]:
    topology, post = Topology.of_sizes(sizes), Post()
    generator = torch.Generator().manual_seed(sum(sizes) * 1009 + numel)
    tensors = [torch.randn(numel, generator=generator) for _ in range(sum(sizes))]
    within = [ThreadHost(size) for size in sizes]

    def work(rank: int) -> torch.Tensor:
        host, local_rank = topology.host_of(rank), topology.local_rank_of(rank)
        column = topology.column(local_rank)
        algorithm = Hierarchical(
            within[host].of(local_rank) if sizes[host] > 1 else None,
            ThreadTransport(post, column, rank) if column else None,
            local_rank=local_rank,
            sizes=sizes,
            host=host,
            chunk_bytes=chunk_bytes,
        )
        flat = tensors[rank].clone()
        algorithm.all_reduce(flat)
        algorithm.close()
        return flat

    return [torch.stack(tensors).double().sum(0), *on_threads(sum(sizes), work)], post


@pytest.mark.parametrize("sizes", HOSTS, ids=str)
@pytest.mark.parametrize("numel", SIZES)
def test_all_ranks_hold_the_same_bits_and_the_sum(sizes: tuple[int, ...], numel: int):
    (expected, *got), post = reduced(sizes, numel, 400)
    for tensor in got:
        assert torch.equal(tensor, got[0])
    torch.testing.assert_close(got[0].double(), expected, rtol=1e-5, atol=1e-5)
    assert post.idle


@pytest.mark.parametrize(("sizes", "times"), [((2, 2), 1.0), ((3, 2), 1.0), ((2, 2, 2), 4 / 3)])
def test_a_host_sends_no_more_for_having_many_ranks(sizes: tuple[int, ...], times: float):
    numel = 60_000  # parts too large for the trees, which spare messages instead
    _, post = reduced(sizes, numel, 1 << 20)
    topology = Topology.of_sizes(sizes)
    for host in range(len(sizes)):
        sent = sum(size for (source, _), size in post.bytes.items() if topology.host_of(source) == host)
        assert sent == times * numel * 4


@pytest.mark.parametrize(
    ("ranks", "numel", "chosen"),
    [
        (2, 10, "ring"),
        (3, 10, "tree"),
        (3, 20_000, "ring"),
        (3, 16_384, "tree"),
        (64, 1 << 18, "tree"),
        (64, (1 << 18) + 1, "ring"),
    ],
)
def test_parts_that_are_small_for_the_number_of_hosts_go_by_the_trees(
    monkeypatch: pytest.MonkeyPatch, ranks: int, numel: int, chosen: str
):
    called: list[str] = []
    monkeypatch.setattr(hierarchical.ring, "all_reduce", lambda *_: called.append("ring"))
    monkeypatch.setattr(hierarchical.tree, "all_reduce", lambda *_: called.append("tree"))
    sum_across(ThreadTransport(Post(), range(ranks), 0), torch.zeros(numel))
    assert called == [chosen]
