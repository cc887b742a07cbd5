"""Following links by the names that the script knows, where they, or what they lead to, lie elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["resolved"]

_HOPS = 40
"""Links that are followed one after another, as Linux has it."""


def resolved(path: str, text_of: Callable[[str], str | None], *, last: bool) -> str:
    """An absolute path with no link in it.

    Args:
        text_of: what a link says; None for what is no link.
        last: the last name is followed too.
    """
    found, hops = "/", 0
    rest = path.split("/")[::-1]
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        inner = os.path.dirname(found) if name == ".." else os.path.join(found, name)
        text = text_of(inner) if rest or last else None
        if text is None or hops == _HOPS:
            found = inner
            continue
        hops += 1
        found = "/" if text.startswith("/") else found
        rest += text.split("/")[::-1]
    return found
