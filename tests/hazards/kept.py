"""What a forward pass leaves on the module: losses, lists, moving averages, caches, parameters."""

from __future__ import annotations

import argparse
import collections
import copy
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

from hazards.harness import D, Hazard, Lambda, data, loader, modelled, train

T = torch.Tensor


class Keeper(nn.Module):
    """A linear layer that leaves something on itself."""

    def __init__(self, keep: Callable[[Any, T, T], Any], start: Any = None, **buffers: T) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)
        self.keep, self.kept = keep, copy.deepcopy(start)
        for name, value in buffers.items():
            self.register_buffer(name, value.clone())

    def forward(self, x: T) -> T:
        out = self.a(x)
        self.keep(self, x, out)
        return out


def _keeps(keep: Callable[[Any, T, T], Any], start: Any = None, read: Any = None, **buffers: T) -> Any:
    """The script that trains a keeper, and reads what it has kept after every step."""

    def script() -> Iterator[Any]:
        model = Keeper(keep, start, **buffers)
        return train(model, seen=lambda: (read or _readable)(model.kept))

    return script


def _readable(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, collections.Counter):
        return sorted(value.items())
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, collections.deque):
        value = list(value)
    if isinstance(value, (list, tuple)):
        return [_readable(item) for item in value]
    if isinstance(value, dict):
        return {key: _readable(item) for key, item in value.items()}
    return (
        {key: _readable(item) for key, item in vars(value).items()} if hasattr(value, "__dict__") else value
    )


class History:
    """An object of the user's own."""

    def __init__(self) -> None:
        self.shapes: list[int] = []
        self.last: Any = None


def _set(m: Any, value: Any) -> None:
    m.kept = value


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.loss = nn.Linear(4, 3), None

    def forward(self, x: T, y: T) -> T:
        out = self.a(x)
        self.loss = F.cross_entropy(out, y)
        return out


def _loss_on_self() -> Iterator[Any]:
    model = WithLoss()
    yield from train(model, call=lambda m, x, y: m(x, y), loss=lambda out, y: model.loss)


class Balanced(nn.Module):
    """A penalty over all layers, summed from what they left on themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Keeper(lambda m, x, out: _set(m, out.square().mean())) for _ in range(2))

    def forward(self, x: T) -> T:
        return self.layers[0](x) + self.layers[1](x)

    def penalty(self) -> Any:
        return sum(layer.kept for layer in self.layers)  # type: ignore[misc]


def _penalty() -> Iterator[Any]:
    model = Balanced()
    yield from train(model, loss=lambda out, y: F.cross_entropy(out, y) + 0.1 * model.penalty())


class Codebook(nn.Module):
    """VQ-VAE's codes, moved by averages; `parameters` as the best known script keeps them."""

    def __init__(self, as_parameters: bool) -> None:
        super().__init__()
        self.a, self.b, self.as_parameters = nn.Linear(4, 4), nn.Linear(4, 3), as_parameters
        codes = torch.linspace(-1, 1, 12, dtype=D).view(3, 4).clone()
        self.register_buffer("size", torch.ones(3, dtype=D))
        if as_parameters:
            self.codes, self.sums = nn.Parameter(codes), nn.Parameter(codes.clone())
        else:
            self.register_buffer("codes", codes)
            self.register_buffer("sums", codes.clone())

    def forward(self, x: T) -> T:
        z = self.a(x)
        place = torch.cdist(z.detach(), self.codes.detach()).argmin(1)
        hot = F.one_hot(place, 3).to(z.dtype)
        quantized = hot @ self.codes.detach()
        if self.training:
            with torch.no_grad():
                self.size = self.size * 0.9 + 0.1 * hot.sum(0)
                sums = self.sums * 0.9 + 0.1 * hot.t() @ z.detach()
                codes = sums / self.size.clamp(min=0.1)[:, None]
            if self.as_parameters:
                self.sums, self.codes = nn.Parameter(sums), nn.Parameter(codes)
            else:
                self.sums, self.codes = sums, codes
        return self.b(z + (quantized - z).detach())


class DataDependentInit(nn.Module):
    """Glow's ActNorm: scale and shift are set from the first batch."""

    def __init__(self, by_data: bool) -> None:
        super().__init__()
        self.shift, self.a = nn.Parameter(torch.zeros(4, dtype=D)), nn.Linear(4, 3)
        self.ready, self.by_data = False, by_data

    def forward(self, x: T) -> T:
        if not self.ready:
            if self.by_data:
                self.shift.data = -x.mean(0).detach()
            else:
                with torch.no_grad():
                    self.shift.copy_(-x.mean(0))
            self.ready = True
        return self.a(x + self.shift)


class LateLayer(nn.Module):
    """Makes a layer when it first sees its input."""

    def __init__(self) -> None:
        super().__init__()
        self.a: Any = None

    def forward(self, x: T) -> T:
        if self.a is None:
            self.a = nn.Linear(x.shape[1], 3, dtype=x.dtype)
        return self.a(x)


class MaskCache(nn.Module):
    """Keeps a mask for each batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.masks = nn.Linear(4, 3), {}

    def forward(self, x: T) -> T:
        if len(x) not in self.masks:
            self.masks[len(x)] = torch.linspace(0.5, 1.5, len(x), dtype=x.dtype)[:, None]
        return self.a(x) * self.masks[len(x)]


class LengthCache(nn.Module):
    """Keeps a table for each length of a sequence, which is none of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.tables = nn.Linear(4, 3), {}

    def forward(self, x: T) -> T:
        if x.shape[1] not in self.tables:
            self.tables[x.shape[1]] = torch.linspace(0.5, 1.5, x.shape[1], dtype=x.dtype)[:, None]
        return (self.a(x) * self.tables[x.shape[1]]).mean(1)


class Carried(nn.Module):
    """A recurrent state carried from batch to batch on the module."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head, self.state = nn.GRUCell(4, 5), nn.Linear(5, 3), None

    def forward(self, x: T) -> T:
        if self.state is None or len(self.state) != len(x):
            self.state = x.new_zeros(len(x), 5)
        self.state = self.cell(x, self.state.detach())
        return self.head(self.state)


class WeightChanger(nn.Module):
    def __init__(self, change: Callable[[Any, T], None]) -> None:
        super().__init__()
        self.a, self.change = nn.Linear(4, 3), change

    def forward(self, x: T) -> T:
        self.change(self, x)
        return self.a(x)


def _decay_by_batch(m: Any, x: T) -> None:
    m.a.weight.data.mul_(1 - 1e-3 * x.detach().abs().mean())


def _clamp(m: Any, x: T) -> None:
    m.a.weight.data.clamp_(-0.4, 0.4)


class Bag(nn.Module):
    """Long vectors of words that were looked up are shortened in place."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.a = nn.Embedding(9, 4, max_norm=0.5), nn.Linear(4, 3)

    def forward(self, x: T) -> T:
        return self.a(self.e(x).mean(1))


def _words() -> Any:
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, 9, (22, 2), generator=generator)
    return torch.utils.data.TensorDataset(ids, torch.randint(0, 3, (22,), generator=generator))


def _ema(m: Any, x: T, out: T) -> None:
    m.average.mul_(0.9).add_(0.1 * out.detach().mean(0))


def _tiny_ema(m: Any, x: T, out: T) -> None:
    m.average.add_(1e-14 * out.detach().mean(0))


def _images() -> Any:
    return data(2, 5, 5)


_ON_ITSELF = "on itself"


class Emptied(nn.Module):
    """Drops something of itself when it is pickled, or copied, as some libraries' guides do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.around = nn.Linear(4, 3), [torch.tanh]

    def __getstate__(self) -> dict[str, Any]:
        self.around = []
        return self.__dict__

    def forward(self, x: T) -> T:
        return self.around[0](self.a(x))


class Rebuilt(nn.Module):
    """A layer that is copied by being saved and loaded, as Keras' are: the copy shares nothing with it."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def __reduce__(self) -> Any:
        return _loaded, (self.state_dict(),)

    def forward(self, x: T) -> T:
        return self.a(x).tanh()


def _loaded(state: dict[str, T]) -> Rebuilt:
    made = Rebuilt()
    made.load_state_dict(state)
    return made


class BuiltAnew(nn.Module):
    """A layer whose copy is made as the layer was, and draws as that did."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)
        self.number = random.random() + numpy.random.rand()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = BuiltAnew()
        made.a, made.number = copy.deepcopy(self.a, memo), self.number
        return made

    def forward(self, x: T) -> T:
        return self.a(x) * self.number


class Optimized(nn.Module):
    """Has an optimizer of its own, as policies of reinforcement learning do; forward may set its rate."""

    def __init__(self, slower: bool) -> None:
        super().__init__()
        self.a, self.slower = nn.Linear(4, 3), slower
        self.optimizer = torch.optim.Adam(self.a.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)

    def forward(self, x: T) -> T:
        if self.slower:
            self.optimizer.param_groups[0]["lr"] *= 0.5
        return self.a(x)


def _rates() -> Iterator[Any]:
    model = Optimized(True)
    yield from train(model, seen=lambda: [len(model.optimizer.state), model.optimizer.param_groups[0]["lr"]])


def _books(kind: Callable[..., Any]) -> Callable[[], Iterator[Any]]:
    """A book that is not the module's: calls and the largest number of all batches so far."""

    def script() -> Iterator[Any]:
        book = kind(calls=0, largest=0.0)

        def forward(m: Any, x: T) -> T:
            book.calls += 1
            book.largest = max(book.largest, x.max().item())
            return m.a(x)

        yield from train(Lambda(forward, a=nn.Linear(4, 3)), seen=lambda: [book.calls, book.largest])

    return script


class Normalizer(nn.Module):
    """Draws for channels laid beside rows, and keeps a mean to undo its normalization by."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head, self.drop = nn.Linear(2, 3), nn.Linear(3, 3), nn.Dropout(0.2)
        self.mean: Any = None

    def forward(self, x: T) -> T:
        rows = len(x)
        self.mean = x.mean(1, keepdim=True).detach()
        channels = self.a((x - self.mean).view(rows, 2, 2)).reshape(rows * 2, 3)
        return self.head(self.drop(channels).view(rows, 2, 3)).mean(1)


HAZARDS = {
    "loss on self": Hazard(_loss_on_self, "parts", _ON_ITSELF),
    "penalties on layers": Hazard(_penalty, "parts", _ON_ITSELF),
    "rows on self": Hazard(_keeps(lambda m, x, out: _set(m, out.detach())), "parts", _ON_ITSELF),
    "rows with their graph": Hazard(_keeps(lambda m, x, out: _set(m, out)), "parts", _ON_ITSELF),
    "mean beside draws": Hazard(modelled(Normalizer), "parts", "keeps mean"),
    "list of batches": Hazard(_keeps(lambda m, x, out: m.kept.append(out.detach()), []), "parts", _ON_ITSELF),
    "list of rows": Hazard(
        _keeps(lambda m, x, out: _set(m, [row.sum() for row in out.detach()])), "parts", "(unbind)"
    ),
    "deque": Hazard(
        _keeps(lambda m, x, out: m.kept.append(out.detach().mean()), collections.deque(maxlen=3)),
        "parts",
        _ON_ITSELF,
    ),
    "counter": Hazard(
        _keeps(lambda m, x, out: m.kept.update({"rows": len(x)}), collections.Counter()), "parts", _ON_ITSELF
    ),
    "set of sizes": Hazard(
        _keeps(lambda m, x, out: m.kept.add(len(x)), set()), "parts", "the number of rows"
    ),
    "text about the shape": Hazard(
        _keeps(lambda m, x, out: _set(m, f"{tuple(x.shape)}")), "parts", "the number of rows"
    ),
    "object of the user's": Hazard(
        _keeps(lambda m, x, out: m.kept.shapes.append(len(x)), History()), "parts", _ON_ITSELF
    ),
    "object with rows": Hazard(
        _keeps(lambda m, x, out: setattr(m.kept, "last", out.detach()), History()), "parts"
    ),
    "optimizer": Hazard(modelled(lambda: Optimized(False)), "whole"),
    "rate of its optimizer": Hazard(_rates, "right"),
    "emptied by a copy": Hazard(modelled(Emptied), "whole"),
    "copied by being built anew": Hazard(modelled(BuiltAnew), "whole"),
    "copied by being saved": Hazard(lambda: train(nn.Sequential(nn.Linear(4, 4), Rebuilt())), "whole"),
    "book in a namespace": Hazard(_books(types.SimpleNamespace), "right"),
    "book in the options": Hazard(_books(argparse.Namespace), "right"),
    "count of calls": Hazard(_keeps(lambda m, x, out: _set(m, (m.kept or 0) + 1)), "whole"),
    "moving average": Hazard(_keeps(_ema, average=torch.zeros(3)), "parts", _ON_ITSELF),
    "moving average, slowly": Hazard(_keeps(_tiny_ema, average=torch.zeros(3)), "parts", _ON_ITSELF),
    "instance norm": Hazard(
        modelled(
            lambda: nn.Sequential(
                nn.InstanceNorm2d(2, track_running_stats=True), nn.Flatten(), nn.Linear(50, 3)
            ),
            batches=loader(dataset=_images()),
        ),
        "parts",
        _ON_ITSELF,
    ),
    "codebook in buffers": Hazard(modelled(lambda: Codebook(False)), "parts"),
    "codebook in parameters": Hazard(modelled(lambda: Codebook(True)), "parts", "on itself"),
    "set from the first batch": Hazard(modelled(lambda: DataDependentInit(False)), "parts", "it keeps shift"),
    "set from the first batch by data": Hazard(
        modelled(lambda: DataDependentInit(True)), "parts", "parameter"
    ),
    "weights changed by the batch": Hazard(
        modelled(lambda: WeightChanger(_decay_by_batch)), "parts", "it keeps a.weight"
    ),
    "weights clamped in forward": Hazard(modelled(lambda: WeightChanger(_clamp)), "whole"),
    "embedding with max_norm": Hazard(
        lambda: modelled(Bag, batches=loader(dataset=_words()))(), "parts", "it keeps e.weight"
    ),
    "layer made in forward": Hazard(modelled(LateLayer), "right"),
    "lazy layer": Hazard(
        modelled(lambda: nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(3))), "parts", "lazy"
    ),
    "lazy batch norm": Hazard(
        modelled(lambda: nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Linear(5, 3))),
        "parts",
        "lazy",
    ),
    "mask for each batch size": Hazard(modelled(MaskCache), "parts", ""),
    "table for each length": Hazard(modelled(LengthCache, batches=loader(dataset=data(6, 4))), "whole"),
    "carried state": Hazard(modelled(Carried, batches=loader(11)), "parts", _ON_ITSELF),
    "spectral norm": Hazard(
        modelled(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))), "whole"
    ),
    "spectral norm by hooks": Hazard(modelled(lambda: nn.utils.spectral_norm(nn.Linear(4, 3))), "right"),
    "weight norm by hooks": Hazard(
        modelled(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))), "whole"
    ),
    "pruned": Hazard(modelled(lambda: prune.l1_unstructured(nn.Linear(4, 3), "weight", 0.4)), "right"),
    "batch norm": Hazard(
        modelled(lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))),
        "whole",
    ),
    "layers in a plain list": Hazard(
        modelled(
            lambda: Lambda(
                lambda m, x: m.a(x) + m.more[0](x), a=nn.Linear(4, 3), more=[nn.Linear(4, 3, dtype=D)]
            )
        ),
        "whole",
    ),
}
