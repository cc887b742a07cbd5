"""What is to be launched, and what came of it."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ronde.trace.run_directory import RunDirectory

if TYPE_CHECKING:
    from ronde.launch.failure_report import RankFailure

__all__ = ["WORKER", "Job", "Outcome"]

WORKER = (sys.executable, "-m", "ronde.runtime.worker")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Ranks to be started on this host.

    Attributes:
        ranks: how many.
        run_directory: where their logs and reports go and where they meet.
        environment: what a rank's environment is made from; the launcher's own, as a rule.
        script, arguments, module, plan, seed, native, extensions: as in `RankConfig`.
        devices: one CUDA device per rank as `CUDA_VISIBLE_DEVICES` names it; empty: ranks on the CPU.
        timeout: seconds for which ranks may wait for one that does not come.
        threads: per rank; None: the cores shared out, unless the environment says otherwise.
        shown: rank 0's output is passed on to this process's; otherwise it is logged only.
        trace_steps: as in `RankConfig`.
        publish: seconds between versions of the model that are published; 0: none is.
        checkpoint, checkpoint_every, checkpoint_keep, resume: as in `RankConfig`.
        attempt: how often its ranks have been started before.
        labelled: all ranks' output is passed on, each line behind `[rank]<stdout>:`.
        quiet: nothing is said but errors and that ranks stand still.
        servers: endpoints of parameter servers that somebody else has started.
        server_token: by which they know the run.
        durability, durability_sync: of servers that are started here, as in `ServerConfig`.
        server_state: directory of an earlier run, whose servers' tables are taken over; "" for none.
        worker: the command of a rank process.
        first_rank: number of the first one, where others are started by other launchers.
    """

    ranks: int
    run_directory: RunDirectory
    environment: Mapping[str, str]
    script: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    plan: str = "ddp"
    seed: int = 0
    native: bool = False
    extensions: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    threads: int | None = None
    timeout: float = 1800.0
    shown: bool = True
    labelled: bool = False
    quiet: bool = False
    servers: tuple[str, ...] = ()
    server_token: str = ""
    durability: str = "log"
    durability_sync: str = "never"
    server_state: str = ""
    publish: float = 0.0
    trace_steps: str = ""
    checkpoint: str = ""
    checkpoint_every: tuple[int, float] = (0, 600.0)
    checkpoint_keep: int = 2
    resume: bool = False
    attempt: int = 0
    worker: tuple[str, ...] = WORKER
    first_rank: int = 0

    def program(self) -> str:
        """The file that must be the same on all hosts; "" for a module, or a command without a script."""
        if self.module:
            return ""
        if self.worker == WORKER:
            return self.script
        # A command: the script is itself, or behind an interpreter.
        words = (self.script, *self.arguments)
        return next((word for word in words if word.endswith(".py") and os.path.isfile(word)), "")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        exit_code: the script's own, or that of the rank that failed first; 128 + n after signal n.
        failure: the first failure, None when there was none or the user ended the run.
        report: what there is to tell the user about it, "" when the script has said it all.
    """

    exit_code: int
    failure: RankFailure | None = None
    report: str = ""
