"""`ronde run --publish`, `ronde serve` and `ronde export`, as a user has them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import ronde
from apart import command_apart
from codes import without_code
from ronde.server.serving.manifest import VersionManifest, path_of
from ronde.server.serving.published import Published
from ronde.server.serving.replica import Replica
from ronde.testing import forked

SCRIPT = """
    import sys, torch, ronde
    from torch import nn

    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            evict = ronde.table.EvictByAge(10, every=2)
            self.user = ronde.EmbeddingTable(4, evict=evict, max_rows=9999)
            self.top = nn.Sequential(nn.Linear(13, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1))

        def forward(self, ids, x):
            return self.top(torch.cat([self.user(ids).flatten(1), x], 1)).squeeze(1)

    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ids, x = torch.randint(0, 700, (1200, 3)), torch.randn(1200, 1)
    ids[600:] %= 90
    data = torch.utils.data.TensorDataset(ids, x)
    for ids, x in torch.utils.data.DataLoader(data, batch_size=16):
        loss = (model(ids, x) - x[:, 0]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        torch.save((ids, x, model(ids, x), model.user(torch.arange(700)), len(model.user)), "said.pt")
"""

DENSE = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True) for _ in range(2)]
    model = nn.Sequential(nn.Linear(3, 8), *layers, nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for x in torch.utils.data.DataLoader(torch.randn(240, 4, 3), batch_size=16):
        loss = (model(x) - x.sum(-1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        torch.save((x, model(x), model.state_dict()), "said.pt")
"""

BRANCHES = """
    import torch
    class Model(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 9 else super().forward(-x)
    model = Model(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
"""


# What it looks up before it trains is what an earlier run's servers had.
TAKEN_OVER = """
    import torch, ronde
    from torch import nn

    torch.manual_seed(0)
    table = ronde.EmbeddingTable(4)
    top = nn.Linear(4, 1)
    optimizer = torch.optim.Adam([*table.parameters(), *top.parameters()], lr=0.01)
    rows = [table(torch.arange(50)).detach().clone()]
    for step in range(9):
        loss = top(table(torch.arange(step, step + 40))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save([*rows, table(torch.arange(50)).detach().clone()], "said.pt")
"""


def train(place: Path, source: str, ranks: int, plan: str, publish: float = 0.05) -> str:
    (place / "train.py").write_text(textwrap.dedent(source))
    command = ["run", "--ranks", str(ranks), "--plan", plan, "--publish", str(publish), "--run-dir", "run"]
    done = forked.run([*command, "train.py"], directory=place)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("ranks", "plan"),
    [
        (2, "hybrid"),
        *(
            pytest.param(ranks, plan, marks=pytest.mark.soak)
            for ranks, plan in [
                (1, "ddp"),
                (2, "ddp"),
                (2, "zero2,sparse=sharded"),
                (3, "hybrid"),
                (2, "zero3"),
                (2, "hybrid,servers=2"),
                (2, "ps,servers=2"),
                # Others would push after the last look-up, and a staleness would hide pushes from it.
                (1, "ps-async,servers=2"),
                (1, "ps-bounded,servers=2,staleness=0"),
                (1, "geo,servers=2,every=2"),
            ]
        ),
    ],
)
def test_what_is_published_is_the_model(tmp_path: Path, ranks: int, plan: str) -> None:
    train(tmp_path, SCRIPT, ranks, plan)
    replica, ids, x, predicted, rows = trained(tmp_path)
    # Of what was published meanwhile, each follows the one before, and the last rests on changes or on all.
    versions = replica.versions()
    assert versions[-1] > 2
    last = VersionManifest.read(path_of(tmp_path / "run" / "published", versions[-1]))
    assert last.follows == versions[-2]
    spread = ("hybrid" in plan or "sharded" in plan) and "servers" not in plan
    assert len(last.delta) == (ranks if spread else 1)
    for version in versions[:-1]:
        replica.roll_back(version)
    replica.follow()
    assert np.array_equal(replica.look_up("user", np.arange(700)), rows.numpy())
    assert float((replica.predict([ids, x]) - predicted).abs().max()) < 1e-6


@pytest.mark.parametrize(
    ("ranks", "plan"),
    [
        (2, "tensor=2"),
        *(
            pytest.param(ranks, plan, marks=pytest.mark.soak)
            for ranks, plan in [
                (2, "pipeline=2"),
                (2, "pipeline=2,micro-batches=2"),
                (4, "tensor=2,pipeline=2"),
                (4, "data=2,tensor=2,zero1"),
                (2, "context=2"),
                (2, "zero3"),
                (2, "central"),
            ]
        ),
    ],
)
def test_a_model_in_parts_is_published_whole(tmp_path: Path, ranks: int, plan: str) -> None:
    train(tmp_path, DENSE, ranks, plan)
    replica = Replica(Published(tmp_path / "run" / "published"))
    x, predicted, weights = torch.load(tmp_path / "said.pt")
    assert replica.snapshot.step == 15
    assert replica.snapshot.dense.keys() == weights.keys()
    assert all(torch.equal(replica.snapshot.dense[name], value) for name, value in weights.items())
    assert float((replica.predict([x]) - predicted).abs().max()) < 1e-6


def on_hosts(place: Path, source: str, plan: str, *options: str, apart: Sequence[str] = ()) -> str:
    (place / "train.py").write_text(textwrap.dedent(source))
    command = command_apart([place / name for name in apart])
    words = [sys.executable, "-m", "ronde", "run", "-H", "127.0.0.1:2,127.0.0.2:1", "--ssh-command", command]
    done = subprocess.run(
        [*words, "--plan", plan, *options, "train.py"], cwd=place, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("plan", ["hybrid", "hybrid,servers=2"])
def test_ranks_on_two_hosts_publish_into_the_launchers_directory(tmp_path: Path, plan: str) -> None:
    options = ("--publish", "0.05", "--run-dir", "run")
    on_hosts(tmp_path, SCRIPT, plan, *options, apart=["run"])
    replica, ids, x, predicted, rows = trained(tmp_path)
    versions = replica.versions()
    for version in versions[:-1]:
        replica.roll_back(version)
    replica.follow()
    assert np.array_equal(replica.look_up("user", np.arange(700)), rows.numpy())
    assert float((replica.predict([ids, x]) - predicted).abs().max()) < 1e-6
    # Hosts that know nothing of these versions go on behind them.
    on_hosts(tmp_path, SCRIPT, plan, *options, apart=["run"])
    assert not set(trained(tmp_path)[0].versions()) & set(versions)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_servers_on_two_hosts_take_tables_over(tmp_path: Path) -> None:
    on_hosts(tmp_path, TAKEN_OVER, "hybrid,servers=2", "--run-dir", "first")
    _, before = torch.load(tmp_path / "said.pt")
    on_hosts(tmp_path, TAKEN_OVER, "hybrid,servers=3", "--run-dir", "second", "--server-state", "first")
    after, _ = torch.load(tmp_path / "said.pt")
    assert torch.equal(before, after)
    with pytest.raises(AssertionError, match="sees the tables of 0 of"):
        on_hosts(
            tmp_path, TAKEN_OVER, "hybrid,servers=2", "--run-dir", "third", "--server-state", "first",
            apart=["first/host-0", "first/host-1"],
        )  # fmt: skip


def trained(place: Path) -> tuple[Replica, Any, Any, Any, Any]:
    """A replica, held against what the script says at its end; a batch, its outputs and all rows."""
    replica = Replica(Published(place / "run" / "published"))
    ids, x, predicted, rows, count = torch.load(place / "said.pt")
    assert replica.snapshot.step == 75
    assert len(replica.snapshot.tables["user"]) == count < 300
    assert np.array_equal(replica.look_up("user", np.arange(700)), rows.numpy())
    return replica, ids, x, predicted, rows


@pytest.mark.soak
def test_a_killed_server_loses_no_row_of_a_version(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    options = ["--ranks", "2", "--plan", "hybrid,servers=2", "--publish", "0.05", "--run-dir", "run"]
    running = forked.ForkedCommand(["run", *options, "train.py"], directory=tmp_path)
    published = tmp_path / "run" / "published"
    try:
        until = monotonic() + 60
        while not path_of(published, 2).exists():
            assert monotonic() < until, running.communicate(1)
            sleep(0.005)
        kill_server(running.pid, tmp_path / "run" / "server-0.log")
        _, said = running.communicate(90)
    finally:
        running.kill()
    assert (running.returncode, said.count("server 0 ended (signal SIGKILL) and was started again")) == (0, 1)
    replica, ids, x, predicted, _rows = trained(tmp_path)
    assert float((replica.predict([ids, x]) - predicted).abs().max()) < 1e-6
    # Changes upon changes make the rows that a version with all rows has.
    source = Published(published)
    twice = 0
    for version in replica.versions()[1:]:
        manifest = VersionManifest.read(path_of(published, version))
        if manifest.whole and manifest.delta:
            fresh = source.load(version)
            grown = source.load(version, source.load(version - 1))
            for name, table in fresh.tables.items():
                assert len(table) == len(grown.tables[name])
                every = np.arange(700)
                assert np.array_equal(table.look_up(every)[0], grown.tables[name].look_up(every)[0])
            twice += 1
    assert twice


def kill_server(launcher: int, log: Path) -> None:
    """By SIGKILL, the one that writes this log."""
    for process in psutil.Process(launcher).children():
        if Path(f"/proc/{process.pid}/fd/2").resolve() == log.resolve():
            process.kill()
            return
    raise AssertionError("no such server")


def test_a_model_that_cannot_be_exported_is_named(tmp_path: Path) -> None:
    said = train(tmp_path, BRANCHES, 1, "ddp", publish=60)
    assert (
        "the model is published without a program, so a replica looks up rows but does not predict: "
        "torch.export cannot export Model: Could not guard on data-dependent expression"
    ) in said


def test_a_script_without_a_model_publishes_nothing(tmp_path: Path) -> None:
    assert "nothing was published: the script has trained no model" in train(tmp_path, "print(3)", 1, "ddp")


def test_served_and_exported(tmp_path: Path) -> None:
    train(tmp_path, SCRIPT, 1, "ddp", publish=60)
    done = forked.run(["export", "run", "--rows", "int8"], directory=tmp_path)
    assert (done.returncode, done.stderr) == (0, "ronde: note[R738]: version 1 is in run/export-1\n")
    port, token = _free_port(), os.urandom(16).hex()
    endpoint = f"ipc://@ronde-test-{token}"
    serving = forked.ForkedCommand(
        ["serve", "run/export-1", "--port", str(port), "--binary", endpoint],
        directory=tmp_path,
        environment={**os.environ, "RONDE_SERVER_TOKEN": token},
    )
    try:
        address = _await(port)
        answer = _ask(f"{address}/v1/lookup", {"table": "user", "ids": [3, 5]})
        expected = torch.load(tmp_path / "said.pt")[3][[3, 5]].numpy()
        assert answer["version"] == 1
        assert np.abs(np.array(answer["rows"]) - expected).max() < 0.01
        (predicted,) = _ask(f"{address}/v1/predict", {"inputs": [[[1, 2, 3]], [[0.5]]]})["outputs"]
        with ronde.ReplicaClient(endpoint, token=token) as client:
            assert np.array_equal(client.look_up("user", [3, 5]).rows, np.float32(answer["rows"]))
            outputs, version = client.predict([[[1, 2, 3]], [[0.5]]])
        assert (version, outputs.tolist()) == (1, [predicted])
    finally:
        serving.terminate()
        _, said = serving.communicate(30)
    assert said == (
        f"ronde: note[R738]: serves version 1 at {address}\n"
        f"ronde: note[R738]: answers the binary protocol at {endpoint}, to programs with the token\n"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _await(port: int) -> str:
    """Its address, when somebody listens there."""
    until = monotonic() + 60
    while monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return f"http://127.0.0.1:{port}"
        sleep(0.05)
    raise AssertionError("nobody listens")


def _ask(url: str, body: Any) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=30) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["serve", "."], ". is neither the directory of a run with --publish nor a model of ronde export"),
        (
            ["serve", ".", "--interval", "0"],
            "--interval 0 is not a number of seconds above 0; try --interval 0.1",
        ),
        (["export", ".", "--rows", "half"], "--rows half is neither full nor int8"),
        (["run", "--publish", "-1", "train.py"], "--publish -1 is not a number of seconds; try --publish 1"),
        (
            ["run", "--publish", "1", "--native", "train.py"],
            "--publish needs a script that ronde distributes; leave out --native",
        ),
        (
            ["serve", ".", "--binary", "99999"],
            "--binary 99999 is not a port (at most 65535); try --binary 8766",
        ),
    ],
)
def test_mistakes_on_the_command_line(tmp_path: Path, command: list[str], said: str) -> None:
    (tmp_path / "train.py").write_text("")
    done = forked.run(command, directory=tmp_path)
    assert done.returncode == 2
    assert without_code(done.stderr) == f"ronde: error: {said}\n"
