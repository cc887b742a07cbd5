"""Sequences that begin inside of a model, as patches or frames that a convolution makes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cut_shares.models import MODELS
from parallel.cut_models import D, Ranks
from parallel.test_context_ranks import Block, compare
from ronde.errors import UsageError
from ronde.testing.run_ranks import Rank


class Patches(nn.Module):
    """Patches by a convolution, a token of the class before them, and learned places."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 2, stride=2)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 10, 16))
        self.blocks = nn.ModuleList(Block(0.1, causal=False, by_hand=each == 1) for each in range(2))
        self.head = nn.Linear(16, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0] + x.mean(1))


class Frames(nn.Module):
    """Of sound, by a convolution along time with steps; words attend to them, and are of another number."""

    def __init__(self) -> None:
        super().__init__()
        self.hear, self.words = nn.Conv1d(4, 16, 3, stride=2, padding=1), nn.Embedding(20, 16)
        self.block = Block(0.0, causal=False, by_hand=False)
        self.decoder = nn.TransformerDecoderLayer(16, 4, 24, 0.1, batch_first=True)
        self.head = nn.Linear(16, 20)

    def forward(self, sound: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        heard = self.block(F.gelu(self.hear(sound)).transpose(1, 2))
        return self.head(self.decoder(self.words(ids), heard))


def train(kind: str) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model = {"patches": Patches, "frames": Frames}[kind]().to(D)
    draw = torch.Generator().manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    told: list[torch.Tensor] = []
    for step in range(6):
        ids = torch.randint(0, 20, (4, 7 - step % 2), generator=draw)
        if kind == "patches":
            logits = model(torch.randn(4, 3, 6, 6, generator=draw, dtype=D))
            loss = F.cross_entropy(logits, ids[:, 0] % 5)
        else:
            logits = model(torch.randn(4, 4, 2 * (9 + step % 3), generator=draw, dtype=D), ids)
            loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        told += [nn.utils.clip_grad_norm_(model.parameters(), 0.5).clone(), loss.detach().clone()]
        optimizer.step()
    return told + [value.clone() for value in model.state_dict().values()]


@pytest.mark.parametrize("kind", ["patches", "frames"])
def test_sequences_begin_behind_a_convolution(two: Ranks, kind: str):
    compare(two, "context=2", train, kind)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["patches", "frames"])
@pytest.mark.parametrize(
    "plan",
    [
        "tensor=2,context=2",
        "pipeline=2,context=2",
        "context=4,context-attention=ring",
        "data=2,context=2,zero3",
        "data=2,context=2,recompute=full",
        "data=2,context=2,micro-batches=2",
    ],
)
def test_sequences_begin_behind_a_convolution_on_four_ranks(four: Ranks, kind: str, plan: str):
    compare(four, plan, train, kind)


def named(name: str) -> list[torch.Tensor]:
    pytest.importorskip("transformers")
    default = torch.get_default_dtype()
    torch.set_default_dtype(D)
    try:
        torch.manual_seed(1)
        model, loss_of = MODELS[name]()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        told: list[torch.Tensor] = []
        for _ in range(3):
            loss = loss_of(model)
            optimizer.zero_grad()
            loss.backward()
            told += [nn.utils.clip_grad_norm_(model.parameters(), 0.5).clone(), loss.detach().clone()]
            optimizer.step()
    finally:
        torch.set_default_dtype(default)
    return told + [value.clone() for value in model.state_dict().values()]


@pytest.mark.soak
@pytest.mark.parametrize("name", ["ViT", "Whisper"])
def test_models_of_hugging_face_begin_by_convolutions(two: Ranks, name: str):
    compare(two, "context=2", named, name)


def refused(rank: Rank) -> str:
    with rank.session("context=2"):
        model, loss_of = MODELS["U-Net with attention"]()
        try:
            for _ in range(2):
                loss_of(model).backward()
        except UsageError as error:
            return str(error)
    return ""


def test_attention_over_places_that_no_module_is_given_is_refused_by_name(two: Ranks):
    said: Any = two(refused)
    assert set(said) == {
        "context=2 cuts sequences over ranks, and _UNet attends to 64 entries inside of _ImageAttention, "
        "which are not an argument [rows, entries, ...] of any module; take a plan without context, such as "
        "tensor=2 [R250]"
    }
