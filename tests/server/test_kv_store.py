from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ronde import KVStore
from ronde.errors import UsageError
from ronde.server.transport.client import ServerRefused
from server.running import TOKEN, at_once, thread

CUT = 8  # elements from which on a value is cut over servers


@contextlib.contextmanager
def stores(kind: Any, workers: int, servers: int) -> Iterator[list[KVStore]]:
    rule = "sync" if kind == "dist_sync" else "async"
    with contextlib.ExitStack() as stack:
        ends = [stack.enter_context(thread(workers, rule)) for _ in range(servers)]
        made = [
            stack.enter_context(
                KVStore(kind, servers=ends, token=TOKEN, rank=rank, workers=workers, bigarray_bound=CUT)
            )
            for rank in range(workers)
        ]
        yield made


def together(made: list[KVStore], work: Callable[[KVStore], Any]) -> list[Any]:
    return at_once(*(lambda store=store: work(store) for store in made))


def test_two_workers_sum_on_two_servers() -> None:
    first = np.arange(24, dtype=np.float32).reshape(12, 2)
    pushed = [np.random.default_rng(rank).standard_normal((12, 2)).astype(np.float32) for rank in range(2)]

    def work(store: KVStore) -> Any:
        # Rank 0's values count.
        store.init("w", torch.from_numpy(first) if store.rank == 0 else torch.zeros(12, 2))
        store.init([3, 4], [torch.tensor(1.0), torch.zeros(3, dtype=torch.int64)])
        before = store.pull("w")
        store.push(["w", 4], [torch.from_numpy(pushed[store.rank]), torch.full((3,), store.rank + 1)])
        out = torch.empty(2, 12).t()  # not contiguous
        store.pull("w", out=out)
        return before, out, store.pull([4, 3]), store.row_sparse_pull("w", [11, 0, 5, 0])

    with stores("dist_sync", 2, 2) as made:
        found = together(made, work)
        assert [(store.rank, store.num_workers, store.type) for store in made] == [
            (0, 2, "dist_sync"),
            (1, 2, "dist_sync"),
        ]
    summed = pushed[0] + pushed[1]
    for before, out, (integers, scalar), rows in found:
        assert np.array_equal(before, first)
        assert np.array_equal(out, summed)
        assert integers.tolist() == [3, 3, 3]
        assert scalar.item() == 1
        assert np.array_equal(rows, summed[[11, 0, 5, 0]])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int32])
def test_dtypes_pass_through(dtype: torch.dtype) -> None:
    with stores("dist_sync", 1, 2) as (store,):
        store.init("w", torch.ones(5, 3).to(dtype))
        store.push("w", [torch.full((5, 3), 2).to(dtype), torch.full((5, 3), 3).to(dtype)])
        assert torch.equal(store.pull("w"), torch.full((5, 3), 5).to(dtype))
        assert torch.equal(store.row_sparse_pull("w", [4, 1]), torch.full((2, 3), 5).to(dtype))


@pytest.mark.parametrize("options", [("SGD", {"lr": 0.1, "momentum": 0.9}), ("Adam", {"lr": 0.1})])
def test_servers_step_by_the_sum_as_one_process_would(options: tuple[str, dict[str, Any]]) -> None:
    name, given = options

    def work(store: KVStore) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(store.rank)
        store.init(["w", "b"], [torch.ones(12, 2), torch.zeros(3)])
        optimizer = store.set_optimizer(getattr(torch.optim, name), **given)
        pulled: list[torch.Tensor] = []
        for step in range(4):
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)  # reaches servers with the next push
            gradients = [torch.randn(12, 2, generator=generator), torch.randn(3, generator=generator)]
            pulled += store.pushpull(["w", "b"], gradients)
        return pulled

    with stores("dist_sync", 2, 2) as made:
        found = together(made, work)
    generators = [torch.Generator().manual_seed(rank) for rank in range(2)]
    alone = [torch.nn.Parameter(torch.ones(12, 2)), torch.nn.Parameter(torch.zeros(3))]
    optimizer = getattr(torch.optim, name)(alone, **given)
    expected: list[torch.Tensor] = []
    for step in range(4):
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        drawn = [[torch.randn(12, 2, generator=each), torch.randn(3, generator=each)] for each in generators]
        for parameter, first, second in zip(alone, *drawn, strict=True):
            parameter.grad = first + second
        optimizer.step()
        expected += [each.detach().clone() for each in alone]
    for pulled in found:
        assert all(torch.equal(own, other) for own, other in zip(pulled, expected, strict=True))


def test_asynchronous_pushes_count_at_once() -> None:
    def begin(store: KVStore) -> None:
        store.init("w", torch.zeros(10))
        store.set_optimizer(torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0))

    with stores("dist_async", 2, 2) as made:
        together(made, begin)
        first, second = made
        first.push("w", torch.ones(10))
        assert first.pull("w").tolist() == [-1] * 10  # nobody waits for the other worker
        second.push("w", torch.ones(10))
        together(made, KVStore.barrier)
        assert first.pull("w").tolist() == second.pull("w").tolist() == [-2] * 10


def test_without_servers_one_process_does_the_same() -> None:
    store = KVStore("local")
    store.init("w", torch.zeros(3, 2))
    store.push("w", [torch.ones(3, 2), torch.ones(3, 2)])
    assert store.pull("w").tolist() == [[2, 2]] * 3
    store.set_optimizer(torch.optim.SGD, lr=0.5)
    assert store.pushpull("w", torch.ones(3, 2)).tolist() == [[1.5, 1.5]] * 3
    assert store.row_sparse_pull("w", [2], out=torch.empty(1, 2)).tolist() == [[1.5, 1.5]]
    store.barrier()
    assert (store.rank, store.num_workers, store.type) == (0, 1, "local")
    store.close()


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (
            lambda store: store.push("v", torch.ones(2)),
            "KVStore.push('v'): this key has no value yet; call init(",
        ),
        (
            lambda store: store.pull(7),
            "KVStore.pull(7): this key has no value yet; call init(7, value) first",
        ),
        (
            lambda store: store.push("w", torch.ones(2)),
            "[2] torch.float32, and init() gave this key [3, 2] torch",
        ),
        (
            lambda store: store.push("w", torch.ones(3, 2).double()),
            "[3, 2] torch.float64, and init() gave this",
        ),
        (
            lambda store: store.pull("w", out=torch.ones(6)),
            "KVStore.pull('w'): [6] torch.float32, and init() gave",
        ),
        (
            lambda store: store.init("w", torch.ones(1)),
            "KVStore.init('w'): this key has a value; push() changes it",
        ),
        (
            lambda store: store.init("c", torch.ones(1).cfloat()),
            "servers do not support torch.complex64; they support b",
        ),
        (lambda store: store.push(["w"], torch.ones(2, 3, 2)), "1 keys and 2 values; one for each is needed"),
        (lambda store: store.push(["w", "w"], [1, 2]), "a key is given twice in ['w', 'w']"),
        (
            lambda store: store.push("w", 3),
            "KVStore.push('w'): a value is a tensor, or for push() a list of equal",
        ),
        (
            lambda store: store.push(1.5, torch.ones(1)),
            "KVStore.push(1.5): a key is a whole number or a word",
        ),
        (
            lambda store: store.row_sparse_pull("w", [3]),
            "KVStore.row_sparse_pull('w'): rows are numbered from 0 to 2",
        ),
        (lambda store: store.row_sparse_pull("w", [1], torch.ones(2)), "out is [2], and [1, 2] is needed"),
        (
            lambda store: store.set_optimizer(torch.optim.LBFGS),
            "KVStore.set_optimizer(LBFGS): servers run SGD, A",
        ),
        (
            lambda store: store.set_optimizer(torch.optim.SGD([torch.ones(1)]), lr=1),
            "an optimizer has one group",
        ),
        (lambda _: KVStore("dist"), "KVStore('dist'): choose local, dist_sync or dist_async"),
        (
            lambda _: KVStore("dist_sync", rank=0, workers=1),
            "KVStore('dist_sync'): RONDE_SERVERS does not name the servers",
        ),
        (
            lambda _: KVStore("dist_sync"),
            "KVStore: RANK is '', which is not a number; give rank=, or start the pro",
        ),
    ],
)
def test_what_cannot_be_is_said(work: Callable[[KVStore], Any], said: str) -> None:
    store = KVStore("local")
    store.init("w", torch.zeros(3, 2))
    with pytest.raises(UsageError) as refused:
        work(store)
    assert said in str(refused.value)
    assert store.pull("w").tolist() == [[0, 0]] * 3


def test_servers_of_another_type_are_refused() -> None:
    with thread(rule="async") as end, pytest.raises(UsageError, match="were started for update=async; start"):
        KVStore("dist_sync", servers=[end], token=TOKEN, rank=0, workers=1)


def test_of_two_stores_of_one_worker_the_later_counts() -> None:
    """Both number their changes alike: a push of the other would pass for one that was made before."""
    with thread() as end:
        first, second = (
            KVStore("dist_sync", servers=[end], token=TOKEN, rank=0, workers=1) for _ in range(2)
        )
        second.init("w", torch.zeros(2))
        with pytest.raises(ServerRefused, match="has been started again"):
            first.init("v", torch.ones(2))
        second.close()
        first.close()
