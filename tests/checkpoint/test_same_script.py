"""A script that was edited, or has other arguments, is told from that of its checkpoint."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ronde.checkpoint.same_script import changes_since, script_digest
from ronde.trace.checkpoint_manifest import CheckpointManifest

MANIFEST = CheckpointManifest(
    step=4, entries=0, journal_bytes=0, boundary="call", seed=1, plan="ddp", ranks=2, script="a.py",
    arguments=("--lr", "0.1"), script_digest="abc",
)  # fmt: skip


def test_what_differs() -> None:
    assert changes_since(MANIFEST, "abc", ["--lr", "0.1"]) == []
    assert changes_since(MANIFEST, "abd", ["--lr", "0.1"]) == ["its text"]
    assert changes_since(MANIFEST, "abd", []) == ["its text", "its arguments, which were --lr 0.1"]
    bare = dataclasses.replace(MANIFEST, arguments=())
    assert changes_since(bare, "abc", ["x"]) == ["its arguments, which were none"]


def test_a_text_that_is_not_known_differs_from_none() -> None:
    assert changes_since(MANIFEST, "", ["--lr", "0.1"]) == []
    fields = dataclasses.asdict(MANIFEST)
    del fields["script_digest"]  # as a ronde before this one has written it
    assert changes_since(CheckpointManifest.of_text(json.dumps(fields)), "abc", ["--lr", "0.1"]) == []


def test_the_text_of_a_script_and_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "some_package" / "inner"
    package.mkdir(parents=True)
    for name in ("../__init__.py", "__init__.py", "train.py", "__main__.py"):
        (package / name).write_text(f"raise SystemExit({name!r})\n")
    monkeypatch.chdir(tmp_path)
    digest = script_digest("some_package/inner/train.py", module=False)
    assert digest == script_digest("some_package.inner.train", module=True)
    main = script_digest("some_package.inner", module=True)
    assert main == script_digest("some_package/inner/__main__.py", module=False)
    (package / "train.py").write_text("print()")
    assert script_digest("some_package.inner.train", module=True) != digest
    assert script_digest("some_package.nothing", module=True) == ""
    assert script_digest("some_package", module=False) == ""
