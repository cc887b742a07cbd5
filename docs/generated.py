"""What the pages show of the code itself, as Markdown: keys and presets of a plan, help texts.

`conf.py` gives these to the pages as substitutions, so that a page cannot say what the code no longer does.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys

from ronde.cli.app import COMMANDS
from ronde.errors import PlanError
from ronde.plan import PRESETS, Plan, expand, read_plan
from ronde.plan.axes import AXES
from ronde.plan.cuts import Cuts
from ronde.plan.key import Choice, Flag, Integer, Key, keys_of
from ronde.report.metrics.families import FAMILIES

__all__ = ["commands", "help_text", "metrics", "plan_keys", "presets", "runs", "substitutions", "values"]

_WIDTH = "84"
# What a value may need to stand with.
_BESIDE = (
    *("", "state=zero3,", "hybrid,", "pipeline=2,", "tensor=2,", "local-sgd,", "geo,", "decentralized,"),
    *("ps,", "ps-bounded,", "dgc,", "twobit,", "powersgd,", "qadam,"),
)


def substitutions() -> dict[str, str]:
    """Every generated piece by the name that the pages use for it."""
    pieces = {f"keys_{name}": plan_keys(name) for name in AXES}
    pieces["presets"] = presets()
    pieces["metrics"] = metrics()
    pieces["help"] = f"```text\n{help_text()}\n```"
    for words in commands():
        pieces["help_" + "_".join(words).replace("-", "_")] = f"```text\n{help_text(*words)}\n```"
    return pieces


def runs(plan: str) -> bool:
    """Whether this version can run the plan."""
    try:
        read_plan(plan)
    except PlanError:
        return False
    return True


def values(key: Key) -> list[str]:
    """Spellings to try: all words of a choice, else the default and one other."""
    if isinstance(key.kind, Choice):
        return list(key.kind.words)
    if isinstance(key.kind, Flag):
        return ["false", "true"]
    if isinstance(key.kind, Integer):
        return [str(key.kind.at_least), str(key.kind.at_least + 1)]
    return ["*.weight:0"] if isinstance(key.kind, Cuts) else ["0.5"]


def plan_keys(axis_name: str) -> str:
    """The table of one axis: each key, what it takes, and how much of that this version can run."""
    axis = AXES[axis_name]
    meanings = _attributes(axis)
    lines = ["| key | values | default | in this version | meaning |", "|---|---|---|---|---|"]
    for key in keys_of(axis):
        default = key.write(key.default)
        default = "not set" if default.endswith("not set") else f"`{default.partition('=')[2]}`"
        cells = (f"`{key.name}`", key.kind.expected, default, _available(key), meanings[key.field])
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def _available(key: Key) -> str:
    tried = values(key)
    working = [text for text in tried if any(runs(f"{beside}{key.name}={text}") for beside in _BESIDE)]
    if working == tried:
        return "all"
    others = [text for text in working if text != key.write(key.default).partition("=")[2]]
    return ", ".join(f"`{text}`" for text in working) if others else "the default only"


def _attributes(cls: type) -> dict[str, str]:
    """The `Attributes:` section of a docstring: what each field means, as Markdown."""
    section = (inspect.getdoc(cls) or "").partition("Attributes:\n")[2]
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def presets() -> str:
    """The table of presets: what each stands for, and whether this version can run it."""
    lines = [
        "| preset | stands for | exact | runs in this version | known systems |",
        "|---|---|---|---|---|",
    ]
    for preset in PRESETS.values():
        exact = "yes" if expand(preset.name).exact else "no"
        ready = "**yes**" if runs(preset.name) else "no"
        systems = "; ".join(preset.equals)
        default = " (default)" if expand(preset.name) == Plan() else ""
        lines.append(f"| `{preset.name}`{default} | `{preset.items}` | {exact} | {ready} | {systems} |")
    return "\n".join(lines)


def metrics() -> str:
    """The table of metrics of a run."""
    lines = ["| metric | is |", "|---|---|"]
    for family in FAMILIES:
        labels = f"{{{', '.join(family.labels)}}}" if family.labels else ""
        lines.append(f"| `{family.name}{labels}` | {family.help} |")
    return "\n".join(lines)


def commands() -> list[tuple[str, ...]]:
    """Every command as it is typed, subcommands too, in the order of `ronde --help`."""
    import typer

    found: list[tuple[str, ...]] = []
    for command in COMMANDS:
        found.append((command.name,))
        target = command.load()
        if isinstance(target, typer.Typer):
            group = typer.main.get_command(target)
            found += [
                (command.name, name)
                for name, each in getattr(group, "commands", {}).items()
                if not each.hidden  # refused by name
            ]
    return found


def help_text(*words: str) -> str:
    """What `ronde WORDS --help` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "ronde", *words, "--help"],
        env={**os.environ, "COLUMNS": _WIDTH, "TERM": "dumb", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()
