"""What one check before a run has found."""

from __future__ import annotations

import dataclasses
from typing import Literal

__all__ = ["Finding", "Level"]

Level = Literal["good", "note", "wrong"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A sentence about a host.

    Attributes:
        check: the name of the check, as `docs/reference/doctor.md` lists it.
        level: good; a note, which may be slow or is not known; or wrong, with which runs fail.
        fix: what to do, "" where that is nothing.
        host: name of the host among several; "" for this one.
    """

    check: str
    level: Level
    summary: str
    fix: str = ""
    host: str = ""
