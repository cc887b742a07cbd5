"""Signals that the script handles, joined to the steps that all ranks come to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ronde.launch.rank_config import RankConfig
from ronde.patching.patches import Patches
from ronde.process.signals import COUNTED, HandledSignals
from ronde.tensor.context import Context
from ronde.trace.lockstep_board import board_path
from ronde.trace.signal_board import SignalBoard

__all__ = ["handled_signals", "install"]


def handled_signals(config: RankConfig, context: Context, in_step: Callable[[], bool]) -> HandledSignals:
    """What counts signals on a board of this host's ranks, which is opened when it is needed.

    Args:
        in_step: whether the code that runs now is the script's, and run by all ranks together.
    """

    def open_board() -> SignalBoard:
        path = board_path(Path(config.run_dir), "signals")
        return SignalBoard(path, config.local_rank, config.local_world_size, len(COUNTED))

    return HandledSignals(open_board, lambda: context.comm.alone, in_step)


def install(signals: HandledSignals, patches: Patches, context: Context) -> None:
    """Have the signals hear of each backward of the script's, and of each model that it evaluates."""
    signals.install(patches)
    context.on_backward = signals.before_backward
    context.on_evaluation = signals.before_evaluation
