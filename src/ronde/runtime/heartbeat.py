"""Signs of life of this rank: a beat, its steps, and stacks.

A thread writes the beat, so it stops when some code holds the GIL. A signal handler in C writes the stacks,
so they appear even then. If the script installs its own handler for the signal, the heartbeat says so, and
the launcher stops asking for stacks.
"""

from __future__ import annotations

import _thread
import faulthandler
import os
import threading
from pathlib import Path
from signal import SIG_DFL, getsignal  # bound here: the module's own are replaced for scripts

from ronde.launch.rank_config import RankConfig
from ronde.trace.heartbeat import STACK_SIGNAL, Vitals, vitals_path

__all__ = ["show_signs_of_life"]

_EVERY_S = 0.5


def show_signs_of_life(config: RankConfig) -> Vitals | None:
    """Start signs of life until the process ends; None if files cannot be made."""
    folder = Path(config.place.run_dir)
    try:
        _write_stacks(folder, config.place.rank)
    except OSError:
        return None
    threads = os.environ.get("OMP_NUM_THREADS", "")
    vitals = Vitals.create(
        vitals_path(folder, config.place.rank),
        thread=threading.get_ident(),
        threads=int(threads) if threads.isdecimal() else 0,
    )
    if vitals is not None:
        _beat(vitals)
    return vitals


def _write_stacks(folder: Path, rank: int) -> None:
    """Write stacks on the launcher's request, and at a crash.

    A script's own fault handler takes precedence.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    asked = os.open(folder / f"rank-{rank}.stack", flags, 0o644)  # os.open is not mediated
    faulthandler.register(STACK_SIGNAL, file=asked, all_threads=True)
    if not faulthandler.is_enabled():
        faulthandler.enable(file=os.open(folder / f"rank-{rank}.crash", flags, 0o644), all_threads=True)


def _beat(vitals: Vitals) -> None:
    pause = _thread.allocate_lock()
    pause.acquire()

    def beat() -> None:
        while True:
            # Handlers registered by `faulthandler` are unknown to `signal`.
            vitals.beat(answers=getsignal(STACK_SIGNAL) in (SIG_DFL, None))
            pause.acquire(timeout=_EVERY_S)

    # Not a `threading.Thread`: a script counts or joins only its own there.
    _thread.start_new_thread(beat, ())
