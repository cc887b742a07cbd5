"""Which ranks share a host, and which host a backend complains of."""

from __future__ import annotations

import pytest

from ronde.comm.topology import Topology

TWO = Topology(hosts=((0, 1), (2,)), names=("here", "there"), addresses=("10.0.0.1", "10.0.0.2"))


def test_columns_are_as_many_as_the_least_host_has_ranks():
    topology = Topology.of_sizes((3, 2, 4))
    assert topology.hosts == ((0, 1, 2), (3, 4), (5, 6, 7, 8))
    assert [topology.column(local_rank) for local_rank in range(4)] == [(0, 3, 5), (1, 4, 6), (), ()]
    assert [topology.host_of(rank) for rank in (0, 2, 3, 8)] == [0, 0, 1, 2]
    assert [topology.local_rank_of(rank) for rank in (0, 2, 3, 8)] == [0, 2, 0, 3]


@pytest.mark.parametrize(
    ("rank", "complaint", "told"),
    [
        (
            0,
            "[pair.cc:537] Read error [10.0.0.2]:57052: Connection timed out. This is",
            "rank 0 lost its connection to the host there (10.0.0.2, rank 2): Connection timed out; check",
        ),
        (
            2,
            "[pair.cc:1] Connection closed by peer [::ffff:10.0.0.1]:80",
            "rank 2 lost its connection to the host here (10.0.0.1, ranks 0, 1); check",
        ),
    ],
)
def test_a_complaint_of_another_host_names_it(rank: int, complaint: str, told: str):
    assert TWO.lost(complaint, rank).startswith(told)


@pytest.mark.parametrize(
    ("rank", "complaint"),
    [(1, "Read error [10.0.0.1]:5: Connection reset by peer"), (0, "Timed out"), (0, "[10.0.0.9]:5: gone")],
)
def test_other_complaints_are_left(rank: int, complaint: str):
    assert TWO.lost(complaint, rank) == complaint
