"""A reason why a host cannot take part in a run."""

from __future__ import annotations

import dataclasses

__all__ = ["Trouble"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """One thing that is the matter with a host.

    Attributes:
        check: name of what was looked at, as `docs/reference/doctor.md` lists it.
        what, fix: what is the matter, and what to do.
    """

    host: str
    check: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}; {self.fix}"
