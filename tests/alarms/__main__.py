"""`make alarms`: proves 200 right runs of the tests' scripts, and counts the false alarms.

Scripts, plans and numbers of ranks are drawn from a seed: the parity list, the public examples and the
cases of `ronde verify`.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

# Before torch is imported: as in the tests (see conftest.py).
os.environ.setdefault("OMP_NUM_THREADS", "1")

from packages import missing
from ronde.errors import RondeError
from ronde.verify.proof import verify
from ronde.verify.report import to_text
from ronde.verify.runs import Job
from support.warm import WarmHost

TESTS = Path(__file__).parents[1]
FOLDERS = ("scripts", "public", "verify/cases")
PLANS = ("ddp", "zero1", "zero2", "zero3", "hybrid", "central", "micro-batches=2", "recompute=full")
RANKS = (2, 3)


def jobs(count: int, seed: int) -> list[tuple[Path, str, int]]:
    """Every script once under ddp on 2 or 3 ranks, then others in a drawn order."""
    draw = random.Random(seed)
    scripts = [path for folder in FOLDERS for path in sorted((TESTS / folder).glob("*.py"))]
    usable = [script for script in scripts if not missing(script)]
    once = [(script, "ddp", draw.choice(RANKS)) for script in usable]
    every = [(script, plan, ranks) for script in usable for plan in PLANS for ranks in RANKS]
    rest = [job for job in every if job not in once]
    draw.shuffle(rest)
    return [*once, *rest][:count]


def verdict(script: Path, plan: str, ranks: int, steps: int, host: WarmHost) -> tuple[str, str]:
    """One of holds, rounding, unrepeatable, refused, BROKEN and FAILED, and what was said."""
    job = Job(script=script.name, steps=steps, directory=script.parent, plan=plan)
    try:
        proof = verify(job, ranks=ranks, starter=host.start)
    except RondeError as error:
        unrepeatable = "does not repeat itself" in str(error)
        return "unrepeatable" if unrepeatable else "refused", str(error)
    except Exception as error:  # a defect of the proof
        return "FAILED", repr(error)
    if not proof.holds:
        return "BROKEN", to_text(proof)
    return ("rounding" if proof.twins else "holds"), ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make alarms", description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=1, help="where to go on")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chosen = list(enumerate(jobs(arguments.runs, arguments.seed), 1))[arguments.first - 1 :]
    counts: Counter[str] = Counter()
    with WarmHost() as host:
        for number, (script, plan, ranks) in chosen:
            start = time.monotonic()
            found, said = verdict(script, plan, ranks, arguments.steps, host)
            counts[found] += 1
            name = f"{script.parent.name}/{script.stem}, {plan}, {ranks} ranks"
            print(f"{number:4} {found:13} {name} ({time.monotonic() - start:.0f} s)", flush=True)
            if said:
                print("     " + said.replace("\n", "\n     "), flush=True)
    alarms = counts["BROKEN"] + counts["FAILED"]
    print(f"{sum(counts.values())} proofs: {', '.join(f'{n} {what}' for what, n in counts.most_common())}")
    print(f"{alarms} false alarms")
    return int(alarms > 0)


if __name__ == "__main__":
    sys.exit(main())
