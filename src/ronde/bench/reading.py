"""Reading a file that was given as a report, and what is wrong with one that is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from ronde.errors import UsageError

__all__ = ["reading"]

_KINDS = ("dp", "overhead", "collectives", "memory", "first-call")


@contextmanager
def reading(text: str) -> Iterator[None]:
    """Around making a report of this content.

    Raises:
        UsageError: for anything that is none, and for what an earlier version wrote.
    """
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError):
        raise _unreadable(text) from None


def _unreadable(text: str) -> UsageError:
    """The error for a file with this content: a report of an earlier version, or something else."""
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if isinstance(fields, dict) and fields.get("kind") in _KINDS and "results" in fields:
        kind = fields["kind"]
        return UsageError(
            f"this report of ronde bench {kind} has an older form, which this version does not read; measure "
            f"anew: ronde bench {kind} --json FILE"
        )
    return UsageError("this is no report of ronde bench; give a file that --json has written")
