"""Prints the amounts of a script's step: `python -m ronde.runtime.costs fake|real FILE SCRIPT [ARGS]`.

It runs as a separate process, because a script may change anything in its process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ronde.runtime.costs.trace import trace_script

__all__ = ["main"]


def main(kind: str, out: str, script: str, *arguments: str) -> None:
    Path(out).write_text(json.dumps(trace_script(script, arguments, real=kind == "real")))


if __name__ == "__main__":
    main(*sys.argv[1:])
