"""What leaves a cut model stays cut: scripts compute with it, read it and write to it as on one device."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from meshes.models import MODELS, VOCABULARY
from parallel.cut_models import Ranks
from ronde.testing.run_ranks import Rank

PLANS = ["tensor=2", "context=2", "pipeline=2,micro-batches=2"]
ON_FOUR = [
    *("tensor=2,context=2", "data=2,tensor=2", "data=2,context=2"),
    *("pipeline=4", "data=2,pipeline=2", "tensor=2,pipeline=2", "pipeline=2,context=2,micro-batches=2"),
]


def uses() -> list[torch.Tensor]:
    """What scripts do with logits `[rows, tokens, words]`, one after the other."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    model = MODELS["gpt"]()
    ids = torch.randint(0, VOCABULARY, (4, 8))
    told = list[torch.Tensor]()

    def step(loss: torch.Tensor) -> None:
        model.zero_grad()
        loss.backward()
        told.append(loss.detach().clone())
        told.extend(each.grad.clone() for each in model.parameters() if each.grad is not None)

    logits = model(ids)
    step(F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1)))
    step(F.cross_entropy(model(ids).transpose(1, 2), ids, label_smoothing=0.1))
    step((model(ids).softmax(-1) * torch.arange(VOCABULARY)).mean())
    step(F.mse_loss(model(ids), torch.ones(4, 8, VOCABULARY)))
    step(model(ids).logsumexp(-1).square().sum() + model(ids).max())
    logits = model(ids)
    logits.retain_grad()
    logits.register_hook(lambda gradient: gradient * 2)
    step(logits.square().mean())
    told.append(logits.grad.clone())
    logits = model(ids)
    (by_logits,) = torch.autograd.grad(logits.tanh().sum(), logits)
    told += [by_logits + 0, logits.argmax(-1), logits.topk(3).indices, logits.detach()[..., :3]]
    with torch.no_grad():
        changed = model(ids)
        view = changed[:, 0]
        changed[ids == 3] = 0.0
        view.mul_(2)
        told += [changed.clone(), view.clone(), torch.tensor([changed[0, 0, 0].item(), float(changed.sum())])]
    torch.set_default_dtype(torch.float32)
    return [torch.tensor(each.tolist()) for each in told]


def _on_rank(rank: Rank, plan: str) -> list[torch.Tensor]:
    with rank.session(plan=plan):
        return uses()


def _compare(ranks: Ranks, plan: str) -> None:
    expected = uses()
    for told in ranks(_on_rank, plan):
        torch.testing.assert_close(told, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("plan", PLANS)
def test_scripts_use_what_leaves_a_model_as_they_like(two: Ranks, plan: str) -> None:
    _compare(two, plan)


@pytest.mark.soak
@pytest.mark.parametrize("plan", ON_FOUR)
def test_scripts_use_what_leaves_a_model_as_they_like_on_four_ranks(four: Ranks, plan: str) -> None:
    _compare(four, plan)


WORDS, ROWS = 4096, 64


def _bytes_of_a_loss(rank: Rank, plan: str) -> int:
    with rank.session(plan=plan) as session:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, WORDS, bias=False))
        ids = torch.arange(ROWS)
        sent = [0]
        for _ in range(4):
            F.cross_entropy(model(ids), ids).backward()
            sent.append(sum(group.sent_bytes for group in session.groups.all))
        return sent[-1] - sent[-2]


@pytest.mark.parametrize("plan", ["tensor=2", "pipeline=2"])
def test_a_loss_outside_of_the_model_gathers_no_logits(two: Ranks, plan: str) -> None:
    assert max(two(_bytes_of_a_loss, plan)) < ROWS * WORDS  # a quarter of the logits' bytes
