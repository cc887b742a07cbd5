"""The result of a check before a run."""

from __future__ import annotations

import dataclasses
from typing import Literal

__all__ = ["Finding", "Level"]

Level = Literal["good", "note", "wrong"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Result of one check on a host.

    Attributes:
        check: the name of the check, as `docs/reference/doctor.md` lists it.
        level: "good"; "note" for a possible slowness or an unknown; or "wrong", with which runs fail.
        fix: advice, "" without one.
        host: name of the host among several; "" for this one.
    """

    check: str
    level: Level
    summary: str
    fix: str = ""
    host: str = ""
