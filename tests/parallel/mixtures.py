"""Mixtures of experts as people write them; six experts, so that two ranks and three have equally many."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["FORMS", "NOT_SPREAD", "form"]

WIDTH, EXPERTS, CHOSEN = 8, 6, 2


def _expert(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), *between, nn.Linear(2 * WIDTH, WIDTH))


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts: Any = nn.ModuleList(_expert() for _ in range(EXPERTS))

    def routed(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        tokens = x.reshape(-1, WIDTH)
        return tokens, *self.gate(tokens).softmax(-1).topk(CHOSEN, -1)

    def added(self, x: torch.Tensor, weights: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, WIDTH)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(choices == number)
            if len(rows):
                out.index_add_(0, rows, expert(tokens[rows]) * weights[rows, places, None])
        return out.view_as(x)


class Masks(Mixture):
    """Of sequences; a mask for each expert."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x).softmax(-1)
        choices = scores.topk(CHOSEN, -1).indices
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mask = (choices == number).any(-1)
            if mask.any():
                out[mask] += expert(x[mask]) * scores[mask][:, number, None]
        return out


class MasksOfChoices(Mixture):
    """A mask for each choice and expert."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens, weights, choices = self.routed(x)
        out = torch.zeros_like(tokens)
        for choice in range(CHOSEN):
            for number, expert in enumerate(self.experts):
                mask = choices[:, choice] == number
                if mask.sum() > 0:
                    out[mask] = out[mask] + weights[mask, choice].unsqueeze(-1) * expert(tokens[mask])
        return out.view_as(x)


class Stacked(Mixture):
    """Every expert on every token."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, choices = self.gate(x).softmax(-1).topk(CHOSEN, -1)
        full = torch.zeros(*x.shape[:-1], EXPERTS, dtype=x.dtype).scatter(-1, choices, weights)
        return torch.einsum("bte,bted->btd", full, torch.stack([each(x) for each in self.experts], dim=-2))


class Sorted(Mixture):
    """Tokens in the order of their experts, and counts, as in DeepSeek's own code."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens, weights, choices = self.routed(x)
        order = choices.flatten().argsort(stable=True)
        counts = choices.flatten().bincount(minlength=EXPERTS).tolist()
        parts = tokens[order // CHOSEN].split(counts)
        made = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        back = torch.empty_like(made)
        back[order] = made
        return (back.view(-1, CHOSEN, WIDTH) * weights[..., None]).sum(1).view_as(x)


class Grouped(Mixture):
    """As DeepSeek-V3: two of three groups, two of their experts, a bias that chooses, an expert of all."""

    def __init__(self) -> None:
        super().__init__()
        self.shared_experts = _expert()
        self.register_buffer("bias", torch.linspace(-0.01, 0.01, EXPERTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, WIDTH)
        scores = self.gate(tokens).sigmoid()
        grouped = (scores + self.bias).view(len(tokens), 3, -1)
        best = grouped.topk(2, -1).values.sum(-1).topk(2, -1).indices
        mask = torch.zeros(len(tokens), 3, dtype=x.dtype).scatter_(1, best, 1)
        allowed = mask[..., None].expand_as(grouped).reshape(len(tokens), -1)
        choices = (scores + self.bias).masked_fill(allowed == 0, -math.inf).topk(CHOSEN, -1).indices
        weights = scores.gather(1, choices)
        return self.added(x, weights / weights.sum(-1, keepdim=True), choices) + self.shared_experts(x)


class OneByOne(Mixture):
    """A token after the other, each without a dimension of tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens, weights, choices = self.routed(x)
        made = [
            sum(weight * self.experts[int(choice)](token) for weight, choice in zip(*each, strict=True))
            for token, *each in zip(tokens, weights, choices, strict=True)
        ]
        return torch.stack(made).view_as(x)


class Named(Mixture):
    """Experts have names."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleDict({f"expert_{number}": _expert() for number in range(EXPERTS)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens, weights, choices = self.routed(x)
        out = torch.zeros_like(tokens)
        for number in choices.unique().tolist():
            rows, places = torch.where(choices == number)
            out.index_add_(
                0, rows, self.experts[f"expert_{number}"](tokens[rows]) * weights[rows, places, None]
            )
        return out.view_as(x)


class _Calling(nn.ModuleList):
    def forward(self, tokens: torch.Tensor, hot: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self):
            rows, places = torch.where(hot[..., number] > 0)
            out.index_add_(0, rows, expert(tokens[rows]) * weights[rows, places, None])
        return out


class Calling(Mixture):
    """A list of experts with a forward of its own; what balances them is computed beside."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = _Calling(_expert() for _ in range(EXPERTS))

    def forward(self, x: torch.Tensor) -> Any:
        tokens, weights, choices = self.routed(x)
        hot = F.one_hot(choices, EXPERTS)
        load = hot.to(x.dtype).sum(1).mean(0)
        return self.experts(tokens, hot, weights).view_as(x), load.pow(2).sum() * weights.mean()


class Einsum(Mixture):
    """Dense dispatch: each expert has so many slots, and tokens beyond these are dropped."""

    factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens, weights, choices = self.routed(x)
        slots = math.ceil(self.factor * CHOSEN * len(tokens) / EXPERTS)
        hot = F.one_hot(choices, EXPERTS)
        first = hot.transpose(0, 1).reshape(-1, EXPERTS).cumsum(0).view(CHOSEN, -1, EXPERTS).transpose(0, 1)
        place = first * hot - 1
        kept = ((place >= 0) & (place < slots))[..., None]
        taken = (F.one_hot(place.clamp(0, slots - 1), slots) * kept).to(x.dtype)
        given = torch.einsum("tkec,td->ecd", taken, tokens)
        made = torch.stack([expert(each) for expert, each in zip(self.experts, given, strict=True)])
        return torch.einsum("tkec,tk,ecd->td", taken, weights, made).view_as(x)


class Roomy(Einsum):
    """An expert has a slot for every token."""

    factor = 3.0


class Tight(Einsum):
    """In the first calls nothing is dropped, in later ones something is."""

    factor = 2.0


class Dropping(Mixture):
    """An expert takes the first of its tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, WIDTH)
        most, choice = self.gate(tokens).softmax(-1).max(-1)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows = (choice == number).nonzero().flatten()[: len(tokens) // EXPERTS + 1]
            if rows.numel():
                out[rows] = expert(tokens[rows]) * most[rows, None]
        return out.view_as(x)


class Choosing(Mixture):
    """Experts choose tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, WIDTH)
        weights = self.gate(tokens).softmax(-1).t()
        # Equal tokens, of which rounding would choose, come in their order.
        ahead = weights.detach() + 1e-6 * torch.arange(len(tokens))
        rows = ahead.topk(len(tokens) * CHOSEN // EXPERTS, -1).indices
        weights = weights.gather(-1, rows)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            out = out.index_add(0, rows[number], expert(tokens[rows[number]]) * weights[number, :, None])
        return out.view_as(x)


class Noisy(Mixture):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.gate(x.reshape(-1, WIDTH))
        if self.training:
            logits = logits + torch.randn_like(logits) * 0.1
        weights, choices = logits.softmax(-1).topk(CHOSEN, -1)
        return self.added(x, weights, choices)


class Dropout(Mixture):
    """In the experts."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(_expert(nn.Dropout(0.2)) for _ in range(EXPERTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, weights, choices = self.routed(x)
        return self.added(x, weights, choices)


class Counting(Mixture):
    """The load of experts is counted, and counts when they are chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("load", torch.zeros(EXPERTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x.reshape(-1, WIDTH)).sigmoid()
        choices = (scores - self.load * 0.01).topk(CHOSEN, -1).indices
        if self.training:
            self.load += choices.flatten().bincount(minlength=EXPERTS).to(self.load.dtype)
        return self.added(x, scores.gather(1, choices), choices)


class Balanced(Mixture):
    """A loss over all tokens is returned beside the output."""

    def forward(self, x: torch.Tensor) -> Any:
        _, weights, choices = self.routed(x)
        load = F.one_hot(choices, EXPERTS).to(x.dtype).sum(1).mean(0)
        return self.added(x, weights, choices), load.pow(2).sum() * weights.mean()


FORMS: dict[str, type[nn.Module]] = {
    each.__name__: each
    for each in (
        Masks, MasksOfChoices, Stacked, Sorted, Grouped, OneByOne, Named, Calling, Roomy,
        Einsum, Tight, Dropping, Choosing, Noisy, Dropout, Counting, Balanced,
    )
}  # fmt: skip

NOT_SPREAD = {
    "Einsum": "its rows are not independent",
    "Tight": "an expert may have no room for its tokens",
    "Dropping": "its rows are not independent",
    "Choosing": "its rows are not independent",
    "Noisy": "it draws random numbers",
    "Dropout": "it draws random numbers",
    "Counting": "its calls change its buffers",
    "Balanced": "its output is not one row per token",
}
"""Why the experts of a form are not spread in training."""


class _Model(nn.Module):
    def __init__(self, kind: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, WIDTH)
        self.first, self.second, self.head = kind(), kind(), nn.Linear(WIDTH, 12)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        extra: Any = 0.0
        for mixture in (self.first, self.second):
            made = mixture(x)
            made, beside = made if isinstance(made, tuple) else (made, 0.0)
            x, extra = x + made, extra + beside
        return F.cross_entropy(self.head(x).flatten(0, 1), ids.flatten()) + 0.1 * extra


def form(name: str) -> nn.Module:
    """A model of two such mixtures; its output is the loss."""
    return _Model(FORMS[name])
