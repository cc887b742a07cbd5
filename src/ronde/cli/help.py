"""Layout of help texts: options in groups, examples at the end."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, final

import typer.core

from ronde.cli.examples import EXAMPLES

__all__ = ["GroupedCommand", "add_examples"]


@final
class GroupedCommand(typer.core.TyperCommand):
    """Command with a section of its help for each `rich_help_panel` of its options.

    Typer draws panels by rich only, in boxes; these sections are plain text for pipes and searches.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, options without a group, then each group of options."""
        sections: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections[getattr(parameter, "rich_help_panel", None) or kind].append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def add_examples(command: Any, name: str) -> None:
    """Put the examples of a command at the end of its help."""
    if name in EXAMPLES:
        # \b keeps the lines of a paragraph as they are.
        command.epilog = "\n".join(("\b", "Examples:", *(f"  {each}" for each in EXAMPLES[name])))
