"""Named blocks of shared memory, made by ranks that take turns in this process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.managers import SharedMemoryManager
from multiprocessing.shared_memory import ShareableList, SharedMemory
from pathlib import Path
from typing import Any

import pytest

from ronde.boundary.circumstances.shared_blocks import SharedBlocks
from ronde.boundary.patches import Patches


class Host:
    """Ranks of one host. What one of them is told of others' blocks, it is told through files."""

    def __init__(self, folder: Path) -> None:
        self.notes: list[str] = []
        self.name = f"train_batch_{folder.name}"
        self._ranks = [
            SharedBlocks(
                first=rank == 0, suffix=f".rank{rank}", marks=f"{folder}/block-", note=self.notes.append
            )
            for rank in range(3)
        ]

    @contextmanager
    def rank(self, rank: int) -> Iterator[None]:
        patches = Patches()
        self._ranks[rank].install(patches)
        try:
            yield
        finally:
            patches.restore()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@contextmanager
def block(name: str | None, size: int = 0) -> Iterator[SharedMemory]:
    """Attached to, or made of a size and removed."""
    made = SharedMemory(name, create=size > 0, size=size)
    try:
        yield made
    finally:
        made.close()
        if size:
            made.unlink()


def test_every_rank_has_a_block_of_its_own(host: Host) -> None:
    with host.rank(0):
        first = SharedMemory(host.name, create=True, size=1)
        assert first.name == host.name
        first.buf[0] = 7
    for rank in (1, 2):
        with host.rank(rank), block(host.name, 1) as own:
            own.buf[0] = rank
            assert own.name == f"{host.name}.rank{rank}"
            for name in (host.name, own.name):
                with block(name) as attached:
                    assert attached.buf[0] == rank
            with pytest.raises(FileExistsError):
                SharedMemory(host.name, create=True, size=1)
    assert first.buf[0] == 7
    first.close()
    with host.rank(0):
        first.unlink()
        with pytest.raises(FileNotFoundError):
            SharedMemory(host.name)
        with block(f"{host.name}_2", 1):
            pass
    assert host.notes == [
        f"the shared memory block {host.name!r} is the main rank's: every other rank makes one under a name "
        f"of its own, which .name tells"
    ]


def test_a_block_that_only_the_main_rank_has_made_yet(host: Host) -> None:
    """Who waits for it to come must not be given another rank's."""
    with host.rank(0):
        first = SharedMemory(host.name, create=True, size=1)
    with host.rank(1), pytest.raises(FileNotFoundError, match=host.name):
        SharedMemory(host.name)
    first.close()
    with host.rank(0):
        first.unlink()
    with host.rank(1), pytest.raises(FileNotFoundError, match=host.name):
        SharedMemory(host.name)


def test_a_block_of_another_program_is_one_for_all(host: Host) -> None:
    with block(host.name, 1) as theirs:
        theirs.buf[0] = 9
        for rank in (0, 1, 2):
            with host.rank(rank):
                with pytest.raises(FileExistsError):
                    SharedMemory(host.name, create=True, size=1)
                with block(host.name) as attached:
                    assert (attached.name, attached.buf[0]) == (host.name, 9)
    assert host.notes == []


def test_a_block_that_was_left_is_removed_and_made_anew(host: Host) -> None:
    """As scripts do that find what an earlier run has left; another rank may be ahead of the main one."""
    left = SharedMemory(host.name, create=True, size=1)
    left.close()

    def make() -> SharedMemory:
        with suppress(FileNotFoundError):
            old = SharedMemory(host.name)
            old.close()
            old.unlink()
        return SharedMemory(host.name, create=True, size=2)

    made: list[Any] = []
    for rank in (1, 0, 2):
        with host.rank(rank):
            made.append(make())
    assert [each.name for each in made] == [f"{host.name}.rank1", host.name, f"{host.name}.rank2"]
    for rank, each in zip((1, 0, 2), made, strict=True):
        each.close()
        with host.rank(rank):
            each.unlink()


def test_blocks_without_a_name_are_pythons_own(host: Host) -> None:
    with host.rank(1), block(None, 1) as made:
        assert made.name.startswith("psm_")
        made.buf[0] = 5
        with block(made.name) as attached:
            assert attached.buf[0] == 5
    assert host.notes == []


def test_lists(host: Host) -> None:
    with host.rank(0):
        first = ShareableList([1, 2], name=host.name)
    with host.rank(1):
        own = ShareableList([3, 4], name=host.name)
        assert list(ShareableList(name=host.name)) == [3, 4]
        own.shm.close()
        own.shm.unlink()
    assert list(first) == [1, 2]
    first.shm.close()
    with host.rank(0):
        first.shm.unlink()


def test_a_manager_of_blocks(host: Host) -> None:
    with host.rank(1), SharedMemoryManager(ctx=multiprocessing.get_context("fork")) as manager:
        made = manager.SharedMemory(1)
        made.buf[0] = 3
        with block(made.name) as attached:
            assert attached.buf[0] == 3
        assert list(manager.ShareableList(["a"])) == ["a"]
        made.close()


def write(name: str) -> None:
    with block(name) as attached:
        attached.buf[0] = 8


@pytest.mark.parametrize("way", ["fork", pytest.param("spawn", marks=pytest.mark.soak)])
def test_a_child_finds_the_block_of_its_rank(host: Host, way: str) -> None:
    """By the block's name, which the script gives it; a forked one also by the name that it was asked for."""
    context: Any = multiprocessing.get_context(way)
    with host.rank(0):
        first = SharedMemory(host.name, create=True, size=1)
    with host.rank(1), block(host.name, 1) as own:
        names: list[Callable[[], str]] = [lambda: own.name, lambda: host.name]
        for name in names[: 2 if way == "fork" else 1]:
            own.buf[0] = 0
            child = context.Process(target=write, args=(name(),))
            child.start()
            child.join()
            assert (child.exitcode, own.buf[0], first.buf[0]) == (0, 8, 0)
    first.close()
    with host.rank(0):
        first.unlink()
