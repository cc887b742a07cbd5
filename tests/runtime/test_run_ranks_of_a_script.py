"""`ronde run` with real ranks, from the outside: what a user sees on stdout, stderr and in the exit code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ronde.errors import LaunchError
from ronde.runtime import api
from ronde.testing import forked

TRAIN = """
import atexit, sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(torch.randn(6, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(f"{loss.item():.6f}")
"""

DISTRIBUTED = """
import os, random, torch, torch.distributed as dist
from torch.distributed.distributed_c10d import init_process_group
init_process_group("gloo")
random.seed()
draws = [None] * 2
dist.all_gather_object(draws, random.random())
assert draws[0] != draws[1], "entropy is still the same on all ranks"
x = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(x)
print(dist.get_world_size(), os.environ["LOCAL_RANK"], x.item())
dist.destroy_process_group()
"""

EXPLICIT = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
import ronde
ronde.init()
model, optimizer = ronde.prepare(model, optimizer)
loss = model(torch.ones(4, 4)).sum()
loss.backward()
print(ronde.rank(), ronde.world_size(), ronde.is_main(), model.weight.grad.tolist())
"""


def ronde(place: Path, source: str, *options: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    script = place / "train.py"
    script.write_text(source)
    command = ["run", "--ranks", str(ranks), "--seed", "3", "--run-dir", str(place / "run")]
    return forked.run([*command, *options, str(script)], directory=place)


def test_a_plan_that_spreads_rows_of_which_there_are_none_is_told_so(tmp_path: Path) -> None:
    run = ronde(tmp_path, TINY, "--plan", "hybrid")
    assert run.returncode == 0, run.stderr
    assert "sparse=sharded spreads nothing: it is for rows of a ronde.EmbeddingTable" in run.stderr


TINY = """
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(200):
    loss = model(torch.randn(4, 2)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    loss.item()
"""


def test_a_model_that_is_too_small_is_told(tmp_path: Path) -> None:
    run = ronde(tmp_path, TINY)
    assert re.search(
        r"^ronde: note\[R322\]: an undisturbed step took [\d.]+ ms on 2 ranks, and would take about ",
        run.stderr,
        re.MULTILINE,
    )
    for rank in (0, 1):
        times = json.loads((tmp_path / "run" / f"rank-{rank}.summary.json").read_text())["step_times"]
        assert all(times[name] > 0 for name in ("whole", "waited", "own", "model"))
        assert times["waited"] + times["own"] + times["model"] + times["rows"] < times["whole"]


def test_prints_once_what_plain_python_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(TRAIN, {"__name__": "__main__"})
    plain = capsys.readouterr().out
    run = ronde(tmp_path, TRAIN)
    assert (run.returncode, run.stdout) == (0, plain)
    assert all(line.startswith("ronde: ") for line in run.stderr.splitlines())
    assert (tmp_path / "run" / "rank-1.log").read_text() == plain
    # On a busy machine one rank is waited for.
    said = [line for line in run.stderr.splitlines() if not line.startswith("ronde: the others waited")]
    start, done, summed, cut, memory = said
    assert start.startswith("ronde: seed 3, 2 ranks on cpu, ")
    assert re.fullmatch(
        r"ronde: 2 optimizer steps in [\d.]+ s; from the second on [\d.]+ steps/s, [\d.]+ samples/s, "
        r"data 0%, compute \d+%, communication \d+% of that time",
        done,
    )
    assert summed == "ronde: gradients: shared memory (all ranks are on one host)"
    assert cut == "ronde: on shards: Linear (2 calls)"
    # Four weights and a bias; SGD keeps nothing.
    expected = r"parameters 20 B, gradients 20 B, buckets 28 B, (activations \S+ \S+, )?process [\d.]+ [MG]iB"
    assert re.fullmatch(
        f"ronde: peak memory on rank [01], which had the most: {expected}", memory.replace(";", ",")
    )
    summaries = [json.loads((tmp_path / "run" / f"rank-{rank}.summary.json").read_text()) for rank in (0, 1)]
    assert [(each["steps"], each["samples"], each["sharded"]) for each in summaries] == [
        (2, 12, {"Linear": 2})
    ] * 2


@pytest.mark.soak
def test_compilers_of_ranks_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cache they write and take locks, each when it gets there."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kernels"))
    compiled = TRAIN.replace(
        "torch.nn.Linear(4, 1)", "torch.compile(torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Tanh()))"
    )
    plain = subprocess.run(
        [sys.executable, "-c", compiled], capture_output=True, text=True, timeout=110, check=True
    )
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "other_kernels"))
    run = ronde(tmp_path, compiled)
    assert (run.returncode, run.stdout) == (0, plain.stdout)


def test_a_script_that_ends_by_itself_keeps_its_exit_code_and_quiet_leaves_stderr_to_it(
    tmp_path: Path,
) -> None:
    leave = "\natexit.register(lambda: print('bye'))\nprint('well', file=sys.stderr)\nsys.exit(7)"
    run = ronde(tmp_path, TRAIN + leave, "--quiet")
    assert (run.returncode, run.stderr) == (7, "well\n")
    assert run.stdout.endswith("bye\n")


def test_an_error_of_the_script_shows_its_own_frames_once(tmp_path: Path) -> None:
    run = ronde(tmp_path, TRAIN + "\nmodel(torch.randn(6, 3))")
    assert run.returncode == 1
    assert run.stderr.count("Traceback (most recent call last)") == 1
    assert "train.py" in run.stderr
    assert "mat1 and mat2" in run.stderr
    assert not [
        room for room in ("boundary", "modules", "runtime", "tensor") if f"ronde/{room}" in run.stderr
    ]


def test_a_script_that_initializes_its_own_group_is_left_alone(tmp_path: Path) -> None:
    run = ronde(tmp_path, DISTRIBUTED)
    assert (run.returncode, run.stdout) == (0, "2 0 3.0\n")
    assert run.stderr.count("init_process_group") == 1
    assert (tmp_path / "run" / "rank-1.log").read_text() == "2 1 3.0\n"


def test_native_scripts_have_the_environment_from_the_start(tmp_path: Path) -> None:
    run = ronde(tmp_path, "import os\nprint(os.environ['RANK'], os.environ['WORLD_SIZE'])", "--native")
    assert (run.returncode, run.stdout) == (0, "0 2\n")


def test_a_script_that_reads_the_rank_is_told_of_native(tmp_path: Path) -> None:
    run = ronde(tmp_path, "import os\nprint(os.environ['RANK'])")
    assert run.returncode == 1
    assert "the script reads RANK itself" in run.stderr
    assert "--native" in run.stderr


def test_a_script_without_modules_is_told_that_nothing_is_cut(tmp_path: Path) -> None:
    run = ronde(tmp_path, "import torch\nprint(torch.ones(3).sum().item())")
    assert (run.returncode, run.stdout) == (0, "3.0\n")
    assert "nothing was cut" in run.stderr


def test_a_script_that_trains_in_a_thread_is_told_so(tmp_path: Path) -> None:
    script = """
        import threading, torch
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def train():
            output = model(torch.zeros(8, 3))
            output.sum().backward()
            optimizer.step()
            print(output.shape)
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()"""
    run = ronde(tmp_path, textwrap.dedent(script))
    assert (run.returncode, run.stdout) == (0, "torch.Size([8, 1])\n")
    assert "and this script called its modules in another\n" in run.stderr
    assert "ronde: 1 optimizer step in " in run.stderr


def test_a_script_that_calls_modules_in_a_function_of_autograds_is_told_so(tmp_path: Path) -> None:
    script = """
        import torch
        class Adjoint(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, model):
                ctx.model = model
                ctx.save_for_backward(x)
                with torch.no_grad():
                    return model(x)
            @staticmethod
            def backward(ctx, gradient):
                x = ctx.saved_tensors[0].detach().requires_grad_()
                with torch.enable_grad():
                    ctx.model(x).backward(gradient)
                return x.grad, None
        class Doubled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return 2 * x
            @staticmethod
            def backward(ctx, gradient):
                return 2 * gradient
        model = torch.nn.Linear(3, 1)
        Adjoint.apply(Doubled.apply(torch.ones(8, 3, requires_grad=True)), model).sum().backward()
        print(model.weight.grad.tolist())"""
    run = ronde(tmp_path, textwrap.dedent(script))
    assert (run.returncode, run.stdout) == (0, "[[16.0, 16.0, 16.0]]\n")
    assert "and this script called its modules in the forward of Adjoint\n" in run.stderr


SERVED = """
import queue, threading, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
asked, answered = queue.Queue(), queue.Queue()
def serve():
    answered.put(model(asked.get()))
threading.Thread(target=serve, daemon=True).start()
model(torch.ones(4, 4)).sum().backward()
optimizer.step()
asked.put(torch.ones(1, WIDTH))
print(answered.get(TIMEOUT))
"""


@pytest.mark.soak
def test_a_thread_that_is_refused_something_ends_the_run(tmp_path: Path) -> None:
    """The main thread waits for its answer."""
    script = SERVED.replace("WIDTH", "4").replace("TIMEOUT", "")
    run = ronde(tmp_path, script, "--plan", "zero3", "--timeout", "60")
    assert (run.returncode, run.stdout) == (2, "")
    assert "a parameter that is spread over the ranks was used in another thread" in run.stderr
    assert "Traceback" not in run.stderr


def test_what_ends_a_thread_is_told_without_our_frames(tmp_path: Path) -> None:
    script = SERVED.replace("WIDTH", "5").replace("TIMEOUT", "timeout=1")
    run = ronde(tmp_path, script)
    assert run.returncode == 1
    assert "Exception in thread Thread-1 (serve):\nTraceback" in run.stderr
    assert "mat1 and mat2 shapes cannot be multiplied" in run.stderr
    assert "_queue.Empty" in run.stderr
    assert "/ronde/" not in run.stderr.replace(str(tmp_path), "")


def test_a_script_that_trains_in_a_process_of_its_own_is_told_so(tmp_path: Path) -> None:
    script = """
        import torch, torch.multiprocessing
        def main_worker(number):
            torch.nn.Linear(3, 1)(torch.zeros(8, 3))
        if __name__ == "__main__":
            torch.multiprocessing.spawn(main_worker, nprocs=1)"""
    run = ronde(tmp_path, textwrap.dedent(script))
    assert (run.returncode, run.stdout) == (0, "")
    assert "and it started others for main_worker\n" in run.stderr


OWN_CALL = """
import torch
class Caller(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.ones(3))
    def __call__(self, x):
        return self.forward(x)
    def forward(self, x):
        return self.a * x
class Model(Caller):
    def __init__(self):
        super().__init__()
        self.b = Caller()
    def forward(self, x):
        return self.b(super().forward(x))
model = Model()
print(model(torch.ones(8, 3)).sum().item())
"""


def test_classes_with_a_call_of_their_own_are_thought_of(tmp_path: Path) -> None:
    run = ronde(tmp_path, OWN_CALL)
    assert (run.returncode, run.stdout) == (0, "24.0\n")
    assert "by the __call__ that torch gives it; this script made none\n" in run.stderr


IN_THE_ORDER_OF_A_SET = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(6)])
optimizers = {}
for step in range(3):
    model(torch.ones(8, 4)).square().mean().backward()
    for p in set(model.parameters()):
        if p not in optimizers:
            optimizers[p] = torch.optim.SGD([p], 0.1, momentum=0.9)
        optimizers[p].step()
        p.grad = None
print([f"{p.double().sum().item():.5f}" for p in model.parameters()])
"""


@pytest.mark.soak
def test_optimizers_may_be_stepped_in_the_order_of_a_set(tmp_path: Path) -> None:
    plain = subprocess.run(
        [sys.executable, "-c", IN_THE_ORDER_OF_A_SET], capture_output=True, text=True, check=True
    )
    run = ronde(tmp_path, IN_THE_ORDER_OF_A_SET)
    assert (run.returncode, run.stdout) == (0, plain.stdout)


@pytest.mark.soak
def test_the_explicit_form_adopts_what_was_made_before(tmp_path: Path) -> None:
    run = ronde(tmp_path, EXPLICIT)
    assert (run.returncode, run.stdout) == (0, "0 2 True [[4.0, 4.0, 4.0, 4.0]]\n")


def test_the_explicit_form_in_plain_python_is_one_rank(capsys: pytest.CaptureFixture[str]) -> None:
    exec(EXPLICIT, {"__name__": "__main__"})
    assert capsys.readouterr().out == "0 1 True [[4.0, 4.0, 4.0, 4.0]]\n"


def test_torchrun_starts_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    script = tmp_path / "train.py"
    script.write_text(EXPLICIT.replace("ronde.init()", "ronde.init('rng=global', seed=1)"))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
    ]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=True)
    assert run.stdout == "0 2 True [[4.0, 4.0, 4.0, 4.0]]\n"
    (log,) = (tmp_path / "state").glob("ronde/**/rank-1.log")
    assert log.read_text() == "1 2 False [[4.0, 4.0, 4.0, 4.0]]\n"


def test_torchrun_without_a_shared_store_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {
        "TORCHELASTIC_RUN_ID": "none",
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE"):
        api.init()
