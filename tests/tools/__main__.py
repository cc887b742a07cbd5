"""`make tools`: makes the table of tools by plans anew, or some columns of it, and the page about it."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

# Before torch is imported: as in the tests (see conftest.py).
os.environ.setdefault("OMP_NUM_THREADS", "1")

from support.warm import WarmHost
from tools import table
from tools.collect import cells
from tools.plans import PLANS
from tools.rows import TOOLS
from tools.scripts import SCRIPTS
from tools.trial import Trial


def main() -> int:
    parser = argparse.ArgumentParser(prog="make tools", description=__doc__)
    parser.add_argument("plans", nargs="*", help="columns, as they are named; all by default")
    parser.add_argument("--tool", action="append", choices=TOOLS, help="only this row, or several")
    parser.add_argument("--script", action="append", choices=list(SCRIPTS), help="only this script")
    parser.add_argument("--page", action="store_true", help="only write the page, of the table that is there")
    asked = parser.parse_args()
    if asked.page:
        table.write_page(table.read())
        return 0
    if unknown := [name for name in asked.plans if name not in PLANS]:
        parser.error(f"no column {unknown[0]}; there are {', '.join(PLANS)}")
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as state, WarmHost() as host:
        os.environ["XDG_STATE_HOME"] = state
        for name in asked.plans or PLANS:
            for script in asked.script or SCRIPTS:
                with tempfile.TemporaryDirectory() as folder:
                    trial = Trial(PLANS[name], script, Path(folder), host.start)
                    for cell in cells(trial, asked.tool or TOOLS):
                        print(cell.line, flush=True)
                        counts[cell.end] += 1
                        table.put(cell)
    table.write_page(table.read())
    print(", ".join(f"{count} {end}" for end, count in sorted(counts.items())), file=sys.stderr)
    return int(counts["died"] > 0)


if __name__ == "__main__":
    sys.exit(main())
