"""The guide's script that knows ronde: the same numbers in plain python and on two ranks."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from ronde.testing import forked

GUIDE = Path(__file__).parents[2] / "docs/guides/your-script.md"


def script() -> str:
    """The example, with all digits of each loss."""
    section = GUIDE.read_text().partition("## A script that knows ronde")[2]
    source = section.partition("```python\n")[2].partition("```")[0]
    assert {"init", "deferred", "prepare", "Step", "is_main", "world_size", "rank"} <= _names(source)
    return source.replace(
        "    loss = step(x, target=y)", "    loss = step(x, target=y); print(repr(loss.item()))"
    )


def _names(source: str) -> set[str]:
    return {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("plan", ["ddp", pytest.param("zero3", marks=pytest.mark.soak)])
def test_the_numbers_on_two_ranks_are_those_of_plain_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], plan: str
) -> None:
    exec(compile(script(), "train.py", "exec"), {"__name__": "__main__"})
    alone = capsys.readouterr().out.split()
    (tmp_path / "train.py").write_text(script())
    run = ["run", "--ranks", "2", "--quiet", "--plan", plan, "--run-dir", str(tmp_path / "run")]
    done = forked.run([*run, str(tmp_path / "train.py")], directory=tmp_path)
    assert done.returncode == 0, done.stderr
    *losses, last = done.stdout.splitlines()
    assert last == "rank 0 of 2"
    assert len(alone) == len(losses) == 6
    assert [float(each) for each in losses] == pytest.approx([float(each) for each in alone], rel=1e-6)


@pytest.mark.soak
def test_it_runs_without_the_launcher(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script())
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 6
