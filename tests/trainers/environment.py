"""The interpreter that has a row's packages: this one, or one of an environment made on top of it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

__all__ = ["CACHE", "find", "make"]

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ronde-trainers"
CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
# `site` runs the lines of a .pth file; by `addsitedir` also those of the shared folder (editable installs).
_SHARED = "import site; site.addsitedir({!r})\n"
_READY = "ready"
# Operators of torchvision's library for which it registers shapes even where that cannot be loaded: built for
# CUDA, beside a torch for CPUs.
_DECLARED = """

if not _has_ops():
    _declared = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _declared.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def find(packages: Sequence[str], cache: Path = CACHE) -> str | None:
    """Where the packages are: an interpreter; None where nobody has installed them yet."""
    if all(_is_here(each) for each in packages):
        return sys.executable
    folder = _folder(packages, cache)
    return str(folder / "bin" / "python") if (folder / _READY).exists() else None


def make(packages: Sequence[str], cache: Path = CACHE) -> str:
    """An interpreter that has the packages; they are installed on top of this one's where it lacks any."""
    found = find(packages, cache)
    if found is not None:
        return found
    folder = _folder(packages, cache)
    _run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder))
    python = str(folder / "bin" / "python")
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.check_output([python, "-c", asked], text=True).strip())
    (site / "shared.pth").write_text(_SHARED.format(sysconfig.get_path("purelib")))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "-q"]
    _run(*pip, "-c", str(CONSTRAINTS), *packages)
    extension = site / "torchvision" / "extension.py"
    if extension.exists():
        extension.write_text(extension.read_text() + _DECLARED)
    (folder / _READY).touch()
    return python


def _is_here(package: str) -> bool:
    name, _, version = re.sub(r"\[.*\]", "", package).partition("==")
    try:
        return importlib.metadata.version(name) == version
    except importlib.metadata.PackageNotFoundError:
        return False


def _folder(packages: Sequence[str], cache: Path) -> Path:
    told = repr((sys.executable, sorted(packages)))
    return cache / hashlib.sha256(told.encode()).hexdigest()[:12]


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
