"""What a model does to its arguments, and arguments of unusual kinds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset

from hazards.harness import D, Hazard, Lambda, data, loader, train

T = torch.Tensor


def _a() -> nn.Module:
    return nn.Linear(4, 3)


def _seen_after(function: Any, *, whole: bool = False) -> Any:
    """Trains, and reads the batch again after the model has had it."""

    def script() -> Iterator[Any]:
        model = Lambda(function, a=_a())
        read: list[Any] = []

        def call(m: Any, x: T, y: T) -> Any:
            x = x.clone() if not whole else x[torch.arange(len(x))]
            out = m(x)
            read.append(x.detach().clone())
            read.append(x.sum().item())
            return out

        yield from train(model, call=call)
        yield read

    return script


def _added(m: Any, x: T) -> T:
    x.add_(1)
    return m.a(x)


def _zeroed(m: Any, x: T) -> T:
    x[:, 0] = 0
    return m.a(x)


def _relu_in_place(m: Any, x: T) -> T:
    return m.a(F.relu(x, inplace=True))


def _relu_positional(m: Any, x: T) -> T:
    return m.a(F.relu(x, True))


def _through_a_view(m: Any, x: T) -> T:
    x.view(-1).mul_(2)
    return m.a(x)


def _out(m: Any, x: T) -> T:
    torch.mul(x, 2, out=x)
    return m.a(x)


def _needs_grad(m: Any, x: T) -> T:
    x.requires_grad_()
    return m.a(x)


def _ready_relu() -> Iterator[Any]:
    """A module of torch that works in place, as the first of a head: `head(features)`."""
    body, head = nn.Linear(4, 5), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 3))
    model = nn.ModuleList([body, head])
    read = []

    def call(m: Any, x: T, y: T) -> Any:
        features = body(x)
        out = head(features)
        read.append(features.detach().clone())
        return out

    yield from train(model, call=call)
    yield read


def _in_the_script(function: Any) -> Any:
    """In-place functions of the script's on what a model returned."""

    def script() -> Iterator[Any]:
        model, read = _a(), []

        def call(m: Any, x: T, y: T) -> Any:
            h = m(x) * 1.0
            h.max()  # seen as a whole before
            kept = h.detach()
            out = function(h)
            read.extend([h.detach().clone(), kept.clone(), out is h])
            return out

        yield from train(model, call=call)
        yield read

    return script


def _appended() -> Iterator[Any]:
    states: list[Any] = []

    def forward(m: Any, x: T, into: list[Any]) -> T:
        h = m.a(x)
        into.append(h.detach())
        return h

    yield from train(Lambda(forward, a=_a()), call=lambda m, x, y: m(x, states))
    yield len(states), states


def _put_into_a_dict() -> Iterator[Any]:
    def forward(m: Any, batch: dict[str, Any]) -> T:
        batch["h"] = m.a(batch["x"])
        batch["x"] = batch["x"] * 2
        return batch["h"]

    read = []

    def call(m: Any, x: T, y: T) -> Any:
        batch = {"x": x, "y": y}
        m(batch)
        read.append(batch["x"].sum().item())
        return batch["h"]

    yield from train(Lambda(forward, a=_a()), call=call)
    yield read


class Log:
    def __init__(self) -> None:
        self.lines: list[Any] = []


def _written_to_an_object() -> Iterator[Any]:
    log = Log()

    def forward(m: Any, x: T, log: Log) -> T:
        log.lines.append(len(x))
        return m.a(x)

    yield from train(Lambda(forward, a=_a()), call=lambda m, x, y: m(x, log))
    yield log.lines


def _another_model_as_argument() -> Iterator[Any]:
    teacher = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()

    def forward(m: Any, x: T, other: nn.Module) -> T:
        return m.a(x) + other(x).detach()

    yield from train(Lambda(forward, a=_a()), call=lambda m, x, y: m(x, teacher))
    yield list(teacher.buffers())


def _labels_changed() -> Iterator[Any]:
    """The labels, which are gathered while the model runs, are changed by it."""

    def forward(m: Any, x: T, y: T) -> T:
        y[y == 2] = 0
        return m.a(x)

    yield from train(Lambda(forward, a=_a()), call=lambda m, x, y: m(x, y), epochs=3)


def _labels_changed_by_the_script() -> Iterator[Any]:
    def loss(out: T, y: T) -> Any:
        y[:2] = 0
        y.clamp_(max=1)
        return F.cross_entropy(out, y)

    yield from train(_a(), loss=loss, epochs=3)


def _weights_as_long_as_the_batch() -> Iterator[Any]:
    """A table that has as many rows as the batch, but is none."""
    table = torch.linspace(-1, 1, 24, dtype=D).view(8, 3).clone().requires_grad_()

    def forward(m: Any, x: T, t: T) -> T:
        return m.a(x) @ t.t() @ t

    yield from train(Lambda(forward, a=_a()), call=lambda m, x, y: m(x, table))
    yield table.grad


def _table_looked_up() -> Iterator[Any]:
    """Every index lies in the rows that a trial would see of the table."""
    table = torch.linspace(-1, 1, 8 * 4, dtype=D).view(8, 4)

    def forward(m: Any, index: T, t: T) -> T:
        return m.a(t[index[:, 0]])

    ids = torch.arange(22).remainder(2)[:, None]
    y = torch.arange(22).remainder(3)
    yield from train(
        Lambda(forward, a=_a()),
        call=lambda m, x, y: m(x, table),
        batches=DataLoader(TensorDataset(ids, y), 8),
    )


def _class_weights_as_long_as_the_batch() -> Iterator[Any]:
    """Three rows, three classes."""
    weight = torch.tensor([1.0, 2.0, 0.5], dtype=D)
    yield from train(
        _a(), batches=loader(3, drop_last=True), loss=lambda out, y: F.cross_entropy(out, y, weight=weight)
    )


def _features_as_long_as_the_batch() -> Iterator[Any]:
    """Eight rows of eight features, and a vector for the features."""
    scale = torch.linspace(0.5, 1.5, 8, dtype=D)
    model = Lambda(lambda m, x, s: m.a(x * s), a=nn.Linear(8, 3))
    yield from train(model, call=lambda m, x, y: m(x, scale), batches=loader(8, dataset=data(8, rows=24)))


def _sequence_as_long_as_the_batch() -> Iterator[Any]:
    place = torch.linspace(0.5, 1.5, 8 * 4, dtype=D).view(8, 4)
    model = Lambda(lambda m, x, p: m.a(x + p).mean(1), a=nn.Linear(4, 3))
    yield from train(model, call=lambda m, x, y: m(x, place), batches=loader(8, dataset=data(8, 4, rows=24)))


def _sparse() -> Iterator[Any]:
    model = Lambda(lambda m, x, s: m.a(torch.sparse.mm(s, x)), a=_a())
    yield from train(model, call=lambda m, x, y: m(x, torch.eye(len(x), dtype=D).flip(0).to_sparse()))


def _sparse_alone() -> Iterator[Any]:
    model = Lambda(lambda m, s: torch.sparse.mm(s, m.a.weight.t()) + m.a.bias, a=_a())
    yield from train(model, call=lambda m, x, y: m(x.clone().to_sparse()))


def _packed() -> Iterator[Any]:
    net, head = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)
    model = nn.ModuleList([net, head])

    def call(m: Any, x: T, y: T) -> T:
        lengths = torch.arange(len(x)).remainder(3) + 1
        return head(net(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[1][-1])

    yield from train(model, call=call, batches=loader(dataset=data(3, 4)))


def _nested(layout: Any) -> Any:
    def script() -> Iterator[Any]:
        model = Lambda(lambda m, n: torch.stack([m.a(row).mean(0) for row in n.unbind()]), a=_a())

        def call(m: Any, x: T, y: T) -> T:
            rows = [row[: 1 + place % 3] for place, row in enumerate(x.unbind())]
            return m(torch.nested.nested_tensor(rows, layout=layout))

        yield from train(model, call=call, batches=loader(dataset=data(3, 4)))

    return script


def _complex() -> Iterator[Any]:
    model = Lambda(lambda m, x: m.a(torch.fft.ifft(torch.fft.fft(x) * x.to(torch.complex128)).real), a=_a())
    yield from train(model)


def _complex_argument() -> Iterator[Any]:
    model = Lambda(lambda m, z: (m.a(z.real), z * 2), a=_a())
    yield from train(
        model, call=lambda m, x, y: m(torch.complex(x, x)), loss=lambda out, y: F.cross_entropy(out[0], y)
    )


def _generator_argument() -> Iterator[Any]:
    model = Lambda(lambda m, rows: m.a(torch.stack(list(rows))), a=_a())
    yield from train(model, call=lambda m, x, y: m(row for row in x))


def _list_of_rows() -> Iterator[Any]:
    """As detection models take images: a list with a tensor for each sample."""
    model = Lambda(lambda m, rows: m.a(torch.stack([row / row.norm() for row in rows])), a=_a())
    yield from train(model, call=lambda m, x, y: m(list(x)))


def _scalars_in_the_batch() -> Iterator[Any]:
    model = Lambda(lambda m, x, t: m.a(x) * t, a=_a())
    yield from train(model, call=lambda m, x, y: m(x, torch.tensor(0.5, dtype=D)))


def _grad_to_a_scalar() -> Iterator[Any]:
    heat = torch.tensor(2.0, dtype=D, requires_grad=True)
    model = Lambda(lambda m, x, t: m.a(x) / t, a=_a())
    yield from train(model, call=lambda m, x, y: m(x, heat))
    yield heat.grad


_IN_PLACE = "changes its argument in place"
HAZARDS = {
    "added in place": Hazard(_seen_after(_added), "parts", _IN_PLACE),
    "added in place, whole batch": Hazard(_seen_after(_added, whole=True), "parts", _IN_PLACE),
    "column set": Hazard(_seen_after(_zeroed), "parts", _IN_PLACE),
    "relu in place": Hazard(_seen_after(_relu_in_place), "parts", _IN_PLACE),
    "relu in place by position": Hazard(_seen_after(_relu_positional), "parts", _IN_PLACE),
    "changed by a view": Hazard(_seen_after(_through_a_view), "parts", _IN_PLACE),
    "changed by out": Hazard(_seen_after(_out), "parts", _IN_PLACE),
    "made to need a gradient": Hazard(_seen_after(_needs_grad), "parts", "requires_grad"),
    "head that begins in place": Hazard(_ready_relu, "parts", _IN_PLACE),
    "script: relu by position": Hazard(_in_the_script(lambda h: F.relu(h, True)), "right"),
    "script: leaky relu by position": Hazard(_in_the_script(lambda h: F.leaky_relu(h, 0.1, True)), "right"),
    "script: elu by name": Hazard(_in_the_script(lambda h: F.elu(h, inplace=True)), "right"),
    "script: threshold by position": Hazard(
        _in_the_script(lambda h: F.threshold(h, 0.1, 0.2, True)), "right"
    ),
    "list appended": Hazard(_appended, "parts", "argument"),
    "dict changed": Hazard(_put_into_a_dict, "parts", "argument"),
    "object written to": Hazard(_written_to_an_object, "parts", "argument"),
    "model as argument": Hazard(_another_model_as_argument, "right"),
    "labels changed": Hazard(_labels_changed, "parts", _IN_PLACE),
    "labels changed by the script": Hazard(_labels_changed_by_the_script, "right"),
    "table as long as the batch": Hazard(_weights_as_long_as_the_batch, "right"),
    "table looked up": Hazard(_table_looked_up, "right"),
    "class weights as long as the batch": Hazard(_class_weights_as_long_as_the_batch, "right"),
    "features as long as the batch": Hazard(_features_as_long_as_the_batch, "right"),
    "sequence as long as the batch": Hazard(_sequence_as_long_as_the_batch, "right"),
    "sparse beside the batch": Hazard(_sparse, "parts", "sparse matrix"),
    "sparse batch": Hazard(_sparse_alone, "parts", "sparse matrix"),
    "packed": Hazard(_packed, "right"),
    "nested": Hazard(_nested(torch.strided), "right"),
    "jagged": Hazard(_nested(torch.jagged), "right"),
    "complex inside": Hazard(_complex, "whole"),
    "complex argument": Hazard(_complex_argument, "whole"),
    "generator": Hazard(_generator_argument, "right"),
    "list of rows": Hazard(_list_of_rows, "right"),
    "number in a tensor": Hazard(_scalars_in_the_batch, "whole"),
    "number that learns": Hazard(_grad_to_a_scalar, "whole"),
}
