"""First runs: ranks fill the empty caches of libraries at once, and a later run reads what they left."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from first_runs import hub
from ronde.testing import forked

HERE = Path(__file__).parent
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
TIMES = 20
Run = Callable[..., subprocess.CompletedProcess[str]]
"""Runs `ronde` with some arguments in a directory, with an environment."""


class Kind(NamedTuple):
    """A script and the variables that name its caches.

    Attributes:
        caches: variables; a run leaves files in the first one's folder.
        needs: modules without which the script cannot run.
        uses: modules that the script uses if they are installed, in this order.
    """

    plan: str
    caches: tuple[str, ...]
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()


KINDS = {
    "tables": Kind("hybrid", ("NUMBA_CACHE_DIR",), needs=("numba",)),
    "compiled": Kind("ddp", ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")),
    "libraries": Kind(
        "ddp",
        ("XDG_CACHE_HOME", "HF_HOME", "MPLCONFIGDIR"),
        needs=("joblib",),
        uses=("joblib", "huggingface_hub", "datasets", "matplotlib"),
    ),
}


def test_a_first_run(tmp_path: Path) -> None:
    quick = KINDS["libraries"]._replace(uses=("joblib", "huggingface_hub"))
    _run_twice("libraries", quick, 2, tmp_path, forked.run)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("time", range(TIMES))
def test_every_first_run(time: int, name: str, tmp_path: Path) -> None:
    # Not forked: a fork has numba imported, which has looked for its cache by then.
    _run_twice(name, KINDS[name], 3, tmp_path, _started)


def _started(
    arguments: list[str], *, directory: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ronde", *arguments]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)


def _run_twice(name: str, kind: Kind, ranks: int, folder: Path, run: Run) -> None:
    """Run the script on ranks with empty caches, and again on one rank, offline, with what they left."""
    for module in kind.needs:
        pytest.importorskip(module)
    if name == "compiled" and shutil.which("c++") is None:
        pytest.skip("torch's compiler needs a compiler of C++ on the CPU")
    caches = {variable: str(folder / variable) for variable in kind.caches}
    with hub.serving() as address:
        first = _printed(run, name, kind, ranks, folder, {**caches, "HF_ENDPOINT": address})
    assert any(path.is_file() for path in Path(caches[kind.caches[0]]).rglob("*"))
    assert _printed(run, name, kind, 1, folder, {**caches, **OFFLINE}) == first


def _printed(
    run: Run, name: str, kind: Kind, ranks: int, folder: Path, environment: Mapping[str, str]
) -> str:
    """What the script prints, run in a folder of its own."""
    work = folder / f"on-{ranks}"
    work.mkdir()
    used = [module for module in kind.uses if importlib.util.find_spec(module) is not None]
    command = ["run", "--ranks", str(ranks), "--plan", kind.plan, str(HERE / f"{name}.py"), *used]
    done = run(command, directory=work, environment={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout
