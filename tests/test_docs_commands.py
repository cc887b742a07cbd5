"""Commands in the documents: their options exist, and what is quick to run prints what the page shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import understood
from ronde.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *(path for path in ROOT.glob("docs/**/*.md") if "_build" not in path.parts)]
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Commands that start nothing, so that a test may run them.
QUICK = ("plan", "--version")


def commands() -> Iterator[tuple[str, str, str]]:
    """(page, command, what is shown below it) for every command that begins with `ronde`."""
    for page in PAGES:
        for block in CONSOLE.findall(page.read_text()):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                if command.startswith("ronde "):
                    yield page.name, command.partition("  #")[0].strip(), shown.strip()


ALL = sorted(set(commands()))


@pytest.mark.parametrize("command", sorted({command for _, command, _ in ALL}))
def test_the_command_is_understood(command: str) -> None:
    # In a synopsis brackets mark what may be left out, bars what may stand there instead, capitals a number.
    words = shlex.split(re.sub(r"[][]|\|\S+", "", command).replace("...", ""))[1:]
    words = ["2" if re.fullmatch("[A-Z]", word) else word for word in words]
    understood(words)


@pytest.mark.parametrize(
    ("command", "shown"),
    [(command, shown) for _, command, shown in ALL if shown and command.split()[1] in QUICK],
)
def test_a_quick_command_prints_what_is_shown(
    command: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(shlex.split(command)[1:])
    captured = capsys.readouterr()
    assert (captured.out + captured.err).strip() == shown
