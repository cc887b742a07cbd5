"""`ronde run` by a plan whose ranks do not wait for one another: what each trains on, prints and writes."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import pytest
import torch

from ronde.testing import forked

pytest.importorskip("zmq")

SCRIPT = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    net = torch.nn.Linear(5, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(24, 5), torch.randn(24, 1))
    for epoch in range(2):
        for inputs, targets in DataLoader(data, batch_size=8, shuffle=True):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(net(inputs), targets).backward()
            optimizer.step()
    print(len(inputs))
    with torch.no_grad():
        print(sum(len(inputs) for inputs, _ in DataLoader(data, batch_size=10)))
    torch.save(net.state_dict(), "net.pt")
"""


def launched(folder: Path, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(textwrap.dedent(script))
    return forked.run(["run", "--seed", "1", "--run-dir", "logs", *options, "train.py"], directory=folder)


def reference(ranks: int) -> dict[str, torch.Tensor]:
    """Each step the sum over slices of the gradient of a slice's own mean, in this process."""
    torch.manual_seed(0)
    net = torch.nn.Linear(5, 1).double()
    torch.manual_seed(0)
    with torch.random.fork_rng():
        torch.set_default_dtype(torch.float64)
        try:
            torch.manual_seed(0)
            net = torch.nn.Linear(5, 1)
            inputs, targets = torch.randn(24, 5), torch.randn(24, 1)
            data = torch.utils.data.TensorDataset(inputs, targets)
            for _ in range(2):
                for batch, wanted in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
                    net.zero_grad()
                    for part, goal in zip(batch.chunk(ranks), wanted.chunk(ranks), strict=True):
                        torch.nn.functional.mse_loss(net(part), goal).backward()
                    with torch.no_grad():
                        for value in net.parameters():
                            value -= 0.1 * value.grad
        finally:
            torch.set_default_dtype(torch.float32)
    return net.state_dict()


@pytest.mark.parametrize(
    ("plan", "ranks"),
    [
        pytest.param("ps-async", 1, marks=pytest.mark.soak),
        ("ps-bounded,staleness=0", 2),
        pytest.param("ps-bounded,staleness=0,servers=2", 4, marks=pytest.mark.soak),
    ],
)
def test_each_rank_trains_on_its_slice_of_every_batch(tmp_path: Path, plan: str, ranks: int) -> None:
    """With staleness 0 all start a step from the same parameters, and steps of SGD may come in any order."""
    done = launched(tmp_path, SCRIPT, "--ranks", str(ranks), "--plan", plan)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(8 // ranks), "24"]
    found = torch.load(tmp_path / "net.pt")
    for name, value in reference(ranks).items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-12)


def test_a_rank_that_is_killed_is_left_out(tmp_path: Path) -> None:
    kill = """
        import os, signal, ronde
        if ronde.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    """
    script = SCRIPT.replace("    print(len(inputs))", textwrap.dedent(kill).replace("\n", "\n    "))
    done = launched(tmp_path, script, "--ranks", "2", "--plan", "ps-bounded,staleness=0")
    assert done.returncode == 0, done.stderr
    assert "rank 1 was killed by SIGKILL; the others go on without it" in done.stderr
    assert (tmp_path / "net.pt").exists()


def test_batches_that_no_loader_makes_are_refused(tmp_path: Path) -> None:
    script = """
        import torch
        net = torch.nn.Linear(5, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.ones(4, 5)).sum().backward()
        optimizer.step()
    """
    done = launched(tmp_path, script, "--ranks", "2", "--plan", "ps-async")
    assert done.returncode == 2
    assert "gives each rank its slice of every batch of a DataLoader" in done.stderr
    assert "Traceback" not in done.stderr


def test_optimizers_that_servers_do_not_know_are_refused_by_name(tmp_path: Path) -> None:
    script = SCRIPT.replace(
        "torch.optim.SGD(net.parameters(), lr=0.1)", "torch.optim.Adafactor(net.parameters())"
    )
    done = launched(tmp_path, script, "--ranks", "2", "--plan", "ps-async")
    assert done.returncode == 2
    assert "not this Adafactor" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_that_makes_a_group_of_ranks_gets_its_precision_back(tmp_path: Path) -> None:
    script = """
        import torch
        import torch.distributed as dist

        class Net(torch.nn.Linear):
            def forward(self, inputs):
                print(torch.is_autocast_enabled("cpu"), flush=True)
                return super().forward(inputs)

        net = Net(5, 1)
        net(torch.ones(4, 5))
        dist.init_process_group("gloo")
        output = net(torch.ones(4, 5))
        assert output.dtype is torch.float32
        dist.destroy_process_group()
    """
    done = launched(tmp_path, script, "--ranks", "2", "--plan", "local-sgd,precision=bf16")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "False"]
