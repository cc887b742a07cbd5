from __future__ import annotations

import importlib.util

import pytest

from ronde.bench.peers import PEERS, choose
from ronde.errors import UsageError


def test_a_peer_is_chosen_once() -> None:
    assert choose(["ddp", "ddp"]) == (PEERS["ddp"],)
    assert PEERS["ddp"].version.startswith("torch 2.")


def test_an_unknown_peer_names_those_there_are() -> None:
    with pytest.raises(
        UsageError, match="no peer 'byteps'; choose among ddp, zero, horovod, fsdp2, accelerate, fabric"
    ):
        choose(["ddp", "byteps"])


def test_one_that_is_not_installed_is_refused_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "lightning_fabric" else found(name)
    )
    with pytest.raises(UsageError, match=r"'fabric' is not installed.*'ronde\[bench\]'.*lightning-fabric"):
        choose(["ddp", "fabric"])
