"""Terminal input: a debugger on rank 0 alone, one answer to `input()` for all.

All ranks reach the same `breakpoint()`. Rank 0, whose stdin is the user's, opens the debugger; the others go
on at once, and wait at the next collective, from then on without a time limit. While the debugger waits for a
command rank 0 is alone: a collective that a command would start is refused (`p loss` is not: its reduction
was started by all), and random draws of a command are undone.
"""

from __future__ import annotations

import builtins
import io
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import numpy
import torch

from ronde.comm.process_group import Comm
from ronde.errors import UsageError
from ronde.patching.late_patches import LatePatches, found_in
from ronde.patching.patches import Patches
from ronde.trace.counters import Tally

__all__ = ["Console"]


class Console:
    """Handles the terminal input of one rank.

    Args:
        comms: the groups in which this rank waits for others.
        on_main_thread: function that tells whether the calling thread is the script's main one.
        terminal: whether the stdin of rank 0 is a terminal.
    """

    def __init__(
        self,
        comms: Sequence[Comm],
        tally: Tally,
        on_main_thread: Callable[[], bool],
        *,
        terminal: bool,
    ) -> None:
        self._comms = comms
        self._rank = comms[0].rank
        self._tally = tally
        self._on_main_thread = on_main_thread
        self._terminal = terminal
        self._process = os.getpid()
        self._patches = Patches()
        # Every entry of pdb leads to its `interaction`, also post-mortem and derived debuggers.
        shells = {
            "pdb": "Pdb.interaction",
            "code": "InteractiveConsole.interact",
            "IPython.terminal.embed": "InteractiveShellEmbed.mainloop",
        }
        self._late = LatePatches({name: partial(self._open_alone, method) for name, method in shells.items()})

    def install(self, patches: Patches) -> None:
        self._patches = patches
        self._patch_input(patches)
        if self._rank != 0:
            patches.set(sys, "breakpointhook", lambda *_, **__: self._be_patient())
            patches.set(sys, "stdin", _RefusedInput(terminal=self._terminal))
        self._late.install()
        patches.undo(self._late.uninstall)

    def _in_step(self) -> bool:
        """Return whether all ranks make this call together."""
        alone = self._comms[0].alone
        return not alone and self._on_main_thread() and os.getpid() == self._process

    def _patch_input(self, patches: Patches) -> None:
        plain: Callable[..., str] = builtins.input

        def shared_input(prompt: object = "", /) -> str:
            if not self._in_step():
                return plain(prompt)
            self._comms[0].mark("input()")
            if self._rank != 0:
                sys.stdout.write(str(prompt))
            line = self._comms[0].answer_of_main(lambda: self._ask(plain, prompt))
            if line is None:
                raise EOFError("EOF when reading a line")
            return line

        patches.set(builtins, "input", shared_input)

    def _ask(self, plain: Callable[..., str], prompt: object) -> str | None:
        with self._attended():
            try:
                return plain(prompt)
            except EOFError:
                return None

    @contextmanager
    def _attended(self) -> Iterator[None]:
        """Suppress the progress line while the user has the terminal."""
        pulse = self._tally.pulse
        if pulse is not None:
            pulse.attended = True
        try:
            yield
        finally:
            if pulse is not None:
                pulse.attended = False

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Mark rank 0 as alone while it waits for a user's commands."""
        if not self._in_step():
            yield
            return
        pulse = self._tally.pulse
        if pulse is not None:
            pulse.debugged = True
        states = torch.get_rng_state(), numpy.random.get_state(), random.getstate()
        for comm in self._comms:
            comm.alone = True
        try:
            with self._attended():
                yield
        finally:
            for comm in self._comms:
                comm.alone = False
            torch.set_rng_state(states[0])
            numpy.random.set_state(states[1])
            random.setstate(states[2])

    def _be_patient(self) -> None:
        """Raise time limits, since rank 0's debugger may stay open for long."""
        if self._in_step():
            for comm in self._comms:
                comm.be_patient()

    def _open_alone(self, method: str, module: ModuleType) -> None:
        """Open this module's shell on rank 0 alone; other ranks continue the script."""
        found = found_in(module, method)
        if found is None:
            return
        owner, name, plain = found

        def opened(shell: Any, *args: Any, **kwargs: Any) -> None:
            if self._rank != 0:
                self._be_patient()
                getattr(shell, "set_continue", lambda: None)()
                return
            if "stack_depth" in kwargs:  # number of frames up to the script's variables, for IPython
                kwargs["stack_depth"] += 1
            with self._alone():
                plain(shell, *args, **kwargs)

        self._patches.set(owner, name, opened)


class _RefusedInput(io.TextIOBase):
    """The `sys.stdin` of ranks other than 0, which refuses reads."""

    def __init__(self, *, terminal: bool) -> None:
        self._terminal = terminal

    def isatty(self) -> bool:
        """Return rank 0's answer, so that all take one branch."""
        return self._terminal

    def fileno(self) -> int:
        return 0

    def readable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "utf-8"

    @property
    def buffer(self) -> Any:
        return self

    def read(self, size: int | None = -1, /) -> str:
        raise UsageError(
            "the script reads sys.stdin, which only rank 0 has; use input(), whose answer every rank gets, "
            "or let the script read a file [R384]"
        )

    readline = read  # pyright: ignore[reportAssignmentType]
