"""The command line's root: help, version, errors; no torch before it is needed."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from typing import get_type_hints

import pytest
import typer
from typer.models import OptionInfo

from ronde import __version__
from ronde.cli import main
from ronde.cli.app import COMMANDS
from ronde.errors import LaunchError, UsageError


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def command_that(function: object, monkeypatch: pytest.MonkeyPatch, name: str = "bench") -> None:
    """Put `function` where the table of commands looks for the command `name`."""
    command = next(command for command in COMMANDS if command.name == name)
    module = types.ModuleType(command.module)
    setattr(module, command.attribute, function)
    monkeypatch.setitem(sys.modules, command.module, module)


def test_the_commands_are_these():
    known = [
        "run",
        "horovodrun",
        "bpslaunch",
        "verify",
        "top",
        "report",
        "ui",
        "plan",
        "launch",
        "doctor",
        "explain",
        "server",
        "bench",
        "export",
        "import",
        "serve",
    ]
    assert [command.name for command in COMMANDS] == known


def test_help_names_every_command_with_its_line(capsys: pytest.CaptureFixture[str]):
    assert exit_code("--help") == 0
    output = capsys.readouterr().out
    for command in COMMANDS:
        assert command.name in output
        assert command.help in output


def test_help_imports_no_torch_and_no_command():
    """Nor do the helps of commands import much: counted, because time depends on the host."""
    code = (
        "import contextlib, io, sys\n"
        "from ronde.cli import main\n"
        "from ronde.cli.app import COMMANDS\n"
        "def loaded(*words):\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):\n"
        "        main([*words, '--help'])\n"
        "    assert 'Usage: ronde' in out.getvalue()\n"
        "    return set(sys.modules)\n"
        "root = loaded()\n"
        "print(sorted({command.module for command in COMMANDS} & root), len(root))\n"
        "modules = set().union(*(loaded(command.name) for command in COMMANDS), loaded('plan', 'show'))\n"
        "foreign = {name for name in modules if name.partition('.')[0] != 'ronde'}\n"
        "print(sorted({'torch', 'numpy', 'rich', 'pydantic', 'asyncio'} & modules), len(foreign))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    (commands, at_root), (heavy, foreign) = (line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert (commands, heavy) == ("[]", "[]")
    assert int(at_root) < 200
    assert int(foreign) < 240


@pytest.mark.parametrize("form", [["-m", "ronde"], ["-c", "from ronde.cli import main; main()"]])
def test_both_forms_of_the_command_give_the_version(form: list[str]):
    done = subprocess.run([sys.executable, *form, "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"ronde {__version__}\n", "")


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]):
    assert exit_code() in (0, 2)
    captured = capsys.readouterr()
    assert "Usage: ronde" in captured.out + captured.err


def test_an_unknown_command_is_named_with_the_nearest(capsys: pytest.CaptureFixture[str]):
    assert exit_code("plam") == 2
    error = capsys.readouterr().err
    assert "plam" in error
    assert "Did you mean 'plan'?" in error


@pytest.mark.parametrize(("error", "code"), [(UsageError("say --ranks 2"), 2), (LaunchError("no ranks"), 1)])
def test_an_error_of_ronde_is_one_line_and_its_exit_code(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def bench() -> None:
        raise error

    command_that(bench, monkeypatch)
    assert exit_code("bench") == code
    captured = capsys.readouterr()
    assert captured.err == f"ronde: error: {error}\n"
    assert captured.out == ""


def test_any_other_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch):
    def bench() -> None:
        raise ZeroDivisionError("a defect")

    command_that(bench, monkeypatch)
    with pytest.raises(ZeroDivisionError, match="a defect"):
        main(["bench"])


def test_a_command_chooses_its_exit_code(monkeypatch: pytest.MonkeyPatch):
    def bench() -> None:
        raise typer.Exit(7)

    command_that(bench, monkeypatch)
    assert exit_code("bench") == 7


def test_the_script_of_run_keeps_its_own_options(monkeypatch: pytest.MonkeyPatch):
    seen: list[object] = []

    def run(words: list[str], ranks: int = 1) -> None:
        seen.append((ranks, words))

    command_that(run, monkeypatch, name="run")
    assert exit_code("run", "--ranks", "3", "train.py", "--ranks", "9", "-x", "--help", "--", "-y") == 0
    assert seen == [(3, ["train.py", "--ranks", "9", "-x", "--help", "--", "-y"])]


def options_of(command: object, name: str) -> Iterator[tuple[str, str, OptionInfo]]:
    """Every option: the command's name, the parameter's, and what was said of it."""
    if isinstance(command, typer.Typer):
        for each in command.registered_commands:
            yield from options_of(each.callback, f"{name} {each.name}")
        return
    assert callable(command)
    for parameter, hint in get_type_hints(command, include_extras=True).items():
        for said in getattr(hint, "__metadata__", ()):
            if isinstance(said, OptionInfo):
                yield name, parameter, said


def test_an_option_whose_value_has_its_name_says_its_name():
    """Releases 0.27 of typer take `metavar="PLAN"` of a parameter `plan` for the option `--PLAN`."""
    seen = 0
    for command in COMMANDS:
        for name, parameter, said in options_of(command.load(), command.name):
            seen += 1
            # What stands first in an annotation is an option's name, though typer calls it a default.
            assert said.default is not ... or said.metavar != parameter.upper(), f"ronde {name}: {parameter}"
    assert seen > 50
