"""Outputs that are no rows of the batch, or share memory with what went in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hazards.harness import Hazard, Lambda, data, loader, modelled, train, unwatched

T = torch.Tensor


def _with_loss(m: Any, x: T, y: T) -> tuple[T, T]:
    out = m.a(x)
    return out, F.cross_entropy(out, y)


def _loss_in_forward() -> Iterator[Any]:
    model = Lambda(_with_loss, a=nn.Linear(4, 3))
    yield from train(model, call=lambda m, x, y: m(x, y), loss=lambda out, y: out[1])


def _only_loss() -> Iterator[Any]:
    model = Lambda(lambda m, x, y: _with_loss(m, x, y)[1], a=nn.Linear(4, 3))
    yield from train(model, call=lambda m, x, y: m(x, y), loss=lambda out, y: out)


def _tiny_side_loss() -> Iterator[Any]:
    """A balance loss beside the rows, smaller than any tolerance when training begins."""

    def forward(m: Any, x: T) -> tuple[T, T]:
        h = m.a(x)
        return h, 1e-13 * h.softmax(1).mean(0).square().sum()

    yield from train(
        Lambda(forward, a=nn.Linear(4, 3)), loss=lambda out, y: F.cross_entropy(out[0], y) + 1e12 * out[1]
    )


def _changed_after(make: Callable[[], nn.Module], change: Callable[[T, T], Any], *shape: int) -> Any:
    """The script changes what went in, or what came out, in place."""

    def script() -> Iterator[Any]:
        model, read = nn.ModuleList([make(), nn.Linear(4, 3)]).double(), []

        def call(m: Any, x: T, y: T) -> Any:
            x = x.clone()
            out = model[0](x)
            first = out[0] if isinstance(out, tuple) else out
            change(x, first)
            read.extend([x.clone(), first.detach().clone(), first is x])
            return model[1](first.reshape(len(x), -1)[:, :4])

        yield from train(model, call=call, batches=loader(dataset=data(*shape)))
        yield read

    return script


def _double_out(x: T, out: T) -> None:
    out.mul_(2)


def _double_in(x: T, out: T) -> None:
    x.mul_(2)


def _rows(m: Any, x: T) -> Any:
    return [row for row in m.a(x)]


def _as_dict(m: Any, x: T) -> Any:
    return {place: row for place, row in enumerate(m.a(x))}


def _stacked(values: Any) -> T:
    return torch.stack(list(values))


def _another_form(more: Any) -> Iterator[Any]:
    """Gives one result or two, by what is in `more`."""

    class Extra(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 3)

        def forward(self, x: T) -> Any:
            return (self.a(x), x.square()) if more else self.a(x)

    def before(m: Any, step: int) -> None:
        if step == 2:
            more.append(True)

    yield from train(Extra(), before=before)


class Lengthless(nn.Module):
    """Has no length and says so with an error, as a compiled module does."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def __len__(self) -> int:
        raise TypeError("no length")

    def forward(self, x: T) -> T:
        return self.a(x)


_IMAGES = (2, 2)
HAZARDS = {
    "loss beside rows": Hazard(_loss_in_forward, "parts", "without a batch axis"),
    "loss alone": Hazard(_only_loss, "parts", "no batch axis"),
    "tiny loss beside rows": Hazard(_tiny_side_loss, "parts", ""),
    "identity, output changed": Hazard(_changed_after(nn.Identity, _double_out), "right"),
    "identity, input changed": Hazard(_changed_after(nn.Identity, _double_in), "right"),
    "dropout of nothing": Hazard(_changed_after(lambda: nn.Dropout(0.0).eval(), _double_out), "right"),
    "flatten, output changed": Hazard(_changed_after(nn.Flatten, _double_out, *_IMAGES), "right"),
    "flatten, input changed": Hazard(_changed_after(nn.Flatten, _double_in, *_IMAGES), "right"),
    "view of the input beside rows": Hazard(
        _changed_after(lambda: Lambda(lambda m, x: (x[:, :4], x * 2)), _double_in), "right"
    ),
    "input with the output": Hazard(
        _changed_after(lambda: Lambda(lambda m, x: (x, m.a(x)), a=nn.Linear(4, 2)), _double_in), "right"
    ),
    "list of rows": Hazard(
        modelled(
            lambda: Lambda(_rows, a=nn.Linear(4, 3)), loss=lambda out, y: F.cross_entropy(_stacked(out), y)
        ),
        "parts",
        "(unbind)",
    ),
    "dict of rows": Hazard(
        modelled(
            lambda: Lambda(_as_dict, a=nn.Linear(4, 3)),
            loss=lambda out, y: F.cross_entropy(_stacked(out.values()), y),
        ),
        "parts",
        "(unbind)",
    ),
    "number of rows beside": Hazard(
        modelled(
            lambda: Lambda(lambda m, x: (m.a(x), len(x)), a=nn.Linear(4, 3)),
            loss=lambda out, y: F.cross_entropy(out[0], y) * out[1],
        ),
        "parts",
        "a number or text among its outputs",
    ),
    "text beside": Hazard(
        modelled(
            lambda: Lambda(lambda m, x: (m.a(x), f"{len(x)} rows"), a=nn.Linear(4, 3)),
            loss=lambda out, y: F.cross_entropy(out[0], y) * len(out[1]),
        ),
        "parts",
        "the number of rows",
    ),
    "shape beside": Hazard(
        modelled(
            lambda: Lambda(lambda m, x: (m.a(x), x.shape), a=nn.Linear(4, 3)),
            loss=lambda out, y: F.cross_entropy(out[0], y) * out[1][0],
        ),
        "parts",
        "",
    ),
    "integers": Hazard(
        modelled(
            lambda: Lambda(lambda m, x: (m.a(x), m.a(x).argmax(1), x > 0), a=nn.Linear(4, 3)),
            loss=lambda out, y: F.cross_entropy(out[0], y) * (1 + (out[1] == y).sum() + out[2].sum()),
        ),
        "whole",
    ),
    "complex": Hazard(
        modelled(
            lambda: Lambda(lambda m, x: (m.a(x), torch.complex(m.a(x), m.a(x)).abs()), a=nn.Linear(4, 3)),
            loss=lambda out, y: F.cross_entropy(out[0] + out[1], y),
        ),
        "whole",
    ),
    "nothing": Hazard(
        modelled(
            lambda: Lambda(lambda m, x: (m.a(x), None), a=nn.Linear(4, 3)),
            loss=lambda out, y: F.cross_entropy(out[0], y),
        ),
        "whole",
    ),
    "module without a length": Hazard(modelled(Lengthless), "whole"),
    "another form later": Hazard(lambda: _another_form([]), "whole"),
    "another form later, unwatched": Hazard(lambda: _another_form(unwatched()), "right"),
}
