"""How parameters are put into buckets."""

from __future__ import annotations

import torch

from ronde.sync.bucket import assign_buckets
from ronde.sync.leaf import Leaf


def _parameters(*sizes: int, dtype: torch.dtype = torch.float32) -> list[Leaf]:
    return [Leaf(torch.zeros(size, dtype=dtype)) for size in sizes]


def _places(parameters: list[Leaf], buckets: list[list[Leaf]]) -> list[list[int]]:
    place = {id(parameter): index for index, parameter in enumerate(parameters)}
    return [[place[id(parameter)] for parameter in bucket] for bucket in buckets]


def test_the_first_bucket_is_small() -> None:
    parameters = _parameters(10, 10, 10, 10, 10, 10)
    assert _places(parameters, assign_buckets(parameters, 80, 120)) == [[0, 1], [2, 3, 4], [5]]


def test_a_large_parameter_has_a_bucket_of_its_own() -> None:
    parameters = _parameters(100, 1, 100, 1)
    assert _places(parameters, assign_buckets(parameters, 8, 200)) == [[0], [1, 2], [3]]


def test_types_are_not_mixed() -> None:
    parameters = [*_parameters(1, 1), *_parameters(1, dtype=torch.float64), *_parameters(1)]
    buckets = assign_buckets(parameters, 1000, 1000)
    assert all(len({parameter.dtype for parameter in bucket}) == 1 for bucket in buckets)
    assert sorted(place for bucket in _places(parameters, buckets) for place in bucket) == [0, 1, 2, 3]


def test_every_parameter_has_one_bucket() -> None:
    parameters = _parameters(*range(1, 50))
    for first, size in ((1, 1), (100, 300), (10**6, 10**6)):
        places = [
            place
            for bucket in _places(parameters, assign_buckets(parameters, first, size))
            for place in bucket
        ]
        assert places == list(range(49))


def test_nothing_makes_no_bucket() -> None:
    assert assign_buckets([], 1, 1) == []
