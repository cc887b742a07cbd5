"""Between a CUDA device and host memory: the numbers of plain torch, with less on the device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from alone import alone
from ronde.shards.cut_state import CutState
from ronde.testing.parity import assert_parity

pytestmark = pytest.mark.gpu

HERE = Path(__file__).parent
SCRIPT = HERE / "offloaded.py"
# With a scaler, with files and state that is read, with parameters that are shared, clipped, averaged.
SCRIPTS = ("amp_fp16", "resume", "tied", "clip_and_log", "ema", "gradient_accumulation", "gan", "classifier")
PLANS = ("offload=optimizer", "zero2,offload=optimizer", "zero3,offload=optimizer", "zero3,offload=all")


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", SCRIPTS)
def test_one_rank_gives_the_answer_of_plain_python(name: str, plan: str, tmp_path: Path) -> None:
    script = HERE.parent / "scripts" / f"{name}.py"
    assert_parity(script, ranks=1, place=tmp_path, devices=("0",), plan=plan)


def run(*start: str) -> tuple[list[float], int, str]:
    done = subprocess.run([sys.executable, *start, SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    *losses, peak, places = done.stdout.splitlines()
    return [float(loss) for loss in losses], int(peak), places


def test_the_device_holds_less() -> None:
    """Half of 16 bytes a parameter without the optimizer's state; without any, two units and buckets."""
    expected, whole, places = run()
    for plan, most in (("offload=optimizer", 0.6), ("zero3,offload=all", 0.4)):
        losses, peak, found = run("-m", "ronde", "run", "--ranks", "1", "--plan", plan, "--seed", "0")
        assert losses == pytest.approx(expected, rel=1e-4)
        assert peak < most * whole
        assert found == places


@pytest.mark.parametrize("plan", PLANS)
def test_what_is_on_its_way_is_not_overwritten(plan: str, tmp_path: Path) -> None:
    """Steps without a pause, large and small, against the same on the device."""

    def trained() -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
        torch.manual_seed(3)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(8))).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x, y = torch.randn(64, 512).cuda(), torch.randn(64, 512).cuda()
        for _ in range(30):
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
        return [each.detach().clone() for each in model.parameters()], optimizer

    plain, _ = trained()
    with alone(tmp_path, plan, "cuda"):
        found, optimizer = trained()
        state = vars(optimizer)["state"]
        assert isinstance(state, CutState)
        for piece in state.pieces.values():
            assert piece.own is not None
            assert piece.own.is_pinned()
            assert state.local[piece.own]["momentum_buffer"].device.type == "cpu"
    for one, other in zip(plain, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


def test_a_fused_step_with_a_scaler_and_a_rate_on_the_device(tmp_path: Path) -> None:
    def trained() -> tuple[list[torch.Tensor], str]:
        torch.manual_seed(3)
        model = nn.Linear(300, 300).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01, device="cuda"), fused=True)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)
        for step in range(5):
            optimizer.zero_grad()
            loss = model(torch.ones(4, 300, device="cuda")).square().mean() * (torch.inf if step == 2 else 1)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        state = optimizer.state[model.weight]
        return [each.detach().clone() for each in model.parameters()], state["step"].device.type

    plain, place = trained()
    with alone(tmp_path, "offload=optimizer", "cuda"):
        found, where = trained()
    assert where == place == "cuda"
    for one, other in zip(plain, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
