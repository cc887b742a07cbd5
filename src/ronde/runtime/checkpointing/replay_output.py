"""Output of a saved or replayed run, with each line of the script once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ronde.launch.rank_config import RankConfig
from ronde.launch.repeated_lines import count_lines, write_position
from ronde.messages import as_note

__all__ = ["ReplayOutput", "flush_output"]


class ReplayOutput:
    """The output of one rank.

    Args:
        leads: whether this is rank 0.
    """

    def __init__(self, config: RankConfig, *, leads: bool) -> None:
        self._config, self._leads = config, leads
        # Where standard output and error went.
        self._kept: list[int] = []

    def tell(self, words: str) -> None:
        """Print a line of ronde's for the user, even while output is discarded."""
        if self._leads and not self._config.run.quiet:
            os.write(self._kept[1] if self._kept else 2, f"ronde: {as_note(words)}\n".encode())

    def silence(self) -> None:
        """Discard output from now on: in a replay it was printed before."""
        one_file = os.path.samestat(os.fstat(1), os.fstat(2))
        self._kept = [os.dup(1), os.dup(2)]
        for number in (1, 2):
            nowhere = os.dup(1) if number == 2 and one_file else self._nowhere()
            os.dup2(nowhere, number)
            os.close(nowhere)

    def speak_again(self) -> None:
        """Show the script's output again."""
        if not self._kept:
            return
        flush_output()
        for number, kept in zip((1, 2), self._kept):
            os.dup2(kept, number)
            os.close(kept)
        self._kept = []

    def say_begin(self) -> None:
        """Tell the launcher that the script begins anew."""
        if self._leads:
            write_position(Path(self._config.place.run_dir), {"stdout": 0, "stderr": 0})

    def say_position(self) -> None:
        """Report the lines printed so far in the resumed run to the launcher."""
        if not self._kept or not self._leads:
            return
        flush_output()
        lines = {"stdout": count_lines(1), "stderr": count_lines(2)}
        write_position(Path(self._config.place.run_dir), lines)

    def _nowhere(self) -> int:
        """Open a file that discards output; rank 0 counts its lines."""
        if not self._leads:
            return os.open(os.devnull, os.O_WRONLY)
        path = os.path.join(self._config.place.run_dir, "rank-0.replayed")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.unlink(path)
        return file


def flush_output() -> None:
    """Flush Python's standard output and error."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
