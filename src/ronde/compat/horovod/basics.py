"""`init` and `shutdown`, rank and size, and process sets.

Horovod's API consists of module functions, so this module holds the process's engine: one at a time.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Any

from ronde.compat.elastic.rendezvous import JobRendezvous, LeftOut
from ronde.compat.engine import Engine, Options, SubmittedTensor
from ronde.compat.horovod.timeline import HorovodTimeline
from ronde.compat.negotiation import WORLD, TensorRequest
from ronde.compat.place import JobPlace, read_place
from ronde.errors import LaunchError, PeerLost
from ronde.launch.announce import say

__all__ = [
    "ProcessSet", "add_process_set", "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built",
    "engine", "global_process_set", "gloo_built", "gloo_enabled", "init", "is_initialized", "local_rank",
    "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "newest_generation",
    "rank", "remove_process_set", "rocm_built", "shutdown", "size", "start_timeline", "stop_timeline",
]  # fmt: skip


# Attempts of an elastic job's ranks to connect before `init` fails.
_TRIES = 4


class ProcessSet:
    """A subset of ranks with collectives of its own.

    Args:
        ranks_or_comm: the ranks' numbers.

    Attributes:
        process_set_id: number of the set, the same on all ranks; None before it is added and after it is
            removed.
        ranks: sorted numbers of the ranks.
    """

    def __init__(self, ranks_or_comm: Sequence[int] | Any) -> None:
        if not isinstance(ranks_or_comm, Iterable):
            raise NotImplementedError(
                f"ProcessSet({ranks_or_comm!r}): communicators are not supported; give the ranks as a "
                "list [R716]"
            )
        self.ranks: list[int] | None = sorted({int(each) for each in ranks_or_comm})
        self.process_set_id: int | None = None

    def size(self) -> int | None:
        """Return the number of ranks; None if the set is not added."""
        return None if self.process_set_id is None else len(self._members())

    def rank(self) -> int:
        """Return this rank's index in the set.

        Raises:
            ValueError: the set is not added, or this rank is not a member.
        """
        if not self.included():
            raise ValueError(f"rank {rank()} is not a member of {self} [R716]")
        return self._members().index(rank())

    def included(self) -> bool:
        """Return whether this rank is a member."""
        if self.process_set_id is None:
            raise ValueError(f"{self} has not been added; give it to init() or add_process_set() [R716]")
        return rank() in self._members()

    def _members(self) -> Sequence[int]:
        assert self.process_set_id is not None
        return engine().sets[self.process_set_id]

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _Global(ProcessSet):
    """The set of all ranks, known after `init`."""

    def __init__(self) -> None:
        self.process_set_id = WORLD
        self.ranks = None

    def size(self) -> int | None:
        return size()


global_process_set = _Global()


class _ModuleState:
    """Module state that `init` makes."""

    engine: Engine | None = None
    timeline: HorovodTimeline | None = None
    sets: list[ProcessSet]
    may_change = False
    rendezvous: JobRendezvous | None = None
    generation = 0


_state = _ModuleState()
_state.sets = []


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Start the engine, together with all ranks; a second call does nothing. Collective.

    Args:
        comm: None, or the numbers of all ranks.
        process_sets: initial process sets, or "dynamic" to allow `add_process_set`.

    Raises:
        NotImplementedError: `comm` is a communicator or a subset of the ranks.
        ValueError: two process sets have the same members.
    """
    if _state.engine is not None:
        return
    place = read_place(os.environ)
    if not place.is_elastic:
        _begin(place, comm, process_sets)
        return
    for left in reversed(range(_TRIES)):
        place = _come(place)
        try:
            _begin(place, comm, process_sets)
        except (LaunchError, OSError, PeerLost):  # a joined rank died: another generation follows
            if not left:
                raise
        else:
            assert _state.rendezvous is not None
            _state.rendezvous.meet(place.generation)
            return


def _come(place: JobPlace) -> JobPlace:
    """Join a generation of an elastic job; return this rank's place in it."""
    within = float(os.environ.get("HOROVOD_ELASTIC_TIMEOUT") or 600)
    if _state.rendezvous is None:
        _state.rendezvous = JobRendezvous.connect(place.store, within)
    try:
        found = _state.rendezvous.come(dataclasses.replace(place, generation=_state.generation), within)
    except LeftOut:
        say("the job continues without this rank, or has ended [R704]")
        raise SystemExit(0) from None
    _state.generation = found.generation
    os.environ.update(found.variables())
    return found


def _begin(place: JobPlace, comm: Any, process_sets: Sequence[ProcessSet] | str | None) -> None:
    if comm is not None and not (isinstance(comm, Iterable) and sorted(comm) == list(range(place.size))):
        raise NotImplementedError(
            "init(comm=...) with some of the ranks is not supported; call init() on all, and exchange "
            "tensors of some by process_set=hvd.ProcessSet([...]) [R716]"
        )
    dynamic = process_sets == "dynamic" or os.environ.get("HOROVOD_DYNAMIC_PROCESS_SETS", "0") not in (
        "",
        "0",
    )
    given = [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)
    if isinstance(process_sets, str) and not dynamic:
        raise ValueError(
            f"init(process_sets={process_sets!r}): give a list of ProcessSet, or 'dynamic' [R716]"
        )
    members = [_checked(each, place) for each in given]
    known = [tuple(range(place.size))]
    for each in members:
        if each in known:
            raise ValueError(f"there are two process sets of ranks {list(each)}; give each once [R716]")
        known.append(each)
    _state.engine = Engine(place, Options.of(os.environ), members)
    _state.may_change = dynamic
    _state.sets = given
    for number, each in enumerate(given, 1):
        each.process_set_id = number
    global_process_set.ranks = list(range(place.size))
    if file := os.environ.get("HOROVOD_TIMELINE"):
        start_timeline(file, os.environ.get("HOROVOD_TIMELINE_MARK_CYCLES", "0") not in ("", "0"))


def _checked(process_set: ProcessSet, place: JobPlace) -> tuple[int, ...]:
    ranks = process_set.ranks or []
    wrong = [each for each in ranks if not 0 <= each < place.size]
    if wrong or not ranks:
        raise ValueError(f"{process_set}: ranks are numbers from 0 to {place.size - 1} [R716]")
    return tuple(ranks)


def shutdown() -> None:
    """Stop the engine once all ranks have called `shutdown`; `init` may follow."""
    current, _state.engine = _state.engine, None
    stop_timeline()
    if current is None:
        return
    current.shutdown()
    for each in _state.sets:
        each.process_set_id = None
    _state.sets = []
    global_process_set.ranks = None


atexit.register(shutdown)


def newest_generation() -> int:
    """Return the newest generation, which exceeds this rank's after a change of hosts."""
    assert _state.rendezvous is not None
    return _state.rendezvous.newest()


def is_initialized() -> bool:
    return _state.engine is not None


def engine() -> Engine:
    """Return the engine of this process.

    Raises:
        ValueError: `init` has not been called.
    """
    if _state.engine is None:
        raise ValueError("Horovod has not been initialized; call hvd.init() first [R715]")
    return _state.engine


def size() -> int:
    return engine().place.size


def rank() -> int:
    return engine().place.rank


def local_size() -> int:
    return engine().place.local_size


def local_rank() -> int:
    return engine().place.local_rank


def cross_size() -> int:
    """Return the number of hosts."""
    return engine().place.cross_size


def cross_rank() -> int:
    """Return the number of this host."""
    return engine().place.cross_rank


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Add a process set. Collective.

    Raises:
        ValueError: sets are not dynamic, or one has the same members.
    """
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    _check_dynamic()
    members = _checked(added, engine().place)
    added.process_set_id = _change("add", members=members)
    _state.sets.append(added)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set; False if it is the global one or not added. Collective."""
    _check_dynamic()
    if process_set.process_set_id in (None, WORLD):
        return False
    assert process_set.process_set_id is not None
    _change("remove", root=process_set.process_set_id)
    process_set.process_set_id = None
    _state.sets.remove(process_set)
    return True


def _check_dynamic() -> None:
    if not _state.may_change:
        raise ValueError(
            "process sets may not change; call init(process_sets='dynamic'), or set "
            "HOROVOD_DYNAMIC_PROCESS_SETS=1 [R716]"
        )


def _change(what: str, members: tuple[int, ...] = (), root: int = -1) -> int:
    current = engine()
    request = TensorRequest(
        name=current.name_for(f"set.{what}", None), kind="set", members=members, root=root
    )
    entry = SubmittedTensor(request, None)
    current.submit(entry)
    try:
        return entry.wait()
    except RuntimeError as error:
        raise ValueError(str(error)) from None


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write rank 0's exchanges as a Chrome trace, readable while it grows.

    Args:
        mark_cycles: accepted without effect: ronde exchanges without cycles.
    """
    current = engine()
    stop_timeline()
    if current.place.rank == 0:
        _state.timeline = HorovodTimeline(file_path)
        current.listener = _state.timeline.add


def stop_timeline() -> None:
    """Close the timeline."""
    timeline, _state.timeline = _state.timeline, None
    if _state.engine is not None:
        _state.engine.listener = None
    if timeline is not None:
        timeline.close()


def mpi_threads_supported() -> bool:
    """Raise an error, as ronde does not use MPI.

    Raises:
        ValueError: MPI is not supported.
    """
    raise ValueError("MPI is not built in: ranks exchange tensors by ronde's collectives [R722]")


def mpi_enabled() -> bool:
    return False


def mpi_built() -> bool:
    return False


def gloo_enabled() -> bool:
    """Return True, so that scripts run without MPI."""
    return True


def gloo_built() -> bool:
    return True


def nccl_built() -> int:
    """Return NCCL's version as one number, 0 without NCCL."""
    import torch

    if not torch.cuda.is_available():
        return 0
    from torch.cuda import nccl

    major, minor, patch = nccl.version()[:3]
    return major * 10000 + minor * 100 + patch


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False


def cuda_built() -> bool:
    import torch

    return torch.version.cuda is not None


def rocm_built() -> bool:
    import torch

    return torch.version.hip is not None
