"""Messages between two ranks through shared memory."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch

from codes import without_codes
from ronde.comm.shared_memory import SharedMemory
from ronde.comm.store_exchange import exchange_by
from ronde.errors import LaunchError, PeerLost
from world_sizes import WORLD_SIZES

# Nought, below and above a block, and what takes several steps to copy.
SIZES = (0, 1, 5000, 300_000, 3_000_001)


def letters(seed: int, numel: int) -> torch.Tensor:
    return torch.randint(0, 255, (numel,), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


def mailbox_of(rank: Any) -> Any:
    return rank.groups["boundary"].backend.shared.mailbox


def both_ways_at_once(rank: Any) -> list[int]:
    """Every rank sends to all before it receives from any; sizes above what a ring could hold."""
    mailbox = mailbox_of(rank)
    wrong: list[int] = []
    for numel in SIZES:
        for to in range(rank.world_size):
            mailbox.wait(mailbox.send(letters(10 * rank.rank + to, numel), to))
        for source in range(rank.world_size):
            out = torch.empty(numel, dtype=torch.uint8)
            mailbox.wait(mailbox.receive(out, source))
            if not torch.equal(out, letters(10 * source + rank.rank, numel)):
                wrong.append(numel)
    return wrong


def tags_and_order(rank: Any) -> list[int]:
    """What waits for its tag holds nothing up, and messages of one tag keep their order."""
    mailbox = mailbox_of(rank)
    got: list[int] = []
    if rank.rank == 0:
        for value, tag in ((1, 7), (2, 8), (3, 7), (4, 8)):
            mailbox.send(torch.tensor([value], dtype=torch.uint8), 1, tag)
    elif rank.rank == 1:
        outs = [torch.zeros(1, dtype=torch.uint8) for _ in range(4)]
        receives = [mailbox.receive(out, 0, tag) for out, tag in zip(outs, (8, 7, 8, 7), strict=True)]
        for receive in reversed(receives):
            mailbox.wait(receive)
        got = [int(out) for out in outs]
    return got


def from_anyone(rank: Any) -> list[tuple[int | None, int]]:
    mailbox = mailbox_of(rank)
    got: list[tuple[int | None, int]] = []
    if rank.rank == 0:
        for _ in range(2 * (rank.world_size - 1)):
            out = torch.zeros(1, dtype=torch.uint8)
            receive = mailbox.receive(out, None, 3)
            mailbox.wait(receive)
            got.append((receive.source, int(out)))
    else:
        for turn in range(2):
            mailbox.send(torch.tensor([10 * rank.rank + turn], dtype=torch.uint8), 0, 3)
    return got


def more_than_a_ring_holds(rank: Any, count: int) -> bool:
    """Sends of one rank to another that is in a collective first; then they come in their order."""
    shared = rank.groups["boundary"].backend.shared
    if rank.rank == 0:
        sends = [shared.mailbox.send(letters(each, 10), 1) for each in range(count)]
        shared.barrier()
        for send in sends:
            shared.mailbox.wait(send)
        return True
    receives = []
    if rank.rank == 1:
        outs = [torch.empty(10, dtype=torch.uint8) for _ in range(count)]
        receives = [shared.mailbox.receive(out, 0) for out in outs]
    shared.barrier()
    for receive in receives:
        shared.mailbox.wait(receive)
    return all(torch.equal(each.flat, letters(at, 10)) for at, each in enumerate(receives))


def a_wrong_size(rank: Any) -> str:
    mailbox = mailbox_of(rank)
    if rank.rank == 0:
        mailbox.send(letters(0, 10), 1)
    elif rank.rank == 1:
        try:
            mailbox.wait(mailbox.receive(torch.empty(4, dtype=torch.uint8), 0))
        except LaunchError as error:
            return str(error)
    return ""


def memory_is_used_again(rank: Any) -> int:
    """How many more files are open after many messages than after a few."""
    mailbox = mailbox_of(rank)
    peer = rank.rank ^ 1
    before = 0
    for turn in range(60):
        mailbox.send(letters(turn, 2_000_000), peer)
        mailbox.wait(mailbox.receive(torch.empty(2_000_000, dtype=torch.uint8), peer))
        rank.groups["boundary"].backend.shared.barrier()
        if turn == 5:
            before = len(os.listdir("/proc/self/fd"))
    return len(os.listdir("/proc/self/fd")) - before


def one_leaves(rank: Any) -> str:
    """Its process lives on; who waits for it, or for its message, is told at once."""
    store = torch.distributed.FileStore(os.path.join(rank.directory, "one-leaves"), 2)
    exchange = exchange_by(store, rank.rank, 2)
    group = SharedMemory(rank.rank, 2, exchange, timeout=timedelta(seconds=30))
    try:
        if rank.rank == 0:
            group.barrier()
            group.mailbox.wait(group.mailbox.receive(torch.empty(1, dtype=torch.uint8), 1))
            group.mailbox.wait(group.mailbox.receive(torch.empty(1, dtype=torch.uint8), 1))
        else:
            group.barrier()
            group.mailbox.send(torch.zeros(1, dtype=torch.uint8), 0)
    except PeerLost as error:
        return str(error).partition(" (process")[0] + str(error).partition(")")[2]
    finally:
        group.close()
    return ""


def any_order(rank: Any, rounds: int, seed: int) -> list[str]:
    """Sends, receives and collectives in a random order of the same plan on each rank, checked to the bit."""
    shared = rank.groups["boundary"].backend.shared
    mailbox = shared.mailbox
    draw = random.Random(seed)
    wrong: list[str] = []
    for turn in range(rounds):
        wanted: list[tuple[Any, int, int]] = []
        jobs: list[tuple[str, int, int, int]] = []
        for number in range(draw.randrange(1, 12)):
            one, other = draw.randrange(rank.world_size), draw.randrange(rank.world_size)
            numel = draw.choice((0, 1, draw.randrange(5000), draw.randrange(5000), draw.randrange(700_000)))
            seeded = 1000 * turn + number
            jobs += [("send", one, other, numel), ("receive", one, other, numel)]
            mine = [("send", other, seeded, numel)] if rank.rank == one else []
            mine += [("receive", one, seeded, numel)] if rank.rank == other else []
            for kind, peer, value, size in mine:
                if kind == "send":
                    mailbox.send(letters(value, size), peer, value % 3)
                else:
                    out = torch.empty(size, dtype=torch.uint8)
                    wanted.append((mailbox.receive(out, peer, value % 3), value, size))
        if draw.random() < 0.5:
            total = torch.ones(draw.choice((3, 10_000, 300_000)))
            shared.all_reduce(total)
            if not bool((total == rank.world_size).all()):
                wrong.append(f"{turn}: sum")
        random.Random(seed + turn + rank.rank).shuffle(wanted)
        for receive, value, size in wanted:
            mailbox.wait(receive)
            if not torch.equal(receive.flat, letters(value, size)):
                wrong.append(f"{turn}: message of {size}")
    return wrong


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_all_send_before_they_receive(ranks: Callable[..., list[Any]], world_size: int) -> None:
    assert ranks(world_size, both_ways_at_once) == [[]] * world_size


def test_a_receive_takes_the_first_of_its_tag(ranks: Callable[..., list[Any]]) -> None:
    assert ranks(2, tags_and_order) == [[], [2, 1, 4, 3]]


def test_a_receive_from_anyone_says_from_whom(ranks: Callable[..., list[Any]]) -> None:
    got = ranks(3, from_anyone)[0]
    assert sorted(got) == [(1, 10), (1, 11), (2, 20), (2, 21)]
    assert [value for source, value in got if source == 1] == [10, 11]


def test_unread_messages_hold_nobody_up(ranks: Callable[..., list[Any]]) -> None:
    assert ranks(2, more_than_a_ring_holds, 300) == [True, True]


def test_a_message_of_another_size_is_an_error(ranks: Callable[..., list[Any]]) -> None:
    said = (
        "a message of 10 bytes has arrived for a tensor of 4 bytes; receive into a tensor of the size "
        "that is sent"
    )
    assert without_codes(ranks(2, a_wrong_size)) == ["", said]


def test_memory_of_messages_is_used_again(ranks: Callable[..., list[Any]]) -> None:
    assert ranks(2, memory_is_used_again) == [0, 0]


def test_a_rank_that_leaves_is_named(ranks: Callable[..., list[Any]]) -> None:
    assert ranks(2, one_leaves) == ["rank 1 has left its peers", ""]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_any_order(ranks: Callable[..., list[Any]], world_size: int) -> None:
    assert ranks(world_size, any_order, 150, 3) == [[]] * world_size


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_any_order_for_long(ranks: Callable[..., list[Any]], seed: int) -> None:
    assert ranks(2 + seed % 2, any_order, 1000, seed) == [[]] * (2 + seed % 2)
