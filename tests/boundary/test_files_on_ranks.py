"""The same pieces of scripts in plain Python and on 2 and 3 ranks: same answers, same files, once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from boundary.files_scenarios import SCENARIOS, Ranks, answer

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"


def start_ranks(world_size: int, folder: Path) -> list[Any]:
    """Run all scenarios on `world_size` rank processes; their answers, rank by rank."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{SOURCE}{os.pathsep}{HERE.parent}"}
    processes = []
    for rank in range(world_size):
        command = [sys.executable, str(HERE / "files_rank.py"), str(rank), str(world_size), str(folder)]
        log = (folder / f"rank-{rank}.log").open("w")
        processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        log.close()
    try:
        codes = [process.wait(timeout=110) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    logs = "\n".join((folder / f"rank-{rank}.log").read_text() for rank in range(world_size))
    assert codes == [0] * world_size, logs
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world_size)]


def tree(folder: Path) -> dict[str, Any]:
    """Every file below `folder` with its bytes, every folder with none."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.soak)])
def on_ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Any], Path]:
    folder = tmp_path_factory.mktemp(f"files-{request.param}")
    return start_ranks(request.param, folder), folder / "work"


# Scripts leave files to be closed by their last reference.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_rank_lives_in_the_plain_world(
    name: str, on_ranks: tuple[list[Any], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, work = on_ranks
    monkeypatch.chdir(tmp_path)
    plain = answer(SCENARIOS[name], Ranks())
    for rank, answered in enumerate(answers):
        assert answered[name] == plain, f"rank {rank}"
    assert tree(work / name) == tree(tmp_path)
