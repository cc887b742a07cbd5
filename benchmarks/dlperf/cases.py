"""Cases: a model, a global batch and an optimizer that all frameworks train with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["CASES", "USUAL", "Case"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A training.

    Attributes:
        model: `resnet` or `bert`.
        sizes: the sizes of the model and its inputs, as `scripts/models.py` reads them.
        batch: samples of the global batch.
        warm_up, steps: steps before the clock starts, and timed steps.
        optimizer: `sgd` (momentum 0.9) or `adam`.
        only: the frameworks that train it; empty for all but DataParallel, which has one device here.
        local_statistics: whether peers normalize with the statistics of their own rows.
    """

    name: str
    model: str
    sizes: Mapping[str, Any]
    batch: int
    warm_up: int
    steps: int
    optimizer: str
    learning_rate: float
    only: tuple[str, ...] = ()
    local_statistics: bool = False

    def has(self, framework: str) -> bool:
        """Tell whether a framework trains it."""
        return framework in self.only if self.only else framework != "data-parallel"


# Rows of a rank are not below 16: with fewer, and one thread, torch leaves oneDNN for slower convolutions.
_RESNET50 = {"stages": (3, 4, 6, 3), "width": 64, "classes": 1000, "image": 64}
_BERT_BASE = {
    "layers": 12, "width": 768, "heads": 12, "vocabulary": 30_522, "length": 16, "masked": 2, "classes": 2,
}  # fmt: skip
# The size of BERT-mini (Turc et al. 2019).
_BERT_MINI = {**_BERT_BASE, "layers": 4, "width": 256, "heads": 4, "length": 64, "masked": 0}
_TINY = {**_BERT_BASE, "layers": 2, "width": 16, "heads": 2, "vocabulary": 50, "length": 8}

_ALL = (
    Case(
        name="resnet50", model="resnet", sizes=_RESNET50, batch=32, warm_up=3, steps=4, optimizer="sgd",
        learning_rate=1e-3, local_statistics=True,
    ),
    Case(
        name="resnet50-32px", model="resnet", sizes={**_RESNET50, "image": 32}, batch=32, warm_up=3, steps=6,
        optimizer="sgd", learning_rate=1e-3, local_statistics=True,
    ),
    Case(
        name="bert-base", model="bert", sizes=_BERT_BASE, batch=8, warm_up=2, steps=2, optimizer="adam",
        learning_rate=1e-4,
    ),
    Case(
        name="bert-text", model="bert", sizes=_BERT_MINI, batch=16, warm_up=2, steps=4, optimizer="adam",
        learning_rate=1e-4, only=("ronde", "ddp", "horovod", "data-parallel"),
    ),
    Case(
        name="tiny-bert", model="bert", sizes=_TINY, batch=8, warm_up=1, steps=2, optimizer="adam",
        learning_rate=1e-4,
    ),
    Case(
        name="tiny-resnet", model="resnet",
        sizes={"stages": (1, 1, 1, 1), "width": 8, "classes": 10, "image": 32},
        batch=8, warm_up=1, steps=2, optimizer="sgd", learning_rate=1e-3, local_statistics=True,
    ),
)  # fmt: skip
CASES = {each.name: each for each in _ALL}
USUAL = ("resnet50", "resnet50-32px", "bert-base", "bert-text")
