"""Environments of other frameworks, made once from wheels under the user's cache directory."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.dlperf.frameworks import Framework
from ronde.bench.rounds import Progress

__all__ = ["Missing", "cache_folder", "interpreter_of"]

_READY = "ready"
_MINUTES_OF_PIP = 30


class Missing(Exception):
    """A framework cannot be had here; the text is the reason."""


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the environments: `$XDG_CACHE_HOME/ronde/dlperf`, else in `~/.cache`."""
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ronde" / "dlperf"


def interpreter_of(framework: Framework, cache: Path, say: Progress) -> str:
    """Return the interpreter that has a framework, and make its environment at first use.

    Raises:
        Missing: no Python with wheels is installed, or pip fails.
    """
    if not framework.requirements:
        if importlib.util.find_spec(framework.module) is None:
            raise Missing(f"{framework.module} is not installed; pip install 'ronde[bench]' brings it")
        return sys.executable
    folder = cache / framework.name
    python, ready = folder / "bin" / "python", folder / _READY
    asked = "\n".join(framework.requirements)
    if not (ready.exists() and ready.read_text() == asked):
        base = _python_with_wheels(*framework.pythons)
        say(f"{framework.title}: pip installs {', '.join(framework.requirements)} into {folder}")
        _run(base, "-m", "venv", "--clear", str(folder))
        _run(
            str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *framework.requirements
        )
        ready.write_text(asked)
    return str(python)


def _python_with_wheels(first: int, last: int) -> str:
    """Return an installed Python 3 between two minor versions, best this one."""
    if first <= sys.version_info.minor <= last:
        return sys.executable
    for minor in range(last, first - 1, -1):
        found = shutil.which(f"python3.{minor}")
        # A name on the path may be that of a version manager which does not have it.
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    raise Missing(f"its wheels need a Python between 3.{first} and 3.{last}, and none is on the PATH")


def _run(*command: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=60 * _MINUTES_OF_PIP,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"pip did not end in {_MINUTES_OF_PIP} minutes") from None
    if ran.returncode != 0:
        lines = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")]
        raise Missing(f"pip failed: {(lines or [ran.stderr.strip()[-300:]])[-1]}")
