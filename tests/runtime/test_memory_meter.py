"""What is counted as memory, of which kind, and when; without ranks."""

from __future__ import annotations

import itertools
import os

import pytest
import torch
from torch import nn

from ronde.runtime.memory.census import StorageCensus
from ronde.runtime.memory.meter import MemoryMeter, measured_steps
from ronde.runtime.memory.process import allocated, peak_of_process
from ronde.trace.memory import Memory, memory_line, show_bytes
from ronde.trace.resident import Census, Resident

KIB = 1024


def test_measured_steps_grow_rare() -> None:
    measured = list(itertools.takewhile(lambda steps: steps < 9000, measured_steps()))
    assert measured[:12] == [0, 1, 2, 3, 16, 17, 128, 129, 1024, 1025, 2048, 2049]
    assert measured[12:] == [4096, 4097, 6144, 6145, 8192, 8193]


def test_a_storage_is_counted_once_and_whole() -> None:
    census = StorageCensus()
    tensor = torch.zeros(KIB)
    census.count("parameters", tensor[:10])
    census.count("gradients", tensor)
    census.count("gradients", torch.zeros(2 * KIB).view(2, KIB).t())
    assert (census.bytes["parameters"], census.bytes["gradients"]) == (4 * KIB, 8 * KIB)
    assert census.coming == 12 * KIB


def test_what_has_no_memory_counts_nothing() -> None:
    census = StorageCensus()
    for tensor in (
        torch.zeros(KIB, device="meta"),
        torch.zeros(3, 3).to_sparse(),
        torch.zeros(0),
        nn.UninitializedParameter(),
        "no tensor",
    ):
        census.count("parameters", tensor)
    freed = torch.zeros(KIB)
    freed.untyped_storage().resize_(0)
    census.count("parameters", freed)
    assert not any(census.bytes.values())


def test_what_lies_beside_a_device_is_told_apart() -> None:
    """Here all tensors are in host memory, as those of an optimizer that steps there."""
    census = StorageCensus(on_cuda=True)
    census.count("optimizer", torch.zeros(2 * KIB))
    census.count("parameters", torch.zeros(KIB))
    census.count_at("buckets", 1 << 20, 100)
    assert (census.bytes["optimizer"], census.on_host["optimizer"]) == (8 * KIB, 8 * KIB)
    assert (census.bytes["buckets"], census.on_host["buckets"]) == (100, 0)
    assert census.coming == 0  # activations are on the device


def test_an_optimizers_state_may_be_nested() -> None:
    census = StorageCensus()
    old = [torch.zeros(KIB), torch.zeros(KIB)]
    census.count_state({nn.Parameter(torch.zeros(3)): {"step": 3, "old": old, "last": (old[0], None)}})
    assert census.bytes["optimizer"] == 8 * KIB


def train(model: nn.Module, meter: MemoryMeter, steps: int, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(steps):
        if meter.armed:
            meter.called(model)
        loss = model(torch.ones(64, KIB)).sum()
        if meter.armed:
            meter.begin_backward()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.stepped(optimizer)


def test_each_kind_has_its_peak() -> None:
    model = nn.Sequential(nn.Linear(KIB, KIB), nn.Sigmoid(), nn.BatchNorm1d(KIB), nn.Sigmoid())
    for frozen in (model[2].weight, model[2].bias):
        frozen.requires_grad_(False)
    meter = MemoryMeter(on_cuda=False, hears_calls=True)
    train(model, meter, 5, torch.optim.Adam(p for p in model.parameters() if p.requires_grad))
    trained = 4 * (KIB * KIB + KIB)
    memory = meter.memory()
    # Batch norm has two frozen parameters, two buffers and a count.
    assert memory.peaks["parameters"] == trained + 4 * 4 * KIB + 8
    assert memory.peaks["gradients"] == trained
    assert memory.peaks["optimizer"] == 2 * trained + 2 * 4
    assert memory.peaks["buckets"] == 0
    if allocated(on_cuda=False) is not None:
        rows = 4 * 64 * KIB
        # The input, which each step makes anew, the outputs of both sigmoids and of batch norm.
        assert 3 * rows <= memory.peaks["activations"] <= 5 * rows
    assert memory.where == "process"
    assert memory.total >= memory.known
    assert memory.state == 4 * trained + 4 * 4 * KIB + 8 + 8


def test_the_model_as_it_was_built_is_not_in_settled_peaks() -> None:
    """Afterwards a rank may have a part of it."""
    meter = MemoryMeter(on_cuda=False, hears_calls=True)
    model = nn.Linear(KIB, KIB, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, meter, 1, optimizer)
    model.weight.data = model.weight.data[: KIB // 2].clone()
    model.weight.grad = None
    train(model, meter, 4, optimizer)
    memory = meter.memory()
    assert (memory.peaks["parameters"], memory.settled["parameters"]) == (4 * KIB * KIB, 2 * KIB * KIB)


def test_gradients_that_are_freed_meanwhile_are_no_activations() -> None:
    """`zero_grad` between forward and backward, as scripts have it, frees as much as the model has."""
    if allocated(on_cuda=False) is None:
        pytest.skip("this C library does not tell what is allocated")
    model = nn.Linear(KIB, KIB)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    meter = MemoryMeter(on_cuda=False, hears_calls=True)
    for _ in range(4):
        meter.called(model)
        loss = model(torch.ones(64, KIB)).square().sum()
        optimizer.zero_grad()
        meter.begin_backward()
        loss.backward()
        optimizer.step()
        meter.stepped(optimizer)
    rows = 4 * 64 * KIB
    assert rows <= meter.memory().peaks["activations"] <= 4 * rows


def test_without_calls_there_are_no_activations() -> None:
    meter = MemoryMeter(on_cuda=False, hears_calls=False)
    parameter = nn.Parameter(torch.zeros(KIB))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    parameter.grad = torch.ones(KIB)
    optimizer.step()
    meter.stepped(optimizer)
    memory = meter.memory()
    assert "activations" not in memory.peaks
    assert memory.state == 2 * 4 * KIB


def test_state_elsewhere_tells_of_itself() -> None:
    class Parts:
        def tell(self, census: Census) -> None:
            census.count("parameters", self.shard)
            census.add("parameters", 100)

        shard = torch.zeros(KIB)

    meter = MemoryMeter(on_cuda=False, hears_calls=False)
    parts = Parts()
    assert isinstance(parts, Resident)
    meter.residents.append(parts)
    meter.count()
    assert meter.memory().peaks["parameters"] == 4 * KIB + 100


def test_it_is_heard_when_steps_are_measured() -> None:
    heard: list[bool] = []
    meter = MemoryMeter(on_cuda=False, hears_calls=False)
    meter.on_change = heard.append
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    for _ in range(20):
        meter.stepped(optimizer)
    assert heard == [False, True, False]


def test_the_process_is_larger_than_what_it_holds() -> None:
    held = bytearray(32 << 20)
    assert peak_of_process() > len(held)
    assert peak_of_process() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_what_the_user_is_told() -> None:
    peaks = {"parameters": 3 << 20, "gradients": 3 << 20, "optimizer": 0, "activations": 1000}
    memory = Memory(peaks=peaks, total=5 << 30, where="device")  # pyright: ignore[reportArgumentType]
    assert memory_line(memory, 2) == (
        "peak memory on rank 2, which had the most: parameters 3.00 MiB, gradients 3.00 MiB, "
        "activations 0.98 KiB; device 5.00 GiB"
    )
    assert memory_line(memory, None).startswith("peak memory: parameters 3.00 MiB")
    beside = Memory(
        peaks={"parameters": 4 << 20, "gradients": 4 << 20, "optimizer": (8 << 20) + 12, "buckets": 4 << 20},
        total=5 << 30,
        where="device",
        on_host={"parameters": 3 << 20, "optimizer": 8 << 20, "gradients": 40},
    )
    assert memory_line(beside, None) == (
        "peak memory: parameters 4.00 MiB (3.00 MiB in host memory), gradients 4.00 MiB, "
        "optimizer 8.00 MiB in host memory, buckets 4.00 MiB; device 5.00 GiB"
    )
    assert show_bytes(999) == "999 B"
