"""Batches, their order and the random state are those of one device; each rank loads only its rows."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import queue
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)

from alone import alone
from both_ways import differences, flat, sharded
from codes import without_code, without_codes
from ronde.errors import RondeError
from ronde.tensor.context import Region
from ronde.tensor.global_tensor import materialize
from ronde.testing.run_ranks import Rank
from world_sizes import WORLD_SIZES


class Items(Dataset[Any]):
    """Twenty-three samples; counts how many were read in this process, by what no script could read."""

    def __init__(self, form: str = "tuple", length: int = 23) -> None:
        self.form, self.length, self.reads = form, length, multiprocessing.RawValue("i")

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.reads.value += 1
        x = torch.arange(3.0) + index
        return {
            "tuple": (x, index),
            "dict": {"x": x, "more": {"index": index, "y": [x * 2]}},
            "text": {"x": x, "name": f"sample {index}"},
            "list": [x, x + 1],
            "number": index,
            "numpy": np.full(2, index),
            "nothing of its own": (x, torch.zeros(0)),
            "same shape": x[:1],
        }[self.form]


class Augmented(Items):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0] + torch.rand(3) + random.random() + np.random.rand(), index


class Transformed(Items):
    """Each sample goes through a module, which is no model."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Softmax(0))

    def __getitem__(self, index: int) -> Any:
        with torch.no_grad():
            return self.transform(super().__getitem__(index)[0].repeat(4, 1)), index


class Slow(Items):
    """Waits in the midst of the first batch until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.reading, self.goes_on = threading.Event(), threading.Event()

    def __getitem__(self, index: int) -> Any:
        self.reading.set()
        assert self.goes_on.wait(60)
        return super().__getitem__(index)


class SometimesAugmented(Items):
    """The first samples draw nothing."""

    def __getitem__(self, index: int) -> Any:
        x, _ = super().__getitem__(index)
        return x + (torch.rand(3) if index % 5 == 0 else 0), index


class OwnGenerator(Items):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(3)

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0] + self.generator.random(), index


class Numbered(Items):
    """Samples are numbered as they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count()

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0], next(self.numbers)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(torch.arange(11.0))


class Batches:
    """Index batches of the user's own making."""

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, 20, 6):
            order = torch.randperm(6).tolist()
            yield [start + place for place in order if start + place < 20]

    def __len__(self) -> int:
        return 4


def _padded(samples: list[Any]) -> Any:
    longest = max(index % 4 + 1 for _, index in samples)
    return torch.stack([torch.cat([x, torch.zeros(longest)]) for x, _ in samples]), torch.tensor(
        [i for _, i in samples]
    )


def _epochs(loader: Any, count: int = 2) -> Iterator[Any]:
    yield (
        len(loader)
        if hasattr(loader, "__len__") and not isinstance(getattr(loader, "dataset", None), IterableDataset)
        else None
    )
    for _ in range(count):
        for batch in loader:
            yield batch
            yield torch.rand(1)  # the script draws between batches
    yield torch.get_rng_state()


def _abandoned(loader: Any) -> Iterator[Any]:
    for _ in range(3):
        for place, batch in enumerate(loader):
            yield batch
            if place == 1:
                break
    yield from loader


def _zipped(a: Any, b: Any) -> Iterator[Any]:
    yield from zip(a, b, strict=False)
    yield torch.get_rng_state()


def _two_iterators(loader: Any) -> Iterator[Any]:
    first, second = iter(loader), iter(loader)
    for _ in range(2):
        yield next(first)
        yield next(second)
        yield next(first)


def _cycled(loader: Any) -> Iterator[Any]:
    iterator = iter(loader)
    for _ in range(12):
        try:
            yield next(iterator)
        except StopIteration:
            iterator = iter(loader)
            yield next(iterator)


def _split() -> Iterator[Any]:
    train, held = random_split(Items(), [0.7, 0.3])
    yield from _epochs(DataLoader(train, 5, shuffle=True))
    yield from _epochs(DataLoader(Subset(held, [0, 2, 4, 5]), 3))


def _resampled() -> Iterator[Any]:
    generator = torch.Generator().manual_seed(9)
    yield from _epochs(DataLoader(Items(), 6, shuffle=True, generator=generator))
    yield generator.get_state()


def _used() -> Iterator[Any]:
    """What scripts do with batches."""
    seen = 0
    for x, index in DataLoader(Items(), 6, shuffle=True):
        seen += len(x)
        yield [x.shape, x.size(0), index.sum().item(), x.mean(0), x[0], (x + 1).sum(), index.tolist(), seen]


LOADERS: dict[str, Callable[[], Iterator[Any]]] = {
    "in order": lambda: _epochs(DataLoader(Items(), 6)),
    "shuffled": lambda: _epochs(DataLoader(Items(), 6, shuffle=True)),
    "drop last": lambda: _epochs(DataLoader(Items(), 6, shuffle=True, drop_last=True)),
    "last batch of one": lambda: _epochs(DataLoader(Items(length=13), 6, shuffle=True)),
    "batches of two": lambda: _epochs(DataLoader(Items(length=5), 2)),
    "one batch": lambda: _epochs(DataLoader(Items(), 23, shuffle=True)),
    "tensors": lambda: _epochs(
        DataLoader(TensorDataset(torch.randn(23, 4), torch.arange(23)), 7, shuffle=True)
    ),
    "workers": lambda: _epochs(DataLoader(Items(), 5, shuffle=True, num_workers=2)),
    "persistent workers": lambda: _abandoned(
        DataLoader(Items(), 5, shuffle=True, num_workers=2, persistent_workers=True, prefetch_factor=3)
    ),
    "abandoned": lambda: _abandoned(DataLoader(Items(), 5, shuffle=True)),
    "weighted": lambda: _epochs(
        DataLoader(Items(), 6, sampler=WeightedRandomSampler(torch.arange(1.0, 24), 20))
    ),
    "batch sampler": lambda: _epochs(
        DataLoader(Items(), batch_sampler=BatchSampler(RandomSampler(range(23)), 6, False))
    ),
    "own batches": lambda: _epochs(DataLoader(Items(), batch_sampler=Batches())),
    "own sampler": lambda: _epochs(DataLoader(Items(), 6, sampler=[5, 3, 1, 0, 2, 4, 6, 9])),
    "collate": lambda: _epochs(DataLoader(Items(), 6, shuffle=True, collate_fn=_padded)),
    "no batches": lambda: _epochs(DataLoader(Items(), batch_size=None)),
    "stream": lambda: _epochs(DataLoader(Stream(), 4)),
    "stream with a worker": lambda: _epochs(DataLoader(Stream(), 4, num_workers=1)),
    "own generator": lambda: _epochs(DataLoader(OwnGenerator(), 6, shuffle=True)),
    "numbered": lambda: _epochs(DataLoader(Numbered(), 6, shuffle=True)),
    "augmented": lambda: _epochs(DataLoader(Augmented(), 6, shuffle=True)),
    "augmented by workers": lambda: _epochs(DataLoader(Augmented(), 6, shuffle=True, num_workers=2)),
    "transformed": lambda: _epochs(DataLoader(Transformed(), 6, shuffle=True)),
    "transformed by workers": lambda: _epochs(DataLoader(Transformed(), 6, shuffle=True, num_workers=2)),
    "sometimes augmented": lambda: _epochs(DataLoader(SometimesAugmented(), 6, shuffle=True)),
    "loader's generator": _resampled,
    "zip": lambda: _zipped(DataLoader(Items(), 5, shuffle=True), DataLoader(Items("list"), 4, shuffle=True)),
    "two iterators": lambda: _two_iterators(DataLoader(Items(), 5, shuffle=True)),
    "cycle": lambda: _cycled(DataLoader(Items(), 5, shuffle=True)),
    "split": _split,
    "used": _used,
    **{
        f"samples: {form}": lambda form=form: _epochs(DataLoader(Items(form), 6, shuffle=True))
        for form in (
            "dict",
            "text",
            "list",
            "number",
            "numpy",
            "nothing of its own",
            "same shape",
        )
    },
}


def _run(make: Callable[[], Iterator[Any]]) -> list[Any]:
    torch.manual_seed(4)
    random.seed(4)
    np.random.seed(4)
    return [materialize(value) for part in make() for value in flat(part)]


def _batches(rank: Rank, name: str) -> list[str]:
    expected = _run(LOADERS[name])
    with rank.session():
        found = _run(LOADERS[name])
    if len(expected) != len(found):
        return [f"{len(found)} values instead of {len(expected)}"]
    return [
        f"{i} {text}"
        for i, (a, b) in enumerate(zip(expected, found, strict=True))
        for text in differences(a, b, 0.0)
    ]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", list(LOADERS))
def test_batches_are_those_of_one_device(ranks: Any, name: str, world_size: int) -> None:
    assert ranks(world_size, _batches, name) == [[]] * world_size


def _reads(rank: Rank, form: str, plan: str) -> tuple[int, int, int]:
    data = Items(form, 60)
    with rank.session(plan):
        loader = DataLoader(data, 12, shuffle=True)
        cut = sum(all(sharded(value) for value in flat(batch)) for batch in loader)
        first, data.reads.value = data.reads.value, 0
        cut += sum(all(sharded(value) for value in flat(batch)) for batch in loader)
    return first, data.reads.value, cut


@pytest.mark.parametrize("form", ["tuple", "dict", "list", "number"])
def test_a_rank_reads_its_rows_only(ranks: Any, form: str) -> None:
    # The first batch is read whole, and one sample of it again, to see whether what is read depends on that.
    assert ranks(3, _reads, form, "ddp") == [(12 + 1 + 4 * 4, 5 * 4, 9)] * 3


def test_loading_may_be_chosen(ranks: Any) -> None:
    assert ranks(2, _reads, "tuple", "loading=full") == [(60, 60, 0)] * 2
    assert ranks(2, _reads, "tuple", "loading=sliced") == [(30, 30, 10)] * 2


_READ: list[int] = []


def _remembered(index: int, known: dict[int, int] = {}) -> int:  # noqa: B006, one for all calls
    return known.setdefault(index, len(known))


class Booked(Items):
    """Keeps a book of what was read, in one of many ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.number, self.last = way, 0, None
        self.seen, self.counts = torch.zeros(23), np.zeros(23, int)
        self.cache: dict[int, Any] = {}
        self.lists: list[list[int]] = [[] for _ in range(123)]
        self.log: list[int] | None = None

    def __getitem__(self, index: int) -> Any:
        if self.way == "number":
            self.number += 1
        elif self.way == "last":
            self.last = index
        elif self.way == "tensor":
            self.seen[index] += 1
        elif self.way == "array":
            self.counts[index] += 1
        elif self.way == "cache":
            self.cache[index] = self.cache.get(index, index)
        elif self.way == "lists":
            self.lists[index + 100].append(index)
        elif self.way == "made at first":
            self.log = [*(self.log or []), index]
        elif self.way == "variable":
            _READ.append(index)
        elif self.way == "default":
            _remembered(index)
        return super().__getitem__(index)

    def book(self) -> list[Any]:
        held = (
            self.number,
            self.last,
            self.seen.tolist(),
            self.counts.tolist(),
            self.cache,
            self.lists,
            self.log,
        )
        return [repr(each) for each in (*held, _READ, (_remembered.__defaults__ or ())[0])]


WAYS = {
    "number": "number",
    "last": "last",
    "tensor": "seen",
    "array": "counts",
    "cache": "cache",
    "lists": "lists",
    "made at first": "log",
    "variable": "_READ",
    "default": "_remembered",
}


def _booked(way: str, part: bool) -> tuple[list[Any], int]:
    """The book after an epoch and a half, and how many batches were cut."""
    _READ.clear()
    (_remembered.__defaults__ or ())[0].clear()
    data = Booked(way)
    loader = DataLoader(Subset(data, range(22)) if part else data, 6, shuffle=True)
    cut = sum(
        all(map(sharded, flat(batch))) for batch in itertools.chain(loader, itertools.islice(loader, 2))
    )
    return data.book(), cut


def _books(rank: Rank) -> list[Any]:
    """What was said for each book, and how many batches were cut; or how the book differs."""
    found: list[Any] = []
    for way, part in itertools.product(WAYS, (False, True)):
        torch.manual_seed(2)
        expected, _ = _booked(way, part)
        with rank.session() as session:
            torch.manual_seed(2)
            book, cut = _booked(way, part)
            found.append((cut, *without_codes(session.notes)) if book == expected else (way, book, expected))
    return found


def test_a_book_that_reading_keeps_is_that_of_one_device(ranks: Any) -> None:
    because = (
        "every rank loads whole batches, because reading samples changes {} of the dataset, and the script "
        "may read that"
    )
    expected = [
        (0, f"{dataset}: {because.format(name)}")
        for name in WAYS.values()
        for dataset in ("Booked", "Subset")
    ]
    assert ranks(2, _books) == [expected] * 2


@pytest.mark.parametrize("way", ["tensor", "number"])
def test_a_book_on_one_rank_has_no_entry_too_many(tmp_path: Path, way: str) -> None:
    torch.manual_seed(2)
    expected, _ = _booked(way, False)
    with alone(tmp_path, "micro-batches=2") as session:
        torch.manual_seed(2)
        assert _booked(way, False)[0] == expected
        assert not session.notes


class Opening(Items):
    """What it needs it gets when the first sample is read, a file for each half of the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Any = None
        self.files: list[Any] = [None, None]
        self.mapped: list[Any] = [None, None]

    def __getitem__(self, index: int) -> Any:
        if self.table is None:
            self.table = np.arange(23)
        self.files[index % 2] = self.files[index % 2] or memoryview(b"a file")
        if self.mapped[index % 2] is None:
            self.mapped[index % 2] = np.frombuffer(b"mapped to be read", np.uint8)
        return super().__getitem__(index)[0], self.table[index]


def _opened(rank: Rank) -> tuple[int, list[str]]:
    with rank.session() as session:
        cut = sum(all(map(sharded, flat(batch))) for batch in DataLoader(Opening(), 6))
    return cut, without_codes(session.notes)


def test_what_reading_opens_is_no_book(ranks: Any) -> None:
    assert ranks(2, _opened) == [(3, [])] * 2


def _read_beside(rank: Rank, before: bool) -> tuple[Region, list[int]]:
    """What the main thread stands in while another one reads, and what that one was given."""
    with rank.session() as session:
        data = Slow()
        loader, found = DataLoader(data, 4), []
        if before:
            data.goes_on.set()
            list(loader)
            data.goes_on.clear()
            data.reading.clear()
        other = threading.Thread(target=lambda: found.extend(loader))
        other.start()
        assert data.reading.wait(60)
        region = session.context.region
        data.goes_on.set()
        other.join()
        return region, [int(index) for _, indices in found for index in materialize(indices)]


@pytest.mark.parametrize("before", [False, True])
def test_a_thread_that_reads_ahead_leaves_the_main_one_alone(ranks: Any, before: bool) -> None:
    assert ranks(2, _read_beside, before) == [(Region.SCRIPT, list(range(23)))] * 2


class _Worn(Items):
    """A sample depends on how many were read before it, by whatever worker."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __getitem__(self, index: int) -> Any:
        self.count += 1
        return super().__getitem__(index)[0] * self.count, index


def _worn(rank: Rank, loading: str) -> Any:
    with rank.session(f"loading={loading}"):
        try:
            return [x.sum().item() for x, _ in DataLoader(_Worn(), 6, num_workers=1)]
        except RondeError as error:
            return without_code(str(error))


def test_what_a_worker_has_read_twice_is_refused_where_that_tells(ranks: Any) -> None:
    refused = "samples of _Worn depend on those that a worker read before; use --loading full"
    assert ranks(2, _worn, "auto") == [refused] * 2
    expected = [x.sum().item() for x, _ in DataLoader(_Worn(), 6, num_workers=1)]
    assert ranks(2, _worn, "full") == [expected] * 2


class _Normalized(Dataset[Any]):
    """A module works on each sample, an image of 3 rows."""

    def __init__(self) -> None:
        self.norm = torch.nn.LayerNorm(4)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.norm(torch.arange(12.0).view(3, 4) + index + random.random()).detach()


def _normalized(rank: Rank, loading: str) -> tuple[list[Any], list[str], int]:
    random.seed(0)
    calls: list[Any] = []
    plain = torch.nn.Module.__call__
    with rank.session(f"ddp,loading={loading}") as session:
        session.calls.on_call = calls.append
        batches = [batch.sum().item() for batch in DataLoader(_Normalized(), 4)]
        assert torch.nn.Module.__call__ is not plain
        return batches, without_codes(session.notes), len(calls)


@pytest.mark.parametrize("loading", ["auto", "full"])
def test_modules_of_samples_are_called_on_no_batch(ranks: Any, loading: str) -> None:
    first, second = ranks(2, _normalized, loading)
    assert first == second
    _, notes, calls = first
    assert calls == 0
    assert not any("second axis" in note or "runs in parts" in note for note in notes)


class _Told(Dataset[Any]):
    """Samples in the order of a set, say, and beside each its index, and one thing more.

    Args:
        more: `kept`: each rank's own, and always the same; `loaded`: when it was loaded; `drawn`: a random
            number.
    """

    def __init__(self, x: torch.Tensor, more: str, own: int) -> None:
        self.x, self.more, self.own = x, more, own

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        more = torch.zeros(2)
        if self.more == "kept":
            more += self.own + 1
        elif self.more == "loaded":
            more += int.from_bytes(os.urandom(4), "big")
        return self.x[index] + (torch.rand(()) if self.more == "drawn" else 0), index, more


def _first_batches(rank: Rank, *named: tuple[str, bool, int]) -> list[str]:
    """Of a data set in the order of a set, say, or whose samples tell when they were loaded."""
    torch.manual_seed(0)  # for all ranks, whatever ran before
    found: list[str] = []
    with rank.session() as session:
        for more, differ, workers in named:
            x = torch.arange(8.0).flip(0) if rank.rank and differ else torch.arange(8.0)
            loaders = [DataLoader(_Told(x, more, rank.rank), 4, num_workers=workers)]
            if not workers:
                loaders.append(
                    DataLoader(_Told(x, more, rank.rank), 4, collate_fn=lambda s: default_collate([*s]))
                )
            for loader in loaders:
                try:
                    list(loader)
                    found.append("alike")
                except RondeError as error:
                    found.append(str(error).split(",")[0])
        assert session.context.region is Region.SCRIPT
    return found


_OTHERS = "ranks were given different batches"


def test_what_data_sets_hold_is_compared(ranks: Any) -> None:
    """A batch of each rank's own has no answer of one device's."""
    cases = {
        ("nothing", False, 0): ["alike"] * 2,
        ("nothing", True, 0): [_OTHERS] * 2,
        ("nothing", True, 1): [_OTHERS],
        ("kept", False, 0): [_OTHERS] * 2,
        ("loaded", False, 0): [_OTHERS] * 2,
        ("loaded", False, 1): [_OTHERS],
        ("drawn", False, 0): ["alike"] * 2,
        ("drawn", True, 0): [_OTHERS] * 2,
        ("drawn", True, 1): [_OTHERS],
    }
    assert ranks(2, _first_batches, *cases) == [[*itertools.chain(*cases.values())]] * 2


FED: queue.Queue[torch.Tensor] = queue.Queue()


class _Fed(Dataset[Any]):
    """Its samples come out of a queue that it does not hold."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return FED.get(timeout=10)


def _fed(rank: Rank) -> list[list[float]]:
    for value in torch.arange(8.0):
        FED.put(value)
    with rank.session():
        return [batch.tolist() for batch in DataLoader(_Fed(), 4)]


def test_nothing_is_taken_from_a_queue_to_see_what_samples_are_like(ranks: Any) -> None:
    assert ranks(2, _fed) == [[[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]] * 2
