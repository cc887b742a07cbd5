"""What a wheel holds, built by the project's own backend without a network."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import ronde

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel. `test` brings hatchling, so nothing is fetched."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (file,) = folder.iterdir()
    return zipfile.ZipFile(file)


def metadata(wheel: zipfile.ZipFile) -> importlib.metadata.PackageMetadata:
    import email

    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def test_version_is_the_package_s(wheel: zipfile.ZipFile) -> None:
    assert metadata(wheel)["Version"] == ronde.__version__


def test_the_changelog_knows_the_version() -> None:
    assert f"[{ronde.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_every_module_and_the_type_marker_are_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    source = ROOT / "src"
    expected = {str(file.relative_to(source)) for file in source.rglob("*.py")} | {"ronde/py.typed"}
    data = ("planner/clusters/*.toml", "messages/*.md", "report/browser/*")
    expected |= {str(file.relative_to(source)) for each in data for file in (source / "ronde").glob(each)}
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == expected


def test_licence_and_command_are_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    names = {name.partition(".dist-info/")[2]: name for name in wheel.namelist()}
    assert b"Apache License" in wheel.read(names["licenses/LICENSE"])
    assert b"ronde = ronde.cli:main" in wheel.read(names["entry_points.txt"])
    assert metadata(wheel)["License-Expression"] == "Apache-2.0"
