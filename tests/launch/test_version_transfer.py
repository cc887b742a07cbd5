"""Published versions of a model, on their way to the launcher's run directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ronde.launch.mirror import FileChunk
from ronde.launch.version_transfer import PUBLISHED, VersionSender, newest_version, take_version


def publish(run: Path, version: int, *names: str) -> None:
    folder = run / PUBLISHED
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not (folder / name).exists():
            (folder / name).write_bytes(name.encode() * 100_000)
    manifest = {"files": dict.fromkeys(names, "checksum")}
    (folder / f"version-{version}.json").write_text(json.dumps(manifest))


def bring(source: VersionSender, target: Path) -> list[str]:
    pieces = list(source.pieces())
    for piece in pieces:
        take_version(target, FileChunk.from_bytes(piece.to_bytes()))
    return [piece.name for piece in pieces]


def files(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / PUBLISHED).iterdir()}


def test_versions_come_whole_and_go_as_they_do_there(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    source = VersionSender(here)
    assert bring(source, there) == []
    publish(here, 1, "dense-1.safetensors", "program-1.pt2")
    publish(here, 2, "dense-2.safetensors", "program-1.pt2")
    names = bring(source, there)
    assert names.count(f"{PUBLISHED}/program-1.pt2") == 2  # pieces of one file, which came once
    assert names.index(f"{PUBLISHED}/version-1.json") < names.index(f"{PUBLISHED}/dense-2.safetensors")
    assert files(there) == files(here)
    assert newest_version(there) == 2
    (here / PUBLISHED / "version-1.json").unlink()
    (here / PUBLISHED / "dense-1.safetensors").unlink()
    bring(source, there)
    assert files(there) == files(here)
    assert bring(source, there) == []


def test_versions_of_an_earlier_run_go_when_those_of_this_one_do(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    publish(there, 1, "dense-1.safetensors", "program-1.pt2")
    source = VersionSender(here)
    publish(here, 2, "dense-2.safetensors", "program-2.pt2")
    publish(here, 3, "dense-3.safetensors", "program-2.pt2")
    bring(source, there)
    assert newest_version(there) == 3
    assert "version-1.json" in files(there)
    (here / PUBLISHED / "version-2.json").unlink()
    (here / PUBLISHED / "dense-2.safetensors").unlink()
    bring(source, there)
    assert files(there) == files(here)


@pytest.mark.parametrize("name", ["../version-1.json", "published/../x-1", "published/.hidden-1", "other"])
def test_nothing_else_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is not a file of a version"):
        take_version(tmp_path, FileChunk(name, 0, b"x"))
    assert newest_version(tmp_path) == 0
