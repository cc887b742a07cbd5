"""Sequences cut over ranks: the numbers of one device, or a refusal that names what else works along them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from parallel.cut_models import Ranks
from ronde.errors import UsageError
from ronde.testing.run_ranks import Rank

D = torch.float64


class Block(nn.Module):
    def __init__(self, dropout: float, *, causal: bool, by_hand: bool) -> None:
        super().__init__()
        self.dropout, self.causal, self.by_hand = dropout, causal, by_hand
        self.register_buffer("earlier", torch.ones(32, 32).tril())
        self.earlier: torch.Tensor
        self.norm, self.second = nn.LayerNorm(16), nn.RMSNorm(16)
        self.qkv, self.proj = nn.Linear(16, 48, bias=False), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.Dropout(dropout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            each.view(batch, length, 4, -1).transpose(1, 2)
            for each in self.qkv(self.norm(x)).split(width, dim=2)
        )
        if self.by_hand:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            if self.causal:
                scores = scores.masked_fill(self.earlier[:length, :length] == 0, float("-inf"))
            y = F.dropout(F.softmax(scores, dim=-1), self.dropout, self.training) @ v
        else:
            p = self.dropout if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=self.causal)
        x = x + self.proj(y.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.mlp(self.second(x))


class Language(nn.Module):
    def __init__(self, dropout: float = 0.0, *, causal: bool = True, by_hand: bool = False) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(20, 16, padding_idx=3), nn.Embedding(16, 16)
        self.blocks = nn.ModuleList(Block(dropout, causal=causal, by_hand=by_hand) for _ in range(2))
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Encoder(nn.Module):
    """torch's own layers, with dropout, a mask of what pads, a mean over the sequence and entries of it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 24, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 20)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.encoder(self.embed(ids), src_key_padding_mask=ids == 0)
        x = x.masked_fill((ids > 9)[:, -1:, None], 0.5)
        return self.head(x + x.mean(1, keepdim=True) + x[:, -1].unsqueeze(1) * x[:, :1] + x[:, [-2], :])


class Letters(nn.Module):
    """Attention by `einsum`, to entries of which some are masked by adding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv = nn.Embedding(20, 16), nn.Linear(16, 48)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        q, k, v = (each.unflatten(-1, (2, 8)) for each in self.qkv(x).chunk(3, -1))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k)
        scores = scores + (ids == 0)[:, None, None, :] * -1e9
        return x + torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2)


class Grouped(nn.Module):
    """Two queries for each key by torch's own option, with a mask that is added, to what is far away."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.q, self.kv = nn.Embedding(20, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 20)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, places = self.embed(ids), torch.arange(ids.shape[1])
        q = self.q(x).unflatten(-1, (4, 4)).transpose(1, 2)
        k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in self.kv(x).chunk(2, -1))
        away = -0.3 * (places[:, None] - places).abs().to(x.dtype)
        p = 0.2 if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, away, p, scale=0.4, enable_gqa=True)
        return self.head(x + y.transpose(1, 2).flatten(2))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "causal": Language,
    "both ways": lambda: Language(causal=False),
    "dropout": lambda: Language(0.2),
    "encoder": Encoder,
    "by hand": lambda: Language(0.2, by_hand=True),
    "grouped": Grouped,
    "by letters": lambda: nn.Sequential(Letters(), nn.Linear(16, 20)),
}


def train(make: Callable[[], nn.Module], length: int, batch: int = 4) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model = make().to(D)
    draw = torch.Generator().manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    told: list[torch.Tensor] = []

    def loss_of(rows: int, tokens: int) -> torch.Tensor:
        ids = torch.randint(0, 20, (rows, tokens), generator=draw)
        logits = model(ids)
        logits = logits if isinstance(logits, torch.Tensor) else logits.logits
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten())

    for step in range(10):
        loss = loss_of(batch, length - step % 2)
        optimizer.zero_grad()
        loss.backward()
        told += [nn.utils.clip_grad_norm_(model.parameters(), 0.5).clone(), loss.detach().clone()]
        optimizer.step()
    model.eval()
    with torch.no_grad():
        told.append(loss_of(batch, length).clone())
    return told + [value.clone() for value in model.state_dict().values()]


def named(name: str, length: int = 7, batch: int = 4) -> list[torch.Tensor]:
    return train(MODELS[name], length, batch)


def on_ranks(rank: Rank, plan: str, work: Callable[..., Any], *args: Any) -> tuple[Any, bool]:
    with rank.session(plan) as session:
        found = work(*args)
        strategy: Any = session.strategies.ordered[-1]
        return found, strategy.sequences.cut_some


def compare(ranks: Ranks, plan: str, work: Callable[..., Any], *args: Any) -> None:
    expected = work(*args)
    for found, cut_some in ranks(on_ranks, plan, work, *args):
        assert cut_some
        for got, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["dropout", "encoder", "by hand", "by letters"])
def test_sequences_are_cut_to_the_numbers_of_one_device(two: Ranks, name: str):
    compare(two, "context=2", named, name)


def test_a_batch_of_one_sequence_is_cut(two: Ranks):
    compare(two, "context=2", named, "dropout", 9, 1)


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("plan", ["context=2", "context=2,context-attention=ring"])
def test_a_batch_of_one_sequence_of_all_models(two: Ranks, name: str, plan: str):
    compare(two, plan, named, name, 9, 1)


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["tensor=2,context=2", "pipeline=2,context=2", "context=4"])
def test_one_sequence_on_four_ranks(four: Ranks, plan: str):
    compare(four, plan, named, "dropout", 9, 1)


RING = "context-attention=ring"


@pytest.mark.parametrize("name", ["dropout", "grouped"])
def test_keys_go_around_a_ring_to_the_numbers_of_one_device(two: Ranks, name: str):
    compare(two, f"context=2,{RING}", named, name)


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("length", [6, 8, 15])
@pytest.mark.parametrize("way", ["gather", "ring"])
def test_sequences_of_other_lengths(two: Ranks, name: str, length: int, way: str):
    compare(two, f"context=2,context-attention={way}", named, name, length)


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", ["gather", "ring"])
def test_sequences_on_three_ranks(ranks: Ranks, name: str, way: str):
    compare(functools.partial(ranks, 3), f"context=3,context-attention={way}", named, name)


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "plan", ["data=2,context=2", "context=4", f"data=2,context=2,{RING}", f"context=4,{RING}"]
)
def test_sequences_on_four_ranks(four: Ranks, name: str, plan: str):
    compare(four, plan, named, name, 9)


def hugging_face(kind: str) -> list[torch.Tensor]:
    transformers: Any = pytest.importorskip("transformers")
    common = {"vocab_size": 20, "attn_implementation": "sdpa"}
    llama = {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0,
    }  # fmt: skip
    bert = {name: value for name, value in llama.items() if name != "num_key_value_heads"}
    gpt2 = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32}
    config, model, sizes = {
        "Llama": ("LlamaConfig", "LlamaForCausalLM", llama),
        "GPT2": ("GPT2Config", "GPT2LMHeadModel", gpt2),
        "Bert": ("BertConfig", "BertForMaskedLM", bert),
    }[kind]
    made = getattr(transformers, config)(**sizes, **common, use_cache=False)
    return train(lambda: getattr(transformers, model)(made), 9)


@pytest.mark.soak
@pytest.mark.parametrize(
    "plan",
    [
        "data=2,context=2,zero3",
        pytest.param("context=4,zero1", marks=pytest.mark.soak),
        pytest.param("context=4,zero2", marks=pytest.mark.soak),
        pytest.param("context=4,zero3", marks=pytest.mark.soak),
        pytest.param("data=2,context=2,central", marks=pytest.mark.soak),
    ],
)
def test_state_is_cut_over_the_ranks_of_a_sequence_too(four: Ranks, plan: str):
    compare(four, plan, named, "dropout")


@pytest.mark.parametrize("kind", ["Llama", "GPT2", "Bert"])
def test_models_of_hugging_face(two: Ranks, kind: str):
    compare(two, "context=2", hugging_face, kind)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["Llama", "GPT2", "Bert"])
def test_models_of_hugging_face_around_a_ring(two: Ranks, kind: str):
    compare(two, f"context=2,{RING}", hugging_face, kind)


class Running(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(1)


class ChangesEntry(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        x[:, 0].add_(1)
        return x


class ChangesAfterwards(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        last = x[:, -1:]
        x.mul_(2)
        return x + last


def refused(rank: Rank, layer: type[nn.Module]) -> str:
    """What is said of a layer behind attention."""
    with rank.session("context=2"):
        torch.manual_seed(0)
        model = nn.Sequential(
            Language(),
            nn.Linear(20, 16),
            Block(0.0, causal=True, by_hand=False),
            layer(),
        )
        said = ""
        for _ in range(4):
            try:
                model(torch.randint(0, 20, (4, 6))).sum().backward()
            except UsageError as error:
                said = str(error)
        return said


def test_other_work_along_sequences_is_refused_by_name(two: Ranks):
    for said in two(refused, Running):
        assert "context=2 cuts sequences of 6 entries over ranks, and Sequential works along them by" in said
        assert "cumsum" in said


@pytest.mark.parametrize(
    ("layer", "what"),
    [
        (ChangesEntry, "takes an entry of a sequence, as x[:, 0], and changes it in place"),
        pytest.param(ChangesAfterwards, "works along them by mul_", marks=pytest.mark.soak),
    ],
)
def test_changes_of_an_entry_or_of_its_sequence_are_refused(two: Ranks, layer: type[nn.Module], what: str):
    for said in two(refused, layer):
        assert what in said


def tokens_of_layers(rank: Rank) -> set[int]:
    """How many of eight tokens of a sequence linear layers are given on this rank."""
    with rank.session("context=2") as session:
        torch.manual_seed(0)
        strategy: Any = session.strategies.ordered[-1]
        rules = strategy.sequences._rules
        model, plain, seen = Language(), rules[F.linear], set[int]()

        def linear(context: Any, func: Any, args: Any, kwargs: Any) -> Any:
            seen.add(args[0]._local.shape[1])
            return plain(context, func, args, kwargs)

        rules[F.linear] = linear
        for _ in range(3):
            model(torch.randint(0, 20, (4, 8))).sum().backward()
        return seen


def test_a_rank_computes_its_tokens_only(two: Ranks):
    assert two(tokens_of_layers) == [{4}, {4}]


def nothing_attends(rank: Rank) -> list[str]:
    with rank.session("context=2") as session:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        for _ in range(2):
            model(torch.randn(4, 6, 4)).sum().backward()
        return session.strategies.notes()


def test_a_model_without_attention_is_computed_whole_and_that_is_said(two: Ranks):
    for (said,) in two(nothing_attends):
        assert said.startswith("context=2 cuts nothing: no module that runs as one piece has attention")
