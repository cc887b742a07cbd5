"""A block of shared memory with a name of the script's is refused; one without is as ever."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory

import pytest

from ronde.errors import UsageError
from ronde.patching.patches import Patches
from ronde.process import shared_blocks


@pytest.fixture(autouse=True)
def _refused() -> Iterator[None]:
    patches = Patches()
    shared_blocks.install(patches)
    yield
    patches.restore()


def test_a_name_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'ronde_test', which a host has once, and every rank would make"):
        SharedMemory("ronde_test", create=True, size=8)
    with pytest.raises(FileNotFoundError):
        SharedMemory("ronde_test")


def test_without_a_name() -> None:
    made = SharedMemory(create=True, size=8)
    made.buf[0] = 7
    found = SharedMemory(made.name)
    assert found.buf[0] == 7
    found.close()
    made.close()
    made.unlink()
