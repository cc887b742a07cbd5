"""The AUC of the recommenders' example is scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from auc import auc
from sklearn.metrics import roc_auc_score


@pytest.mark.parametrize("values", [2, 10, 10**9])
def test_it_is_scikit_learn_s_with_and_without_ties(values: int) -> None:
    random = np.random.default_rng(values)
    clicked = random.random(1000) < 0.3
    scores = random.integers(values, size=1000) + clicked * values / 4
    assert auc(scores, clicked) == pytest.approx(roc_auc_score(clicked, scores), abs=1e-15)


def test_order_its_reverse_and_no_order() -> None:
    clicked = np.array([0.0, 0.0, 1.0, 1.0])
    assert auc([1, 2, 3, 4], clicked) == 1
    assert auc([4, 3, 2, 1], clicked) == 0
    assert auc([5, 5, 5, 5], clicked) == 0.5
    assert auc([1, 2, 2, 3], clicked) == 3.5 / 4


@pytest.mark.parametrize(
    ("scores", "clicked", "why"),
    [
        ([1.0, 2.0], [1, 1], "2 clicks and 0 others"),
        ([1.0, 2.0], [0, 0], "0 clicks and 2 others"),
        ([1.0, float("nan")], [0, 1], "not finite"),
    ],
)
def test_where_there_is_none_it_says_so(scores: list[float], clicked: list[int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        auc(scores, clicked)
