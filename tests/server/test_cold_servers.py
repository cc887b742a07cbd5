"""Servers and ranks whose rows are mostly on disk: what is restored, refused, taken over and trained."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import ronde
import ronde.server.cold_pages
from ronde.server.dense import DenseShard
from ronde.server.import_tables import take_tables
from ronde.server.parameter_server import ParameterServer
from ronde.server.shard import ServerShard
from ronde.server.sparse import SparseShard
from ronde.server.storage import Storage, recover
from ronde.server.table.cold_store import ColdStore
from ronde.server.table.config import TableConfig
from ronde.server.table.config_json import read_config, write_config
from ronde.server.table.eviction import EvictByFrequency
from ronde.server.table.on_disk import OnDisk
from ronde.server.table.optimizers import Adam
from ronde.server.table.state import State, merge
from ronde.server.transport.wire import Message, Opcode
from ronde.testing.run_ranks import Rank

DIM = 4
OPTIONS: dict[str, Any] = {"dim": DIM, "optimizer": Adam(lr=0.1), "evict": EvictByFrequency(2, every=40)}
ALL, COLD = TableConfig(**OPTIONS), TableConfig(**OPTIONS, cold=OnDisk(30))


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ronde.server.cold_pages, "PAGE_ROWS", 64)
    yield
    assert not list(tmp_path.glob("**/ronde-cold-*")), "a table has left its folder"


class Asked:
    """A server with a log, and one table, as its worker sees it."""

    def __init__(self, directory: Path, config: TableConfig) -> None:
        directory.mkdir(exist_ok=True)
        self.sparse = SparseShard(directory=str(directory))
        self.shard = ServerShard({"dense": DenseShard(), "sparse": self.sparse})
        self.said: list[str] = []
        self.storage = Storage(directory, self.shard, tell=self.said.append)
        self.server = ParameterServer(self.shard, self.storage, workers=1)
        self.config = config

    def ask(self, operation: Opcode, meta: dict[str, Any], *arrays: Any, change: bool = True) -> Message:
        answers: list[Message] = []
        sequence = self.shard.marks.get(0, 0) + 1 if change else 0
        self.server.handle(Message(operation, meta, arrays, sequence=sequence), answers.append)
        return answers[0]

    def train(self, begin: int, end: int, ids: int = 400) -> None:
        if not begin:
            self.ask(Opcode.MAKE_TABLE, {"table": 0, "config": write_config(self.config)})
        for step in range(begin, end):
            rng = np.random.default_rng(step)
            asked = rng.integers(0, ids, 25)
            self.ask(Opcode.LOOK_UP, {"table": 0}, asked, change=False)
            gradients = rng.standard_normal((25, DIM)).astype(np.float32)
            meta = {"table": 0, "lr": None}
            answer = self.ask(Opcode.UPDATE, meta, asked, gradients, np.ones(25, np.int64))
            assert answer.operation is Opcode.DONE, answer.meta

    @property
    def state(self) -> State:
        return self.sparse.tables[0].state()


def same(one: State, other: State) -> bool:
    return list(one) == list(other) and all(np.array_equal(one[name], other[name]) for name in one)


def test_a_server_comes_back_with_rows_on_disk_from_snapshot_and_log(tmp_path: Path) -> None:
    plain = Asked(tmp_path / "plain", ALL)
    plain.train(0, 60)
    server = Asked(tmp_path / "cold", COLD)
    server.train(0, 40)
    server.storage.begin_snapshot()
    server.train(40, 60)  # which the snapshot has not
    server.storage.wait()
    assert "snapshot of 41 changes" in server.said[0], server.said
    assert server.sparse.tables[0].on_disk > 150
    assert same(server.state, plain.state)
    # Killed here: what is on disk of its table is stale, and nobody asks it.
    server.storage.close()
    back = SparseShard()
    recover(tmp_path / "cold", ServerShard({"dense": DenseShard(), "sparse": back}), print, mend=False)
    assert back.tables[0].on_disk > 150
    assert same(back.tables[0].state(), plain.state)
    del back
    again = Asked(tmp_path / "cold", COLD)
    again.train(60, 80)
    plain.train(60, 80)
    assert same(again.state, plain.state)


def test_a_full_disk_refuses_a_change_before_it_is_written_to_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Asked(tmp_path / "plain", ALL)
    plain.train(0, 30)
    server = Asked(tmp_path / "cold", COLD)
    server.train(0, 20)
    before, log = server.state, sum(path.stat().st_size for path in (tmp_path / "cold").glob("log-*"))

    def full(store: ColdStore, batch: Any) -> None:
        raise OSError("IO error: No space left on device: while appending")

    with monkeypatch.context() as patches:
        patches.setattr(ColdStore, "_commit", full)
        ids, ones = np.arange(900, 925), np.ones((25, DIM), np.float32)
        meta = {"table": 0, "lr": None}
        for _ in range(2):
            answer = server.ask(Opcode.UPDATE, meta, ids, ones, np.ones(25, np.int64))
            assert answer.operation is Opcode.REFUSED
            assert re.match(r"update: the disk of .* is full, and takes no more rows", answer.meta["why"])
    assert same(server.state, before)
    assert log == sum(path.stat().st_size for path in (tmp_path / "cold").glob("log-*"))
    server.train(20, 30)
    assert same(server.state, plain.state)


def test_tables_with_rows_on_disk_move_to_other_servers(tmp_path: Path) -> None:
    source = Asked(tmp_path / "server-0", COLD)
    source.train(0, 40)
    source.storage.begin_snapshot()
    source.storage.wait()
    source.train(40, 50)
    states: list[State] = []
    for index in range(2):
        directory = tmp_path / f"new-{index}"
        directory.mkdir()
        take_tables(tmp_path, directory, index=index, servers=2, tell=print)
        sparse = SparseShard()
        recover(directory, ServerShard({"dense": DenseShard(), "sparse": sparse}), print)
        assert sparse.tables[0].on_disk > 50
        states.append(sparse.tables[0].state())
    assert same(merge(states), source.state)


def test_a_server_writes_rows_where_it_is_told_to_by_nobody_else(tmp_path: Path) -> None:
    written = write_config(TableConfig(dim=2, cold=OnDisk(5, tmp_path)))
    assert written["cold"] == ["OnDisk", {"memory_rows": 5}]
    hostile = json.loads(json.dumps(written)) | {"cold": ["OnDisk", {"memory_rows": 5, "directory": "/etc"}]}
    assert read_config(hostile).cold == OnDisk(5)


def train(options: dict[str, Any]) -> tuple[list[float], dict[str, torch.Tensor], int]:
    rows = ronde.table.Adagrad(lr=0.5)
    table = ronde.EmbeddingTable(3, optimizer=rows, dtype=torch.float64, **options)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    losses: list[float] = []
    for step in range(12):
        ids = (torch.arange(40) + 37 * step) * (step + 1) % 301
        loss = (table(ids) - 1).square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, table.get_extra_state(), len(table)


def on_ranks(rank: Rank, plan: str, directory: str) -> Any:
    with rank.session(plan):
        return train({"cold": ronde.table.OnDisk(20, directory)})


@pytest.mark.parametrize(
    "plan", ["hybrid,servers=2", *(pytest.param(each, marks=pytest.mark.soak) for each in ("hybrid", "ddp"))]
)
def test_ranks_train_with_rows_on_disk_as_one_device_without(
    plan: str, ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    losses, rows, count = train({})
    for found, state, length in ranks(2, on_ranks, plan, str(tmp_path)):
        assert length == count
        assert found == pytest.approx(losses, rel=1e-12)
        for name, value in rows.items():
            torch.testing.assert_close(state[name], value, rtol=1e-12, atol=0)


SCRIPT = """
import hashlib, sys, torch, ronde
torch.manual_seed(0)
cold = ronde.table.OnDisk(memory_rows=50) if "cold" in sys.argv else None
evict = ronde.table.EvictByAge(9, every=4)
table = ronde.EmbeddingTable(4, optimizer=ronde.table.Adam(), evict=evict, cold=cold)
optimizer = torch.optim.SGD(table.parameters(), lr=0.01)
for step in range(30):
    optimizer.zero_grad()
    loss = (table(torch.randint(0, 3000, (64,))) - 1).square().mean()
    loss.backward()
    optimizer.step()
    print("step", step, loss.item(), len(table), flush=True)
state = table.get_extra_state()
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in state.values()))
print("ends as", digest.hexdigest(), flush=True)
"""


def run(tmp_path: Path, *arguments: str, kill_after: tuple[int, ...] = ()) -> tuple[list[str], str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "ronde", "run", "--ranks", "2", "--servers", "2", "--plan", "hybrid"]
    command += ["--seed", "0", "--run-dir", str(tmp_path / f"run{len(arguments)}"), str(script), *arguments]
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            if any(line.startswith(f"step {step} ") for step in kill_after):
                servers = [
                    each.pid
                    for each in psutil.Process(process.pid).children()
                    if "ronde.server.process" in " ".join(each.cmdline())
                ]
                os.kill(max(servers), signal.SIGKILL)
        _, words = process.communicate()
    assert process.returncode == 0, words
    return lines, words


@pytest.mark.soak
def test_a_killed_server_with_rows_on_disk_changes_nothing(tmp_path: Path) -> None:
    expected, _ = run(tmp_path)
    lines, words = run(tmp_path, "cold", kill_after=(5, 19))
    assert lines == expected
    assert words.count("ended (signal SIGKILL) and was started again") == 2
