"""Rooms that a login node loads start without torch: importing them imports none, by whatever way round."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ronde

PACKAGE = Path(ronde.__file__).parent
TORCH_FREE = ("errors", "plan", "trace", "cluster", "launch", "planner", "cli")
NEEDS_TORCH = {"ronde.cluster.mesh"}


def torch_free_modules() -> list[str]:
    modules = ["ronde"]
    for room in TORCH_FREE:
        files = [PACKAGE / f"{room}.py", *(PACKAGE / room).rglob("*.py")]
        for file in sorted(file for file in files if file.exists()):
            parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
            modules.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return [name for name in modules if name not in NEEDS_TORCH]


def run_python(code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("module", torch_free_modules())
def test_importing_loads_no_torch(module: str) -> None:
    done = run_python(f"import sys, {module}; print([m for m in ('torch', 'numpy') if m in sys.modules])")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_rooms_are_found() -> None:
    assert {"ronde", "ronde.errors", "ronde.launch.rank_config"} <= set(torch_free_modules())


def test_every_public_name_of_ronde_is_there() -> None:
    assert all(getattr(ronde, name) is not None for name in ronde.__all__)
