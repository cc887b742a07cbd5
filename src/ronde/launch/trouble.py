"""A reason why a host cannot take part in a run."""

from __future__ import annotations

import dataclasses

from ronde.messages import lift

__all__ = ["Trouble"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """One problem of a host.

    Attributes:
        check: name of the check, as `docs/reference/doctor.md` lists it.
        what, fix: the problem, with a code, and the remedy.
    """

    host: str
    check: str
    what: str
    fix: str

    def __str__(self) -> str:
        code, what = lift(self.what)
        return f"{what}; {self.fix} [{code}]"
