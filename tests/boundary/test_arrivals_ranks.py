"""What threads and processes give, in another order on each rank, is taken as on the main rank."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import multiprocessing.dummy
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from ronde.boundary import digest
from ronde.boundary.circumstances import arrivals
from ronde.boundary.circumstances.agreement import Agreement
from ronde.boundary.circumstances.arrivals import Arrivals
from ronde.boundary.circumstances.completions import Completions
from ronde.boundary.circumstances.givers import Givers
from ronde.boundary.patches import Patches
from ronde.errors import RondeError
from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]
FORK = multiprocessing.get_context("fork")


@contextmanager
def in_order_of_main(rank: Rank) -> Iterator[None]:
    patches, thread, comm = Patches(), threading.current_thread(), rank.groups["boundary"]

    def in_step() -> bool:
        return threading.current_thread() is thread

    agree = Agreement(comm)
    patches.set(arrivals, "PATIENCE_S", 0.5)
    givers = Givers()
    Arrivals(comm, agree, in_step, givers).install(patches)
    Completions(comm, agree, in_step, givers).install(patches)
    try:
        yield
    finally:
        patches.restore()


def _mixed(rank: Rank, names: str = "abc") -> list[str]:
    """In another order on each rank."""
    return list(names)[rank.rank :] + list(names)[: rank.rank]


def _run(*works: Callable[[], Any]) -> None:
    """One after another, each in a thread of its own."""
    for work in works:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()


def _several_threads(rank: Rank) -> list[Any]:
    with in_order_of_main(rank):
        batches: queue.Queue[Any] = queue.Queue()
        _run(*(lambda name=name: batches.put({"name": name, "of": rank.rank}) for name in _mixed(rank)))
        return [batches.get() for _ in range(3)]


def test_of_several_threads_each_rank_gets_what_the_main_rank_got(ranks: Ranks) -> None:
    expected = [{"name": name, "of": 0} for name in "abc"]
    assert ranks(2, _several_threads) == [expected, expected]


def _one_thread(rank: Rank) -> list[Any]:
    with in_order_of_main(rank):
        batches: queue.Queue[Any] = queue.Queue()
        _run(lambda: [batches.put(lambda: rank.rank) for _ in range(2)])
        return [batches.get()(), batches.get(timeout=5)()]


def test_of_one_thread_values_stay_the_ranks_own(ranks: Ranks) -> None:
    """What cannot be sent is never sent."""
    assert ranks(2, _one_thread) == [[0, 0], [1, 1]]


class _Newest(queue.Queue[Any]):
    """Gives what came last first."""

    def _get(self) -> Any:
        return self.queue.pop()


def _keep_newest(target: queue.Queue[Any], value: Any) -> None:
    if target.full():
        target.get()
    target.put(value)


def _put_or_pass_over(target: queue.Queue[Any], value: Any) -> None:
    with contextlib.suppress(queue.Full):
        target.put(value, block=False)


def _ahead(
    rank: Rank, make: Callable[[], queue.Queue[Any]], put: Callable[[Any, Any], None], takes: int
) -> list[int]:
    """The only thread gives one value on rank 0, and three on rank 1, before the main thread takes one."""
    batches, given, go, early = make(), threading.Event(), threading.Event(), 1 + 2 * rank.rank
    plain_wait = threading.Event.wait

    def work() -> None:
        for number in range(6):
            if number == early:
                given.set()
                assert go.wait(30)
            put(batches, number)

    with in_order_of_main(rank):
        thread = threading.Thread(target=work)
        thread.start()
        assert plain_wait(given, 30)
        found = [batches.get()]
        go.set()
        thread.join()
        return found + [batches.get() for _ in range(takes)]


@pytest.mark.parametrize(
    ("make", "put", "expected"),
    [
        (queue.LifoQueue, queue.Queue.put, [0, 5, 4, 3]),
        (_Newest, queue.Queue.put, [0, 5, 4, 3]),
        (functools.partial(queue.Queue, 1), _keep_newest, [0, 5]),
        (functools.partial(queue.Queue, 1), _put_or_pass_over, [0, 1]),
    ],
)
def test_of_one_thread_what_comes_in_no_order_is_the_main_ranks(
    ranks: Ranks, make: Any, put: Any, expected: list[int]
) -> None:
    assert ranks(2, _ahead, make, put, len(expected) - 1) == [expected, expected]


def _passed_on(rank: Rank, by: str) -> list[str]:
    """One thread gives what it gets itself in another order on each rank."""
    names, batches = _mixed(rank), queue.Queue[Any]()
    receive, send = FORK.Pipe()
    several, of_processes = queue.Queue[Any](), FORK.Queue()
    futures = {name: concurrent.futures.Future[None]() for name in "abc"}

    def take(name: str) -> Any:
        if by == "queue":
            of_processes.put(name)
            return of_processes.get()
        if by == "pipe":
            send.send(name)
            return receive.recv()
        if by == "threads":
            return several.get()
        futures[name].set_result(None)
        left = [each for each in futures.values() if each is futures[name] or not each.done()]
        done, _ = concurrent.futures.wait(left, return_when=concurrent.futures.FIRST_COMPLETED)
        return next(each for each, future in futures.items() if future in done)

    with in_order_of_main(rank):
        _run(*(lambda name=name: several.put(name) for name in names))
        _run(lambda: [batches.put(take(name)) for name in names])
        return [batches.get() for _ in names]


@pytest.mark.parametrize("by", ["queue", "pipe", "threads", "futures"])
def test_who_takes_in_no_order_gives_in_none(ranks: Ranks, by: str) -> None:
    assert ranks(2, _passed_on, by) == [list("abc")] * 2


def _worked_off(rank: Rank) -> list[int]:
    """A thread has its jobs from the main one, which waits for each."""
    jobs, done = queue.Queue[Any](), queue.Queue[Any](1)
    found: list[int] = []
    with in_order_of_main(rank):
        thread = threading.Thread(target=lambda: [done.put(jobs.get() + rank.rank) for _ in range(2)])
        thread.start()
        for number in (10, 20):
            jobs.put(number)
            found.append(done.get())
        thread.join()
    return found


def test_who_takes_in_order_gives_in_order(ranks: Ranks) -> None:
    assert ranks(2, _worked_off) == [[10, 20], [11, 21]]


def _own_objects(rank: Rank) -> tuple[list[int], list[bool]]:
    """Threads give objects that the script has, too."""
    jobs = [{"number": number} for number in range(4)]
    with in_order_of_main(rank):
        given: queue.Queue[Any] = queue.Queue()
        for part in (jobs[:2], jobs[2:]) if rank.rank == 0 else (jobs[2:], jobs[:2]):
            _run(lambda part=part: [given.put(job) for job in part])
        order: list[int] = []
        for _ in jobs:
            job = given.get()
            job["done"] = True
            order.append(job["number"])
        return order, ["done" in job for job in jobs]


def test_objects_of_the_script_are_each_ranks_own(ranks: Ranks) -> None:
    assert ranks(2, _own_objects) == [([0, 1, 2, 3], [True] * 4)] * 2


DONE = object()


def _ended(rank: Rank) -> list[bool]:
    """Each thread says at its end that it has ended; which it is is told by `is`."""
    with in_order_of_main(rank):
        batches: queue.Queue[Any] = queue.Queue()
        _run(
            *(
                lambda item=item: batches.put(item)
                for item in ([DONE, "x"][rank.rank], ["x", DONE][rank.rank])
            )
        )
        return [batches.get() is DONE for _ in range(2)]


def test_what_has_a_name_in_the_script_is_itself(ranks: Ranks) -> None:
    assert ranks(2, _ended) == [[True, False], [True, False]]


def _filled_by_main(rank: Rank, several: bool) -> bool:
    """A loss with its graph, that the main thread has put there itself, or that it cannot do without."""
    with in_order_of_main(rank):
        losses: queue.Queue[Any] = queue.Queue()
        weight = torch.full((2,), 1.0 + rank.rank, requires_grad=True)
        if several:
            _run(lambda: losses.put(weight.sum()), lambda: losses.put(weight.sum()))
        else:
            losses.put(weight.sum())
        stop = threading.Event()
        other = threading.Thread(target=stop.wait)
        other.start()
        losses.get().backward()
        stop.set()
        other.join()
        return weight.grad is not None


@pytest.mark.parametrize("several", [False, True])
def test_what_has_a_graph_stays_the_ranks_own(ranks: Ranks, several: bool) -> None:
    assert ranks(2, _filled_by_main, several) == [True, True]


def _looked_for(rank: Rank, has_first: int) -> list[Any]:
    """Rank `has_first` has a value, the other has none yet."""
    found: list[Any] = []
    with in_order_of_main(rank):
        batches: queue.Queue[Any] = queue.Queue()
        for number in range(2):
            if rank.rank == has_first:
                _run(lambda number=number: batches.put(number))
            found.append((batches.empty(), batches.qsize() > 0))
            try:
                found.append(batches.get_nowait())
            except queue.Empty:
                found.append("none")
            if rank.rank != has_first:
                _run(lambda number=number: batches.put(number))
        try:
            while True:
                found.append(batches.get(timeout=0.01))
        except queue.Empty:
            return found


@pytest.mark.parametrize(
    ("has_first", "expected"),
    [(0, [(False, True), 0, (False, True), 1]), (1, [(True, False), "none", (False, True), 0, 1])],
)
def test_whether_there_is_something_is_asked_of_the_main_rank(
    ranks: Ranks, has_first: int, expected: list[Any]
) -> None:
    assert ranks(2, _looked_for, has_first) == [expected, expected]


def _drained(rank: Rank) -> list[list[int]]:
    """A thread of rank 1 has given less; and what it gives late is none that comes next."""
    with in_order_of_main(rank):
        given: queue.Queue[Any] = queue.Queue()
        _run(lambda: [given.put(number) for number in range(3 - rank.rank)])
        first: list[int] = []
        while not given.empty():
            first.append(given.get())
        _run(lambda: [given.put(number) for number in range(3 - rank.rank, 5)])
        return [first, [given.get(), given.get()]]


def test_what_a_rank_has_not_is_sent_and_its_own_is_passed_over(ranks: Ranks) -> None:
    assert ranks(2, _drained) == [[[0, 1, 2], [3, 4]]] * 2


def _reached(rank: Rank) -> list[int]:
    """A flag that is set on the main rank is seen on another one when it is set there."""
    done: list[int] = []
    go, event = threading.Event(), threading.Event()

    def work() -> None:
        assert go.wait(30)
        done.append(1)
        event.set()

    thread = threading.Thread(target=work)
    with in_order_of_main(rank):
        thread.start()
        if rank.rank == 0:
            go.set()
            threading.Thread.join(thread)
        else:
            threading.Timer(0.3, go.set).start()
        while not event.is_set():
            pass
        thread.join()
        return done


def test_a_flag_is_not_seen_before_it_is_set(ranks: Ranks) -> None:
    assert ranks(2, _reached) == [[1], [1]]


def _give(target: Any, values: list[Any]) -> None:
    for value in values:
        target.send(value) if hasattr(target, "send") else target.put(value)


def _from_processes(rank: Rank, make: str) -> list[Any]:
    with in_order_of_main(rank):
        here: Any = getattr(FORK, make)()
        here, there = here if make == "Pipe" else (here, here)
        process = FORK.Process(target=_give, args=(there, [[name, rank.rank] for name in _mixed(rank)]))
        process.start()
        found = [here.recv() if make == "Pipe" else here.get() for _ in range(3)]
        process.join()
        return found


@pytest.mark.parametrize("make", ["Queue", "SimpleQueue", "JoinableQueue", "Pipe"])
def test_of_processes_each_rank_gets_what_the_main_rank_got(ranks: Ranks, make: str) -> None:
    expected = [[name, 0] for name in "abc"]
    assert ranks(2, _from_processes, make) == [expected, expected]


def _what_shares(rank: Rank) -> bool:
    """A tensor in memory that a process shares is the same on all ranks, and stays shared."""
    with in_order_of_main(rank):
        given: Any = torch.multiprocessing.get_context("fork").SimpleQueue()
        given.put(torch.ones(3))
        return given.get().is_shared()


def test_what_is_alike_keeps_what_it_shares(ranks: Ranks) -> None:
    assert ranks(2, _what_shares) == [True, True]


def _ready(rank: Rank) -> list[Any]:
    with in_order_of_main(rank):
        pipes = [FORK.Pipe() for _ in range(2)]
        pipes[rank.rank][1].send("here")
        first = [pipes.index(pair) for pair in pipes if pair[0].poll(0.01)]
        ready = multiprocessing.connection.wait([pair[0] for pair in pipes], timeout=0.01)
        return [first, [place for place, pair in enumerate(pipes) if pair[0] in ready]]


def test_which_pipe_is_ready_is_asked_of_the_main_rank(ranks: Ranks) -> None:
    assert ranks(2, _ready) == [[[0], [0]], [[0], [0]]]


def _flags(rank: Rank) -> list[Any]:
    with in_order_of_main(rank):
        found: list[Any] = []
        for event in (threading.Event(), FORK.Event()):
            if rank.rank == 1:
                event.set()
            found += [event.is_set(), event.wait(0.01)]
        stop = threading.Event()
        thread = threading.Thread(target=stop.wait if rank.rank == 0 else int)
        thread.start()
        if rank.rank == 1:
            threading.Thread.join(thread)
        found.append(thread.is_alive())
        stop.set()
        return found


def test_flags_are_those_of_the_main_rank(ranks: Ranks) -> None:
    assert ranks(2, _flags) == [[False, False, False, False, True]] * 2


def _managed(rank: Rank) -> list[Any]:
    with FORK.Manager() as manager, in_order_of_main(rank):
        batches: Any = manager.Queue()
        for name in _mixed(rank):
            batches.put(name)
        return [batches.get() for _ in range(3)]


def test_a_managers_queue_gives_what_it_gave_the_main_rank(ranks: Ranks) -> None:
    assert ranks(2, _managed) == [list("abc")] * 2


def _completed(rank: Rank, wait: bool) -> list[Any]:
    """On the main rank one after another, on others all before they are asked for."""
    gates = {name: threading.Event() for name in "abcd"}
    with in_order_of_main(rank), concurrent.futures.ThreadPoolExecutor(4) as pool:
        futures = {pool.submit(gate.wait, 30): name for name, gate in gates.items()}
        for name in "c" if rank.rank == 0 else "abcd":
            gates[name].set()
        if rank.rank:
            concurrent.futures.wait(futures)
        found: list[str] = []
        for future in _as_they_come(set(futures), wait):
            found.append(futures[future])
            for following in "dab"[len(found) - 1 : len(found)]:
                gates[following].set()
        return found


def _as_they_come(left: set[Any], wait: bool) -> Iterator[Any]:
    if not wait:
        yield from concurrent.futures.as_completed(left)
    while wait and left:
        done, left = concurrent.futures.wait(left, return_when=concurrent.futures.FIRST_COMPLETED)
        yield from done


@pytest.mark.parametrize("wait", [False, True])
def test_futures_come_in_the_order_of_the_main_rank(ranks: Ranks, wait: bool) -> None:
    assert ranks(2, _completed, wait) == [list("cdab")] * 2


def _late(rank: Rank) -> str:
    stop = threading.Event()
    with in_order_of_main(rank), concurrent.futures.ThreadPoolExecutor(1) as pool:
        try:
            list(concurrent.futures.as_completed([pool.submit(stop.wait, 30)], timeout=0.01))
        except concurrent.futures.TimeoutError:
            return "late"
        finally:
            stop.set()
    return "done"


def test_nothing_in_time_is_so_on_every_rank(ranks: Ranks) -> None:
    assert ranks(2, _late) == ["late", "late"]


def _sets(rank: Rank) -> list[Any]:
    with in_order_of_main(rank), concurrent.futures.ThreadPoolExecutor(2) as pool:
        _ = [object() for _ in range(rank.rank * 7)]
        return [each.result() for each in {pool.submit(int, number) for number in range(20)}]


def test_sets_of_futures_are_gone_through_alike(ranks: Ranks) -> None:
    first, second = ranks(2, _sets)
    assert first == second
    assert sorted(first) == list(range(20))


def _unordered(rank: Rank, chunk: int) -> list[Any]:
    order = _mixed(rank, "abcdef")
    turn = threading.Condition()

    def call(name: str) -> str:
        with turn:
            if chunk == 1:
                assert turn.wait_for(lambda: order[0] == name, 30)
                order.pop(0)
                turn.notify_all()
        if name == "d":
            raise ValueError(name)
        return name

    found: list[Any] = []
    with in_order_of_main(rank), multiprocessing.dummy.Pool(6) as pool:
        results = pool.imap_unordered(call, "abcdef" if chunk == 1 else "abcefg", chunk)
        while True:
            try:
                found.append(next(results))
            except ValueError as error:
                found.append(f"no {error}")
            except StopIteration:
                break
    return found


def test_results_come_unordered_as_on_the_main_rank(ranks: Ranks) -> None:
    assert ranks(3, _unordered, 1) == [["a", "b", "c", "no d", "e", "f"]] * 3
    first, second = ranks(2, _unordered, 2)
    assert first == second


def _called_back(rank: Rank, done: bool) -> list[bool]:
    """A callback is the main thread's on all ranks, where the future is done on the main rank, or on none."""
    in_main: list[bool] = []
    go, called = threading.Event(), threading.Event()
    lock = threading.RLock()

    def call(_: Any) -> None:
        in_main.append(threading.current_thread() is threading.main_thread())
        if done:
            with lock:
                pass
        called.set()

    with in_order_of_main(rank), concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(go.wait, 30)
        if done == (rank.rank == 0):
            go.set()
            concurrent.futures._base.wait([future])
        else:
            threading.Timer(0.2, go.set).start()
        with lock:
            future.add_done_callback(call)
        assert called.wait(30)
    return in_main


@pytest.mark.parametrize("done", [False, True])
def test_callbacks_are_alike_on_every_rank(ranks: Ranks, done: bool) -> None:
    assert ranks(2, _called_back, done) == [[done], [done]]


def _given_batches(rank: Rank, step: float) -> str:
    """To a model, by memory that processes share, say."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    with rank.session() as session:
        model(torch.ones(4, 3))
        session.context.others_began = True
        try:
            model(torch.arange(12.0).view(4, 3).T.contiguous().T + step * rank.rank)
        except RondeError as error:
            return str(error).split(",")[0]
        return "alike"


def test_ranks_that_were_given_different_batches_are_told(ranks: Ranks) -> None:
    """With their lines on one host: `tests/errors/test_diverged.py`. Roundings do not count."""
    assert ranks(2, _given_batches, 1e-6) == ["alike"] * 2
    assert ranks(2, _given_batches, 0.5) == ["ranks were given different batches"] * 2


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x,
        lambda x: x.long(),
        lambda x: x > 6,
        lambda x: x.to(torch.complex64).conj(),
        lambda x: (x * (1 + 1j)).conj().imag,
        lambda x: x.bfloat16(),
        lambda x: x.to_sparse(),
        lambda x: x[0, 0],
        lambda x: x[:0],
        lambda x: torch.full_like(x, float("nan")),
    ],
)
def test_tensors_of_all_kinds_are_compared(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = change(torch.arange(12.0).view(3, 4))
    assert digest.numbers(x) == digest.numbers(x.clone())
    other = change(torch.arange(12.0).flip(0).view(3, 4))
    told = digest.numbers(x) != digest.numbers(other)
    assert told == (not x.is_sparse and x.numel() > 0 and not bool((x != x).any()))


SETTINGS = {"scale": 2.0, "best": 0}


class _Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * SETTINGS["scale"] + 0 * SETTINGS["best"]


def _changed_sooner(rank: Rank) -> tuple[list[str], bool]:
    """What a thread notes where a model reads it comes to rank 1 a call later."""
    torch.manual_seed(0)
    SETTINGS["best"] = 0
    model, x = _Scaled(), torch.arange(12.0).view(4, 3)
    expected = model(x).detach()
    with rank.session() as session:
        session.context.others_began = True
        found = [model(x).tolist()]
        for first in (0, 1):
            if rank.rank == first:
                SETTINGS["best"] += 1
            found.append(model(x).tolist())
        found.append(model(x).tolist())
        notes = [note for note in session.context.notes if "one rank before another" in note]
    return notes, all(torch.allclose(torch.tensor(each), expected) for each in found)


def test_what_a_thread_changes_sooner_on_one_rank(ranks: Ranks) -> None:
    for notes, right in ranks(2, _changed_sooner):
        assert right
        assert len(notes) == 1


def _numbers_of_its_own(rank: Rank) -> tuple[int, str]:
    """A thread sets what all ranks have seen before, another number on each."""
    torch.manual_seed(0)
    model, x = _Scaled(), torch.arange(12.0).view(4, 3)
    with rank.session() as session:
        session.context.others_began = True
        for scale in (3.0, 2.0):
            SETTINGS["scale"] = scale
            model(x)
        SETTINGS["scale"] = 2.0 + rank.rank
        try:
            model(x).sum().backward()
            told = "nothing"
        except RondeError as error:
            told = str(error).split(",")[0]
        notes = [note for note in session.context.notes if "one rank before another" in note]
    SETTINGS["scale"] = 2.0
    return len(notes), told


def test_numbers_that_a_thread_sets_in_a_model_are_compared(ranks: Ranks) -> None:
    assert ranks(2, _numbers_of_its_own) == [(1, "ranks were given different values for a loss")] * 2
