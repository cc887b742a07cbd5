"""Nested values are taken apart and rebuilt as what they were."""

from __future__ import annotations

import collections
import dataclasses
import types
from typing import Any, NamedTuple

import pytest
import torch

from ronde.tensor.tree import Opaque, leaves, map_leaves, structure


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    name: str = "n"


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value


class Closed(Holder):
    """Answers for what it holds."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Slotted:
    __slots__ = ("__dict__", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.also = value


class Lists(list[Any]):
    pass


def _cyclic(tensor: torch.Tensor) -> Holder:
    """A node that knows its parent."""
    holder = Holder(tensor)
    holder.value = [tensor, Holder(holder)]
    return holder


def _doubled(value: Any) -> Any:
    return value * 2 if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize(
    "make",
    [
        lambda t: (t, [t, {"a": t}]),
        lambda t: Point(t, 1),
        Frozen,
        lambda t: collections.OrderedDict(a=t, b=None),
        lambda t: collections.defaultdict(list, a=t),
        lambda t: types.SimpleNamespace(a=t, b="text"),
        lambda t: [t, (), [], {}],
        Holder,
        lambda t: Holder([t, 1, "text"]),
        lambda t: Holder({"a": Holder(t)}),
        lambda t: [1, Holder((t, torch.device("cpu")))],
    ],
)
def test_a_value_is_rebuilt_with_its_leaves_changed(make: Any) -> None:
    value = make(torch.ones(2))
    changed = map_leaves(_doubled, value)
    assert type(changed) is type(value)
    assert structure(changed) == structure(value)
    assert len(list(leaves(changed))) == len(list(leaves(value)))
    for before, after in zip(leaves(value), leaves(changed), strict=True):
        if isinstance(before, torch.Tensor):
            assert torch.equal(after, before * 2)
        else:
            assert after is before


def test_what_torch_returns_for_two_results_is_taken_apart() -> None:
    value = torch.tensor([[1.0, 3.0], [5.0, 2.0]]).max(1)
    changed = map_leaves(_doubled, (value, 3))
    assert type(changed[0]) is type(value)
    assert changed[0].values.tolist() == [6.0, 10.0]
    assert changed[0].indices.tolist() == [2, 0]


def test_an_unchanged_container_is_returned_itself() -> None:
    value = [torch.ones(1), {"a": (1, 2)}]
    assert map_leaves(lambda leaf: leaf, value) is value


def test_structures_tell_keys_and_types_apart() -> None:
    one = torch.ones(1)
    assert structure({"a": one}) != structure({"b": one})
    assert structure([one]) != structure((one,))
    assert structure([one, 1]) == structure([2, one])
    assert hash(structure({"a": [one, Point(1, 2)]})) == hash(structure({"a": [one, Point(3, 4)]}))


@pytest.mark.parametrize(
    "make",
    [
        Closed,
        lambda t: Holder([Closed(t)]),
        lambda t: Holder([t, len]),
        lambda t: Holder([t, torch.nn.Linear(1, 1)]),
        lambda t: Holder([t] * 300),
        Slotted,
        _cyclic,
        lambda t: Lists([t]),
        lambda t: {t},
        lambda t: collections.deque([t]),
        lambda t: (item for item in [t]),
        lambda t: [1, {"a": Closed((t,))}],
    ],
)
def test_tensors_where_they_cannot_be_replaced_are_refused(make: Any) -> None:
    with pytest.raises(Opaque):
        list(leaves(make(torch.ones(1))))


def test_an_object_is_rebuilt_without_a_word_to_its_class() -> None:
    value = Holder(torch.ones(2))
    value.name = "n"
    changed = map_leaves(_doubled, value)
    assert type(changed) is Holder
    assert vars(value).keys() == vars(changed).keys()
    assert changed.value.tolist() == [2.0, 2.0]
    assert value.value.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "value", [Holder(1), {1, 2}, "text", torch.nn.Linear(1, 1), len, Holder, None, Holder(Holder([1]))]
)
def test_objects_without_tensors_are_leaves(value: Any) -> None:
    assert list(leaves((value,))) == [value]
