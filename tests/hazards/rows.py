"""Models whose rows depend on one another, or on how many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hazards.harness import D, Hazard, Lambda, data, loader, modelled, train

T = torch.Tensor


def _model(function: Callable[[Any, T], T], **parts: Any) -> Callable[[], Any]:
    """Trains a linear layer followed or led by `function`."""
    return modelled(lambda: Lambda(function, a=nn.Linear(4, 3), **parts))


def _gated(gate: float, learnt: bool) -> Callable[[], nn.Module]:
    """Rows mixed behind a gate that is all but shut when training begins."""

    def forward(m: Any, x: T) -> T:
        return m.a(x) + m.gate * m.a(x).mean(0)

    def make() -> nn.Module:
        value = torch.tensor(gate, dtype=D)
        return Lambda(forward, a=nn.Linear(4, 3), gate=nn.Parameter(value) if learnt else value)

    return make


class _ZeroInit(nn.Module):
    """A residual branch over the batch whose last layer begins at nought."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(3, 3)
        nn.init.zeros_(self.b.weight)
        nn.init.zeros_(self.b.bias)

    def forward(self, x: T) -> T:
        h = self.a(x)
        return h + self.b(h - h.mean(0))


def _swapped(m: Any, x: T) -> T:
    """Neighbours in pairs: halves of an even size hold whole pairs."""
    h = m.a(x)
    pairs = h[: len(h) // 2 * 2].view(-1, 2, 3).flip(1).reshape(-1, 3)
    return h + torch.cat([pairs, h[len(pairs) :]])


def _moved(m: Any, x: T) -> T:
    h = m.a(x)
    mixed = h.clone()
    mixed[: len(h) // 2] += h[len(h) // 2 :].detach()[: len(h) // 2]
    return mixed


def _one_hot_pool(m: Any, x: T) -> T:
    """Graphs in a batch: rows with the same key are averaged, as in message passing."""
    h, key = m.a(x), (x[:, 0] > 0).long()
    total = torch.zeros(2, 3, dtype=x.dtype).index_add(0, key, h)
    return h + total[key]


class _Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.a = nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, ids: T) -> T:
        h = self.e(ids).mean(1)
        return self.a(h + 1e-8 * h.mean(0))


def _token_data() -> Any:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 5, (22, 6), generator=generator)
    return torch.utils.data.TensorDataset(ids, torch.randint(0, 3, (22,), generator=generator))


class _GhostNorm(nn.Module):
    """Statistics of groups of four rows."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x: T) -> T:
        h = self.a(x)
        return torch.cat([part - part.mean(0) for part in h.split(4)])


_MIXED = "rows of its output depend on other rows"
_READ = "reads a value of the batch on the host"


def _many(m: Any, x: T) -> T:
    """Another branch than the first call's, on many rows only."""
    h = m.a(x)
    return h - h.mean(0) if len(x) > 7 else h


def _many_more(m: Any, x: T) -> T:
    """On more rows than a trial is made on."""
    return m.a(x) * (2.0 if len(x) > 15 else 1.0)


def _by_number(m: Any, x: T) -> T:
    return m.a(x) * (2.0 if x.shape[0] >= 8 else 1.0)


def _few_at_a_time(m: Any, x: T) -> T:
    """Its answer is the same, but how it comes about is another: that cannot be known."""
    return torch.cat([m.a(part) for part in x.split(4)]) if x.size(0) > 5 else m.a(x)


def _capacity(m: Any, x: T) -> T:
    """So many rows of a kind are taken as a number says, which a few rows do not reach."""
    h = m.a(x)
    kind = F.one_hot((x[:, 0] > 0).long(), 2)
    place = (kind.cumsum(0) * kind).sum(-1)
    return h * (place <= max(5, len(x) * 3 // 4))[:, None]


def _largest(m: Any, x: T) -> T:
    """A size by which another axis than the batch is cut."""
    return m.a(x).topk(max(1, len(x) // 4), dim=1)[0].sum(1, keepdim=True) + m.a(x)


def _by_kind(m: Any, x: T) -> T:
    """Its integers are sizes: they are more for more rows, and decide nothing."""
    rows, width = x.shape
    h = torch.stack([m.a(x), -m.a(x)], 1).flatten(0, 1)
    first = torch.arange(0, rows * 2, 2)
    mine = h[first + (x[:, 0] > 0)]
    return (
        mine + h.view(rows, 2, -1)[torch.arange(rows), 0] + torch.full((rows, 1), width) * torch.tensor(2.0)
    )


def _sized(m: Any, x: T) -> T:
    """Names sizes, and decides nothing by that of the batch."""
    if x.shape[1] > 2 and len(x.shape) == 2:
        return m.a(x).view(x.size(0), -1)
    return m.a(x)


class _BySize(nn.Module):
    """What a larger batch is computed by looks like what a smaller one is computed by.

    Args:
        function: its forward; may use `m.large`, which of two things the batch is.
    """

    def __init__(self, function: Callable[[Any, T], T]) -> None:
        super().__init__()
        self.function = function
        self.a, self.b, self.c = nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.register_buffer("one", torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("other", torch.tensor([3.0, 2.0, 1.0]))
        self.listed = [torch.full((3,), 0.5, dtype=D), torch.full((3,), 2.0, dtype=D)]
        self.count, self.book = 0, {"large": 0}

    def forward(self, x: T) -> T:
        return self.function(self, x)

    def both(self, x: T) -> tuple[T, T]:
        h = self.a(x)
        return self.b(h), self.c(h)


def _by_size(function: Callable[[Any, T], T], **options: Any) -> Callable[[], Any]:
    """Trains what tells batches of eight rows from smaller ones by `function`."""
    return modelled(lambda: _BySize(function), **options)


def _is_large(x: T) -> bool:
    return x.shape[0] > 7


# Read through a list, so that nothing but the entry says which is meant.
_AROUND = [torch.full((3,), 0.5, dtype=D), torch.full((3,), 2.0, dtype=D)]


def _left_in_another_place(m: Any, x: T) -> T:
    """The same is computed, and something else comes out."""
    b, c = m.both(x)
    return b if _is_large(x) else c


def _wide_from(m: Any, x: T) -> T:
    """As many columns are left out as there are rows, but five at least: a few rows look the same."""
    h = F.pad(m.a(x), (0, 20), value=1.0)
    return m.a(x) + h[:, max(len(x), 5) :].sum(1, keepdim=True)


def _noted_large(m: Any, x: T) -> T:
    if _is_large(x):
        m.count += 1
    return m.a(x) * (1.0 if m.count < 3 else 2.0)


def _noted_large_beside() -> Iterator[Any]:
    book = {"large": 0}

    def forward(m: Any, x: T) -> T:
        if _is_large(x):
            book["large"] += 1
        return m.a(x)

    yield from train(_BySize(forward), seen=lambda: book["large"])


def _layer_by_layer(m: Any, x: T) -> T:
    """Six rows and the next six, each by a layer of their own; no size is named."""
    return torch.cat([layer(part) for layer, part in zip((m.b, m.c), m.a(x).split(6), strict=False)])


def _written_by_size(m: Any, x: T) -> T:
    with torch.no_grad():
        (m.one if _is_large(x) else m.other).mul_(1.0)
    return m.a(x) * m.one


def _by_condition(m: Any, x: T) -> T:
    return torch.cond(x.shape[0] > 7, m.b, m.c, (m.a(x),))


def _all_of_it(m: Any, x: T) -> T:
    """Layers, buffers, constants and lists that are used the same way, and sizes that decide nothing."""
    rows, width = x.shape
    h = m.b(m.a(x).view(rows, -1)) if width > 2 else m.c(m.a(x))
    h = (h + m.one + _AROUND[width - 3]) * torch.tensor([1.0, 2.0, 0.5], dtype=x.dtype)
    kept = torch.as_tensor([1.0] * rows, dtype=x.dtype)[:, None] * torch.tensor(x.shape)[1]
    m.book["width"] = width
    return h.reshape(rows, 1, 3).expand(-1, 2, -1).sum(1) * kept.to(x.dtype)


def _constant_capacity(m: Any, x: T) -> T:
    """An expert takes so many rows and no more, which a few rows do not reach."""
    chosen = F.one_hot(m.a(x).argmax(1), 3)
    place = (chosen.cumsum(0) * chosen).sum(1)
    return m.a(x) * (place <= 4)[:, None]


def _scripted_branch(x: T) -> T:
    return x if bool(x.sum() > 0) else -x


def _in_torchscript(m: Any, x: T) -> T:
    """TorchScript raises an error of its own, in place of that which ends it."""
    return m.a(torch.jit.script(_scripted_branch)(x))


def _padded(*inside: tuple[int, int], hooked: bool = False) -> Iterator[Any]:
    """Evaluates torch's transformer on rows padded at their ends, and at these places.

    Its fast path, which it takes if no row is padded elsewhere, gives zeros at padded places.
    """
    torch.manual_seed(5)
    layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, dtype=D)
    model = Lambda(lambda m, x, padding: m.encoder(m.first(x), src_key_padding_mask=padding).mean(1))
    model.first = nn.Linear(4, 4, dtype=D)
    model.encoder = nn.TransformerEncoder(layer, 3)
    if hooked:
        model.encoder.layers[1].register_forward_hook(lambda *_: None)
    padding = torch.zeros(8, 5, dtype=torch.bool)
    padding[:3, 3:] = padding[6, 4:] = True
    for place in inside:
        padding[place] = True
    with torch.no_grad():
        yield model.eval()(data(5, 4, rows=8).tensors[0], padding)


def _clipped(m: Any, x: T) -> T:
    """A norm of the whole batch, which a few rows do not reach."""
    norm = x.norm()
    return m.a(x * torch.where(norm > 5.0, 5.0 / norm, torch.ones_like(norm)))


def _crowded(m: Any, x: T) -> T:
    """What more than three rows have in common."""
    count = torch.bincount(m.a(x).argmax(1), minlength=3)
    return m.a(x) * torch.where(count > 3, 0.5, 1.0)


class _GhostBatchNorm(nn.Module):
    """Batch norm of eight rows at a time, as TabNet has it: a model with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, x: T) -> T:
        return torch.cat([self.norm(part) for part in self.a(x).chunk(-(-x.shape[0] // 8))])


def _each_by_itself(m: Any, x: T) -> T:
    """Samples as channels of one batch norm, as AdaIN has it."""
    h = m.a(x)
    return h + F.batch_norm(h.view(1, len(h), 3), None, None, training=True).view(len(h), 3)


def _scaled_gradient(m: Any, x: T) -> T:
    """A gradient divided by the number of values, as learnt step sizes have it: forward does not show it."""
    h = m.a(x)
    scaled = h / x.numel() ** 0.5
    return (h - scaled).detach() + scaled


def _centred_twice(m: Any, x: T) -> T:
    """The second mean is nothing but rounding, which depends on how many rows are computed at once."""
    centred = F.layer_norm(m.b(x), (64,))
    return m.a(x) + (centred - centred.mean(1, keepdim=True))[:, :3]


def _checked(m: Any, x: T) -> T:
    """Distributions look at all of their arguments, only to check them."""
    h = torch.distributions.Normal(m.a(x), m.a(x).exp()).mean
    return h + F.one_hot(x[:, 0].abs().long().clamp(max=2), 3)


_GHOST = """
class Ghost(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x):
        h = self.a(x)
        return h - h.mean(0) if x.shape[0] > 7 else h
"""


def _of_a_library() -> nn.Module:
    """A class that lies where packages are installed."""
    names: dict[str, Any] = {"nn": nn, "__name__": "a_library"}
    exec(compile(_GHOST, "/usr/lib/python/site-packages/a_library.py", "exec"), names)
    return names["Ghost"]()


HAZARDS = {
    "many rows, in a library": Hazard(modelled(_of_a_library), "parts", "the number of rows"),
    "capacity of an expert": Hazard(
        _model(_constant_capacity), "parts", "depend on other rows, or on their number (cumsum)"
    ),
    "norm of the batch clipped": Hazard(_model(_clipped), "parts", "depend on other rows"),
    "in common with many": Hazard(_model(_crowded), "parts", ""),
    "every other row otherwise": Hazard(
        _model(lambda m, x: torch.where((torch.arange(len(x)) % 2 == 0)[:, None], m.a(x), m.a(x) ** 2)),
        "parts",
        _MIXED,
    ),
    "ghost batch norm": Hazard(modelled(_GhostBatchNorm, batches=loader(16)), "parts", "the number of rows"),
    "samples as channels": Hazard(_model(_each_by_itself), "parts", "as channels"),
    "gradient by size": Hazard(_model(_scaled_gradient), "parts", "the number of rows"),
    "gradient by a small size": Hazard(
        modelled(lambda: Lambda(_scaled_gradient, a=nn.Linear(4, 3)), batches=loader(4)),
        "parts",
        "the number of rows",
    ),
    "rounding": Hazard(
        modelled(lambda: Lambda(_centred_twice, a=nn.Linear(4, 3), b=nn.Linear(4, 64))), "whole"
    ),
    "one row after the other": Hazard(
        _model(lambda m, x: torch.stack([m.a(row) for row in x])), "parts", "(unbind)"
    ),
    "checked arguments": Hazard(_model(_checked), "whole"),
    "more rows, another branch": Hazard(_model(_many), "parts", "the number of rows"),
    "more rows than a trial takes, another branch": Hazard(
        modelled(lambda: Lambda(_many_more, a=nn.Linear(4, 3)), batches=loader(22)),
        "parts",
        "the number of rows",
    ),
    "more rows, another number": Hazard(_model(_by_number), "parts", "the number of rows"),
    "more rows, another integer": Hazard(
        _model(lambda m, x: m.a(x) * 6 / max(len(x), 6)), "parts", "the number of rows"
    ),
    "more rows, another integer in a tensor": Hazard(
        _model(lambda m, x: m.a(x) / torch.tensor(max(len(x), 6))), "parts", "the number of rows"
    ),
    **{
        f"more rows, {what}": Hazard(_by_size(function), "parts", "the number of rows")
        for what, function in {
            "another layer": lambda m, x: (m.b if _is_large(x) else m.c)(m.a(x)),
            "another layer by torch.cond": _by_condition,
            "another buffer": lambda m, x: m.a(x) + (m.one if _is_large(x) else m.other),
            "another entry of a list": lambda m, x: m.a(x) * m.listed[_is_large(x)],
            "another entry of a global list": lambda m, x: m.a(x) * _AROUND[_is_large(x)],
            "another constant": lambda m, x: (
                m.a(x) * torch.tensor([1.0, 2.0, 3.0 + _is_large(x)], dtype=x.dtype)
            ),
            "another order of arguments": lambda m, x: (
                torch.sub(*m.both(x)) if _is_large(x) else torch.sub(*m.both(x)[::-1])
            ),
            "another result of the same operations": _left_in_another_place,
            "another argument that is no number": lambda m, x: (
                m.a(x) + torch.div(x[:, :1].detach(), 0.3, rounding_mode="floor" if _is_large(x) else "trunc")
            ),
            "another type between": lambda m, x: (
                m.a(x).to(torch.float32 if _is_large(x) else torch.bfloat16).to(x.dtype)
            ),
            "a limit on the other side": lambda m, x: (
                m.a(x).clamp(0.1) if _is_large(x) else m.a(x).clamp(max=0.1)
            ),
            "more columns left out": _wide_from,
            "another buffer written": _written_by_size,
            "another number on the model": _noted_large,
        }.items()
    },
    "more rows, another layer for those behind": Hazard(_by_size(_layer_by_layer), "parts", "(split)"),
    "more rows, a note of them beside": Hazard(_noted_large_beside, "parts", "the number of rows"),
    "the same for all sizes": Hazard(_by_size(_all_of_it), "whole"),
    "more rows, another limit": Hazard(
        _model(lambda m, x: m.a(x).clamp(max=max(len(x), 5) - 5)), "parts", "the number of rows"
    ),
    "more rows, another size": Hazard(_model(_largest), "parts", "the number of rows"),
    "capacity by the number of rows": Hazard(_model(_capacity), "parts", "(cumsum)"),
    "integers that are sizes": Hazard(_model(_by_kind), "whole"),
    "a few rows at a time": Hazard(_model(_few_at_a_time), "parts", "the number of rows"),
    "sizes that decide nothing": Hazard(_model(_sized), "whole"),
    "divided by the batch size": Hazard(
        _model(lambda m, x: m.a(x) / x.shape[0]), "parts", "the number of rows"
    ),
    "centred by hand": Hazard(_model(lambda m, x: m.a(x - x.mean(0))), "parts", _MIXED),
    "standardised by hand": Hazard(
        _model(lambda m, x: m.a((x - x.mean(0)) / x.std(0, unbiased=False))), "parts", _MIXED
    ),
    "softmax over the batch": Hazard(_model(lambda m, x: m.a(x) * m.a(x).softmax(0)), "parts", _MIXED),
    "attention over the batch": Hazard(
        _model(lambda m, x: m.a((x @ x.t()).softmax(-1) @ x)), "parts", _MIXED
    ),
    "nearest neighbour": Hazard(
        _model(lambda m, x: m.a(x[torch.cdist(x, x).fill_diagonal_(9.0).argmin(1)])), "parts", _MIXED
    ),
    "sorted rows": Hazard(_model(lambda m, x: m.a(x.sort(0)[0])), "parts", _MIXED),
    "cumulative sum": Hazard(_model(lambda m, x: m.a(x.cumsum(0))), "parts", _MIXED),
    "rolled rows": Hazard(_model(lambda m, x: m.a(x) + m.a(x).roll(1, 0)), "parts", _MIXED),
    "rolled by four": Hazard(_model(lambda m, x: m.a(x) + m.a(x).roll(4, 0)), "parts", _MIXED),
    "flipped rows": Hazard(_model(lambda m, x: m.a(x.flip(0))), "parts", _MIXED),
    "pairs swapped": Hazard(_model(_swapped), "parts"),
    "halves moved": Hazard(_model(_moved), "parts"),
    "every other row": Hazard(_model(lambda m, x: torch.cat([m.a(x[::2]), m.a(x[1::2])])), "parts", _MIXED),
    "first row as reference": Hazard(_model(lambda m, x: m.a(x - x[:1])), "parts", _MIXED),
    "pooled by key": Hazard(_model(_one_hot_pool), "parts", _MIXED),
    "best of the batch": Hazard(_model(lambda m, x: m.a(x + x[x[:, 0].argmax()])), "parts", ""),
    "k best of the batch": Hazard(
        _model(lambda m, x: m.a(x) * torch.zeros(len(x), 1, dtype=D).index_fill(0, x[:, 0].topk(2)[1], 1.0)),
        "parts",
        _MIXED,
    ),
    "padding at the ends": Hazard(_padded, "whole"),
    "padding inside a row": Hazard(lambda: _padded((0, 1)), "whole"),
    "padding at the ends, in parts": Hazard(lambda: _padded(hooked=True), "parts", "hooks"),
    "norm of the batch": Hazard(_model(lambda m, x: m.a(x / x.norm())), "parts", _MIXED),
    "mixup inside": Hazard(
        _model(lambda m, x: m.a(0.7 * x + 0.3 * x[torch.randperm(len(x))])), "parts", "randperm"
    ),
    "shuffled negatives": Hazard(
        _model(lambda m, x: m.a(x - x[torch.rand(len(x)).argsort()])), "parts", _MIXED
    ),
    "tiny gate": Hazard(modelled(_gated(1e-12, learnt=True)), "parts", _MIXED),
    "shut gate": Hazard(modelled(_gated(0.0, learnt=True)), "parts", _MIXED),
    "shut gate in a buffer": Hazard(
        modelled(_gated(0.0, learnt=False), before=lambda m, step: m.gate.fill_(float(step > 1))),
        "parts",
        _MIXED,
    ),
    "last layer at nought": Hazard(modelled(_ZeroInit), "parts", _MIXED),
    "tiny gate over tokens": Hazard(
        modelled(_Tokens, batches=loader(dataset=_token_data())), "parts", _MIXED
    ),
    "branch on the batch": Hazard(_model(lambda m, x: m.a(x) if x.sum() > 0 else m.a(-x)), "parts", _READ),
    "item": Hazard(_model(lambda m, x: m.a(x) * x.abs().max().item()), "parts", _READ),
    "branch in TorchScript": Hazard(_model(_in_torchscript), "parts", _READ),
    "list": Hazard(_model(lambda m, x: m.a(x) * max(max(row) for row in x.tolist())), "parts", _READ),
    "numpy": Hazard(_model(lambda m, x: m.a(x) * float(x.detach().numpy().max())), "parts", _READ),
    "on the host": Hazard(_model(lambda m, x: m.a(x) * float(x.cpu().max())), "parts", _READ),
    "by numpy's array": Hazard(
        _model(lambda m, x: m.a(x) * float(__import__("numpy").asarray(x.detach()).max())), "parts", _READ
    ),
    "boolean mask": Hazard(
        _model(lambda m, x: m.a(x).index_put((x[:, 0] > 0,), torch.zeros((), dtype=D))), "right"
    ),
    "rows by a mask": Hazard(_model(lambda m, x: m.a(x) + x[x[:, 0] > 0].sum()), "parts", _READ),
    "where": Hazard(_model(lambda m, x: m.a(x) + len(torch.where(x[:, 0] > 0)[0])), "parts", _READ),
    "unique": Hazard(_model(lambda m, x: m.a(x) + len(x[:, 0].round().unique())), "parts", _READ),
    "bincount": Hazard(_model(lambda m, x: m.a(x) + x[:, 0].abs().long().bincount().numel()), "parts", ""),
    "histogram": Hazard(_model(lambda m, x: m.a(x) + torch.histc(x, 3)), "parts", ""),
    "masked scatter": Hazard(
        _model(
            lambda m, x: m.a(torch.zeros_like(x).masked_scatter(x > 0, x[:, :1].expand(-1, 4).reshape(-1)))
        ),
        "parts",
        _MIXED,
    ),
    "groups of four": Hazard(modelled(_GhostNorm), "parts"),
    "position in the batch": Hazard(
        _model(lambda m, x: m.a(x) + torch.arange(len(x), dtype=D)[:, None] / 10), "parts", _MIXED
    ),
    "covariance": Hazard(
        _model(lambda m, x: m.a(x @ torch.linalg.inv(x.t() @ x + torch.eye(4, dtype=D)))), "parts", _MIXED
    ),
    "whitened by svd": Hazard(_model(lambda m, x: m.a(x) + torch.linalg.svdvals(x)[:3]), "parts", ""),
    "quantile": Hazard(_model(lambda m, x: m.a(x.clamp(max=x.quantile(0.9)))), "parts", _MIXED),
    "row by row": Hazard(
        modelled(lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))), "whole"
    ),
    "normalised by rows": Hazard(_model(lambda m, x: m.a(F.normalize(x, dim=1))), "whole"),
    "sorted in rows": Hazard(_model(lambda m, x: m.a(x.sort(1)[0].cumsum(1))), "whole"),
}
