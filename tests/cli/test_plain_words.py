"""Plain command lines are parsed as typer parses them; all others are left to it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import typer.main

from ronde.cli.app import _application
from ronde.cli.plain_words import _Declaration, parse_plain
from ronde.cli.run import run

PLAIN = [
    "train.py",
    "train.py --epochs 3 -q --plan x",
    "--ranks 2 train.py",
    "--ranks=2 --plan ddp,bucket-mb=10 --seed 7 train.py a b",
    "-q --native --threads 2 train.py",
    "--timeout 2.5 --publish 1 train.py",
    "--run-dir /tmp/x --trace t.json --trace-steps 1:5 train.py",
    "--checkpoint ck --every 10 --keep 3 --resume --restarts 2 train.py",
    "-H a:2,b:2 --ssh-port 22 --env A=1,B train.py",
    "-m package.module --lr 0.1",
    "--min-ranks 1 --max-ranks 4 --batch-dim 1 --rng global --loading full train.py",
]
LEFT_TO_TYPER = [
    "",
    "--help",
    "--rank 2 train.py",
    "--nproc-per-node 2 train.py",
    "-np 2 train.py",
    "--ranks",
    "--plan --quiet train.py",
    "--seed x train.py",
    "--seed -1 train.py",
    "--threads 0 train.py",
    "--quiet=yes train.py",
    "-Ha:2 train.py",
    "--ranks 2 --ranks 3 train.py",
    "-- train.py",
    "train.py -- a",
    "python train.py",
    "torchrun train.py",
    "train",
]


def by_typer(words: list[str]) -> dict[str, Any]:
    command: Any = typer.main.get_command(_application(asked_for="run"))
    context = command.commands["run"].make_context("run", list(words))
    return dict(context.params)


@pytest.mark.parametrize("line", PLAIN)
def test_a_plain_line_means_what_typer_reads(line: str) -> None:
    given = parse_plain(run, line.split())
    assert given is not None
    bound = inspect.signature(run).bind(**given)
    bound.apply_defaults()
    expected = by_typer(line.split())
    expected["arguments"], expected["env"] = list(expected["arguments"] or ()), expected["env"] or None
    assert dict(bound.arguments) == expected
    assert {name: type(value) for name, value in bound.arguments.items()} == {
        name: type(value) for name, value in expected.items()
    }


@pytest.mark.parametrize("line", LEFT_TO_TYPER)
def test_what_is_out_of_the_ordinary_is_left_to_typer(line: str) -> None:
    assert parse_plain(run, line.split()) is None


def test_paths_are_paths() -> None:
    given = parse_plain(run, ["--trace", "t.json", "train.py"])
    assert given is not None
    assert given["trace"] == Path("t.json")


def test_declarations_can_be_hashed_as_python_3_10_does() -> None:
    declaration = _Declaration.record("--ranks", metavar="N")
    assert len({declaration, _Declaration.record("--ranks", metavar="N")}) == 2
