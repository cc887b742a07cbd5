"""A click log of which the truth is known: a hidden teacher makes the clicks.

Thirteen numbers and 26 categorical fields a sample, as in the logs of advertisers. A field has as many ids
as in MLPerf's DLRM, scaled down: a thousandth, but small fields keep up to a hundred. Ids come as Zipf's law
says, in each field's own order of popularity. Over time another order takes its place: at the end of the log,
for `drift` of the samples. A click is drawn with the teacher's probability, so the AUC of the teacher's own
scores is the most that a model may hope for.
"""

import numpy as np
from interactions import hashed, tensors

# Criteo's terabyte log as MLPerf trains on it: ids of each field, at most 40 million.
MLPERF = """40000000 39060 17295 7424 20265 3 7122 1543 63 40000000 3067956 405282 10 2209 11938 155 4 976 14
    40000000 40000000 40000000 590152 12973 108 36"""
CARDINALITIES = [max(min(ids, 100), ids // 1000) for ids in map(int, MLPERF.split())]
NUMBERS, FACTORS = 13, 4


def clicks(samples, seed=0, drift=0.5, exponent=1.3):
    """Draw a log of so many samples, and the teacher's log odds of each. The seed alone makes the teacher."""
    truth, draws = (np.random.default_rng([seed, part]) for part in (0, 1))
    orders = [[truth.permutation(ids) for _ in ("early", "late")] for ids in CARDINALITIES]
    late = draws.random(samples) < drift * np.arange(samples) / samples
    values = np.stack([field(draws, late, exponent, *order) for order in orders], axis=1)
    counts = np.floor(np.exp(draws.normal(1.0, 1.5, (samples, NUMBERS))))
    dense = np.log1p(counts) - 1.3
    scores = teacher(truth, dense, values)
    clicked = draws.random(samples) < 1 / (1 + np.exp(-scores))
    ids = np.stack([hashed(number, column) for number, column in enumerate(values.T)], axis=1)
    return tensors(dense, ids, clicked, crosses=[]), scores


def field(draws, late, exponent, early_order, late_order):
    """Values of one field: a rank by Zipf's law, and who has that rank early, or late, in the log."""
    shares = np.arange(1, len(early_order) + 1) ** -exponent
    ranks = draws.choice(len(shares), len(late), p=shares / shares.sum())
    return np.where(late, late_order[ranks], early_order[ranks])


def teacher(truth, dense, values):
    """Log odds of a click: of each id by itself, of ids together, and a crooked function of the numbers.

    Some fields weigh much more than others.
    """
    alone = np.zeros(len(values))
    vectors, squares = np.zeros((2, len(values), FACTORS))
    for column, ids in zip(values.T, CARDINALITIES, strict=True):
        weight = np.exp(truth.normal(size=2))
        alone += weight[0] * truth.normal(size=ids)[column]
        hidden = weight[1] * truth.normal(size=(ids, FACTORS))[column]
        vectors += hidden
        squares += hidden**2
    together = (vectors**2 - squares).sum(1)  # twice the dot products of all pairs of fields
    bent = np.tanh(dense @ truth.normal(size=(NUMBERS, 8)) / 3) @ truth.normal(size=8)
    parts = zip((alone, together, bent), (1.0, 1.0, 0.7), strict=True)
    return sum(weight * (part - part.mean()) / part.std() for part, weight in parts) - 1.2
