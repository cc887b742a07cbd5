"""A reason why a host cannot take part in a run."""

from __future__ import annotations

import dataclasses

from ronde.messages import lift

__all__ = ["Trouble"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """One thing that is the matter with a host.

    Attributes:
        check: name of what was looked at, as `docs/reference/doctor.md` lists it.
        what, fix: what is the matter, with a code, and what to do.
    """

    host: str
    check: str
    what: str
    fix: str

    def __str__(self) -> str:
        code, what = lift(self.what)
        return f"{what}; {self.fix} [{code}]"
