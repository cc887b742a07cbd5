"""Command line: the table of commands, and the parser.

A command's module is imported only when that command is asked for, so that `ronde --help` answers
at once on a login node and imports no torch.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.main

from ronde import __version__
from ronde.cli.help import GroupedCommand, add_examples
from ronde.errors import UsageError
from ronde.messages import as_error

__all__ = ["COMMANDS", "Command", "carry_out", "read_options"]

# Set by the shell functions that --install-completion writes.
_COMPLETING = "_RONDE_COMPLETE"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One row of the table of commands.

    Attributes:
        name: word that the user types.
        module: its module, imported only when the command is used.
        attribute: a function with typer annotations, or a `typer.Typer` of subcommands; its
            docstring is the text of `ronde NAME --help`.
        help: the line in `ronde --help`, which must not import the module.
        runs_script: the first positional argument ends ronde's own options; the rest is the script's.
        replaces_launchers: whether it accepts or answers options of other launchers.
    """

    name: str
    module: str
    attribute: str
    help: str
    runs_script: bool = False
    replaces_launchers: bool = False

    def load(self) -> Any:
        module = importlib.import_module(self.module)
        # typer is needed for the annotations of a command that does not import it itself
        vars(module).setdefault("typer", typer)
        return getattr(module, self.attribute)


# The parser's exception: typer does not export it, and uses click's or its own copy.
_Unparsable: Any = typer.BadParameter.__base__

COMMANDS = (
    Command(
        name="run",
        module="ronde.cli.run",
        attribute="run",
        help="Run an ordinary script on many ranks.",
        runs_script=True,
        replaces_launchers=True,
    ),
    Command(
        name="horovodrun",
        module="ronde.cli.horovodrun",
        attribute="horovodrun",
        help="Run a script written for Horovod.",
        runs_script=True,
    ),
    Command(
        name="bpslaunch",
        module="ronde.cli.bpslaunch",
        attribute="bpslaunch",
        help="Run a script written for BytePS.",
        runs_script=True,
    ),
    Command(
        name="verify",
        module="ronde.cli.verify",
        attribute="verify",
        help="Check that N ranks give one device's answer.",
        runs_script=True,
        replaces_launchers=True,
    ),
    Command(
        name="top",
        module="ronde.cli.top",
        attribute="top",
        help="Show a run live in the terminal.",
    ),
    Command(
        name="report",
        module="ronde.cli.report",
        attribute="report",
        help="Write an HTML report of a run.",
    ),
    Command(
        name="ui",
        module="ronde.cli.ui",
        attribute="ui",
        help="Show runs live in the browser.",
    ),
    Command(
        name="plan",
        module="ronde.cli.plan",
        attribute="plan",
        help="Show the meaning of a plan, or search for one.",
    ),
    Command(
        name="launch",
        module="ronde.cli.launch",
        attribute="launch",
        help="Write manifests for schedulers.",
    ),
    Command(
        name="doctor",
        module="ronde.cli.doctor",
        attribute="doctor",
        help="Diagnose hosts before a run, or a run.",
    ),
    Command(
        name="explain",
        module="ronde.cli.explain",
        attribute="explain",
        help="Explain the code of a message.",
    ),
    Command(
        name="server",
        module="ronde.cli.server",
        attribute="server",
        help="Start one parameter server by hand.",
    ),
    Command(
        name="bench",
        module="ronde.cli.bench",
        attribute="bench",
        help="Measure against hand-written PyTorch.",
    ),
    Command(
        name="export",
        module="ronde.cli.export",
        attribute="export",
        help="Export a published model or a checkpoint.",
    ),
    Command(
        name="import",
        module="ronde.cli.import_weights",
        attribute="import_weights",
        help="Import weights into a checkpoint.",
    ),
    Command(
        name="serve",
        module="ronde.cli.serve",
        attribute="serve",
        help="Serve a published or exported model.",
    ),
)


_RUNNING_SCRIPTS = {f"ronde {command.name}" for command in COMMANDS if command.runs_script}

_REPLACING_LAUNCHERS = {f"ronde {command.name}" for command in COMMANDS if command.replaces_launchers}


def carry_out(words: list[str]) -> int | None:
    """Carry out one command line and return its exit code.

    Words that cannot be parsed are one line on stderr.
    """
    name = "ronde"
    if _COMPLETING in os.environ:
        return _complete()
    try:
        application = _application(asked_for=words[0] if words else None)
        name, command, rest = _descend(typer.main.get_command(application), words)
        add_examples(command, name.removeprefix("ronde "))
        if name in _REPLACING_LAUNCHERS:
            rest = _in_own_words(command, rest)
        return command.main(args=rest, prog_name=name, standalone_mode=False)
    except _Unparsable as error:
        print(_told(error, name), file=sys.stderr)
        return error.exit_code


def read_options(name: str, words: list[str]) -> dict[str, Any]:
    """Read the given parameters of a command line, without carrying it out.

    Raises:
        UsageError: words that cannot be parsed.
    """
    try:
        command = typer.main.get_command(_application(asked_for=name))
        title, command, rest = _descend(command, [name, *words])
        add_examples(command, name)
        given = command.make_context(title, rest)
    except _Unparsable as error:
        raise UsageError(_problem(error, f"ronde {name}")) from None
    defaults = {each.name: each.get_default(given) for each in command.params}
    return {
        each: value for each, value in given.params.items() if (value or None) != (defaults[each] or None)
    }


def _complete() -> int:
    """Print the completions of a command line, which shells pass in environment variables."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    typed = line.split()[1:]
    application = _application(asked_for=typed[0] if typed else None)
    typer.main.get_command(application)(prog_name="ronde", complete_var=_COMPLETING)
    return 0


def _in_own_words(command: Any, words: list[str]) -> list[str]:
    """Translate another launcher's options, and tell the user how they were read."""
    from ronde.cli.launcher_words import read_words
    from ronde.launch.announce import say

    reading = read_words(words, _options_of(command), command=command.name)
    if reading.changed and not {"-q", "--quiet"}.intersection(reading.words):
        unneeded = f" (without {', '.join(reading.left_out)})" if reading.left_out else ""
        say(f"read as: {shlex.join(['ronde', command.name, *reading.words])}{unneeded} [R140]")
    return list(reading.words)


def _options_of(command: Any) -> dict[str, bool]:
    """Return a command's options by name, and whether each takes a value."""
    options = [each for each in command.params if each.param_type_name == "option"]
    return {"--help": False, **{name: not each.is_flag for each in options for name in each.opts}}


def _told(error: Any, command: str) -> str:
    """Format a parser's error; without a message it is the help."""
    problem = error.format_message()
    if error.ctx is not None and problem == error.ctx.get_help():
        return problem
    return f"ronde: {as_error(_problem(error, command))}"


def _problem(error: Any, command: str) -> str:
    """Format a parser's error, and name the command that lists the options."""
    problem = error.format_message()
    problem = problem[:1].lower() + problem[1:].rstrip(".")
    if hasattr(error, "possibilities") and command in _RUNNING_SCRIPTS:
        problem += "; the script's own options go behind it"
    return f"{problem}; see {command} --help [R177]"


def _descend(root: Any, words: Sequence[str]) -> tuple[str, Any, list[str]]:
    """Return the name of the command in `words`, the command, and the rest.

    Parsing them by the root would make typer coerce the root's own options, for which it imports pydantic:
    twice the time of `ronde run --help`.
    """
    name, command, rest = "ronde", root, list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest[0]]
        name = f"{name} {rest.pop(0)}"
    return name, command, rest


def _application(*, asked_for: str | None) -> typer.Typer:
    """Create the application; only the requested command has its code."""
    application = typer.Typer(
        help="An unmodified PyTorch script on many devices, with the single-device answer.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    application.callback()(_root)
    for command in COMMANDS:
        if command.name != asked_for:
            application.command(command.name, help=command.help)(_not_asked_for)
            continue
        target = command.load()
        if isinstance(target, typer.Typer):
            application.add_typer(target, name=command.name)
        else:
            settings = {"allow_interspersed_args": False} if command.runs_script else None
            application.command(command.name, cls=GroupedCommand, context_settings=settings)(target)
    return application


def _not_asked_for() -> None:
    """Placeholder for a command without an imported module."""
    raise AssertionError("the command that was asked for has its own function")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"ronde {__version__}")
        raise typer.Exit()


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Options before the command; `--version` ends the process by itself."""
