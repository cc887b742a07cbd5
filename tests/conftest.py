"""Every test leaves process, host and environment as it found them; markers skip with a reason."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from typing import Any

import pytest

# Before torch is first imported: ranks of a test share few cores, and threads change the order of sums.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import leaks


@pytest.fixture(autouse=True, scope="session")
def state_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run directories of tests go to pytest's own folder, not to the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail the test that leaves a thread, a process, shared memory, or a changed variable or default.

    Fixtures of a wider scope are set up before this one, so what they keep alive is not counted.
    """
    before = leaks.Snapshot.take()
    yield
    left = leaks.leaks_since(before)
    os.environ.update(before.environment)
    for name in leaks.environment().keys() - before.environment.keys():
        del os.environ[name]
    if left:
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[..., list[Any]]]:
    """`ranks(world_size, fn, *args)`: `fn(rank, *args)` on 2 to 4 ranks, whose processes outlive the test."""
    from ronde.testing.run_ranks import RankPool

    pools = {world_size: RankPool(world_size) for world_size in (2, 3, 4)}
    for world_size in (2, 3):  # those of four start when they are asked for
        pools[world_size].start()
    yield lambda world_size, fn, *args: pools[world_size].run(fn, *args)
    for pool in pools.values():
        pool.close()
    # The server from which ranks were forked would end by itself, but only after this process.
    forkserver._forkserver._stop()


@pytest.fixture(scope="session")
def host() -> Iterator[Any]:
    """A host that has imported torch, for recorded runs; its processes end with each run."""
    from support.warm import WarmHost

    with WarmHost() as host:
        yield host


@pytest.fixture
def network() -> Iterator[Any]:
    """Two hosts made of network namespaces; skips where they cannot be made, saying why."""
    from ronde.testing.hosts import HostsUnavailable, Network

    try:
        made = Network(2).__enter__()
    except HostsUnavailable as why:
        pytest.skip(str(why))
    with made:
        yield made


def pytest_configure() -> None:
    """Hear signals: a shell that runs the tests in its background has them ignored, children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs the rights of root")
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device; torch sees none")
