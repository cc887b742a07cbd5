"""Control messages travel in host memory, whatever library carries the tensors of a device."""

from __future__ import annotations

import types
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from device_library import as_a_library
from ronde.comm import device_library, rendezvous
from ronde.comm.agreement import Agreement
from ronde.comm.backend import TorchBackend
from ronde.comm.by_device import ByDevice
from ronde.comm.device_library import device_group, library_of
from ronde.comm.process_group import Comm
from ronde.errors import LaunchError
from ronde.testing.run_ranks import Rank

TIMEOUT = timedelta(seconds=30)


class Counted:
    """A library of devices that only counts its calls; tensors without data are on the device here."""

    name, on_cuda, blocks, averages = "counted", True, False, False

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.calls.append(name)


def joined(rank: Rank, store: str) -> tuple[Comm, Counted]:
    counted: Any = Counted()
    meeting = dist.FileStore(store, rank.world_size)
    gloo = rendezvous._gloo(meeting, rank.rank, rank.world_size, TIMEOUT, "127.0.0.1")
    backend = ByDevice(counted, TorchBackend(gloo))
    comm = Comm(backend, rank=rank.rank, world_size=rank.world_size, store=meeting)
    comm.barrier()  # a rank that closes its group breaks the others' connections under way
    return comm, counted


def control(rank: Rank, store: str) -> list[Any]:
    comm, counted = joined(rank, store)
    agreement = Agreement(comm)
    mine = torch.tensor([rank.rank], device=comm.control_device)
    told = [
        comm.votes([True, rank.rank == 0]),
        comm.failures(rank.rank == 1),
        comm.all_gather_object({"rank": rank.rank}),
        comm.all_gather_object("x" * (1 + 9 * rank.rank)),
        comm.broadcast_object(rank.rank, 1),
        agreement("time", 0.5 + rank.rank),
        agreement("name", f"of {rank.rank}"),
        comm.all_gather(mine).flatten().tolist(),
    ]
    comm.barrier()
    comm.share([[torch.ones(3)], [torch.ones(3)]])
    during = list(counted.calls)
    comm.close()
    return [told, during, counted.calls]


def test_votes_objects_and_agreements_leave_the_device_alone(ranks: Any, tmp_path: Path) -> None:
    for told, during, calls in ranks(2, control, str(tmp_path / "store")):
        assert told == [
            [2, 1],
            1,
            [{"rank": 0}, {"rank": 1}],
            ["x", "x" * 10],
            1,
            0.5,
            "of 0",
            [0, 1],
        ]
        assert during == []
        assert calls == ["close"]


def on_the_device(rank: Rank, store: str) -> list[str]:
    comm, counted = joined(rank, store)
    flat = torch.empty(4, device="meta")
    comm.all_reduce(flat)
    comm.all_gather(flat)
    comm.broadcast(flat)
    comm.share([[flat[:2]], [flat[2:]]])
    comm.reduce_scatter_async(flat[:2], [[flat[:2]], [flat[2:]]]).wait()
    comm.all_to_all([flat[:2], flat[2:]], [2, 2])
    comm.pass_on(flat, 4)
    comm.send(flat, 0)
    comm.receive(flat, 0)
    comm.be_patient()
    comm.close()
    return counted.calls


def test_tensors_of_the_device_go_by_its_library(ranks: Any, tmp_path: Path) -> None:
    expected = [
        *("all_reduce", "all_gather", "broadcast", "share", "reduce_scatter", "all_to_all", "all_to_all"),
        *("send", "receive", "set_timeout", "close"),
    ]
    assert ranks(2, on_the_device, str(tmp_path / "store")) == [expected] * 2


def averaging(rank: Rank, store: str) -> list[Any]:
    comm, counted = joined(rank, store)
    found: list[Any] = []
    for counted.averages in (True, False):
        for flat in (torch.empty(4, device="meta"), torch.empty(4, device="meta", dtype=torch.complex64)):
            comm.average_async(flat).wait()
    on_host = torch.tensor([1.0 + rank.rank])
    comm.average_async(on_host).wait()
    found += [*counted.calls, on_host.item()]
    comm.close()
    return found


def test_a_library_that_can_divides_while_it_sums(ranks: Any, tmp_path: Path) -> None:
    expected = ["average", "average", "all_reduce", "all_reduce", 1.5]
    assert ranks(2, averaging, str(tmp_path / "store")) == [expected] * 2


def scattering(rank: Rank) -> list[list[float]]:
    found: list[list[float]] = []
    with as_a_library(rank, "scattering", []) as comm:
        for sizes in ((2, 2), (3, 1)):
            whole = torch.arange(4.0) * (1 + rank.rank)
            first, second = whole.split(list(sizes))
            out = torch.empty(sizes[rank.rank])
            comm.reduce_scatter_async(out, [[first[:1], first[1:]], [second]]).wait()
            found.append(out.tolist())
    return found


def test_a_library_scatters_sums_of_equal_and_unequal_parts(ranks: Any) -> None:
    assert ranks(2, scattering) == [[[0, 3], [0, 3, 6]], [[6, 9], [9]]]


def test_control_messages_are_in_host_memory_under_a_default_device(ranks: Any, tmp_path: Path) -> None:
    """A script may make another device torch's default."""
    assert ranks(2, under_default_device, str(tmp_path / "store")) == [[[1, 0], [0, 1]]] * 2


def under_default_device(rank: Rank, store: str) -> list[Any]:
    comm, _ = joined(rank, store)
    torch.set_default_device("meta")
    try:
        return [comm.votes([rank.rank == 0, False]), comm.all_gather_object(rank.rank)]
    finally:
        torch.set_default_device(None)
        comm.close()


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Libraries that are registered with torch, of a device that is none."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(device_library, "backend_plugins", lambda: found)
    monkeypatch.setitem(dist.Backend.default_device_backend_map, "hpu", "hccl")
    return found


def test_torch_knows_the_libraries_of_devices(plugins: dict[str, Any]) -> None:
    plugins["HCCL"] = None
    assert library_of("hpu") == "HCCL"


@pytest.mark.parametrize("device", ["hpu", "no-such-device"])
@pytest.mark.usefixtures("plugins")
def test_a_device_without_a_library_is_refused(device: str) -> None:
    with pytest.raises(LaunchError, match=f"this torch has no library that exchanges tensors on {device}"):
        library_of(device)


def test_a_registered_library_makes_its_group(plugins: dict[str, Any]) -> None:
    store = dist.HashStore()
    plugins["HCCL"] = types.SimpleNamespace(creator_fn=lambda *given: given, extended_api=False)
    assert device_group("hpu", store, 1, 2, TIMEOUT) == (store, 1, 2, TIMEOUT)
    plugins["HCCL"] = types.SimpleNamespace(creator_fn=lambda options, own: (options, own), extended_api=True)
    options, own = device_group("hpu", store, 1, 2, TIMEOUT)
    assert own is None
    assert (options.group_rank, options.group_size, options.timeout) == (1, 2, TIMEOUT)
    assert options.global_ranks_in_group == [0, 1]


def test_a_library_of_torchs_has_options(monkeypatch: pytest.MonkeyPatch) -> None:
    class ProcessGroupNCCL:
        class Options:
            _timeout: Any = None

        def __init__(self, *given: Any) -> None:
            self.given = given

    monkeypatch.setattr(dist, "ProcessGroupNCCL", ProcessGroupNCCL, raising=False)
    assert library_of("cuda") == "NCCL"
    store = dist.HashStore()
    *given, options = device_group("cuda", store, 1, 2, TIMEOUT).given
    assert given == [store, 1, 2]
    assert options._timeout == TIMEOUT
