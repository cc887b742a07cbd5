"""Reading a file that was given as a report, and what is wrong with one that is none."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from ronde.errors import UsageError

__all__ = ["reading"]


@contextmanager
def reading(text: str, *kinds: str) -> Iterator[None]:
    """Turn whatever goes wrong while a report is made of this content into an error for the user.

    Args:
        kinds: the words in the JSON of such reports.

    Raises:
        UsageError: the content is something else, or an earlier version has written it.
    """
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError):
        raise _unreadable(text, kinds) from None


def _unreadable(text: str, kinds: Collection[str]) -> UsageError:
    """The error for a file with this content: a report of an earlier version, or something else."""
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if isinstance(fields, dict) and fields.get("kind") in kinds and "results" in fields:
        kind = fields["kind"]
        return UsageError(
            f"this report of ronde bench {kind} has an older form, which this version does not read; measure "
            f"anew: ronde bench {kind} --json FILE"
        )
    return UsageError("this is no report of ronde bench; give a file that --json has written")
