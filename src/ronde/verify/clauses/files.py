"""L5: the files that the script writes, once and with the single-device contents, and what it prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ronde.verify.clauses.contents import differing_contents
from ronde.verify.clauses.text import differing_number, unstable_numbers
from ronde.verify.clauses.verdict import Tolerance, Verdict, verdict
from ronde.verify.record import RankRecord

__all__ = ["Output", "compare"]


class Output:
    """What one run left for the user: files by name, and its standard output."""

    def __init__(self, files: Mapping[str, Path], stdout: str) -> None:
        self.files = files
        self.stdout = stdout


def compare(
    plain: Output,
    run: Output,
    ranks: Sequence[RankRecord],
    tolerance: Tolerance,
    repeat: Output | None = None,
) -> Verdict:
    """`repeat` is a second run of plain python: what differs there cannot be expected to be equal here."""
    divergence = (
        _set(plain, run, repeat) or _written_once(ranks, run) or _contents(plain, run, repeat, tolerance)
    )
    unstable: set[int] = set()
    if repeat is not None:
        unstable = unstable_numbers(plain.stdout, repeat.stdout, tolerance)
    printed = differing_number(run.stdout, plain.stdout, tolerance, unstable)
    if printed:
        divergence = divergence or f"standard output, {printed}"
    compared = f"{len(plain.files)} files, {len(plain.stdout.splitlines())} printed lines"
    if unstable:
        compared += f" ({len(unstable)} numbers left out that differ between two runs of plain python)"
    count = len(plain.files) + len(plain.stdout)
    return verdict("L5", "files", count=count, compared=compared, divergence=divergence)


def _stable(plain: Output, repeat: Output | None) -> set[str]:
    """Names that every run of plain python writes; a name with a clock time in it is not one."""
    return set(plain.files) if repeat is None else set(plain.files) & set(repeat.files)


def _set(plain: Output, run: Output, repeat: Output | None) -> str | None:
    missing = sorted(_stable(plain, repeat) - set(run.files))
    if missing:
        return f"file {missing[0]} is not written on ranks"
    unnamed = len(plain.files) - len(_stable(plain, repeat))
    extra = sorted(set(run.files) - set(plain.files))
    if len(extra) > unnamed:
        return f"file {extra[0]} is written on ranks only"
    return None


def _written_once(ranks: Sequence[RankRecord], run: Output) -> str | None:
    for name in run.files:
        writers = [str(rank.rank) for rank in ranks if name in rank.opened]
        if len(writers) > 1:
            return f"file {name} is written by ranks {', '.join(writers)}"
    return None


def _contents(plain: Output, run: Output, repeat: Output | None, tolerance: Tolerance) -> str | None:
    for name in sorted(_stable(plain, repeat) & set(run.files)):
        again = repeat.files[name] if repeat is not None else None
        wrong = differing_contents(run.files[name], plain.files[name], tolerance, again)
        if wrong:
            return f"file {name}, {wrong}"
    return None
