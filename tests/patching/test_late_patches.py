"""Libraries are patched when they are imported; modules of the user's own by such a name are not."""

from __future__ import annotations

import importlib
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ronde.patching.late_patches import LatePatches, found_in

NAME = "made_up_library"


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LatePatches]]:
    """Makes late patches of a made-up library, and forgets that library at the end."""
    installed: list[LatePatches] = []

    def install(*places: Path) -> LatePatches:
        for place in places:
            monkeypatch.syspath_prepend(str(place))
        patches = LatePatches({NAME: _patch})
        patches.install()
        installed.append(patches)
        return patches

    yield install
    for patches in installed:
        patches.uninstall()
    for name in (NAME, "made_up_neighbour"):
        sys.modules.pop(name, None)


def _patch(module: ModuleType) -> None:
    vars(module)["patched"] = vars(module).get("patched", 0) + 1


def _library(folder: Path, text: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.py").write_text(text)
    return folder


def test_a_library_is_patched_once_at_each_execution(late: Any, tmp_path: Path) -> None:
    late(_library(tmp_path / "site-packages"))
    module: Any = importlib.import_module(NAME)
    assert module.patched == 1
    del module.patched
    assert importlib.reload(module).patched == 1


def test_two_registers_patch_the_same_library(late: Any, tmp_path: Path) -> None:
    late(_library(tmp_path / "site-packages"))
    late()
    module: Any = importlib.import_module(NAME)
    assert module.patched == 2


def test_a_library_imported_before_is_patched(late: Any, tmp_path: Path) -> None:
    late(_library(tmp_path / "site-packages")).uninstall()
    module: Any = importlib.import_module(NAME)
    assert not hasattr(module, "patched")
    late()
    assert module.patched == 1


def test_a_module_of_the_users_own_is_left_as_it_is(late: Any, tmp_path: Path) -> None:
    late(_library(tmp_path / "project")).uninstall()
    late()
    module: Any = importlib.import_module(NAME)
    late()
    assert not hasattr(module, "patched")


def test_a_neighbour_in_a_zip_archive_is_not_patched(late: Any, tmp_path: Path) -> None:
    archive = tmp_path / "site-packages" / "libraries.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as libraries:
        for name in (NAME, "made_up_neighbour"):
            libraries.writestr(f"{name}.py", "")
    late(archive)
    modules = [importlib.import_module(name) for name in (NAME, "made_up_neighbour")]
    assert [hasattr(module, "patched") for module in modules] == [True, False]


def test_what_a_module_lacks_is_not_found() -> None:
    module = ModuleType(NAME)
    vars(module).update(Writer=type("Writer", (), {"write": 1}), number=1)
    assert found_in(module, "Writer.write") == (vars(module)["Writer"], "write", 1)
    assert found_in(module, "number") == (module, "number", 1)
    for path in ("absent", "absent.write", "Writer.absent", "number.real"):
        assert found_in(module, path) is None
