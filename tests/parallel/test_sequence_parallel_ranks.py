"""Between cut products ranks of a tensor group have some tokens each, and the numbers of one device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from parallel import cut_models
from parallel.cut_models import D, Ranks
from ronde.tensor.global_tensor import GlobalTensor
from ronde.testing.run_ranks import Rank

ROWS, TOKENS, WIDTH, WORDS = 6, 8, 16, 24
ON = "tensor=2,sequence-parallel=on"


class Conv1D(nn.Module):
    """Hugging Face's: a matrix `[in, out]`, on tokens that are flattened."""

    def __init__(self, out: int, given: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(given, out) * 0.2), nn.Parameter(torch.zeros(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return made.view(*x.size()[:-1], self.weight.shape[1])


class ByHand(nn.Module):
    """RMSNorm as models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind, x = x.dtype, x.to(torch.float64)
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).to(kind)


class Block(nn.Module):
    def __init__(self, norm: Callable[[], nn.Module], *, flat: bool, dropout: float, again: bool) -> None:
        super().__init__()
        self.again = again
        self.ln_1, self.ln_2 = norm(), norm()
        linear = (lambda given, out: Conv1D(out, given)) if flat else nn.Linear
        self.c_attn, self.c_proj = linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = linear(WIDTH, 4 * WIDTH), linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (
            torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False)
            if self.again
            else self.body(x)
        )

    def body(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            each.view(*x.shape[:2], 4, -1).transpose(1, 2)
            for each in self.c_attn(self.ln_1(x)).split(WIDTH, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.c_proj(y.transpose(1, 2).reshape(*x.shape[:2], WIDTH)))
        return x + self.drop(self.fc2(F.gelu(self.fc1(self.ln_2(x)))))


class Language(nn.Module):
    def __init__(
        self,
        norm: Callable[[], nn.Module] = lambda: nn.LayerNorm(WIDTH),
        *,
        flat: bool = False,
        dropout: float = 0.0,
        again: bool = False,
        layers: int = 2,
        words: int = WORDS,
    ) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = (
            nn.Embedding(words, WIDTH),
            nn.Embedding(TOKENS, WIDTH),
            nn.Dropout(dropout),
        )
        self.h = nn.ModuleList(Block(norm, flat=flat, dropout=dropout, again=again) for _ in range(layers))
        self.ln_f, self.lm_head = norm(), nn.Linear(WIDTH, words, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.wte(ids) + self.wpe(torch.arange(ids.shape[1])))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "plain": Language,
    "dropout": functools.partial(Language, dropout=0.2),
    "flat": functools.partial(Language, flat=True),
    "by hand": functools.partial(Language, ByHand),
    "again": functools.partial(Language, again=True, dropout=0.2),
    "odd words": functools.partial(Language, flat=True, words=WORDS + 1),
    "few rows": Language,
}


def train(name: str) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model, draw = MODELS[name]().to(D), torch.Generator().manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rows = 3 if name == "few rows" else ROWS
    told: list[torch.Tensor] = []

    def loss_of(rows: int) -> torch.Tensor:
        ids = torch.randint(0, WORDS, (rows, TOKENS), generator=draw)
        return F.cross_entropy(model(ids).flatten(0, 1), ids.roll(-1, 1).flatten())

    for step in range(5):
        optimizer.zero_grad()
        loss = loss_of(rows + step % 2 * rows)
        loss.backward()
        told += [nn.utils.clip_grad_norm_(model.parameters(), 0.5).clone(), loss.detach().clone()]
        optimizer.step()
    model.eval()
    with torch.no_grad():
        told.append(loss_of(rows).clone())
    return told + [value.clone() for value in model.state_dict().values()]


def on_ranks(rank: Rank, plan: str, work: Callable[..., Any], *args: Any) -> Any:
    with rank.session(plan):
        return work(*args)


def compare(ranks: Ranks, plan: str, name: str) -> None:
    expected = train(name)
    for found in ranks(on_ranks, plan, train, name):
        for got, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=() if each in ("flat", "again") else pytest.mark.soak) for each in MODELS],
)
def test_a_model_has_the_numbers_of_one_device(two: Ranks, name: str):
    compare(two, ON, name)


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=() if each == "decoder" else pytest.mark.soak) for each in cut_models.MODELS],
)
def test_models_that_do_other_things_too_have_them(two: Ranks, name: str):
    cut_models.compare(two, ON, cut_models.train, name)


NESTED = [
    "data=2,tensor=2,zero3", "tensor=2,context=2", "tensor=2,pipeline=2,micro-batches=2", "tensor=4",
    "data=2,tensor=2,recompute=full", "data=2,tensor=2,recompute=selective",
]  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "name"),
    [
        pytest.param(plan, name, marks=() if "context" in plan and name == "flat" else pytest.mark.soak)
        for plan in NESTED
        for name in ("dropout", "by hand", "flat")
    ],
)
def test_other_axes_beside_it_change_nothing(four: Ranks, plan: str, name: str):
    compare(four, f"{plan},sequence-parallel=on", name)


def kept(model: nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A loss, and the bytes that are kept for its backward, without parameters."""
    found: dict[int, int] = {}

    def saved(value: torch.Tensor) -> torch.Tensor:
        own = value._local if isinstance(value, GlobalTensor) else value
        assert own is not None
        if own.grad_fn is not None or not own.requires_grad:
            found[own.untyped_storage().data_ptr()] = own.untyped_storage().nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(saved, lambda value: value):
        loss = model(ids).sum()
    return loss, sum(found.values())


def made(layers: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(1)
    ids = torch.arange(4 * ROWS * TOKENS).view(-1, TOKENS) % WORDS
    return Language(layers=layers).to(D), ids


def moved(rank: Rank, way: str, layers: int) -> tuple[float, int]:
    """Bytes that a rank sends in a step, as rings do, and that it keeps for backward."""
    with rank.session(f"tensor={rank.world_size},sequence-parallel={way}") as session:
        model, ids = made(layers)
        model(ids).sum().backward()
        strategy: Any = session.strategies.ordered[0]
        comm, sent, others = strategy.calls.stand_ins.comm, list[float](), rank.world_size - 1
        share = others / rank.world_size
        factors = {"all_reduce": 2 * share, "all_gather": others, "reduce_scatter": share, "wait": 0}
        comm.listener = lambda name, begun, ended, nbytes: sent.append(factors[name] * nbytes)
        loss, held = kept(model, ids)
        loss.backward()
        comm.listener = None
        return sum(sent), held


def test_tokens_move_and_are_kept_as_the_formula_has_it(two: Ranks):
    unit = made(1)[1].numel() * WIDTH * 8

    def by_layer(measured: Callable[[int], Sequence[float]]) -> list[float]:
        """In units of a value of all tokens, what a layer adds."""
        few, many = measured(3), measured(5)
        return [(more - less) / 2 / unit for less, more in zip(few, many, strict=True)]

    (alone,) = by_layer(lambda layers: (kept(*made(layers))[1],))
    whole, cut = (by_layer(lambda layers, way=way: two(moved, way, layers)[0]) for way in ("off", "on"))
    # Two gathers and two scatters each way, and a gather for each of two weights' gradients.
    assert 10 / 2 <= cut[0] <= 1.05 * 10 / 2
    assert whole[0] == pytest.approx(8 / 2, rel=0.01)
    # Of a residual and a norm's result, twice, the other rank's tokens.
    assert whole[1] - cut[1] >= 0.99 * 4 / 2
    assert cut[1] <= 1.01 * alone / 2
