"""Exceptions of one rank that the script would catch, raised on all ranks.

Computations on each rank's own rows (a model's call, a loss, a backward) may raise on one rank alone: a label
out of range, too little memory. Where the script would catch that, ranks vote when such a computation ends.
Elsewhere nothing is sent: the exception ends the script, and with it all ranks.

A rank that has raised takes part in nothing more of the computation. So before each collective inside of it
the others vote too, and learn there that they must stop.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from ronde.comm.packed_exception import pack_exception, unpack_exception
from ronde.comm.process_group import Comm
from ronde.errors import RaisedAlone
from ronde.patching.torch_internals import current_graph_task_id
from ronde.rng.random_state import host_states, put_back
from ronde.tensor.context import Context, in_transform
from ronde.trace.try_statements import TryStatements

__all__ = ["SharedExceptions"]

T = TypeVar("T")


class _RaisedElsewhere(BaseException):
    """Raised to leave a computation in which another rank has raised."""


class SharedExceptions:
    """Runner of work that may raise on some ranks only; one per session.

    Args:
        comm: group of all ranks.
        groups: groups with collectives inside of such computations, in one order on all ranks.
        context: execution state of the script.
        settle: restores sharded state as it was before; called on all when all raise.
    """

    def __init__(
        self, comm: Comm, groups: Sequence[Comm], context: Context, settle: Callable[[], object]
    ) -> None:
        self._comm, self._groups, self._context = comm, groups, context
        self._settle = settle
        self._tries = TryStatements(*torch.__path__)
        # In this computation others have raised. The model's own `except:` may hide `_RaisedElsewhere`.
        self._elsewhere = False

    def attempt(
        self,
        work: Callable[[], T],
        settle: Callable[[], object] | None = None,
        *,
        changed: Callable[[], Iterable[torch.Tensor]] = tuple,
        sends: bool = False,
    ) -> T:
        """Run `work`; an exception that the script would catch is raised on all ranks.

        That is the exception of the lowest rank that has one, and all random generators then have its state
        there.

        Args:
            settle: completes messages that only some ranks may have sent; called on all.
            changed: returns tensors that the work may have changed, the same on all ranks; they get that
                rank's values.
            sends: whether one rank waits for another alone inside, and would wait for ever.

        Raises:
            RaisedAlone: raised in place of the exception, where `sends`.
        """
        if self._context.attempting or not self._is_together() or not self._tries.catch(sys._getframe(1)):
            return work()
        raised: Exception | None = None
        result: Any = None
        try:
            with self._watched():
                result = work()
        except _RaisedElsewhere:
            pass
        except Exception as error:
            if not self._elsewhere:  # else an exception handler of the model has raised it in response
                if sends:
                    raise RaisedAlone(error) from error
                raised = error
        failed = self._elsewhere or self._comm.failures(raised is not None) > 0
        if not failed:
            return result
        del result
        if settle is not None:
            settle()
        self._settle()
        try:
            raise self._first(raised, changed())
        finally:
            del raised  # the exception refers to this frame, and so to objects of the script

    def _is_together(self) -> bool:
        context = self._context
        return (
            self._comm.world_size > 1
            and context.on_main_thread()
            and not self._comm.alone
            and current_graph_task_id() == -1
            and not in_transform()
        )

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Let ranks vote before each collective inside the block."""
        self._context.attempting, self._elsewhere = True, False
        self._have_before(self._meet)
        try:
            yield
        finally:
            self._context.attempting = False
            self._have_before(None)

    def _meet(self) -> None:
        if not self._elsewhere:
            self._have_before(None)
            try:
                self._elsewhere = self._comm.failures(False) > 0
            finally:
                self._have_before(self._meet)
        if self._elsewhere:
            raise _RaisedElsewhere

    def _have_before(self, before: Callable[[], None] | None) -> None:
        for group in self._groups:
            group.before = before

    def _first(self, raised: Exception | None, changed: Iterable[torch.Tensor]) -> BaseException:
        """Return the lowest rank's exception; where it was raised elsewhere, an equal one."""
        mine = None if raised is None else (pack_exception(raised), torch.get_rng_state(), host_states())
        everywhere = self._comm.all_gather_object(mine)
        rank, first = next((rank, each) for rank, each in enumerate(everywhere) if each is not None)
        packed, drawn, hosts = first
        torch.set_rng_state(drawn)
        put_back(hosts)
        for each in changed:
            self._comm.broadcast(each, rank)
        return raised if raised is not None and rank == self._comm.rank else unpack_exception(packed)
