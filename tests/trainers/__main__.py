"""Runs trainers as found in plain Python and on ranks, and writes the page about them.

    python -m trainers [ROW ...] [--ranks 2] [--plans ddp,zero3,tensor=2] [--checkouts DIR]

A row's packages are installed into an environment on top of this interpreter, under `--cache`, where this one
lacks them. Each plan is one item. `--checkouts` holds repositories as `owner/name`, for rows whose script is
a file of one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from trainers import environment, table
from trainers.row import PLANS, names, read


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", help=f"all by default: {', '.join(names())}")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--plans", default=",".join(PLANS))
    parser.add_argument("--checkouts", type=Path, help="folder of repositories, as owner/name")
    parser.add_argument("--cache", type=Path, default=environment.CACHE, help="where environments are kept")
    parser.add_argument("--dry", action="store_true", help="leave the table and the page as they are")
    parser.add_argument("--page", action="store_true", help="only write the page, of the table that is there")
    parser.add_argument("--verbose", action="store_true", help="the whole proof, and every note of a run")
    asked = parser.parse_args()
    if unknown := [name for name in asked.rows if name not in names()]:
        parser.error(f"no row {unknown[0]}; there are {', '.join(names())}")
    code = 0
    for name in [] if asked.page else asked.rows or names():
        row = read(name)
        if row.source is not None and (asked.checkouts is None or row.source.missing(asked.checkouts)):
            print(f"{name}: no checkout of {row.source.repository}, commit {row.source.commit}")
            code = 1
            continue
        python = environment.make(row.packages, asked.cache, needs=row.needs)
        command = [python, "-m", "trainers.trial", name, "--ranks", str(asked.ranks), "--plans", asked.plans]
        command += ["--checkouts", str(asked.checkouts.resolve())] if asked.checkouts else []
        command += ["--verbose"] * asked.verbose + ["--write"] * (not asked.dry)
        code = subprocess.run(command).returncode or code
    if not asked.dry:
        table.write_page()
    return code


if __name__ == "__main__":
    sys.exit(main())
