"""A node on another host, by the frames of its agent."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import pytest

from ronde.launch import remote_node
from ronde.launch.remote_node import RemoteNode

from .conftest import wait_until


class Told:
    def __init__(self) -> None:
        self.aborts: list[tuple[str, str]] = []

    def aborted(self, kind: str, said: str) -> None:
        self.aborts.append((kind, said))


def test_a_node_that_does_not_end_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agent is dead, and the command that led to it does not end: srun without its slurmstepd."""
    monkeypatch.setattr(remote_node, "_ENDED_S", 0.01)
    monkeypatch.setattr(remote_node, "_CLOSED_S", 0.01)
    closed: list[bool] = []
    link: Any = SimpleNamespace(
        name="two",
        news=queue.SimpleQueue(),
        send=lambda *_: None,
        ask_clock=lambda: None,
        close=lambda: closed.append(True),
    )
    spec: Any = SimpleNamespace(first_rank=2, ranks=1, address="", run_id="x", to_fields=dict)
    arriving: Any = SimpleNamespace(latest=0.0)
    directory: Any = SimpleNamespace()
    told: Any = Told()
    node = RemoteNode(link, spec, directory, arriving, None, ())
    ends: Any = None
    node.begin(ends, told)
    node.end()
    wait_until(lambda: node.step() or node.is_over, "the end")
    assert closed
    ((kind, said),) = told.aborts
    assert kind == "host"
    assert said.startswith("the connection to two is lost (no answer for 0.02 s [R121]), and with it rank 2;")
