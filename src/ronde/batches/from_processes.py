"""Makes reads from the script's worker processes equal to rank 0's.

Every rank runs the script's processes, and their timing differs: the batches of a sampler with three
processes would come in another order on each rank. So rank 0's items are sent to all ranks. The others take
as many items from their own processes and drop them, so that no process waits for space in a queue.
"""

from __future__ import annotations

import functools
import multiprocessing.connection
import multiprocessing.queues
import pickle
from collections.abc import Callable
from typing import Any

from ronde.comm.agreement import Agreement
from ronde.comm.process_group import Comm
from ronde.patching.caller import called_by_script
from ronde.patching.patches import Patches

__all__ = ["FromProcesses"]

# Libraries that step environments in processes, equally often on every rank.
_STEPPERS = ("gym.vector.", "gymnasium.vector.", "stable_baselines3.common.vec_env.", "tianshou.env.")
# Time that another rank waits for an item that rank 0 got without waiting.
_PATIENCE_S = 10.0


class FromProcesses:
    """Replaces the script's methods for reading and polling queues and pipes of processes.

    Args:
        in_step: function that tells whether the current code runs on all ranks together.
    """

    def __init__(self, comm: Comm, agree: Agreement, in_step: Callable[[], bool]) -> None:
        self._comm = comm
        self._agree = agree
        self._in_step = in_step

    def install(self, patches: Patches) -> None:
        several, simple = multiprocessing.queues.Queue, multiprocessing.queues.SimpleQueue
        pipe = multiprocessing.connection._ConnectionBase
        patches.set(several, "get", self._got(several.get))
        patches.set(simple, "get", self._received(simple.get))
        patches.set(pipe, "recv", self._received(pipe.recv))
        questions = (
            (several, "empty"),
            (several, "full"),
            (several, "qsize"),
            (simple, "empty"),
            (pipe, "poll"),
        )
        for owner, name in questions:
            patches.set(owner, name, self._asked(getattr(owner, name), name))

    def _is_scripts(self) -> bool:
        return called_by_script(or_by=_STEPPERS, above=1) and self._in_step()

    def _got(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def get(source: Any, block: bool = True, timeout: float | None = None) -> Any:
            if not self._is_scripts():
                return plain(source, block, timeout)
            patience = None if block and timeout is None else _PATIENCE_S
            return self._of_rank_0(
                lambda: plain(source, block, timeout), lambda: plain(source, True, patience)
            )

        return get

    def _received(self, plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(plain)
        def receive(source: Any) -> Any:
            if not self._is_scripts():
                return plain(source)
            return self._of_rank_0(lambda: plain(source), lambda: plain(source))

        return receive

    def _of_rank_0(self, take: Callable[[], Any], take_own: Callable[[], Any]) -> Any:
        """Return rank 0's item, or raise its error.

        An item that cannot be pickled is taken from each rank's own process.

        Args:
            take_own: function by which another rank takes an item of its own once rank 0 has one.
        """
        if self._comm.rank == 0:
            outcome: Any = _outcome(take)
            self._comm.broadcast_object(_packed(outcome))
        else:
            told = self._comm.broadcast_object(None)
            outcome = (True, None) if told is None else pickle.loads(told)
            own = _outcome(take_own) if outcome[0] else outcome
            outcome = own if told is None else outcome
        taken, value = outcome
        if not taken:
            raise value
        return value

    def _asked(self, plain: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(plain)
        def ask(source: Any, *args: Any, **kwargs: Any) -> Any:
            answer = plain(source, *args, **kwargs)
            return type(answer)(self._agree(name, int(answer))) if self._is_scripts() else answer

        return ask


def _outcome(take: Callable[[], Any]) -> tuple[bool, Any]:
    """Return whether an item was taken, and the item or the error."""
    try:
        return True, take()
    except Exception as error:
        return False, error


def _packed(outcome: tuple[bool, Any]) -> bytes | None:
    try:
        return pickle.dumps(outcome)
    except Exception:
        return None
