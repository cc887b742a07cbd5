"""The single-device side: `python -m ronde.verify.plain SEED PLAN script|module NAME ARGUMENTS...`.

Plain python and plain torch, with the recorder: no cutting, no reducer, no process group. Only the precision
is taken from the plan, since it changes the numbers of one device.
"""

from __future__ import annotations

import os
import sys

import torch

from ronde.patching.patches import Patches
from ronde.plan import Plan
from ronde.process import seeds
from ronde.runtime import compute_axis
from ronde.runtime.script import execute
from ronde.verify.fast_clock import hurry
from ronde.verify.record import RecordConfig, Writer
from ronde.verify.recorder import record
from ronde.verify.replay_clock import Chances

__all__ = ["main"]

_SHIFT = 3


def main(arguments: list[str]) -> None:
    seed, plan, kind, script, *rest = arguments
    config = RecordConfig.take_from(os.environ)
    writer = Writer(config.directory, 0)
    seeds.seed_all(int(seed))
    # The entropy that ranks share in place of the operating system's, so that unseeded draws compare.
    seeds.install(Patches(), int(seed))
    shift: list[torch.nn.Parameter] = []
    if config.replay:
        # The second run. The script's own clock is replayed above this patch, so only libraries see it.
        hurry(Patches())
        # Objects of the script get other addresses than in the first run, so that the order of a set differs.
        shift = [torch.nn.Parameter(torch.empty(0)) for _ in range(_SHIFT)]
    Chances(writer, config.replay).install()
    compute_axis.install_alone(Plan.parse(plan), Patches(), lambda _: None)
    record(config, writer)
    execute(script, rest, module=kind == "module")
    shift.clear()


if __name__ == "__main__":
    main(sys.argv[1:])
