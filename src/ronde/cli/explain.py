"""`ronde explain`: explanations of the codes of messages."""

from __future__ import annotations

import difflib
import re
import shutil
import textwrap
from typing import Annotated

import typer

from ronde.errors import UsageError
from ronde.messages.explanations import CodeExplanation, Topic, by_code, topics

__all__ = ["explain"]

_LINK = re.compile(r"\[[^]]+\]\((?:\.\./)*(docs/[^)]+)\)")


def explain(
    codes: Annotated[
        list[str] | None,
        typer.Argument(metavar="CODE ...", help="R104, say, or a topic.", show_default="list the topics"),
    ] = None,
) -> None:
    """Explain the code of a message, such as R104 in `ronde: error[R104]: ...`.

    A topic instead of a code lists the topic's codes.
    """
    known = topics()
    if not codes:
        print("\n".join(_line_of(topic) for topic in known))
        return
    print("\n\n".join(_answer(word, known) for word in codes))


def _answer(word: str, known: list[Topic]) -> str:
    """Return the explanation of a code, or the list of a topic's codes."""
    explained = by_code(known)
    by_name = {topic.name: topic for topic in known}
    code = word.strip("[]").upper()
    if code in explained:
        return _told(explained[code])
    if word.lower() in by_name:
        return "\n".join(f"{each.code}  {each.title}" for each in by_name[word.lower()].explanations)
    near = difflib.get_close_matches(code, explained, n=3) or difflib.get_close_matches(word, by_name, n=3)
    meant = f" (did you mean {', '.join(near)}?)" if near else ""
    raise UsageError(f"{word} is not a code of a message{meant}; list the topics by ronde explain [R601]")


def _told(explanation: CodeExplanation) -> str:
    """Return the explanation for a terminal: paragraphs filled to its width, links as paths."""
    text = _LINK.sub(r"\1", explanation.text)
    width = min(100, shutil.get_terminal_size().columns)
    paragraphs = [
        textwrap.fill(" ".join(each.split()), width, break_long_words=False, break_on_hyphens=False)
        for each in text.split("\n\n")
    ]
    return "\n\n".join([f"{explanation.code}: {explanation.title}", *paragraphs])


def _line_of(topic: Topic) -> str:
    """Return a topic's line in the list of topics."""
    codes = f"{topic.explanations[0].code} to {topic.explanations[-1].code}"
    return f"{topic.name:<14} {codes:<14} {topic.title}"
