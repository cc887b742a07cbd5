"""Checkpoints in a folder: whole or not there."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from ronde.checkpoint.cadence import Cadence, read_cadence
from ronde.checkpoint.journal import Journal
from ronde.checkpoint.store import NoCheckpoint, Store, newest
from ronde.errors import UsageError
from ronde.trace.checkpoint_manifest import CheckpointManifest, latest_manifest


def write(store: Store, journal: Journal, step: int) -> None:
    journal.record("read", "item", step)
    manifest = CheckpointManifest(
        step=step,
        entries=len(journal),
        journal_bytes=0,
        boundary="call",
        seed=1,
        plan="ddp",
        ranks=2,
        script="a.py",
    )
    store.write(manifest, {"tensors": {"w": torch.full((3,), float(step))}}, journal.fresh())


def written(folder: Path, *steps: int, keep: int = 2) -> Journal:
    store, journal = Store(folder, keep=keep), Journal()
    for step in steps:
        write(store, journal, step)
    store.close()
    return journal


@contextmanager
def full_disk(longest: int) -> Iterator[None]:
    """Inside, no file may grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (longest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("beyond", [0, 7, 500])
def test_after_a_full_disk_the_next_one_is_whole(tmp_path: Path, beyond: int) -> None:
    """What the journal lacks by the failure is written with the next checkpoint."""
    store, journal = Store(tmp_path, keep=2), Journal()
    write(store, journal, 10)
    size = (tmp_path / "journal").stat().st_size
    for step in (20, 30):
        with full_disk(size + beyond), pytest.raises(OSError, match="too large"):
            write(store, journal, step)
    assert newest(tmp_path, pytest.fail)[0].step == 10
    write(store, journal, 40)
    store.close()
    manifest, _, entries = newest(tmp_path, pytest.fail)
    assert (manifest.step, [each.payload for each in entries]) == (40, [10, 20, 30, 40])


def test_a_file_of_another_program_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("Dear diary, today I have trained a model.")
    with pytest.raises(UsageError, match="is not one of ronde's"):
        Store(tmp_path, keep=2)
    assert (tmp_path / "journal").read_text().startswith("Dear diary")


def test_a_torn_journal_without_a_checkpoint_is_begun_anew(tmp_path: Path) -> None:
    written(tmp_path, 10)
    (tmp_path / "step-00000010" / "manifest.json").unlink()
    (tmp_path / "journal").write_bytes((tmp_path / "journal").read_bytes()[:30])
    Store(tmp_path, keep=2).close()
    assert (tmp_path / "journal").read_bytes() == b""


def test_the_newest_is_read_and_old_ones_go(tmp_path: Path) -> None:
    written(tmp_path, 10, 20, 30)
    manifest, state, entries = newest(tmp_path, pytest.fail)
    assert (manifest.step, state["tensors"]["w"].tolist()) == (30, [30, 30, 30])
    assert [each.payload for each in entries] == [10, 20, 30]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["journal", "step-00000020", "step-00000030"]


@pytest.mark.parametrize("damage", ["state.pt", "manifest.json", "journal"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, damage: str) -> None:
    written(tmp_path, 10, 20)
    path = tmp_path / damage if damage == "journal" else tmp_path / "step-00000020" / damage
    content = bytearray(path.read_bytes())
    content[-5] ^= 255
    path.write_bytes(content)
    told: list[str] = []
    manifest, _, entries = newest(tmp_path, told.append)
    assert (manifest.step, len(entries)) == (10, 1)
    assert "the checkpoint of step 20" in told[0]
    assert "damaged" in told[0]


def test_one_that_was_not_finished_is_none(tmp_path: Path) -> None:
    written(tmp_path, 10)
    (tmp_path / ".step-00000020-77").mkdir()
    assert newest(tmp_path, pytest.fail)[0].step == 10
    Store(tmp_path, keep=2, journal_bytes=(tmp_path / "journal").stat().st_size).close()
    assert not (tmp_path / ".step-00000020-77").exists()


def test_none(tmp_path: Path) -> None:
    assert latest_manifest(tmp_path / "nothing") is None
    with pytest.raises(NoCheckpoint, match=r"no checkpoint in .* is whole"):
        newest(tmp_path, pytest.fail)


def test_cadence() -> None:
    assert read_cadence("100") == Cadence(steps=100)
    assert read_cadence("1.5h") == Cadence(seconds=5400)
    for wrong in ("0", "x", "1.5", "-3", "10 m2"):
        with pytest.raises(UsageError, match="neither a number of steps nor a time"):
            read_cadence(wrong)
