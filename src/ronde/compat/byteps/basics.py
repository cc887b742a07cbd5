"""`init`, `suspend` and `resume`, and who this rank is: a suspended one says what it said before."""

from __future__ import annotations

from ronde.compat.horovod import basics
from ronde.compat.place import JobPlace

__all__ = ["init", "local_rank", "local_size", "rank", "resume", "shutdown", "size", "suspend"]


class _State:
    """Where this rank stood when it was suspended."""

    place: JobPlace | None = None


_state = _State()


def init(lazy: bool = True) -> None:
    """Meet the other ranks. All ranks come here.

    Args:
        lazy: taken, and without effect: groups are made at once.
    """
    basics.init()


def shutdown() -> None:
    """Leave the others, when all have come here."""
    basics.shutdown()
    _state.place = None


def suspend() -> None:
    """Leave the others; `resume` meets them again."""
    _state.place = _place()
    basics.shutdown()


def resume(num_workers: int, num_servers: int, global_rank: int = -1) -> None:
    """Meet the ranks again that the job was started with.

    Raises:
        NotImplementedError: there are to be more or fewer.
    """
    if num_workers not in (size(), size() // local_size()):
        raise NotImplementedError(
            f"resume(num_workers={num_workers}): ranks are those that the job was started with, and there "
            f"are {size()}"
        )
    basics.init()


def _place() -> JobPlace:
    """
    Raises:
        ValueError: `init` has not been called.
    """
    if basics.is_initialized():
        return basics.engine().place
    if _state.place is None:
        raise ValueError("BytePS has not been initialized; call bps.init() first")
    return _state.place


def size() -> int:
    return _place().size


def rank() -> int:
    return _place().rank


def local_size() -> int:
    return _place().local_size


def local_rank() -> int:
    return _place().local_rank
