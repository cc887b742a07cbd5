"""Translate the command line of another launcher to options of `ronde run`; pure.

`torchrun --nproc_per_node=4 train.py`, `accelerate launch --num_processes 4 train.py`, `deepspeed
--num_gpus=4 train.py`, `mpirun -np 4 python train.py`: `ronde run` takes the place of their first word.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence

from ronde.cli.launcher_options import OF_LAUNCHERS, LauncherLine, option_named, two_numbers
from ronde.errors import UsageError

__all__ = ["Reading", "read_words"]

_PYTHON = re.compile(r"(?:.*/)?python(?:\d(?:\.\d+)?)?t?")
_LAUNCHERS = {
    "torchrun": (),
    "accelerate": ("launch",),
    "fabric": ("run",),
    "launch": (),
    "deepspeed": (),
    "mpirun": (),
    "mpiexec": (),
    "srun": (),
}
"""Programs that start ranks, each with the words behind its name."""
_LAUNCHER_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "paddle.distributed.launch": "",
}
"""Modules that start ranks, each with the launcher that has its options."""
_OTHER_COMMANDS = ("horovodrun", "bpslaunch")
_JOINED = re.compile(r"(-np|-[A-Za-z])(\d+)")
_VARIABLE = re.compile(r"[A-Za-z_]\w*=.*")
_OF_PYTHON = {
    "-O": "PYTHONOPTIMIZE=1",
    "-OO": "PYTHONOPTIMIZE=2",
    "-B": "PYTHONDONTWRITEBYTECODE=1",
    "-s": "PYTHONNOUSERSITE=1",
    "-v": "PYTHONVERBOSE=1",
    "-W": "PYTHONWARNINGS={}",
    "-X": "PYTHONDEVMODE=1 or its like",
}
"""Options of python, as the variables that every rank inherits."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A command line, translated to ronde's options.

    Attributes:
        words: the translated command line.
        left_out: options of another launcher that ronde does not need.
        changed: whether an option was replaced or left out.
    """

    words: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    changed: bool = False


def read_words(
    words: Sequence[str],
    own: Mapping[str, bool],
    *,
    command: str = "run",
    is_file: Callable[[str], bool] = os.path.isfile,
) -> Reading:
    """Translate the words after `ronde COMMAND` to ronde's own options.

    Args:
        own: the options that the command has, and whether each takes a value.
        command: `run` or `verify`.
        is_file: whether a word is the path of a file.

    Raises:
        UsageError: an option has no counterpart; the message names an equivalent.
    """
    line = LauncherLine()
    rest = _read_options(line, list(words), own)
    typed = ""
    while rest and not rest[0].startswith("-") and not is_file(rest[0]) and not line.module:
        behind = _LAUNCHERS.get(rest[0])
        if behind is None or tuple(rest[1 : 1 + len(behind)]) not in (behind, ()):
            break
        line.launcher, typed = rest[0], shlex.join([rest[0], *behind])
        rest = _read_options(line, rest[1 + len(behind) :], own)
    if _is_python(rest, line, is_file):
        typed = rest[0]
    rest = _read_interpreter(line, rest, own, is_file)
    if typed and not rest and "--help" not in line.options:
        raise UsageError(f"a script is missing after {typed}; write ronde {command} train.py [R148]")
    _refuse_other(rest, command, is_file)
    return _in_words_of_ronde(line, rest, own, command)


def _read_options(line: LauncherLine, words: list[str], own: Mapping[str, bool]) -> list[str]:
    """Take leading options into `line`; return the words from the script on."""
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        name, sign, value = word.partition("=")
        known = None if name in OF_LAUNCHERS.get(line.launcher, ()) else _own_name(name, own)
        if known in ("-m", "--module"):
            line.module = True
        elif known is not None:
            _take_own(line, known, [value] if sign else [], words, own)
        elif (option := option_named(name, line.launcher)) is not None:
            if len(words) < option.values - bool(sign):
                raise UsageError(f"{name} needs a value after it [R142]")
            values = [value] if sign else [words.pop(0) for _ in range(option.values)]
            option.take(line, name, " ".join(values))
        elif (joined := _JOINED.fullmatch(word)) and option_named(joined[1], line.launcher) is not None:
            words[:0] = joined.groups()
        else:
            return [word, *words]  # the parser refuses the unknown option
    return words


def _own_name(name: str, own: Mapping[str, bool]) -> str | None:
    """Look up ronde's option by its spelling: underscores, dashes, joined letters."""
    if name in own:
        return name
    if name.startswith("--"):
        dashed = name.replace("_", "-")
        return dashed if dashed in own else None
    return name if name[:2] in own and option_named(name) is None else None


def _take_own(
    line: LauncherLine, name: str, values: list[str], words: list[str], own: Mapping[str, bool]
) -> None:
    takes = own[name] if name in own else len(name) == 3 and own.get(f"-{name[-1]}", False)
    if takes and not values and words:
        values = [words.pop(0)]
    if name == "--plan" and values:
        line.plan = values[0]
    elif name == "--ranks" and values:
        line.options += [name, *values]
        line.taken[name] = f"--ranks {values[0]}"
    else:
        line.options += [f"{name}={values[0]}"] if values and not takes else [name, *values]


def _read_interpreter(
    line: LauncherLine, words: list[str], own: Mapping[str, bool], is_file: Callable[[str], bool]
) -> list[str]:
    """Strip the interpreter and its options before the script."""
    if _is_python(words, line, is_file):
        _check_interpreter(words[0])
        words = words[1:]
        while words and words[0].startswith("-") and words[0] != "-":
            option = words[0]
            if option == "-m":
                line.module = True
                words = words[1:]
                break
            _refuse_interpreters_option(option, words[1:2])
            words = words[1:]
    if line.module and words and words[0] in _LAUNCHER_MODULES:
        line.module, line.launcher = False, _LAUNCHER_MODULES[words[0]]
        return _read_interpreter(line, _read_options(line, words[1:], own), own, is_file)
    return words


def _is_python(words: Sequence[str], line: LauncherLine, is_file: Callable[[str], bool]) -> bool:
    if not words or line.module or not _PYTHON.fullmatch(words[0]):
        return False
    return "/" in words[0] or not is_file(words[0])


def _check_interpreter(path: str) -> None:
    here = os.path.dirname(sys.executable)
    if "/" in path and os.path.dirname(os.path.abspath(path)) != here:
        raise UsageError(
            f"{path} is another interpreter than ronde's ({sys.executable}), in which scripts run; install "
            "ronde for it, and start by its python -m ronde run [R147]"
        )


def _refuse_interpreters_option(option: str, value: Sequence[str]) -> None:
    """Raise `UsageError` for an option of python, except -u, which ranks have anyway."""
    if option == "-u":
        return
    if option == "-c":
        raise UsageError("python -c has no script that every rank could read; save it to a file [R147]")
    name = option[:2] if option[:2] in ("-W", "-X") else option
    variable = _OF_PYTHON.get(name, "")
    if not variable:
        raise UsageError(f"{option} is an option of python that ranks do not support; leave it out [R147]")
    shown = variable.format(option[2:] or " ".join(value))
    raise UsageError(f"{option} is an option of python; set it for every rank by {shown} before ronde [R147]")


def _refuse_other(words: Sequence[str], command: str, is_file: Callable[[str], bool]) -> None:
    """Raise `UsageError` if the script is a ronde command, or a variable."""
    if not words or is_file(words[0]):
        return
    if words[0] in _OTHER_COMMANDS:
        raise UsageError(f"{words[0]} is a command of ronde: write ronde {shlex.join(words)} [R151]")
    if _VARIABLE.fullmatch(words[0]):
        raise UsageError(
            f"{words[0]} is a variable, not a script; write it first: {words[0]} ronde {command} ... [R151]"
        )


def _in_words_of_ronde(line: LauncherLine, rest: list[str], own: Mapping[str, bool], command: str) -> Reading:
    script = [*(["-m"] if line.module else []), *rest]
    plan = ",".join(dict.fromkeys([line.plan, *line.items.values()] if line.plan else line.items.values()))
    options = [*line.options, *(["--plan", plan] if plan else [])]
    _check_hosts(line, options, script, command)
    if line.ranks is not None:
        count, typed = line.ranks
        if "--ranks" in line.taken:
            if line.taken["--ranks"] != f"--ranks {count}":
                raise two_numbers(line.taken["--ranks"], typed)
        else:
            options += ["--ranks", count]
            line.taken["--ranks"] = typed
    for name, typed in line.taken.items():
        if name not in own:
            raise UsageError(
                f"{typed} is {name} of ronde run, and ronde {command} has none; leave it out [R151]"
            )
    if "--restarts" in line.taken and "--checkpoint" not in line.options:
        typed, count = line.taken["--restarts"], line.options[line.options.index("--restarts") + 1]
        raise UsageError(f"{typed} is --restarts {count} --checkpoint DIR here; add --checkpoint DIR [R149]")
    changed = bool(line.items or line.left_out or line.ranks or line.taken.keys() - {"--ranks"})
    return Reading(words=(*options, *script), left_out=tuple(line.left_out), changed=changed)


def _check_hosts(line: LauncherLine, options: list[str], script: list[str], command: str) -> None:
    """Raise `UsageError` for several hosts, with lines that start ranks there."""
    named = next((name for name in ("-H", "--hosts", "--hostfile") if name in options), None)
    count, least = _number_of_hosts(line)
    if named is None:
        if count > 1:
            raise UsageError(_lines_for_hosts(line, count, least, [*options, *script], command))
    elif count > 1:
        raise UsageError(
            f"{named} names the hosts, and their number is given too; list only the hosts to use [R142]"
        )
    elif line.ranks is not None and line.per_host:
        raise UsageError(
            f"{line.ranks[1]} counts the ranks of each host, which {named} does: HOST:{line.ranks[0]}, in a "
            f"file HOST slots={line.ranks[0]}; leave it out [R142]"
        )


def _number_of_hosts(line: LauncherLine) -> tuple[int, int]:
    """Return the largest and smallest number of hosts; a node rank implies two."""
    nodes = line.rendezvous.get("nnodes", "1")
    least, _, most = nodes.partition(":")
    if not (least.isdecimal() and (most or least).isdecimal()):
        raise UsageError(f"{nodes} is not a number of hosts; try -H HOST1:2,HOST2:2 [R142]")
    second = line.rendezvous.get("node-rank", "0") != "0"
    return max(int(most or least), 2 if second else 1), int(least)


def _lines_for_hosts(line: LauncherLine, count: int, least: int, rest: list[str], command: str) -> str:
    asked = line.ranks[0] if line.ranks is not None else "1"
    each = int(asked) if asked.isdecimal() else 0
    if line.ranks is not None and not line.per_host:
        each = max(1, each // count)
    slots = str(each or "N")
    first = line.rendezvous.get("master-addr", "HOST0")
    hosts = ",".join(f"{name}:{slots}" for name in (first, *(f"HOST{place}" for place in range(1, count))))
    elastic = ["--min-ranks", str(least * max(1, each)), "--checkpoint", "DIR"] if least < count > 2 else []
    once = shlex.join(["ronde", command, "-H", hosts, *elastic, *rest])
    by_name = {"nnodes": str(count), "nproc-per-node": slots if each else "auto", **line.rendezvous}
    met = [word for name, value in by_name.items() for word in (f"--{name}", value)]
    by_torchrun = shlex.join(["torchrun", *met, "-m", "ronde", command, *rest])
    return (
        f"ranks on {count} hosts are started once, on one of them: {once}; "
        f"or on each by torchrun: {by_torchrun} [R141]"
    )
