"""Checkpoints at a URL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from ronde.checkpoint.journal import Journal
from ronde.checkpoint.remote_checkpoints import RemoteCheckpoints, is_url
from ronde.checkpoint.store import Store, newest
from ronde.errors import UsageError
from ronde.trace.checkpoint_manifest import CheckpointManifest

URL = "memory://bucket/run"


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield
    MemoryFileSystem.store.clear()


def push(folder: Path, mirror: RemoteCheckpoints, *steps: int) -> None:
    store, journal = Store(folder, keep=2, mirror=mirror), Journal()
    for step in steps:
        journal.record("read", "item", step)
        manifest = CheckpointManifest(
            step=step,
            entries=len(journal),
            journal_bytes=0,
            boundary="call",
            seed=step + 1,
            plan="ddp",
            ranks=2,
            script="a.py",
        )
        state = {"tensors": {"w": torch.full((3,), float(step))}}
        store.write(manifest, state, journal.fresh())
    store.close()


def test_what_is_pushed_is_fetched(tmp_path: Path) -> None:
    assert RemoteCheckpoints(URL).latest() is None
    push(tmp_path / "here", RemoteCheckpoints(URL), 10, 20, 30)
    found = RemoteCheckpoints(URL).latest()
    assert found is not None
    assert (found.step, found.seed) == (30, 31)
    RemoteCheckpoints(URL).fetch(tmp_path / "there")
    manifest, state, entries = newest(tmp_path / "there", pytest.fail)
    assert (manifest.step, state["tensors"]["w"].tolist()) == (30, [30, 30, 30])
    assert [each.payload for each in entries] == [10, 20, 30]
    assert sorted(each.name for each in (tmp_path / "there").iterdir()) == [
        "journal",
        "step-00000020",
        "step-00000030",
    ]


def test_one_that_was_not_copied_whole_is_none(tmp_path: Path) -> None:
    push(tmp_path / "here", RemoteCheckpoints(URL), 10, 20)
    MemoryFileSystem().rm("/bucket/run/step-00000020/manifest.json")
    found = RemoteCheckpoints(URL).latest()
    assert found is not None
    assert found.step == 10
    RemoteCheckpoints(URL).fetch(tmp_path / "there")
    assert newest(tmp_path / "there", pytest.fail)[0].step == 10


def test_a_place_that_nobody_knows() -> None:
    assert is_url("s3://bucket/run")
    assert not is_url("saved/run")
    with pytest.raises(UsageError, match="cannot be reached: Protocol not known: nowhere"):
        RemoteCheckpoints("nowhere://x")
