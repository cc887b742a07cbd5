"""A mixture of Hugging Face's, with padding in one rank's rows only."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from parallel.cut_models import Ranks, compare
from parallel.test_experts_ranks import train
from parallel.test_mixtures_ranks import in_double, mixture_of
from ronde.testing.run_ranks import RankPool

FIRST, LAST = slice(0, 3), slice(3, 6)

pytestmark = pytest.mark.soak


def _trained(padded: slice, attention: str) -> list[torch.Tensor]:
    def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(ids)
        mask[padded, 2] = 0
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), ids.masked_fill(mask == 0, -100).flatten())

    pytest.importorskip("transformers")
    sizes = {"num_local_experts": 8, "attn_implementation": attention}
    with in_double():
        return train(lambda: mixture_of("Mixtral", **sizes), loss_of)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("padded", [FIRST, LAST])
@pytest.mark.parametrize("plan", ["data=2,tensor=2,expert=2", "data=2,pipeline=2,expert=2"])
def test_only_some_ranks_have_padding(four: Ranks, plan: str, padded: slice, attention: str) -> None:
    compare(four, plan, _trained, padded, attention, tolerance=1e-10)


def test_only_some_of_eight_ranks_have_padding() -> None:
    pool = RankPool(8, timeout=180)
    try:
        compare(pool.run, "data=2,tensor=2,pipeline=2,expert=2", _trained, LAST, "sdpa", tolerance=1e-10)
    finally:
        pool.close()
