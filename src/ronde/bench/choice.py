"""Names that a user chose among known ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ronde.errors import UsageError

__all__ = ["check_known"]


def check_known(asked: Sequence[str], known: Collection[str], *, what: str) -> None:
    """Refuse a name that there is not.

    Raises:
        UsageError: naming it and those there are; `what` they are is said in the singular.
    """
    for name in asked:
        if name not in known:
            raise UsageError(f"there is no {what} {name!r}; choose among {', '.join(known)}")
