"""Compares what ronde says of a script at the end of a run with what is true of it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from codes import without_code

__all__ = ["compare_said"]

# In how many calls a module ran so depends on the number of ranks, and is tested elsewhere.
_SHARE = re.compile(r"(?<= runs in parts) in \d+ of \d+ calls")


def compare_said(run: Path, expected: Sequence[str], *, whole: bool = True) -> None:
    """Fail for a note that is not expected, for one that is missing, and for two of which one is expected.

    Args:
        run: the ranks' run directory.
        expected: of each note a part that tells it from others.
        whole: the script ran to its end on several ranks, so that all of it can have been said.
    """
    told: list[str] = json.loads((run / "rank-0.summary.json").read_text())["notes"]
    notes = [_SHARE.sub("", without_code(note)) for note in told]
    untold = [note for note in notes if not any(part in note for part in expected)]
    missing = [part for part in expected if whole and not any(part in note for note in notes)]
    assert not untold, "said of this script, and not expected: " + "\n".join(untold)
    assert not missing, f"not said of this script: {missing}; said: {notes}"
    assert len(notes) == len(expected) or (len(notes) < len(expected) and not whole), notes
