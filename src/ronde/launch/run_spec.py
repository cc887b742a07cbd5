"""The specification of a run, the same for all ranks, with a JSON form."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["DEFAULT_PLAN", "WORKER", "RunSpec"]

WORKER = (sys.executable, "-m", "ronde.runtime.worker")
# `str(Plan())`. Under it a single rank runs as in plain Python, without importing `ronde.plan`, which takes
# 20 ms.
DEFAULT_PLAN = "ddp"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunSpec:
    """Options of `ronde run` for launchers, nodes and ranks alike.

    Attributes:
        script: path of the script, or dotted name of the module when `module` is true.
        arguments: arguments of the script in `sys.argv`.
        plan: the plan as its canonical string.
        seed: seed of torch, numpy and random.
        native: whether the script is a distributed script already; ronde keeps out.
        extensions: `module:function` strings, called with the session before the script starts
            (the recorder of `ronde verify` and seeded faults are two).
        threads: threads per rank; None: the cores shared out, unless the environment says otherwise.
        timeout: seconds for which ranks may wait for one that does not come.
        labelled: whether all ranks' output is passed on, each line behind `[rank]<stdout>:`.
        quiet: whether ronde prints only errors and notes on hanging ranks.
        publish: seconds between published versions of the model; 0: none.
        published: the newest version that the launcher's run directory has of an earlier run; 0: none.
        trace_steps: the steps `A:B` of the timeline; "": no timeline.
        checkpoint: folder of the run's checkpoints; "": none are made.
        checkpoint_every: steps between two checkpoints, or 0, and seconds.
        checkpoint_keep: number of checkpoints that are kept.
        resume: whether the run resumes from the newest of them.
        servers: endpoints of the parameter servers, in ZeroMQ's form.
        server_token: 32 hexadecimal digits that ranks and servers prove to each other.
        durability, durability_sync: settings of the servers that the run starts, as in `ServerConfig`.
        server_state: directory of an earlier run whose tables servers load; "" for none.
        worker: the command of a rank process.
    """

    script: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    plan: str = DEFAULT_PLAN
    seed: int = 0
    native: bool = False
    extensions: tuple[str, ...] = ()
    threads: int | None = None
    timeout: float = 1800.0
    labelled: bool = False
    quiet: bool = False
    publish: float = 0.0
    published: int = 0
    trace_steps: str = ""
    checkpoint: str = ""
    checkpoint_every: tuple[int, float] = (0, 600.0)
    checkpoint_keep: int = 2
    resume: bool = False
    servers: tuple[str, ...] = ()
    server_token: str = ""
    durability: str = "log"
    durability_sync: str = "never"
    server_state: str = ""
    worker: tuple[str, ...] = WORKER

    def program(self) -> str:
        """Return the script file that must be the same on all hosts; "" without one."""
        if self.module:
            return ""
        if self.worker == WORKER:
            return self.script
        # A command: the script is its first word, or follows an interpreter.
        words = (self.script, *self.arguments)
        return next((word for word in words if word.endswith(".py") and os.path.isfile(word)), "")

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> RunSpec:
        """Invert `dataclasses.asdict`, also after JSON, which has no tuples."""
        return cls(**{name: _as_it_was(value) for name, value in fields.items()})


def _as_it_was(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
