"""The table of trainers is in order; `make soak` runs the rows whose packages are there."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
from pathlib import Path

import pytest

from ends.end import failed, finished
from programs.outcome import Outcome
from trainers import environment, table
from trainers.row import ENDS, PLANS, SCRIPTS, Row, names, read
from trainers.trial import found

ROW = Row(
    title="a `Trainer`", packages=("trl==1.16.0", "peft[x]==0.21.2"), expected={"ddp": "parts"}, script="a.py"
)
LOSS = "Net runs in parts, not as one piece: an output without a batch axis depends on the batch (a loss?)"


@pytest.mark.parametrize("name", names())
def test_a_row_is_in_order(name: str) -> None:
    row = read(name)
    assert row.title
    assert all(
        re.fullmatch(r"[\w.-]+(\[[\w,]+\])?==[\w.]+", package) for package in (*row.packages, *row.needs)
    )
    assert set(row.expected) == set(PLANS)
    assert set(row.expected.values()) <= set(ENDS)
    assert row.because or not {"parts", "replicated", "refused"} & set(row.expected.values())
    assert row.module or row.source is not None or (SCRIPTS / row.script).is_file()


def test_the_table_is_what_rows_expect() -> None:
    for (name, plan), line in table.read().items():
        row = read(name)
        assert (line.end, line.versions) == (row.expected[plan], row.versions), line


def test_the_page_shows_the_table() -> None:
    rows = {name: read(name) for name in names()}
    assert table.PAGE.read_text() == table.page(rows, table.read())


def test_an_end_is_told_by_what_ran_in_parts() -> None:
    def end(*notes: str, plan: str = "ddp", cut: int = 3, law: str = "holds") -> tuple[str, str]:
        outcome = Outcome(law=law, end=finished("a", {"Linear": cut}, notes))
        line = found("a", ROW, outcome, ranks=2, plan=plan)
        return line.end, line.how

    assert end() == ("one piece", "")
    assert end(LOSS) == ("one piece but the loss", "")
    assert end(LOSS, "Gate runs in parts, not as one piece: its rows meet") == ("parts", "Gate, Net")
    assert end(cut=0) == ("replicated", "")
    assert end(cut=0, plan="tensor=2") == ("divided", "")
    assert end("tensor=2 cuts nothing of Net: every rank computes", cut=0, plan="tensor=2")[0] == "replicated"
    assert end(law="BROKEN") == ("failed", "BROKEN: one piece")
    assert found("a", ROW, Outcome(law="refused: x"), ranks=2, plan="ddp").end == "refused"
    died = Outcome(law="holds", end=failed("a", "died"))
    assert found("a", ROW, died, ranks=2, plan="ddp").end == "failed"


def test_the_page_counts_and_gives_reasons() -> None:
    line = found(
        "a", ROW, Outcome(law="holds", worst=2e-16, end=finished("a", {"Net": 1}, [])), ranks=2, plan="ddp"
    )
    assert table.Found.parse(line.line) == line
    row = dataclasses.replace(ROW, because="it samples.", start="without its launcher.")
    page = table.page({"a": row}, {("a", "ddp"): line})
    assert "Of 1 rows 1 were run, and 1 have plain Python's numbers under all plans tried" in page
    assert f"|a `Trainer`|trl 1.16.0, peft 0.21.2|one piece|not run|not run|2e-16|{line.date}|" in page
    assert "- a `Trainer`: it samples." in page
    assert "- a `Trainer`: without its launcher." in page


def test_packages_that_are_here_need_no_environment(tmp_path: Path) -> None:
    assert environment.find([], tmp_path) == environment.make([], tmp_path)
    assert environment.find(["no-such-package==1.0"], tmp_path) is None


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", names())
def test_a_trainer_ends_as_its_row_says(name: str) -> None:
    row = read(name)
    python, checkouts = environment.find(row.packages, needs=row.needs), os.environ.get("RONDE_CHECKOUTS", "")
    if python is None:
        pytest.skip(f"needs {', '.join(row.packages)}: `make trainers ARGS={name}` installs them")
    if row.source is not None and (
        why := row.source.missing(Path(checkouts)) if checkouts else "RONDE_CHECKOUTS"
    ):
        pytest.skip(f"needs a checkout: {why}")
    command = [python, "-m", "trainers.trial", name, "--plans", ",".join(PLANS)]
    command += ["--checkouts", checkouts] if checkouts else []
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
