"""Codes in the text of messages, and how a user reads them."""

from __future__ import annotations

import re

__all__ = ["as_error", "as_note", "lift"]

_CODE = re.compile(r" \[(R[1-9]\d\d)\](?!\w)")


def lift(text: str) -> tuple[str | None, str]:
    """Return the code of a message, or None, and the text without it.

    A message that quotes another one has two codes in one line: that of the quoted message comes first and
    says more. A message that lists others, one a line, leaves their codes there and has its own at the end.
    """
    codes = _CODE.findall(text)
    if not codes:
        return None, text
    if len(set(codes)) == 1 or sum(bool(_CODE.search(line)) for line in text.splitlines()) == 1:
        return codes[0], _CODE.sub("", text)
    *_, last = _CODE.finditer(text)
    return last[1], text[: last.start()] + text[last.end() :]


def as_error(text: str) -> str:
    """Return an error as the user reads it: `error[R104]: ...`, or `error: ...` without a code."""
    code, words = lift(text)
    return f"error[{code}]: {words}" if code else f"error: {words}"


def as_note(text: str) -> str:
    """Return a note as the user reads it: `note[R310]: ...`, or the text itself without a code."""
    code, words = lift(text)
    return f"note[{code}]: {words}" if code else words
