"""The click log: of a seed alone, its ids by Zipf's law, popularity that drifts, a teacher who knows."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from auc import auc
from click_log import CARDINALITIES, clicks
from popularity import popularity

LARGE = int(np.argmax(CARDINALITIES))


def test_a_log_is_of_its_seed() -> None:
    one, again, other = clicks(500), clicks(500), clicks(500, seed=1)
    for tensor, same, different in zip(one[0][:3], again[0][:3], other[0][:3], strict=True):
        assert torch.equal(tensor, same)
        assert not torch.equal(tensor, different)
    assert np.array_equal(one[1], again[1])


def test_fields_are_those_of_mlperf() -> None:
    samples, _ = clicks(5000)
    assert samples.dense.shape == (5000, 13)
    assert samples.ids.shape == (5000, 26)
    assert CARDINALITIES[:8] == [40_000, 100, 100, 100, 100, 3, 100, 100]
    for column, most in zip(samples.ids.T, CARDINALITIES, strict=True):
        assert len(column.unique()) <= most
    assert len(samples.ids.unique()) == sum(len(column.unique()) for column in samples.ids.T)


def test_ids_come_by_zipf_s_law() -> None:
    samples, _ = clicks(40_000, drift=0.0, exponent=1.1)
    counts = np.array([count for _, count in Counter(samples.ids[:, LARGE].tolist()).most_common(100)])
    slope, _ = np.polyfit(np.log(np.arange(1, 101)), np.log(counts), 1)
    assert slope == pytest.approx(-1.1, abs=0.1)


def test_the_order_of_popularity_is_not_that_of_ids() -> None:
    samples, _ = clicks(40_000, drift=0.0)
    first = [Counter(column.tolist()).most_common(1)[0][0] for column in samples.ids.T]
    assert len(set(first)) == len(first)
    assert min(first) < 0 < max(first)


@pytest.mark.parametrize(("drift", "left"), [(0.0, (0.9, 1.1)), (0.8, (0.2, 0.4))])
def test_what_was_popular_is_less_so_at_the_end(drift: float, left: tuple[float, float]) -> None:
    ids = clicks(40_000, drift=drift)[0].ids[:, LARGE].numpy()
    begin, end = ids[:4000], ids[-4000:]
    popular = [each for each, _ in Counter(begin.tolist()).most_common(10)]
    assert left[0] < np.isin(end, popular).mean() / np.isin(begin, popular).mean() < left[1]


def test_the_teacher_knows_more_than_popularity_does() -> None:
    samples, truth = clicks(20_000)
    held_out = len(samples.split()[1])
    assert 0.2 < samples.clicked.mean() < 0.4
    assert 0.5 < popularity(*samples.split()) < 0.7
    assert 0.78 < auc(truth[-held_out:], samples.clicked[-held_out:]) < 0.88
