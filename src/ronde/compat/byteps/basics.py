"""`init`, `suspend`, `resume`, rank and size; while suspended, their last values."""

from __future__ import annotations

from ronde.compat.horovod import basics
from ronde.compat.place import JobPlace

__all__ = ["init", "local_rank", "local_size", "rank", "resume", "shutdown", "size", "suspend"]


class _State:
    """The rank's place in the job when it was suspended."""

    place: JobPlace | None = None


_state = _State()


def init(lazy: bool = True) -> None:
    """Start the engine, together with all ranks. Collective.

    Args:
        lazy: accepted without effect: groups are made at once.
    """
    basics.init()


def shutdown() -> None:
    """Stop the engine once all ranks have called `shutdown`."""
    basics.shutdown()
    _state.place = None


def suspend() -> None:
    """Stop the engine until `resume`; rank and size keep their values."""
    _state.place = _place()
    basics.shutdown()


def resume(num_workers: int, num_servers: int, global_rank: int = -1) -> None:
    """Start the engine again with the job's ranks.

    Raises:
        NotImplementedError: another number of workers is asked for.
    """
    if num_workers not in (size(), size() // local_size()):
        raise NotImplementedError(
            f"resume(num_workers={num_workers}): the number of ranks cannot change; the job was started with "
            f"{size()} [R726]"
        )
    basics.init()


def _place() -> JobPlace:
    """Return the rank's place in the job, also while suspended.

    Raises:
        ValueError: `init` has not been called.
    """
    if basics.is_initialized():
        return basics.engine().place
    if _state.place is None:
        raise ValueError("BytePS has not been initialized; call bps.init() first [R715]")
    return _state.place


def size() -> int:
    return _place().size


def rank() -> int:
    return _place().rank


def local_size() -> int:
    return _place().local_size


def local_rank() -> int:
    return _place().local_rank
