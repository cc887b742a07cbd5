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
# A block that begins with a comment of its file's name.
FILE = re.compile(r"^```(?:python|toml)\n(# (\w+\.\w+)\n.*?)^```$", re.MULTILINE | re.DOTALL)
# Commands that start nothing, so that a test may run them.
QUICK = ("plan", "--version")


def commands() -> Iterator[tuple[Path, str, str]]:
    """(page, command, what is shown below it) for every command that begins with `ronde`."""
    for page in PAGES:
        for block in CONSOLE.findall(page.read_text()):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                if command.startswith("ronde "):
                    yield page, command.partition("  #")[0].strip(), shown.strip()


ALL = sorted(set(commands()))


@pytest.mark.parametrize("command", sorted({command for _, command, _ in ALL}))
def test_the_command_is_understood(command: str) -> None:
    # In a synopsis brackets mark what may be left out, bars what may stand there instead, capitals a number.
    words = shlex.split(re.sub(r"[][]|\|\S+", "", command).replace("...", ""))[1:]
    words = ["2" if re.fullmatch("[A-Z]", word) else word for word in words]
    understood(words)


@pytest.mark.parametrize(
    ("page", "command", "shown"),
    [each for each in ALL if each[2] and each[1].split()[1] in QUICK],
    ids=lambda given: given.name if isinstance(given, Path) else None,
)
def test_a_quick_command_prints_what_is_shown(
    page: Path,
    command: str,
    shown: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The page's own files lie in the folder in which it runs."""
    for text, name in FILE.findall(page.read_text()):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(shlex.split(command)[1:])
    captured = capsys.readouterr()
    assert (captured.out + captured.err).strip() == shown
