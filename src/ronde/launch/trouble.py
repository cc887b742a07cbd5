"""What keeps a host from taking part in a run, or would spoil it."""

from __future__ import annotations

import dataclasses

__all__ = ["Trouble"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """One thing that is the matter with a host.

    Attributes:
        check: name of what was looked at, as `docs/doctor.md` lists it.
        what, fix: what is the matter, and what to do.
    """

    host: str
    check: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}; {self.fix}"
