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


# A fresh process for each module, by the fork of one that has imported nothing.
ASK = """
import os, sys, traceback
for name in sys.argv[1:]:
    if not os.fork():
        try:
            __import__(name)
            print(name, *[found for found in ("torch", "numpy") if found in sys.modules], flush=True)
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def loaded() -> tuple[dict[str, list[str]], str]:
    """Which of torch and numpy each module brings in; and the errors of those that could not be imported."""
    command = [sys.executable, "-c", ASK, *torch_free_modules()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    answers = (line.split() for line in done.stdout.splitlines())
    return {name: found for name, *found in answers}, done.stderr


@pytest.mark.parametrize("module", torch_free_modules())
def test_importing_loads_no_torch(module: str, loaded: tuple[dict[str, list[str]], str]) -> None:
    found, errors = loaded
    assert module in found, errors
    # The planner is arithmetic on arrays.
    allowed = {"numpy"} if module.startswith("ronde.planner") else set()
    assert set(found[module]) <= allowed


def test_the_rooms_are_found() -> None:
    assert {"ronde", "ronde.errors", "ronde.launch.rank_config"} <= set(torch_free_modules())


def test_a_rank_under_the_default_plan_starts_without_the_plan_and_torch() -> None:
    """Each import before the script's own first line is a delay that every run has."""
    late = ("ronde.plan", "ronde.runtime.hints", "torch", "numpy")
    command = f"import sys, ronde.runtime.worker; print([name for name in {late} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_every_public_name_of_ronde_is_there() -> None:
    assert all(getattr(ronde, name) is not None for name in ronde.__all__)
