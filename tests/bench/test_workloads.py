"""The workloads are fair: a script and its twin do the same training, and none knows ronde."""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

import ronde.bench.workloads
from ronde.bench import data_parallel, overhead
from ronde.bench.contenders import plain, twin
from ronde.bench.pairs import Pair, check_same_training
from ronde.errors import UsageError

FOLDER = Path(ronde.bench.workloads.__file__).parent
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_workload_imports_ronde(path: Path) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert not any(name.split(".")[0] == "ronde" for name in imported)


@pytest.mark.parametrize("name", data_parallel.WORKLOADS)
def test_every_workload_has_its_script_and_twin(name: str) -> None:
    names = {path.stem for path in SCRIPTS}
    assert {name.replace("-", "_"), f"{name.replace('-', '_')}_ddp"} <= names


def test_the_mlps_twin_trains_like_its_script() -> None:
    arguments: Sequence[str] = ["--steps", "3", "--warm-up", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    alone = plain("mlp", list(arguments), environment=environment)
    both = twin("mlp", list(arguments), ranks=2, threads=1, environment=environment)
    check_same_training(Pair(ours=alone, peer=both, ours_first=True))
    assert alone.loss == pytest.approx(both.loss, rel=1e-4)


@pytest.mark.soak
@pytest.mark.parametrize("name", data_parallel.WORKLOADS)
def test_every_workload_can_be_compared(name: str) -> None:
    report = data_parallel.compare(
        [name], ranks=2, pairs=1, steps=3, environment=os.environ, progress=lambda *_: None
    )
    (result,) = report.results
    assert result.workload == name
    assert result.ratio.median > 0


@pytest.mark.soak
def test_overhead_can_be_measured() -> None:
    report = overhead.compare(
        overhead.WORKLOADS, pairs=1, steps=20, environment=os.environ, progress=lambda *_: None
    )
    assert [result.workload for result in report.results] == list(overhead.WORKLOADS)


def test_an_unknown_workload_names_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"no workload 'bert'.*transformer, gpt"):
        data_parallel.compare(["bert"], ranks=2, pairs=1, steps=1, environment={}, progress=lambda *_: None)
    with pytest.raises(UsageError, match=r"no workload 'gpt'.*tiny, mlp, start-up"):
        overhead.compare(["gpt"], pairs=1, steps=1, environment={}, progress=lambda *_: None)
