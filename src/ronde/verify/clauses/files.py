"""L5: files that the script writes, once and with single-device contents, and printed text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ronde.verify.clauses.contents import Beyond, compare_contents
from ronde.verify.clauses.text import Unstable, differing_number
from ronde.verify.clauses.verdict import ClauseVerdict, Tolerance, verdict
from ronde.verify.record import RankRecord

__all__ = ["RunOutput", "compare"]


class RunOutput:
    """Output of one run: files by name, and its standard output."""

    def __init__(self, files: Mapping[str, Path], stdout: str) -> None:
        self.files = files
        self.stdout = stdout


@dataclasses.dataclass(frozen=True, slots=True)
class _Pair:
    """A file of the run on ranks, its counterparts, and its name."""

    mine: Path
    reference: Path
    again: tuple[Path, ...]
    name: str


def compare(
    plain: RunOutput,
    run: RunOutput,
    ranks: Sequence[RankRecord],
    tolerance: Tolerance,
    repeats: Sequence[RunOutput] = (),
) -> ClauseVerdict:
    """Compare the outputs of two runs.

    Differences among plain python and `repeats`, further runs of it, cannot be expected to be equal here and
    are left out.
    """
    pairs, lonely = _pair(plain, run, repeats)
    wrong, beyond = _contents(pairs, tolerance)
    divergence = lonely or _written_once(ranks, run) or wrong
    unstable = Unstable.of(plain.stdout, (repeat.stdout for repeat in repeats), tolerance)
    printed = differing_number(run.stdout, plain.stdout, tolerance, unstable)
    if printed:
        divergence = divergence or f"standard output, {printed}"
    compared = f"{len(plain.files)} files, {len(plain.stdout.splitlines())} printed lines"
    if unstable.lines is None:
        compared += " (not compared: two runs of plain python print other numbers of lines)"
    elif unstable.lines or unstable.left_out:
        what = [(unstable.lines, "lines"), (unstable.left_out, "numbers")]
        counts = " and ".join(f"{len(each)} {name}" for each, name in what if each)
        compared += f" ({counts} left out that differ between runs of plain python)"
    for reason, names in beyond.items():
        what = "that it is there" if len(names) == 1 else "that they are there"
        compared += f" (of {len(names)} only {what}: {reason.value.format(names[0])})"
    count = len(plain.files) + len(plain.stdout)
    return verdict("L5", "files", count=count, compared=compared, divergence=divergence)


def _shapes(names: set[str], known: set[str]) -> dict[str, list[str]]:
    """Group names by pattern.

    A part that is not `known`, as a clock time or a random word, becomes `*` and its suffix.
    """
    shapes: dict[str, list[str]] = {}
    for name in sorted(names):
        parts = Path(name).parts
        common = [part if part in known else "*" + _suffix(part) for part in parts]
        shapes.setdefault("/".join(common), []).append(name)
    return shapes


def _suffix(part: str) -> str:
    suffix = Path(part).suffix
    return suffix if suffix[1:].isalpha() else ""


def _parts(names: Iterable[str]) -> set[str]:
    return {part for name in names for part in Path(name).parts}


def _pair(plain: RunOutput, run: RunOutput, repeats: Sequence[RunOutput]) -> tuple[list[_Pair], str | None]:
    """Pair the files that belong together, and name the first without a counterpart.

    A name that not all runs of plain python write has a clock time or the like in it: such files are paired
    by the rest of their names, in order.
    """
    again = repeats or [plain]
    stable = set(plain.files).intersection(*(each.files for each in again))
    pairs = [
        _Pair(
            run.files[name],
            plain.files[name],
            tuple(each.files[name] for each in repeats),
            name,
        )
        for name in sorted(stable & set(run.files))
    ]
    missing = sorted(stable - set(run.files))
    if missing:
        return pairs, f"file {missing[0]} is not written on ranks"
    known = _parts(plain.files).intersection(*(_parts(each.files) for each in again))
    theirs = _shapes(set(plain.files) - stable, known)
    others = [_shapes(set(each.files) - stable, known) for each in again]
    ours = _shapes(set(run.files) - stable, known)
    for shape in sorted({*ours, *theirs}):
        mine, expected = ours.get(shape, []), theirs.get(shape, [])
        if any(len(other.get(shape, [])) != len(expected) for other in others):
            continue  # two runs of plain python write another number of them
        if len(mine) < len(expected):
            return pairs, f"file {expected[len(mine)]}, or one named like it, is not written on ranks"
        if len(mine) > len(expected):
            return pairs, f"file {mine[len(expected)]} is written on ranks only"
        for index, (one, other) in enumerate(zip(mine, expected, strict=True)):
            same = tuple(each.files[names[shape][index]] for each, names in zip(again, others, strict=True))
            pairs.append(_Pair(run.files[one], plain.files[other], same, other))
    return pairs, None


def _written_once(ranks: Sequence[RankRecord], run: RunOutput) -> str | None:
    for name in run.files:
        writers = [str(rank.rank) for rank in ranks if name in rank.opened]
        if len(writers) > 1:
            return f"file {name} is written by ranks {', '.join(writers)}"
    return None


def _contents(pairs: Sequence[_Pair], tolerance: Tolerance) -> tuple[str | None, dict[Beyond, list[str]]]:
    """Return the first difference, and the files that cannot be compared, by the reason."""
    beyond: dict[Beyond, list[str]] = {}
    for pair in pairs:
        found = compare_contents(pair.mine, pair.reference, tolerance, pair.again)
        if found.wrong:
            return f"file {pair.name}, {found.wrong}", beyond
        if found.beyond is not None:
            beyond.setdefault(found.beyond, []).append(pair.name)
    return None, beyond
