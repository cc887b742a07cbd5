"""Help texts: groups of options, and examples that parse."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from ronde.cli.app import COMMANDS
from ronde.cli.entry import main
from ronde.cli.examples import EXAMPLES
from ronde.cli.plain_words import parse_plain
from ronde.cli.run import run


def commands() -> Iterator[tuple[str, Any]]:
    """Each command and subcommand with its whole name."""
    for each in COMMANDS:
        target = each.load()
        if not isinstance(target, typer.Typer):
            application = typer.Typer(add_completion=False)
            settings = {"allow_interspersed_args": False} if each.runs_script else None
            application.command(each.name, context_settings=settings)(target)
            yield each.name, typer.main.get_command(application)
            continue
        group = typer.main.get_command(target)
        yield each.name, group
        for name, command in vars(group)["commands"].items():
            if not command.hidden:
                yield f"{each.name} {name}", command


ALL = dict(commands())


def test_each_command_has_examples() -> None:
    assert set(EXAMPLES) == set(ALL)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_parse(name: str) -> None:
    for example in EXAMPLES[name]:
        words = shlex.split(example)
        words = words[words.index("ronde") + 1 :]
        known = max((each for each in ALL if words[: len(each.split())] == each.split()), key=len)
        assert known.startswith(name)
        command = ALL[known]
        parsed = command.make_context(known, words[len(known.split()) :]).params
        own = {option for each in command.params for option in each.opts}
        # Behind a script an option would be the script's.
        assert not own & {*(parsed.get("arguments") or ()), *(parsed.get("words") or ())}, example


def test_options_of_run_are_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    said = capsys.readouterr().out
    titles = re.findall(r"^ *([A-Z][a-z ]+):$", said, re.MULTILINE)
    groups = ["Ranks and hosts", "Plan", "Checkpoints and failures", "Servers", "Logs and traces"]
    assert titles == ["Arguments", "Options", *groups, "Examples"]
    first = said[said.index("\nOptions:") : said.index("\nRanks and hosts:")]
    assert sum(line.startswith("  -") for line in first.splitlines()) == 11  # ten and --help


def test_an_option_of_a_group_needs_no_typer() -> None:
    given = parse_plain(run, ["--timeout", "5", "--every", "10m", "train.py"])
    assert given == {"timeout": 5.0, "every": "10m", "script": "train.py", "arguments": []}


@pytest.mark.parametrize(("typed", "completed"), [("ronde ver", "verify"), ("ronde run --pl", "--plan")])
def test_shells_complete(typed: str, completed: str) -> None:
    line = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" ")), "_RONDE_COMPLETE": "complete_bash"}
    words = [sys.executable, "-m", "ronde"]
    done = subprocess.run(words, env={**os.environ, **line}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [completed]
