"""Explanations of codes, parsed from a Markdown file for each topic."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from importlib import resources

__all__ = ["CodeExplanation", "Topic", "by_code", "parse_topic", "topics"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CodeExplanation:
    """An explanation of one code.

    Attributes:
        code: "R104".
        title: the situation in a few words.
        text: Markdown; the meaning of the message, the remedy, and a link to the page that says more.
    """

    code: str
    title: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Topic:
    """One file of explanations.

    Attributes:
        name: the file's name without its ending.
        title: its heading.
        explanations: the explanations in the order of the file.
    """

    name: str
    title: str
    explanations: tuple[CodeExplanation, ...]


def topics() -> list[Topic]:
    """Read all topics, in the order of their codes."""
    files = [each for each in resources.files("ronde.messages").iterdir() if each.name.endswith(".md")]
    read = [parse_topic(each.name.removesuffix(".md"), each.read_text(encoding="utf-8")) for each in files]
    return sorted(read, key=lambda topic: topic.explanations[0].code)


def by_code(known: Iterable[Topic]) -> dict[str, CodeExplanation]:
    """Return the explanations of topics by code."""
    return {each.code: each for topic in known for each in topic.explanations}


def parse_topic(name: str, markdown: str) -> Topic:
    """Parse one file: `# Title`, then `## R104: title` with an explanation below for each code."""
    head, *sections = re.split(r"^## ", markdown, flags=re.MULTILINE)
    found: list[CodeExplanation] = []
    for section in sections:
        heading, _, text = section.partition("\n")
        code, _, title = heading.partition(": ")
        found.append(CodeExplanation(code=code, title=title, text=text.strip()))
    return Topic(name=name, title=head.strip().removeprefix("# ").split("\n")[0], explanations=tuple(found))
