"""A worker that has gone keeps nobody waiting, whenever the server was started."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ronde.server import liveness
from ronde.server.liveness import Presence
from ronde.server.parameter_server import ParameterServer
from ronde.server.storage import Storage
from ronde.server.transport import client
from ronde.server.transport.client import Client
from ronde.server.transport.wire import Message, Opcode
from server.records import shard, some_records
from support.servers import serving


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_gone_by_process_and_by_silence() -> None:
    clock = Clock()
    there = Presence(4, (), clock)
    ended = subprocess.Popen(["true"])
    ended.wait()
    there.met(0, os.getpid())
    there.met(1, ended.pid)
    there.met(2, None)  # of another host
    clock.now = 1.0
    assert there.look() == {1}
    clock.now = 59.0
    there.look()
    assert there.there == {0, 2, 3}
    clock.now = 61.0
    assert there.look() == {2}
    there.heard(2)
    assert there.there == {0, 2, 3}


def test_who_does_not_come_back_to_a_server_that_does() -> None:
    """Both were killed: the server never meets the worker, and knows it from its log alone."""
    clock = Clock()
    there = Presence(2, {1}, clock)
    clock.now = 61.0
    assert there.look() == {1}
    assert there.there == {0}  # it has not come yet


def test_a_killed_worker_stays_away_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "_LOOK_EVERY_S", 0.0)
    ended = subprocess.Popen(["true"])
    ended.wait()
    made = shard()
    storage = Storage(tmp_path, made)
    server = bounded(made, storage)
    first, *_ = some_records(1)
    answers: list[Message] = []
    server.handle(hello(1, ended.pid), answers.append)
    server.handle(Message(first.operation, first.meta, worker=1, sequence=1, clock=1), answers.append)
    server.tick()
    storage.close()
    assert made.left == {1}
    back = shard()
    storage = Storage(tmp_path, back)
    server = bounded(back, storage)
    server.handle(hello(0, os.getpid()), answers.append)
    answers.clear()
    for step in range(1, 5):
        server.handle(Message(first.operation, first.meta, sequence=step, clock=step), answers.append)
    storage.close()
    assert [each.operation for each in answers] == [Opcode.DONE] * 4


def test_a_worker_that_is_busy_says_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_ALIVE_S", 0.0)
    with serving(tcp=True) as servers:
        heard: list[int] = []
        monkeypatch.setattr(servers.servers[0]._presence, "heard", heard.append)
        worker = Client(servers.endpoints, servers.token, patience=0.01)
        until = time.monotonic() + 10
        while not heard and time.monotonic() < until:
            time.sleep(0.01)
        worker.close()
    assert heard


def bounded(state: Any, storage: Storage) -> ParameterServer:
    return ParameterServer(state, storage, workers=2, rule="bounded", staleness=0)


def hello(worker: int, process: int) -> Message:
    return Message(Opcode.HELLO, {"workers": 2, "process": process}, worker=worker)
