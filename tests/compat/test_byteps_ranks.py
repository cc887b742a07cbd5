"""`byteps.torch` on ranks, and `ronde bpslaunch`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from compat.test_horovod_names import ON_PATH
from compat.test_horovod_ranks import loss_of, model_of, one_device
from ronde.cli.entry import main
from ronde.compat.byteps import basics as bps_basics
from ronde.compat.byteps import operations as bps
from ronde.compat.byteps.cross_barrier import CrossBarrier
from ronde.compat.byteps.data_parallel import DistributedDataParallel
from ronde.compat.horovod import basics
from ronde.compat.horovod.functions import broadcast_optimizer_state, broadcast_parameters
from ronde.compat.horovod.operations import synchronize
from ronde.testing import forked

On = Callable[..., list[Any]]
SCRIPT = """
import torch
import byteps.torch as bps
from byteps.torch.parallel import DistributedDataParallel

bps.init()
print(bps.push_pull(torch.tensor([float(bps.rank())]), average=False, name="x").item(), bps.local_size())
bps.shutdown()
"""
# The whole interface comes from one module, and one rank has nobody to exchange gradients with.
BARRIER = """
import torch
import byteps.torch.cross_barrier as bps

bps.init()
assert (bps.rank(), bps.size(), bps.local_rank(), bps.local_size()) == (0, 1, 0, 1)
model = torch.nn.Linear(2, 1, bias=False)
optimizer = bps.CrossBarrier(
    model, torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), bps.Compression.fp16
)
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)
before = model.weight.detach().clone()
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
assert torch.allclose(model.weight, before - 2), (model.weight, before)
bps.shutdown()
"""


def exchanges() -> None:
    rank = basics.rank()
    x = torch.full((2,), 1.0 + rank, requires_grad=True)
    bps.push_pull(x, name="x").sum().backward()
    assert bps.push_pull(x, average=False).tolist() == [3.0, 3.0]
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 1.0]
    y = torch.full((2,), float(rank))
    assert synchronize(bps.push_pull_async_inplace(y, name="y", priority=3)) is y
    assert y.tolist() == [0.5, 0.5]
    bps.declare("z")
    bps_basics.suspend()
    assert (bps_basics.rank(), bps_basics.local_rank()) == (rank, rank)  # scripts log by it meanwhile
    assert (bps_basics.size(), bps_basics.local_size()) == (2, 2)
    with pytest.raises(NotImplementedError, match=r"resume\(num_workers=3\)"):
        bps_basics.resume(3, 1, 0)
    bps_basics.resume(2, 1, 0)
    assert bps.push_pull(torch.ones(1), average=False).item() == 2
    bps_basics.shutdown()
    with pytest.raises(ValueError, match=r"call bps.init\(\) first"):
        bps_basics.rank()


def of_optimizer(barrier: bool) -> list[torch.Tensor]:
    model = model_of(basics.rank())
    broadcast_parameters(model.state_dict(), root_rank=0)
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if barrier:
        optimizer: Any = CrossBarrier(model, plain, model.named_parameters(), num_steps=4)
        broadcast_optimizer_state(optimizer, root_rank=0)
    else:
        optimizer = bps.DistributedOptimizer(plain, model.named_parameters())
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, step, 0, basics.rank()).backward()
        optimizer.step()
    return [each.detach().clone() for each in model.parameters()]


def of_schedule(barrier: bool) -> dict[str, torch.Tensor]:
    """A late update is by the learning rate of its own step; a checkpoint has all updates."""
    model = model_of(0)
    plain = torch.optim.Adam(model.parameters(), lr=0.1)
    if barrier:
        optimizer: Any = CrossBarrier(model, plain, model.named_parameters())
    else:
        optimizer = bps.DistributedOptimizer(plain, model.named_parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step, 0, basics.rank()).backward()
        optimizer.step()
        schedule.step()
    return {name: each.clone() for name, each in model.state_dict().items()}


def of_two_paths() -> list[torch.Tensor]:
    """Each rank's loss is of another layer; both ranks update both."""
    model = nn.ModuleList([nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)])
    for each in model.parameters():
        nn.init.zeros_(each)
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = CrossBarrier(model, plain, model.named_parameters())
    model[basics.rank()](torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return [each.clone() for each in model.state_dict().values()]


def of_module() -> list[torch.Tensor]:
    model = model_of(basics.rank())
    wrapped: nn.Module = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(wrapped, step, 0, basics.rank()).backward()
        optimizer.step()
    return [each.detach().clone() for each in model.parameters()]


def test_tensors_are_pushed_and_pulled(two: On) -> None:
    two(exchanges)


@pytest.mark.parametrize(
    ("work", "args"), [(of_optimizer, (False,)), (of_optimizer, (True,)), (of_module, ())]
)
def test_training_is_that_of_all_batches(two: On, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    for found in two(work, *args):
        torch.testing.assert_close(found, one_device(2, 1), rtol=1e-12, atol=1e-12)


def test_late_updates_are_those_of_their_step(two: On) -> None:
    for late, plain in zip(two(of_schedule, True), two(of_schedule, False), strict=True):
        torch.testing.assert_close(late, plain, rtol=0, atol=0)


def test_ranks_go_different_paths_across_the_barrier(two: On) -> None:
    for found in two(of_two_paths):
        assert [each.tolist() for each in found] == [[[-0.5, -0.5]]] * 2


def test_one_rank_has_no_barrier(tmp_path: Path) -> None:
    paths = os.pathsep.join((str(ON_PATH), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", BARRIER], cwd=tmp_path, env=environment, check=True, timeout=120)


def test_a_rank_for_each_device(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "NVIDIA_VISIBLE_DEVICES": "0,1", "XDG_STATE_HOME": str(tmp_path)}
    command = ["bpslaunch", sys.executable, "train.py"]
    done = forked.run(command, directory=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:1.0 2", "[1]<stdout>:1.0 2"]


def test_servers_are_not_needed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DMLC_ROLE", "server")
    with pytest.raises(SystemExit) as end:
        main(["bpslaunch"])
    assert end.value.code in (None, 0)
    assert "a server is not needed" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["DMLC_NUM_WORKER", "BYTEPS_ENABLE_ASYNC"])
def test_what_is_not_there_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, "1" if name.startswith("BYTEPS") else "2")
    with pytest.raises(SystemExit) as end:
        main(["bpslaunch", "python", "train.py"])
    assert end.value.code == 2
    assert name in capsys.readouterr().err
