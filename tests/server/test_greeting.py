"""A worker of another run, or of another plan, is refused before it changes anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ronde.server.handshake import misfit
from ronde.server.parameter_server import ParameterServer
from ronde.server.storage import Storage
from ronde.server.transport.wire import Message, Opcode, WireError
from server.records import shard

ABOUT = {"server": 1, "servers": 2, "workers": 4, "update": "bounded", "staleness": 3}
HELLO = {**ABOUT, "run": "monday"}


def test_alike() -> None:
    assert misfit(ABOUT, "", HELLO) == ""
    assert misfit(ABOUT, "monday", HELLO) == ""
    assert misfit({"workers": 4}, "monday", {"workers": 4}) == ""  # a program that says no more


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ({"workers": 2}, "--workers 2"),
        ({"servers": 3}, "--servers"),
        ({"server": 0}, "--index"),
        ({"update": "sync", "staleness": 0}, "--update sync"),
        ({"staleness": 1}, "--staleness 1"),
        ({"run": "tuesday"}, "another --state"),
    ],
)
def test_differences(said: dict[str, Any], fix: str) -> None:
    assert fix in misfit(ABOUT, "monday", {**HELLO, **said})


def test_staleness_is_of_bounded() -> None:
    about = {**ABOUT, "update": "sync", "staleness": 0}
    assert misfit(about, "", {**HELLO, "update": "sync"}) == ""


def test_whose_state_it_is_survives_the_server(tmp_path: Path) -> None:
    made = shard()
    storage = Storage(tmp_path, made)
    greet(ParameterServer(made, storage, workers=1), "monday")
    storage.close()
    back = shard()
    Storage(tmp_path, back).close()
    server = ParameterServer(back, None, workers=1)
    greet(server, "monday")
    with pytest.raises(WireError, match="earlier run"):
        greet(server, "tuesday")


def greet(server: ParameterServer, run: str) -> None:
    server.handle(Message(Opcode.HELLO, {"workers": 1, "run": run}), lambda answer: None)
