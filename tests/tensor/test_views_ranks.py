"""A write into one of several tensors that share memory is a write into all of them.

Each case makes a view of a batch or of a model's output, writes through one of the two, and reads both:
as whole values and in ways that keep the rows on their ranks.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from both_ways import ROWS, Inputs, compare_all, flat, sharded
from ronde.errors import RondeError
from ronde.tensor import rules
from ronde.tensor.global_tensor import materialize
from ronde.tensor.kinds import VIEWS
from ronde.tensor.memory import memory
from ronde.testing.run_ranks import Rank

View = Callable[[torch.Tensor], torch.Tensor]
Write = Callable[[torch.Tensor, torch.Tensor], Any]

_VIEWS: dict[str, View] = {
    "columns": lambda x: x[:, 1:5],
    "column": lambda x: x[:, 2],
    "row": lambda x: x[3],
    "rows": lambda x: x[2:6],
    "row of columns": lambda x: x[:, 1:5][3],
    "flattened": lambda x: x.view(-1),
    "part of the flattened": lambda x: x.view(-1)[5:30],
    "view_as": lambda x: x.view_as(torch.zeros(ROWS, 2, 3)),
    "view_as another batch": lambda x: x.view_as(x * 1),
    "reshape_as": lambda x: x.reshape_as(torch.zeros(ROWS, 3, 2)),
    "reshaped, of a transposed one": lambda x: x.t().reshape(-1),
    "type_as": lambda x: x.type_as(torch.zeros((), dtype=torch.float64)),
    "positive": lambda x: +x,
    "contiguous, of a transposed one": lambda x: x.t().contiguous(),
    "unsqueezed": lambda x: x.unsqueeze(1),
    "row of a transposed one": lambda x: x.t()[2],
    "T": lambda x: x.T,
    "T of columns": lambda x: x[:, 1:5].T,
    "mT of columns": lambda x: x[:, 1:5].mT,
    "detached": lambda x: x.detach(),
    "data": lambda x: x.data,
    "row of data": lambda x: x.data[2],
    "columns of data": lambda x: x.data[:, 1:4],
    "data of columns": lambda x: x[:, 1:4].data,
    "detached row": lambda x: x[:, 1:].detach()[2],
    "converted": lambda x: x.to(torch.float64),
    "copied by a conversion": lambda x: x.to(torch.float64, copy=True),
    "another type": lambda x: x.float(),
    "row of another type": lambda x: x.float()[2],
    "complex": lambda x: torch.view_as_complex(x.view(ROWS, 3, 2)).real,
    "as_tensor": lambda x: torch.as_tensor(x.detach()),
    "named": lambda x: torch.unbind(input=x[:, 1:5], dim=1)[2],
    "broadcast": lambda x: torch.broadcast_tensors(torch.zeros(()), x[:, 1:5])[1],
    "chunk of columns": lambda x: x[:, 1:5].chunk(2, 1)[1],
    "iterated": lambda x: list(x[:, 1:5])[4],
}

_WRITES: dict[str, Write] = {
    "the view": lambda x, v: v.mul_(2),
    "an entry of the view": lambda x, v: v.__setitem__(1, 0.5),
    "a part of the view": lambda x, v: v[1].zero_(),
    "several parts of the view": lambda x, v: [v[i].mul_(i) for i in range(3)],
    "the view, by a function": lambda x, v: F.threshold(v, 0.5, 0.0, True),
    "several tensors at once": lambda x, v: torch._foreach_mul_([v], 3.0),
    "the base": lambda x, v: x.mul_(3),
    "a row of the base": lambda x, v: x[3].mul_(3),
    "a column of the base": lambda x, v: x[:, 2].fill_(0.25),
    "a row of columns of the base": lambda x, v: x[:, 1:4][3].zero_(),
    "the base after the view was read": lambda x, v: [v.std(), x[2:6].mul_(3)],
    "the view after the base was read": lambda x, v: [x.std(), v[1].mul_(3)],
}


def _output(m: Inputs) -> torch.Tensor:
    return m.batch(ROWS, 6) * 1.0


def _without_gradient(m: Inputs) -> torch.Tensor:
    return m.batch(ROWS, 6, grad=False)


def _written(make: Callable[[Inputs], torch.Tensor], view: View, write: Write) -> Callable[[Inputs], Any]:
    def case(m: Inputs) -> Any:
        x = make(m)
        v = view(x)
        try:
            write(x, v)
            read = [x * 1, x[:, 1:3] + 0, x.sum(1), x.std(), v * 1, v.sum(), v.std()]
        except RuntimeError:
            return "torch has no gradient for that"
        return [value.clone() for value in read]

    return case


def _in_inference(case: Callable[[Inputs], Any]) -> Callable[[Inputs], Any]:
    def run(m: Inputs) -> Any:
        with torch.inference_mode():
            return [materialize(value) for value in flat(case(m))]

    return run


_MODES: dict[str, Callable[[View, Write], Callable[[Inputs], Any]]] = {
    "output": lambda view, write: _written(_output, view, write),
    "batch": lambda view, write: _written(_without_gradient, view, write),
    "inference": lambda view, write: _in_inference(_written(_without_gradient, view, write)),
}


# Of what has a graph nobody writes into these.
_DATA = {"data", "columns of data", "data of columns"}


def _one(rank: Rank, view: str) -> list[str]:
    cases = {
        f"{mode}, {name}": make(_VIEWS[view], write)
        for mode, make in _MODES.items()
        for name, write in _WRITES.items()
        if mode != "output" or view not in _DATA
    }
    return compare_all(rank, cases, tolerance=1e-6)  # some are float32


@pytest.mark.parametrize("view", list(_VIEWS))
def test_a_write_is_seen_by_all_that_share_memory(ranks: Any, view: str) -> None:
    assert ranks(2, _one, view) == [[], []]


_PAST_GRAPH: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x.data.masked_fill_(x.data > 0.5, 0.0),
    lambda x: x.data[:, 1:3].zero_(),
    lambda x: x[:, 1:3].data.zero_(),
    lambda x: x.data.__setitem__(2, 0.5),
    lambda x: x.data.t().mul_(2),
]


def _past_graph(rank: Rank) -> list[bool]:
    """Whether each is refused, and leaves the output in rows."""
    refused = []
    with rank.session() as session:
        for write in _PAST_GRAPH:
            x = Inputs(session).batch(ROWS, 6) * 1.0
            with pytest.raises(RondeError, match=r"writes into \.data"):
                write(x)
            refused.append(sharded(x))
    return refused


def test_a_write_past_the_graph_is_refused(ranks: Any) -> None:
    assert ranks(2, _past_graph) == [[True] * len(_PAST_GRAPH)] * 2


def _copied_before(m: Inputs) -> Any:
    """A late write finds that it was a copy; the next one has nothing to do with it."""
    x = m.batch(ROWS, 6, grad=False) * 1.0
    copied = x[:, :3].t().contiguous()
    x = x * m.leaf(6)
    other = x[:, :3].t().contiguous()
    with torch.no_grad():
        x[1].zero_()
    first = x.sum()
    with torch.no_grad():
        x.mul_(2)
    return [first, x.std(), other * 1, copied * 1]


def _written_twice(rank: Rank) -> list[str]:
    return compare_all(rank, {"copied before": _copied_before})


def test_a_copy_is_no_matter_of_later_writes(ranks: Any) -> None:
    assert ranks(2, _written_twice) == [[], []]


def _watched(m: Inputs) -> Any:
    """A row was taken of a view whose gradient is kept: it comes by way of the view."""
    x = _output(m)
    v = x[:, 1:4]
    v.retain_grad()
    ((v[1] * v.sum()).sum() + x.sum() ** 2).backward()
    for leaf in m.leaves:
        leaf.tensor.grad = None
    return [v.grad]


def _hooked(m: Inputs) -> Any:
    """A row is taken of a view before its gradient is asked for."""
    x, seen = _output(m), []
    v = x[:, 1:4]
    row = v[1]
    v.register_hook(lambda grad: seen.append(grad * 1))
    ((row * v.sum(0)).sum() + x.sum() ** 2).backward()
    for leaf in m.leaves:
        leaf.tensor.grad = None
    return seen


def _asked(m: Inputs) -> Any:
    x = _output(m)
    v = x[:, 1:4]
    row = v[1]
    return list(torch.autograd.grad((row * v.sum(0)).sum() + x.sum() ** 2, [v], create_graph=True))


def _through_a_base_that_is_gone(m: Inputs) -> Any:
    x = m.batch(ROWS, 6, grad=False)
    a = x.view(ROWS, 3, 2)
    b = a[:, 1]
    del x
    b.zero_()
    return [a * 1, a.sum(), b * 1]


def _siblings_whose_base_is_gone(m: Inputs) -> Any:
    results = []
    for make in (_output, _without_gradient):
        x = make(m)
        views = [x[:, :4], x[:, 2:], x.detach(), x.t().reshape(-1)]
        del x
        views[1][2].zero_()
        results += [value * 1 for value in views]
    return results


def _views_of_a_copy(m: Inputs) -> Any:
    x = m.batch(ROWS, 6, grad=False)
    for copied in (x.float(), x.t().contiguous(), x.t().reshape(-1)):
        part = copied[1:4] if copied.dim() == 1 else copied[:, 1:4]
        copied.zero_()
        yield [part * 1, x * 1]


def _copy_of_what_is_changed_later(m: Inputs) -> Any:
    x = _output(m)
    copies = [x.float(), x.t().contiguous(), x.t().reshape(-1), x.to(torch.float64, copy=True)]
    x[2].zero_()
    return [x * 1, *copies, [value * 1 for value in copies]]


def _used_later_with_a_gradient(m: Inputs) -> Any:
    """What was gathered in inference mode was no inference tensor before."""
    x = _output(m)
    with torch.inference_mode():
        x.std().item()
        x[:, 1:][2].sum().item()
    return (x @ x.t()).sum()


_FAMILIES: dict[str, Callable[[Inputs], Any]] = {
    "watched": _watched,
    "hooked": _hooked,
    "asked for": _asked,
    "through a base that is gone": _through_a_base_that_is_gone,
    "siblings whose base is gone": _siblings_whose_base_is_gone,
    "views of a copy": lambda m: list(_views_of_a_copy(m)),
    "copy of what is changed later": _copy_of_what_is_changed_later,
    "used later with a gradient": _used_later_with_a_gradient,
}


def _family(rank: Rank, name: str) -> list[str]:
    return compare_all(rank, {name: _FAMILIES[name]}, tolerance=1e-6)


@pytest.mark.parametrize("name", list(_FAMILIES))
def test_what_shares_memory_is_known(ranks: Any, name: str) -> None:
    assert ranks(2, _family, name) == [[], []]


def _looked_at(rank: Rank) -> list[bool]:
    """Which tensors are in rows after a row of a view was taken."""
    with rank.session() as session:
        m = Inputs(session)
        x = m.batch(ROWS, 4, 6) * 1.0
        v = x[:, 0]
        kept = [sharded(v), x._full is None]
        x[:, 1][2].sum().item()
        return [*kept, sharded(x), sharded(v)]


def test_looking_at_a_view_leaves_the_output_in_rows(ranks: Any) -> None:
    assert ranks(2, _looked_at) == [[True] * 4] * 2


@contextmanager
def _collected_when_asked(rank: Rank) -> Iterator[Callable[[Any], Callable[[], int]]]:
    """Gives what leaves a value in a cycle to the collector, which comes when called, on one rank only."""

    def waiting(value: Any) -> Callable[[], int]:
        cycle: list[Any] = [value]
        cycle.append(cycle)
        return lambda: gc.collect() if rank.rank == 0 else 0

    gc.disable()
    try:
        yield waiting
    finally:
        gc.enable()


def _collected_on_one_rank(rank: Rank, grad: bool) -> float:
    """A row of a view whose output waits in a cycle for the collector, which has come on one rank only."""
    with _collected_when_asked(rank) as waiting, rank.session() as session:
        out = Inputs(session).batch(ROWS, 4, 6)
        out = out * 1.0 if grad else out.detach() * 1.0
        view, collect = out[:, 0], waiting(out)
        del out
        collect()
        return view[1].sum().item()


def _copies_collected_on_one_rank(rank: Rank) -> float:
    """The same of what may be a copy, when a write is noticed that came before."""
    with _collected_when_asked(rank) as waiting, rank.session() as session:
        out = Inputs(session).batch(ROWS, 4) * 1.0
        collect = waiting(out.t().reshape(-1))
        row = out.data[1]
        collect()
        row.zero_()
        return (out.sum() + out.std()).item()


@pytest.mark.parametrize("collected", [_copies_collected_on_one_rank])
def test_the_collector_decides_nothing_of_late_writes(ranks: Any, collected: Any) -> None:
    first, other = ranks(2, collected)
    assert first == other


@pytest.mark.parametrize("grad", [True, False])
def test_the_collector_decides_nothing(ranks: Any, grad: bool) -> None:
    first, other = ranks(2, _collected_on_one_rank, grad)
    assert first == other


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_rule_whose_result_may_lie_in_its_argument_is_known_to_give_views() -> None:
    arguments: list[tuple[Any, ...]] = [(), (0,), (1,), (1, 0), (-1,), (0, (2, 2)), (torch.zeros(2, 2, 4),)]
    unknown = set()
    for function in rules.table():
        for rest in arguments:
            x = torch.rand(2, 2, 4).transpose(0, 1).contiguous()
            try:
                result = function(x, *rest)
            except Exception:  # no call of this function
                continue
            in_place = x._version > 0 or function is torch.Tensor.detach_
            if isinstance(result, torch.Tensor) and memory(result) == memory(x) and not in_place:
                unknown.add(getattr(function, "__name__", ""))
    assert unknown - VIEWS == set()
