"""Ranks of an elastic job come together in threads, at a store of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from ronde.compat.elastic.rendezvous import JobRendezvous, LeftOut
from ronde.compat.elastic.world import HostGroup, World, members_of
from ronde.compat.place import JobPlace
from ronde.errors import LaunchError


@pytest.fixture
def rendezvous() -> JobRendezvous:
    made = JobRendezvous(dist.HashStore())
    made.open()
    return made


def world(generation: int, *numbers: int) -> World:
    return World(
        generation=generation,
        members=members_of([HostGroup(number=number, host=f"h{number}", ranks=1) for number in numbers]),
    )


def in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """Begin it; returns what waits for its result."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(call())
        except (LeftOut, LaunchError) as error:
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(20)
        return found[0]

    return result


def comes(rendezvous: JobRendezvous, unit: int, generation: int = 0) -> Callable[[], Any]:
    return in_thread(lambda: rendezvous.come(JobPlace(unit=unit, generation=generation), 20))


def await_count(count: Callable[[], int], expected: int) -> None:
    while count() != expected:
        pass


def test_ranks_begin_when_all_have_come(rendezvous: JobRendezvous) -> None:
    first = comes(rendezvous, 1)
    await_count(lambda: rendezvous.arrived(1), 1)
    rendezvous.publish(world(1, 1, 2), sealed=0)
    await_count(lambda: rendezvous.inside(1), 1)
    second = comes(rendezvous, 2)
    await_count(lambda: rendezvous.inside(1), 2)
    rendezvous.seal(1)
    assert [(each().rank, each().size, each().generation) for each in (first, second)] == [
        (0, 2, 1), (1, 2, 1),
    ]  # fmt: skip


def test_a_rank_that_waits_for_a_dead_one_moves_on(rendezvous: JobRendezvous) -> None:
    rendezvous.publish(world(1, 1, 2), sealed=1)
    first = comes(rendezvous, 1, generation=1)
    await_count(lambda: rendezvous.left(1), 1)
    rendezvous.publish(world(2, 1, 2), sealed=1)  # nobody has noticed yet that the other is dead
    await_count(lambda: rendezvous.inside(2), 1)
    rendezvous.publish(world(3, 1), sealed=1)
    await_count(lambda: rendezvous.inside(3), 1)
    rendezvous.seal(3)
    assert (first().generation, first().size) == (3, 1)


def test_a_rank_takes_the_generation_that_was_sealed_though_there_is_a_newer_one(
    rendezvous: JobRendezvous,
) -> None:
    rendezvous.publish(world(1, 1), sealed=0)
    first = comes(rendezvous, 1)
    await_count(lambda: rendezvous.inside(1), 1)
    rendezvous.publish(world(2, 1, 2), sealed=1)
    assert first().generation == 1


def test_a_rank_is_left_out(rendezvous: JobRendezvous) -> None:
    rendezvous.publish(world(1, 1, 2), sealed=1)
    rendezvous.publish(world(2, 1), sealed=1)
    assert isinstance(comes(rendezvous, 2, generation=1)(), LeftOut)


def test_a_rank_that_is_not_taken_waits(rendezvous: JobRendezvous) -> None:
    """It has come first where as many as may be are there: a place may become free."""
    rendezvous.publish(world(1, 1), sealed=1)
    second = comes(rendezvous, 2)
    await_count(lambda: rendezvous.arrived(2), 1)
    rendezvous.publish(world(2, 1, 2), sealed=1)
    await_count(lambda: rendezvous.inside(2), 1)
    rendezvous.seal(2)
    assert second().rank == 1


def test_nobody_comes(rendezvous: JobRendezvous) -> None:
    with pytest.raises(LaunchError, match=r"no other ranks have joined within 0\.2 s"):
        rendezvous.come(JobPlace(unit=1, generation=1), 0.2)


def test_whoever_waits_leaves_when_the_job_is_over(rendezvous: JobRendezvous) -> None:
    first, second = comes(rendezvous, 1, generation=1), comes(rendezvous, 2)
    await_count(lambda: rendezvous.left(1) + rendezvous.arrived(2), 2)
    rendezvous.end()
    assert isinstance(first(), LeftOut)
    assert isinstance(second(), LeftOut)


def test_a_rank_that_has_come_in_vain_leaves(rendezvous: JobRendezvous) -> None:
    """Its host has fewer slots than when it was started."""
    rendezvous.publish(world(1, 1), sealed=0)
    second = in_thread(lambda: rendezvous.come(JobPlace(unit=1, index=1), 20))
    assert isinstance(second(), LeftOut)
