"""Compare a training with kills and one without."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.kills.training import train
from ronde.bench.machine import Machine


def main() -> int:
    """0 where both ended alike, with nothing lost and nothing applied twice."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--steps-for-each", type=int, default=20, help="steps of the training for each kill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the report to this file")
    asked = parser.parse_args()
    machine, steps = Machine.here(), asked.kills * asked.steps_for_each
    folder = Path(tempfile.mkdtemp(prefix="ronde-kills-"))  # stays where something fails, for its logs
    alone, killed = folder / "alone", folder / "killed"
    alone.mkdir()
    killed.mkdir()
    plain = train(alone, steps=steps)
    _say(f"left alone: {steps} steps in {plain.seconds:.1f} s")
    ended = train(killed, steps=steps, kills=asked.kills, seed=asked.seed, progress=_say)
    alike = (plain.states, plain.records) == (ended.states, ended.records)
    is_right = alike and not ended.lost and not ended.twice
    report = {
        "kind": "kills",
        "machine": dataclasses.asdict(machine),
        "steps": steps,
        "kills": sum(ended.killed.values()),
        "seed": asked.seed,
        "bit_equal": alike,
        "left_alone": dataclasses.asdict(plain),
        "killed": dataclasses.asdict(ended),
    }
    if asked.json is not None:
        asked.json.write_text(json.dumps(report, indent=2) + "\n")
    _say(
        f"{report['kills']} kills in {ended.seconds:.0f} s: states {'equal' if alike else 'DIFFERENT'}, "
        f"{ended.lost} changes lost, {ended.twice} made twice, {ended.torn} written half and sent again, "
        f"{ended.snapshots} snapshots"
    )
    if is_right:
        shutil.rmtree(folder)
    return 0 if is_right else 1


def _say(words: str) -> None:
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
