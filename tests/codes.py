"""Texts of messages without their codes."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["without_code", "without_codes"]

_CODE = re.compile(r" \[R[1-9]\d\d\](?!\w)|(?<=ronde: error)\[R[1-9]\d\d\]|(?<=ronde: )note\[R[1-9]\d\d\]: ")


def without_code(text: str) -> str:
    """Return a text without any code, as it is raised, noted or printed."""
    return _CODE.sub("", text)


def without_codes(texts: Iterable[str]) -> list[str]:
    """Return texts without any code."""
    return [without_code(text) for text in texts]
