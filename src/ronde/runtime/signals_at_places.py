"""Signals that the script handles, joined to the places that all ranks come to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ronde.boundary.context import Context
from ronde.boundary.patches import Patches
from ronde.boundary.signals import COUNTED, HandledSignals
from ronde.launch.rank_config import RankConfig
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

    def at_next_place(do: Callable[[], None] | None) -> None:
        """Have this done where all ranks come to next; None: nothing any more."""

        def at_place() -> None:
            if do is not None and context.is_at_place() and in_step():
                do()

        context.at_place = None if do is None else at_place

    return HandledSignals(open_board, lambda: context.comm.alone, in_step, at_next_place)


def install(signals: HandledSignals, patches: Patches, context: Context) -> None:
    """Have the signals hear of each backward and each collective of the script's."""

    def before_backward() -> None:
        signals.training = True
        if context.is_at_place():
            signals.before_backward()

    signals.install(patches)
    context.on_backward = before_backward
    context.comm.observer = signals
