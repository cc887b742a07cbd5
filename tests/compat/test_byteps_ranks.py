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

from compat.test_horovod_ranks import loss_of, model_of, one_device
from ronde.cli.app import main
from ronde.compat.byteps import operations as bps
from ronde.compat.byteps.cross_barrier import CrossBarrier
from ronde.compat.byteps.data_parallel import DistributedDataParallel
from ronde.compat.horovod import basics
from ronde.compat.horovod.functions import broadcast_parameters
from ronde.compat.horovod.operations import synchronize

On = Callable[..., list[Any]]
SCRIPT = """
import torch
import byteps.torch as bps
from byteps.torch.parallel import DistributedDataParallel

bps.init()
print(bps.push_pull(torch.tensor([float(bps.rank())]), average=False, name="x").item(), bps.local_size())
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
    bps.suspend()
    bps.resume(2, 0)
    assert basics.size() == 2


def of_optimizer(barrier: bool) -> list[torch.Tensor]:
    model = model_of(basics.rank())
    broadcast_parameters(model.state_dict(), root_rank=0)
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer: Any = bps.DistributedOptimizer(plain, model.named_parameters())
    if barrier:
        optimizer = CrossBarrier(model, optimizer, 4)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, step, 0, basics.rank()).backward()
        optimizer.step()
    optimizer.state_dict()
    return [each.detach().clone() for each in model.parameters()]


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


def test_a_rank_for_each_device(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "NVIDIA_VISIBLE_DEVICES": "0,1", "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "ronde", "bpslaunch", sys.executable, "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
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
