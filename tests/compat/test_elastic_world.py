"""Who goes on, who is started, and which rank each is: pure functions."""

from __future__ import annotations

import pytest

from ronde.cluster.host_list import parse_hosts
from ronde.compat.elastic.world import HostGroup, World, members_of, share_out
from ronde.compat.place import JobPlace


def units(*told: tuple[int, str, int]) -> list[HostGroup]:
    return [HostGroup(number=number, host=host, ranks=ranks) for number, host, ranks in told]


@pytest.mark.parametrize(
    ("hosts", "there", "most", "kept", "started"),
    [
        ("a:2,b:2", [], None, {}, (("a", 2), ("b", 2))),
        ("a:2,b:2", [], 3, {}, (("a", 2), ("b", 1))),
        ("a:2,b:2", [(1, "a", 2)], None, {1: 2}, (("b", 2),)),
        # Those that are there come before those that could be started.
        ("a:2,b:2", [(4, "b", 2)], 3, {4: 2}, (("a", 1),)),
        # A host that is gone, one that has fewer slots, and one that has more.
        ("b:2", [(1, "a", 2), (2, "b", 2)], None, {2: 2}, ()),
        ("a:1,b:2", [(1, "a", 2), (2, "b", 2)], None, {1: 1, 2: 2}, ()),
        ("a:3,b:2", [(1, "a", 2), (2, "b", 2)], None, {1: 2, 2: 2}, (("a", 1),)),
        ("a:2,b:2", [(1, "a", 2), (2, "b", 2)], 3, {1: 2, 2: 1}, ()),
    ],
)
def test_shares(
    hosts: str,
    there: list[tuple[int, str, int]],
    most: int | None,
    kept: dict[int, int],
    started: tuple[tuple[str, int], ...],
) -> None:
    found = share_out(parse_hosts(hosts), units(*there), most)
    assert (found.kept, found.started) == (kept, started)
    assert found.ranks == sum(kept.values()) + sum(ranks for _, ranks in started)


def test_ranks_of_a_host_are_neighbours_and_the_first_has_been_there_for_longest() -> None:
    members = members_of(units((5, "a", 1), (2, "b", 2), (3, "c", 1), (4, "b", 1)))
    assert members == (("b", 2, 0), ("b", 2, 1), ("b", 4, 0), ("c", 3, 0), ("a", 5, 0))
    slow, first = HostGroup(number=1, host="a", ranks=1), HostGroup(number=2, host="b", ranks=1, joined=1)
    assert members_of([slow, first]) == (("b", 2, 0), ("a", 1, 0))


def test_a_process_finds_its_place() -> None:
    members = members_of(units((2, "b", 2), (3, "c", 1), (4, "b", 1)))
    world = World.from_json(World(generation=3, members=members, addresses={"b": "10.0.0.1"}).to_json())
    told = JobPlace(unit=4, index=0, store="tcp://h:1", address="127.0.0.1", generation=2)
    found = world.place_of(told)
    assert found is not None
    assert (found.rank, found.size, found.local_rank, found.local_size) == (2, 4, 2, 3)
    assert (found.cross_rank, found.cross_size, found.address, found.generation) == (0, 2, "10.0.0.1", 3)
    assert found.store == told.store
    elsewhere = world.place_of(JobPlace(unit=3, index=0, address="10.0.0.2"))
    assert elsewhere is not None
    assert (elsewhere.rank, elsewhere.local_rank, elsewhere.address) == (3, 0, "10.0.0.2")
    assert world.place_of(JobPlace(unit=2, index=2)) is None
