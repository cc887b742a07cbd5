"""Both recommenders on both data sets, on one device and on two ranks: one table. `make demo-recsys` runs it.

One of them is trained once more with its rows on two servers, of which one is killed by SIGKILL; and is
served then, and asked. In double precision, where sums in another order change the 16th digit. In single
precision rounding grows with every step and moves the AUC by up to 1e-4. Every process has one thread.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import movielens
import served

SCRIPT = Path(__file__).with_name("train.py")
# How a script is run, column by column; the first is what the others are held against.
WAYS = {
    "one device": [],
    "hybrid": ["-m", "ronde", "run", "--ranks", "2", "--plan", "hybrid"],
    "killed server": None,
}
KILLED = "dlrm"
MODELS, DATA = ("wide-deep", KILLED), ("movielens", "clicks")
ALLOWED = 1e-6
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def run(way, model, data, words):
    """The AUC of a model, that of popularity, and the seconds that the run took."""
    script = [str(SCRIPT), "--model", model, "--data", data, *words]
    begun = time.monotonic()
    if WAYS[way] is None:
        out, _ = served.killed_run(script, run_dir(model, data, words), ENVIRONMENT)
    else:
        command = [sys.executable, *WAYS[way], *script]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
        out = done.stdout
        if done.returncode:
            raise SystemExit(f"{out}{done.stderr}{model} on {data}, {way}: exit code {done.returncode}")
    seconds = time.monotonic() - begun
    found = {name: float(auc) for name, auc in re.findall(r"^(\S+): AUC ([\d.]+)$", out, re.MULTILINE)}
    return found[model], found["popularity"], seconds


def run_dir(model, data, words):
    """Of the run whose server is killed."""
    return output(words) / f"run-{model}-{data}"


def output(words):
    return Path(words[words.index("--output") + 1])


def row(model, data, words):
    """A line of the table, and what is wrong with it."""
    ways = [way for way, how in WAYS.items() if how is not None or model == KILLED]
    results = [run(way, model, data, words) for way in ways]
    aucs = [auc for auc, _, _ in results]
    popular = results[0][1]
    apart = max(abs(auc - aucs[0]) for auc in aucs)
    wrong = []
    if apart > ALLOWED:
        wrong.append(f"{model} on {data}: the AUCs differ by {apart:.1e}; {ALLOWED:.0e} is allowed")
    if min(aucs) <= popular:
        wrong.append(
            f"{model} on {data}: an AUC of {min(aucs):.4f} is no better than popularity's {popular:.4f}"
        )
    shown = [f"{auc:.9f}" for auc in aucs] + ["-"] * (len(WAYS) - len(ways))
    cells = [model, data, f"{popular:.4f}", *shown, f"{apart:.1e}"]
    return [*cells, " / ".join(f"{took:.0f}" for _, _, took in results)], wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=DATA, help="one data set only")
    parser.add_argument("--output", type=Path, default=Path("demo-out"))
    args, rest = parser.parse_known_args()  # the rest is train.py's

    words = ["--double", "--seed", "0", "--cache", str(args.output), "--output", str(args.output), *rest]
    chosen = [args.data] if args.data else DATA
    if "movielens" in chosen:
        try:
            movielens.wheel(args.output)
        except movielens.NoData as error:
            raise SystemExit(f"{error}.") from None
    head = ["model", "data", "popularity", *(f"AUC {way}" for way in WAYS), "difference", "seconds"]
    widths = [9, 9, 10, *(max(11, len(f"AUC {way}")) for way in WAYS), 10, 10]
    failures = []
    print_row(head, widths)
    for data in chosen:
        for model in MODELS:
            cells, wrong = row(model, data, words)
            print_row(cells, widths)
            failures += wrong
    for data in chosen:
        held_out = args.output / f"{KILLED}-{data}-held-out.pt"
        failures += served.asked(run_dir(KILLED, data, words), held_out, f"{KILLED} on {data}")
    print(*failures, sep="\n", file=sys.stderr, end="\n" if failures else "")
    return bool(failures)


def print_row(cells, widths):
    print(
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip(), flush=True
    )


if __name__ == "__main__":
    sys.exit(main())
