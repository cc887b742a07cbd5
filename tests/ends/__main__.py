"""`make ends`: makes the table anew, or the lines of it that begin with a word, and shows what differs."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter

# Before torch is imported: as in the tests (see conftest.py).
os.environ.setdefault("OMP_NUM_THREADS", "1")

from ends.collect import RANKS, Collector, names
from ends.end import End
from ends.table import difference, read, write
from ronde.testing.run_ranks import RankPool
from support.warm import WarmHost


def main() -> int:
    parser = argparse.ArgumentParser(prog="make ends", description=__doc__)
    parser.add_argument("only", nargs="*", help="beginnings of names, such as hazards/rows or parity/gpt")
    parser.add_argument("--check", action="store_true", help="leave the table; exit code 1 where it differs")
    arguments = parser.parse_args()
    known = read()
    every = list(names())
    chosen = [name for name in every if name.startswith(tuple(arguments.only or [""]))]
    found = _collect(chosen, known)
    gone = [name for name in known if name not in every]
    for name in gone:
        print(f"-{known[name].line}")
    kept = {name: end for name, end in known.items() if name not in gone}
    if not arguments.check:
        write({**kept, **found}.values())
    differ = bool(gone) or any(known.get(name) != end for name, end in found.items())
    return int(arguments.check and differ)


def _collect(chosen: list[str], known: dict[str, End]) -> dict[str, End]:
    """The ends of these scripts; what differs is printed as it is found."""
    begun = time.monotonic()
    found: dict[str, End] = {}
    pool = RankPool(RANKS)
    with tempfile.TemporaryDirectory() as state, WarmHost() as host:
        os.environ["XDG_STATE_HOME"] = state
        collector = Collector(pool.run, host.start)
        try:
            for name in chosen:
                end = collector.end(name)
                if end is None:
                    print(f"{name}: a package that it needs is not installed", file=sys.stderr)
                    continue
                found[name] = end
                for line in difference(known, end):
                    print(line, flush=True)
        finally:
            pool.close()
    counts = Counter((name.partition("/")[0], end.end) for name, end in found.items())
    for (folder, end), count in sorted(counts.items()):
        print(f"{folder}: {count} {end}", file=sys.stderr)
    print(f"{len(found)} scripts in {time.monotonic() - begun:.0f} s", file=sys.stderr)
    return found


if __name__ == "__main__":
    sys.exit(main())
