"""The single-device side of the proof: `python -m ronde.verify.plain SEED script|module NAME ARGUMENTS...`.

Plain python and plain torch, with the recorder: no boundary, no reducer, no process group.
"""

from __future__ import annotations

import os
import random
import sys

import numpy
import torch

from ronde.runtime.script import execute
from ronde.verify.record import RecordConfig, Writer
from ronde.verify.recorder import record

__all__ = ["main"]


def main(arguments: list[str]) -> None:
    seed, kind, script, *rest = arguments
    config = RecordConfig.take_from(os.environ)
    writer = Writer(config.directory, 0)
    torch.manual_seed(int(seed))
    numpy.random.seed(int(seed) % 2**32)
    random.seed(int(seed))
    record(config, writer)
    execute(script, rest, module=kind == "module")


if __name__ == "__main__":
    main(sys.argv[1:])
