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
# torchvision's library is built for CUDA and cannot be loaded beside a torch for CPUs. Shapes of two of its
# operators are registered even so, and the first is run by detectors.
_DECLARED = """

if not _has_ops():
    def _nms(dets, scores, iou_threshold):
        kept, left = [], scores.argsort(descending=True, stable=True)
        area = (dets[:, 2:] - dets[:, :2]).prod(1)
        while left.numel():
            best, left = left[0], left[1:]
            kept.append(best)
            end = torch.minimum(dets[left, 2:], dets[best, 2:])
            both = (end - torch.maximum(dets[left, :2], dets[best, :2])).clamp(min=0).prod(1)
            left = left[both <= iou_threshold * (area[left] + area[best] - both)]
        return torch.stack(kept) if kept else scores.new_empty(0, dtype=torch.long)

    def _assert_has_ops():
        pass

    _declared = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _declared.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.impl("nms", _nms, "CPU")
"""


def find(packages: Sequence[str], cache: Path = CACHE, *, needs: Sequence[str] = ()) -> str | None:
    """Where the packages are: an interpreter; None where nobody has installed them yet."""
    if all(_is_here(each) for each in packages):
        return sys.executable
    folder = _folder(packages, cache, needs)
    return str(folder / "bin" / "python") if (folder / _READY).exists() else None


def make(packages: Sequence[str], cache: Path = CACHE, *, needs: Sequence[str] = ()) -> str:
    """An interpreter that has the packages; they are installed on top of this one's where it lacks any.

    Args:
        packages: pinned requirements.
        cache: where environments are kept.
        needs: what is installed with them in place of what they ask for.
    """
    found = find(packages, cache, needs=needs)
    if found is not None:
        return found
    folder = _folder(packages, cache, needs)
    _run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder))
    python = str(folder / "bin" / "python")
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.check_output([python, "-c", asked], text=True).strip())
    (site / "shared.pth").write_text(_SHARED.format(sysconfig.get_path("purelib")))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "-q"]
    asked_for = ("--no-deps", *needs) if needs else ("-c", str(CONSTRAINTS))
    _run(*pip, *asked_for, *packages)
    extension = site / "torchvision" / "extension.py"
    if extension.exists():
        extension.write_text(extension.read_text() + _DECLARED)
    # torchaudio's library is built for CUDA, too; without it the package does what Python can.
    if importlib.metadata.version("torch").endswith("+cpu"):
        for library in (site / "torchaudio" / "lib").glob("*torchaudio.so"):
            library.unlink()
    (folder / _READY).touch()
    return python


def _is_here(package: str) -> bool:
    name, _, version = re.sub(r"\[.*\]", "", package).partition("==")
    try:
        return importlib.metadata.version(name) == version
    except importlib.metadata.PackageNotFoundError:
        return False


def _folder(packages: Sequence[str], cache: Path, needs: Sequence[str]) -> Path:
    told = repr((sys.executable, sorted(packages), *([sorted(needs)] if needs else [])))
    return cache / hashlib.sha256(told.encode()).hexdigest()[:12]


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
