"""What grows with the number of ranks: counted from the code, without the ranks."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ronde.comm import tree
from ronde.comm.background import BackgroundBackend
from ronde.comm.hierarchical import sum_across
from ronde.comm.store_exchange import exchange_by
from ronde.launch.agent import BEAT_S
from ronde.patching.torch_internals import gloo_options
from ronde.runtime import groups
from scale.messages import ClockedTransport, CountingStore, Network, at_once
from scale.mirrored import RANKS_OF_A_HOST, Call, Counted, groups_of, of_rank

Ranks = Callable[..., list[Any]]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "scale.md"
SIZES = (64, 512, 4096)
CUT = "pipeline=2,context=2,tensor=2,expert=2"
# What may grow as the number of ranks, as the page lists it, and why. Everything else that is counted here is
# constant, or grows by a bounded number of messages where the number of ranks doubles.
LINEAR = {
    "At the start": "Gloo asks for the address of each rank, once for each group",
    "A batch norm": "it gets the mean and variance of each rank, so as to round once",
    "Under `zero1` to `zero3`": "an all-gather in place names the part of each rank, in lists of Python",
    "Checkpoints": "what each rank holds back of gradients goes to rank 0",
    "The launcher": "it hears each host once a second, beside the steps",
    "Without trees": "a ring of Gloo's is what there is without shared memory",
}
PLANS = ("ddp", "tensor=2", "context=2")
SHARDED = ("zero1", "zero2", "zero3")


@pytest.fixture(scope="module")
def counted(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Counted]:
    """`counted(size, plan, **options)`: a rank of so many that trains."""
    folder, known = str(tmp_path_factory.mktemp("counted")), {}

    def count(size: int, plan: str, **options: Any) -> Counted:
        key = (size, plan, *sorted(options.items()))
        if key not in known:
            known[key] = ranks(2, of_rank, [(size, plan, options)], folder)[0][0]
        return known[key]

    return count


def shape(calls: list[Call]) -> list[tuple[str, str, int, int]]:
    return [(call.group, call.operation, call.sent, call.held) for call in calls]


# Steps.


@pytest.mark.parametrize("plan", PLANS)
def test_a_step_is_the_same_among_thousands(counted: Callable[..., Counted], plan: str) -> None:
    few, more, many = (counted(size, plan, count=True) for size in SIZES)
    for step in range(6):
        assert shape(few.steps[step]) == shape(more.steps[step]) == shape(many.steps[step])
    assert few.steps[-1]
    # No list of ranks is gone through: Python does the same, to the bytecode.
    assert few.operations == more.operations == many.operations > 1000


@pytest.mark.parametrize("plan", SHARDED)
def test_with_shards_only_lists_of_parts_grow(counted: Callable[..., Counted], plan: str) -> None:
    sizes = (8, 32, 128)
    few, more, many = (counted(size, plan, count=True, width=4096) for size in sizes)
    for one, other in ((few, more), (more, many)):
        assert [call.operation for call in one.steps[-1]] == [call.operation for call in other.steps[-1]]
        # Whole tensors are held by all; of shards each rank has less.
        assert sum(call.held for call in other.steps[-1]) <= sum(call.held for call in one.steps[-1])
        assert sum(call.sent for call in other.steps[-1]) <= sum(call.sent for call in one.steps[-1])
    per_rank = (many.operations - few.operations) / (sizes[-1] - sizes[0])
    assert per_rank < 200


def test_only_statistics_grow_with_a_batch_norm(counted: Callable[..., Counted]) -> None:
    few, more = (counted(size, "ddp", norm=True).steps[-1] for size in SIZES[:2])
    assert [call.operation for call in few] == [call.operation for call in more]
    assert [call.sent for call in few] == [call.sent for call in more]
    grown = [(one, other) for one, other in zip(few, more, strict=True) if one.held != other.held]
    assert [(one.operation, other.held / one.held) for one, other in grown] == [("all_gather", 8.0)]


# Messages of a collective.


def summed(hosts: int, nbytes: int) -> Network:
    network = Network(hosts)

    def work(host: int) -> None:
        flat = torch.ones(nbytes // 4)
        sum_across(ClockedTransport(network, range(hosts), host), flat)
        assert (flat == hosts).all()

    at_once(hosts, work)
    return network


@pytest.mark.parametrize("nbytes", [4, 64 << 10])
def test_a_sum_over_hosts_is_as_deep_as_the_logarithm(nbytes: int) -> None:
    found = {hosts: summed(hosts, nbytes) for hosts in (4, 8, 16, 32, 64, 128)}
    depths = [max(network.clocks) for network in found.values()]
    assert all(after - before <= 5 for before, after in pairwise(depths))
    for hosts, network in found.items():
        assert max(network.sent) <= max(2 * nbytes, 12)
        assert max(map(len, network.peers)) <= 6
        assert max(network.clocks) <= 6 * math.log2(hosts)


def test_a_large_part_is_so_too_where_a_ring_would_cut_it_small() -> None:
    nbytes = 512 << 10  # of one rank of eight on a host, in one chunk
    found = {hosts: summed(hosts, nbytes) for hosts in (16, 32, 64)}
    assert [max(network.clocks) for network in found.values()] == [30, 24, 29]
    assert all(max(network.sent) <= 2 * nbytes for network in found.values())


def gathered(ranks: int, nbytes: int) -> tuple[Network, list[str]]:
    network, left = Network(ranks), []
    rest = SimpleNamespace(all_gather=lambda out, flat: left.append("rest"), close=lambda: None)

    def work(rank: int) -> None:
        transport = ClockedTransport(network, range(ranks), rank)
        backend = BackgroundBackend("tree", lambda flat: tree.all_reduce(transport, flat), rest, own_row=rank)
        out = torch.full((ranks, nbytes), 255, dtype=torch.uint8)
        out[rank] = rank
        task = backend.all_gather(out, out[rank])
        if task is not None:
            task.wait()
            assert (out == torch.arange(ranks, dtype=torch.uint8)[:, None]).all()
        backend.close()

    at_once(ranks, work)
    return network, left


def test_short_rows_of_many_are_gathered_in_a_short_sequence() -> None:
    depths = []
    for ranks in (32, 64):
        network, left = gathered(ranks, 8)
        depths.append(max(network.clocks))
        assert left == []
    assert depths[1] - depths[0] <= 5
    assert depths[1] < 64


@pytest.mark.parametrize(("ranks", "nbytes"), [(4, 8), (32, (16 << 10) + 1)])
def test_few_or_long_rows_are_left_to_the_backend(ranks: int, nbytes: int) -> None:
    network, left = gathered(ranks, nbytes)
    assert left == ["rest"] * ranks
    assert max(network.clocks) == 0


# The start.


def test_a_rank_has_as_many_groups_among_thousands(ranks: Ranks, tmp_path: Path) -> None:
    cases = [(size, plan) for plan in ("ddp", "zero3", CUT) for size in SIZES]
    found = dict(zip(cases, ranks(2, groups_of, cases, str(tmp_path))[0], strict=True))
    for plan, count in (("ddp", 2), ("zero3", 2), (CUT, 11)):
        names = [[name for name, _ in found[size, plan]] for size in SIZES]
        assert names[0] == names[1] == names[2]
        assert len(names[0]) == count


def requests(ranks: int) -> list[CountingStore]:
    """The requests of each rank by which Gloo's group is made."""
    inner = dist.HashStore()
    inner.set_timeout(timedelta(seconds=30))
    stores = [CountingStore(inner) for _ in range(ranks)]
    made: list[Any] = [None] * ranks

    def join(rank: int) -> None:
        device = dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")
        options = gloo_options(device, timedelta(seconds=30), threads=1)
        made[rank] = dist.ProcessGroupGloo(stores[rank], rank, ranks, options)

    at_once(ranks, join)
    closing = [threading.Thread(target=group.shutdown) for group in made]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join()
    return stores


def store_requests(ranks: int) -> int:
    """The requests of a rank for one group: its own address, and twice for that of each."""
    return 1 + 2 * ranks


def store_bytes(ranks: int) -> int:
    """The bytes of values in these: an address has a number for each rank."""
    return (ranks + 1) * (154 + 8 * ranks)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_the_store_is_asked_for_every_address(ranks: int) -> None:
    for store in requests(ranks):
        assert (store.requests, store.bytes) == (store_requests(ranks), store_bytes(ranks))


def test_ranks_of_a_host_exchange_among_themselves() -> None:
    inner: Any = dist.HashStore()
    stores = [CountingStore(inner) for _ in range(RANKS_OF_A_HOST)]
    at_once(
        RANKS_OF_A_HOST,
        lambda rank: (exchange_by(stores[rank], rank, RANKS_OF_A_HOST)((rank, 0, 0)), None)[1],
    )
    assert {store.requests for store in stores} == {1 + RANKS_OF_A_HOST}


def test_keys_of_a_group_of_thousands_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(groups, "join", lambda *_, name, **__: names.append(name))
    place = SimpleNamespace(rank=0, local_rank=0, local_world_size=8, store="", device="cpu")
    config: Any = SimpleNamespace(place=place, run=SimpleNamespace(timeout=1.0))
    for members in ([0, 1], [0, 2], range(4096)):
        groups.join_some(config, "rows", None, "auto", members)
    assert len(set(names)) == 3
    assert max(map(len, names)) <= 24


# Checkpoints.


@pytest.mark.parametrize("plan", ["ddp", "zero1"])
def test_a_checkpoint_has_as_many_files_and_collectives(counted: Callable[..., Counted], plan: str) -> None:
    few, more, many = (counted(size, plan, saved=True, width=4096) for size in (8, 32, 128))
    assert few.files == more.files == many.files
    assert len(few.files) == 5  # the journal, and two for each of the two checkpoints that are kept
    for one, other in ((few, more), (more, many)):
        for step, again in zip(one.steps, other.steps, strict=True):
            assert [call.operation for call in step] == [call.operation for call in again]


def own_state(counted: Callable[..., Counted], size: int) -> int:
    """The bytes that rank 0 receives at a checkpoint under a compressor."""
    steps = counted(size, "onebit", saved=True).steps
    return sum(call.held for call in steps[2] if call.operation == "receive")


def test_what_ranks_hold_back_of_gradients_goes_to_rank_0(counted: Callable[..., Counted]) -> None:
    assert own_state(counted, 32) / 31 == own_state(counted, 8) / 7 > 0


# The page.


def table(counted: Callable[..., Counted]) -> str:
    """The table of the page, as it is counted."""
    hosts = [size // RANKS_OF_A_HOST for size in SIZES]
    steps = [counted(size, "ddp", count=True).steps[-1] for size in SIZES]
    norms = [counted(size, "ddp", norm=True).steps[-1] for size in SIZES]
    rows: list[tuple[str, str, list[int]]] = [
        ("start: requests of a rank to the store", "ranks", [2 * store_requests(size) for size in SIZES]),
        ("start: bytes of these", "ranks²", [2 * store_bytes(size) for size in SIZES]),
        ("step: collectives of a rank", "constant", [len(step) for step in steps]),
        ("step: bytes it gives", "constant", [sum(call.sent for call in step) for step in steps]),
        (
            "vote, sum of 4 bytes: messages in sequence",
            "log hosts",
            [max(summed(count, 4).clocks) for count in hosts],
        ),
        ("sum of 64 KB: the same", "log hosts", [max(summed(count, 64 << 10).clocks) for count in hosts]),
        (
            "batch norm, 64 channels: bytes a rank receives",
            "ranks",
            [max(call.held for call in step if call.operation == "all_gather") for step in norms],
        ),
        (
            "checkpoint: files at rank 0",
            "constant",
            [len(counted(size, "ddp", saved=True).files) // 2 + 1 for size in SIZES],  # of two
        ),
        ("launcher: beats a second", "hosts", [round(count / BEAT_S) for count in hosts]),
    ]
    lines = ["| what | grows as | 64 ranks | 512 | 4,096 |", "|---|---|---|---|---|"]
    lines += [
        f"| {what} | {grows} | {' | '.join(f'{each:,}' for each in found)} |" for what, grows, found in rows
    ]
    return "\n".join(lines)


def test_the_page_has_what_is_counted(counted: Callable[..., Counted]) -> None:
    expected = table(counted)
    assert expected in PAGE.read_text(), f"docs/reference/scale.md should have\n{expected}"


def test_the_page_lists_what_grows() -> None:
    assert re.findall(r"^- \*\*(.+?)\*\*", PAGE.read_text(), re.MULTILINE) == list(LINEAR)
