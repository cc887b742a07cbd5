"""What `ronde run` does when a server or a rank is killed in the midst of a training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ronde.launch.server_config import ServerConfig
from ronde.launch.servers import Servers
from ronde.trace.run_directory import RunDirectory

SCRIPT = """
import hashlib, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(7, 33), torch.nn.Tanh(), torch.nn.Linear(33, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
x, y = torch.randn(16, 7), torch.randn(16, 1)
for step in range(30):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    print("step", step, loss.item(), flush=True)
state = [value for each in optimizer.state_dict()["state"].values() for value in each.values()]
digest = hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in [*model.parameters(), *state]))
print("ends as", digest.hexdigest(), flush=True)
"""


def run(
    tmp_path: Path, *options: str, victim: str = "", after: tuple[int, ...] = ()
) -> tuple[int, list[str], str]:
    """Exit code, lines of the script and words of ronde; the victim is killed after some steps."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = (sys.executable, "-m", "ronde", "run", "--ranks", "2", "--servers", "2", "--plan", "ps")
    run_dir = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
    with subprocess.Popen(
        (*command, "--seed", "0", "--run-dir", str(run_dir), *options, str(script)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line.strip())
            if any(line.startswith(f"step {step} ") for step in after):
                kill(process.pid, victim)
        _, words = process.communicate()
    return process.returncode, lines, words


def kill(launcher: int, module: str) -> None:
    children = psutil.Process(launcher).children()
    found = sorted(each.pid for each in children if module in " ".join(each.cmdline()))
    os.kill(found[-1], signal.SIGKILL)


@pytest.mark.soak
def test_a_killed_server_changes_nothing(tmp_path: Path) -> None:
    code, expected, _ = run(tmp_path)
    assert code == 0
    code, lines, words = run(tmp_path, victim="ronde.server.process", after=(3, 17))
    assert (code, lines) == (0, expected)
    assert words.count("server 1 ended (signal SIGKILL) and was started again") == 2


@pytest.mark.soak
@pytest.mark.parametrize("durability", ["snapshot", "none"])
def test_without_a_log_a_killed_server_ends_the_run(tmp_path: Path, durability: str) -> None:
    code, _, words = run(tmp_path, "--durability", durability, victim="ronde.server.process", after=(3,))
    assert code == 1
    assert f"server 1 ended (signal SIGKILL), and its state is lost under --durability {durability}" in words


def test_a_server_without_a_log_is_not_started_again(tmp_path: Path) -> None:
    """As the launcher sees it, with a process of no server's, which ends at once."""
    config = ServerConfig(
        index=0, servers=1, endpoint="ipc://@none", token="", workers=1, durability="snapshot"
    )
    said: list[str] = []
    command = (sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    directory = RunDirectory.create(tmp_path / "run", os.environ)
    servers = Servers([config], directory, os.environ, command)
    servers.start()
    try:
        (pid,) = servers.pids
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert "its state is lost under --durability snapshot" in servers.look(said.append)
    finally:
        servers.end()
        directory.release()
    assert said == []


def test_a_server_that_will_not_start_says_why_once(tmp_path: Path) -> None:
    config = ServerConfig(index=0, servers=1, endpoint="ipc://@none", token="", workers=1)
    said: list[str] = []
    words = (
        "import json, os; config = json.loads(os.environ['RONDE_SERVER_CONFIG']); "
        "print('of the log', file=open(config['refusal'], 'w'), end=''); raise SystemExit(3)"
    )
    directory = RunDirectory.create(tmp_path / "run", os.environ)
    servers = Servers([config], directory, os.environ, (sys.executable, "-c", words))
    servers.start()
    try:
        (pid,) = servers.pids
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert servers.look(said.append) == "server 0 cannot serve: of the log [R401]"
    finally:
        servers.end()
        directory.release()
    assert said == []


@pytest.mark.soak
def test_a_killed_rank_ends_the_run_and_is_named(tmp_path: Path) -> None:
    code, _, words = run(tmp_path, victim="ronde.runtime", after=(3,))
    assert code == 137
    assert "rank 1" in words
    assert "SIGKILL" in words
