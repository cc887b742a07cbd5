"""Texts laid end to end, with a vector of where each begins: what is behind the bag is cut."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from codes import without_codes
from ronde.tensor.global_tensor import GlobalTensor
from ronde.testing.run_ranks import Rank

TEXTS = 8


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(20, 4), nn.Linear(4, 2)

    def forward(self, words: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
        return self.head(self.bag(words, begins))


def _step(seen: list[type]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = Classifier().double()
    lengths = torch.arange(TEXTS) % 3 + 2
    words = torch.randint(20, (int(lengths.sum()),))
    out = model(words, lengths.cumsum(0) - lengths)
    seen.append(type(out))
    loss = F.cross_entropy(out, torch.arange(TEXTS) % 2)
    loss.backward()
    return [loss.detach() * 1, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def _both(rank: Rank) -> tuple[bool, dict[str, int], list[str], int, list[type]]:
    seen: list[type] = []
    plain = _step([])
    with rank.session() as session:
        found = _step(seen)
        alike = all(torch.allclose(a, b, rtol=1e-11) for a, b in zip(plain, found, strict=True))
        return alike, dict(session.tally.sharded), without_codes(session.notes), session.tally.samples, seen


def test_what_is_behind_the_bag_is_cut(ranks: Any) -> None:
    for answer in ranks(2, _both):
        assert answer == (True, {"Linear": 1}, [], TEXTS, [GlobalTensor])
