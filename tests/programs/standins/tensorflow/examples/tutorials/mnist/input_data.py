"""scikit-learn's digits, handed out in batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

__all__ = ["read_data_sets"]


class _Part:
    """Images of 28 by 28 in [0, 1], flat, and their classes; in another order in each round."""

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels = images, labels
        self.num_examples = len(images)
        self._order = np.arange(len(images))
        self._next = len(images)

    def next_batch(self, size: int) -> tuple[Any, Any]:
        if self._next + size > len(self._order):
            np.random.shuffle(self._order)
            self._next = 0
        chosen = self._order[self._next : self._next + size]
        self._next += size
        return self.images[chosen], self.labels[chosen]


def read_data_sets(folder: str, one_hot: bool = False, **options: Any) -> SimpleNamespace:
    digits = load_digits()
    large = np.kron(digits.images / 16, np.ones((4, 4)))[:, 2:30, 2:30]
    images = large.reshape(len(large), -1).astype(np.float32)
    labels = np.eye(10)[digits.target] if one_hot else digits.target
    parts = {"train": slice(0, 1400), "validation": slice(1400, 1600), "test": slice(1600, None)}
    return SimpleNamespace(**{name: _Part(images[part], labels[part]) for name, part in parts.items()})
