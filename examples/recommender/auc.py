"""The area under the ROC curve."""

import numpy as np


def auc(scores, clicked):
    """How often a click has a higher score than what was not clicked; equal scores count half.

    That is the statistic of Mann and Whitney: the sum of the ranks of the clicks, less its least value, over
    the number of pairs. Equal scores share the mean of their ranks.
    """
    scores, clicked = np.asarray(scores), np.asarray(clicked) > 0
    clicks = int(clicked.sum())
    others = len(clicked) - clicks
    if not clicks or not others:
        raise ValueError(f"auc: {clicks} clicks and {others} others; it needs some of both")
    if not np.isfinite(scores).all():
        raise ValueError("auc: a score is not finite")
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return float((ranks[clicked].sum() - clicks * (clicks + 1) / 2) / (clicks * others))
