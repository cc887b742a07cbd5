"""Stands in for the rank process: runs the script, reports errors as the real one does, knows no torch.

Scripts learn their rank from FAKE_RANK. A script that raises `LookupError("peer")` plays a rank
that has lost its peers.
"""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path

from ronde.launch.rank_config import RankConfig
from ronde.trace.heartbeat import Vitals, vitals_path


def main() -> None:
    config = RankConfig.take_from(os.environ)
    os.environ["FAKE_RANK"] = str(config.place.rank)
    told = {**dataclasses.asdict(config.run), **dataclasses.asdict(config.place)}
    os.environ["FAKE_CONFIG"] = json.dumps(told)
    if config.place.observed:  # by its process, which a rank shows
        path = vitals_path(Path(config.place.run_dir), config.place.rank)
        assert Vitals.create(path, thread=0, threads=1) is not None
    sys.argv = [config.run.script, *config.run.arguments]
    try:
        runpy.run_path(config.run.script, run_name="__main__")
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except Exception as error:
        kind = "peer" if isinstance(error, LookupError) and str(error) == "peer" else "script"
        report = {
            "rank": config.place.rank,
            "time": time.time(),
            "kind": kind,
            "type": type(error).__name__,
            "message": str(error),
            "traceback": traceback.format_exc(),
        }
        if kind == "script":
            traceback.print_exc()
            sys.stderr.flush()
        target = Path(config.place.run_dir) / f"rank-{config.place.rank}.error.json"
        unfinished = target.with_suffix(".part")
        unfinished.write_text(json.dumps(report))
        unfinished.rename(target)
        if kind == "peer":
            signal.pause()
        sys.exit(1)


if __name__ == "__main__":
    main()
