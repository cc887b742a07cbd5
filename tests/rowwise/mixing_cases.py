"""Modules that mix rows, count them or keep them: none is to be cut."""

from __future__ import annotations

import functools
from collections import UserDict
from collections.abc import Callable
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import nn

from rowwise.rowwise_cases import ROWS, Case, Doubled, Written, images, linear, of_series, of_table, table

KEPT: list[Any] = []
NAMED: UserDict[str, Any] = UserDict()


@functools.lru_cache
def remembered(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def experts_by_masks(self: Any, x: torch.Tensor) -> torch.Tensor:
    which, made = self.gate(x).argmax(-1), torch.zeros_like(x)
    for number, expert in enumerate(self.experts):
        made[which == number] = expert(x[which == number])
    return made


def with_capacity(self: Any, x: torch.Tensor) -> torch.Tensor:
    chosen = F.one_hot(self.gate(x).argmax(-1), 3)
    place = (chosen.cumsum(0) * chosen).sum(-1)
    return x * (place <= 1000).unsqueeze(1)


def farthest(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * torch.cdist(x, x).max(1)[0].unsqueeze(1)


def then(self: Any, action: Callable[[], Any], result: Callable[[], Any]) -> Any:
    action()
    return result()


def with_closure() -> Case:
    box: list[torch.Tensor] = []

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        box.append(self.layer(x))
        return box[-1] * 2

    return of_table(forward)


def bank(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.queue[: x.shape[0]] = x.detach()
    return self.layer(x)


def averaged(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.queue.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return self.layer(x)


def averaged_by_data(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.queue.data.copy_(self.queue * 0.9 + x.detach().sum(0))
    return self.layer(x)


def contrasted(self: Any, x: torch.Tensor) -> torch.Tensor:
    made = F.normalize(self.layer(x))
    return F.cross_entropy(made @ made.T, torch.arange(len(x)))


def total(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.count += len(x)
    return self.layer(x)


class Mixed(Doubled):
    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return Doubled.backward(ctx, gradients[0] / gradients[0].norm())


class Clipped(Doubled):
    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return Doubled.backward(ctx, gradients[0].clamp(-1, 1))


def hooked(hook: Callable[[torch.Tensor], torch.Tensor]) -> Case:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        made = self.layer(x)
        if made.requires_grad:
            made.register_hook(hook)
        return made * 2

    case = of_table(forward)
    return Case(case.module, case.args, gradients=True)


def with_gradients(case: Case) -> Case:
    return Case(case.module, case.args, case.axes, gradients=True)


CASES: dict[str, Callable[[], Case]] = {
    # Rows meet.
    "centred": lambda: of_table(lambda self, x: x - x.mean(0)),
    "centred, all rows alike": lambda: Case(Written(lambda self, x: x - x.mean(0)), (torch.ones(ROWS, 6),)),
    "capacity, not reached": lambda: of_table(with_capacity, gate=linear(6, 3)),
    "hardest in the batch": lambda: of_table(farthest),
    "norm clipped, not reached": lambda: of_table(lambda self, x: x * (100 / x.norm()).clamp(max=1)),
    "nought times another row": lambda: of_table(lambda self, x: x + 0 * x.flip(0)),
    "cumsum": lambda: of_table(lambda self, x: x.cumsum(0)),
    "cumsum of noughts": lambda: of_table(lambda self, x: x + (self.gate * x).cumsum(0), gate=torch.zeros(1)),
    "softmax": lambda: of_table(lambda self, x: x.softmax(0)),
    "sort": lambda: of_table(lambda self, x: x.sort(0)[0]),
    "sort of sorted rows": lambda: Case(
        Written(lambda self, x: self.layer(x.sort(0)[0]), layer=linear()),
        (torch.arange(float(ROWS))[:, None].expand(ROWS, 6).clone(),),
    ),
    "sort of whole numbers": lambda: Case(
        Written(lambda self, x: x.sort(0)[0]), (torch.zeros(ROWS, 6, dtype=torch.long),)
    ),
    "by order of rows": lambda: of_table(lambda self, x: x[x[:, 0].argsort()]),
    "unique rows": lambda: of_table(lambda self, x: x.unique(dim=0)),
    "chosen rows": lambda: of_table(lambda self, x: self.layer(x[x[:, 0] > 0])),
    "experts by masks": lambda: of_table(
        experts_by_masks, gate=linear(6, 3), experts=nn.ModuleList(linear() for _ in range(3))
    ),
    "contrastive loss": lambda: of_table(contrasted),
    "mixup": lambda: of_table(lambda self, x: x + x[torch.randperm(x.size(0))]),
    "roll": lambda: of_table(lambda self, x: x.roll(1, 0)),
    "neighbours": lambda: of_table(lambda self, x: x.view(-1, 2, 6).flip(1).reshape(-1, 6)),
    "all pairs": lambda: of_table(lambda self, x: x @ x.T),
    "attention over the batch": lambda: of_series(
        lambda self, x: self.seen(x, x, x)[0], seen=nn.MultiheadAttention(6, 2)
    ),
    "number of the row": lambda: of_table(lambda self, x: x + torch.arange(len(x)).unsqueeze(1)),
    "first row to all": lambda: of_table(lambda self, x: x + x[:1]),
    "first row to all, no axis": lambda: of_table(lambda self, x: x + x[0]),
    "first rows otherwise": lambda: of_table(lambda self, x: torch.cat([x[:4] * 2, x[4:]])),
    "sums so far": lambda: of_table(lambda self, x: torch.stack([x[: i + 1].sum(0) for i in range(len(x))])),
    "row before": lambda: of_table(lambda self, x: torch.stack([x[i] + x[i - 1] for i in range(len(x))])),
    # Right for each row, but what is done with which is seen of plain numbers only.
    "loop over rows": lambda: of_table(
        lambda self, x: torch.stack([self.layer(x[i]).relu() for i in range(len(x))])
    ),
    "with a queue": lambda: of_table(lambda self, x: torch.cat([x, self.queue]), queue=torch.zeros(4, 6)),
    "ghost norm": lambda: of_table(lambda self, x: torch.cat([each - each.mean(0) for each in x.split(4)])),
    "halves paired": lambda: of_table(lambda self, x: x + torch.cat(x.chunk(2)[::-1])),
    "even rows first": lambda: of_table(lambda self, x: torch.cat([x[::2], x[1::2]])),
    "convolution over the batch": lambda: of_table(
        lambda self, x: F.conv1d(x.T[None], torch.ones(6, 6, 3), padding=1)[0].T
    ),
    "convolution of noughts over the batch": lambda: of_table(
        lambda self, x: x + F.conv1d(x.T[None], torch.zeros(6, 6, 3), padding=1)[0].T
    ),
    "loss": lambda: of_table(lambda self, x: F.mse_loss(self.layer(x), x)),
    "loss beside rows": lambda: of_table(lambda self, x: (self.layer(x), F.mse_loss(self.layer(x), x))),
    "TorchScript that mixes": lambda: Case(
        torch.jit.script(nn.Sequential(linear(), nn.Softmax(0))), (table(),)
    ),
    "batch norm of samples": lambda: of_table(
        lambda self, x: F.batch_norm(x[None], None, None, training=True)[0].clone()
    ),
    "instance norm with statistics": lambda: Case(
        nn.InstanceNorm2d(3, affine=True, track_running_stats=True), (images(),)
    ),
    "batch norm of its weights": lambda: of_table(
        lambda self, x: x @ self.norm(self.layer.weight), norm=nn.BatchNorm1d(6)
    ),
    "embedding by how often": lambda: with_gradients(
        Case(nn.Embedding(9, 4, scale_grad_by_freq=True), (torch.randint(0, 9, (ROWS, 5)),))
    ),
    "embedding renormalized": lambda: Case(
        nn.Embedding(9, 4, max_norm=0.1), (torch.randint(0, 9, (ROWS, 5)),)
    ),
    "mixing backward": lambda: with_gradients(of_table(lambda self, x: Mixed.apply(x, self.layer.weight))),
    "clipping backward": lambda: with_gradients(
        of_table(lambda self, x: Clipped.apply(x, self.layer.weight))
    ),
    "mixing hook": lambda: hooked(lambda gradient: gradient / gradient.norm()),
    "clipping hook": lambda: hooked(lambda gradient: gradient.clamp(-1, 1)),
    "sparse": lambda: of_table(lambda self, x: torch.sparse.mm(x.to_sparse_csr(), self.layer.weight)),
    "writes back": lambda: of_table(
        lambda self, x: x.index_copy_(0, torch.arange(len(x)).flip(0), x.clone())
    ),
    # Rows are counted.
    "sum over count": lambda: of_table(lambda self, x: x.sum() / len(x)),
    "branch on count": lambda: of_table(lambda self, x: x.relu() if len(x) > 8 else x),
    "over size": lambda: of_table(lambda self, x: self.layer(x) / x.size(0)),
    "over shape": lambda: of_table(lambda self, x: self.layer(x) * (1 / x.shape[0])),
    "alpha": lambda: of_table(lambda self, x: torch.add(x, x, alpha=x.shape[0])),
    "tensor of count": lambda: of_table(lambda self, x: x / torch.tensor(len(x))),
    "filled with count": lambda: of_table(lambda self, x: x * torch.full((6,), x.shape[0])),
    "filled with a value of the batch": lambda: of_table(lambda self, x: x * torch.full((6,), x.max())),
    "reads what it has filled": lambda: of_table(
        lambda self, x: x * torch.full((1,), self.layer.bias[0].detach()).item()
    ),
    "root of count": lambda: of_table(lambda self, x: x / x.shape[0] ** 0.5),
    "entries": lambda: of_table(lambda self, x: x * x.mean(1).numel()),
    "int of count": lambda: of_table(lambda self, x: x / int(x.shape[0])),
    "list of shape": lambda: of_table(lambda self, x: x / next(iter(x.shape))),
    "text of count": lambda: of_table(lambda self, x: x / int(str(x.shape[0]))),
    "ones summed": lambda: of_table(lambda self, x: x / torch.ones(len(x)).sum()),
    "dropout by count": lambda: of_table(lambda self, x: F.dropout(x, 1 / x.shape[0])),
    "spread as often as there are": lambda: of_table(lambda self, x: x[None].expand(len(x), -1, -1).sum(0)),
    "list of rows": lambda: of_table(lambda self, x: x / len(list(x))),
    "rows one by one": lambda: of_table(lambda self, x: x / sum(1 for _ in x)),
    "rows numbered": lambda: of_table(lambda self, x: x + [i for i, _ in enumerate(x)][-1]),
    "pieces": lambda: of_table(lambda self, x: x * len(x.split(1))),
    "count written down": lambda: of_table(lambda self, x: x.view(4 * ROWS, 6)),
    "total": lambda: of_table(total, count=torch.zeros(1)),
    # Rows are kept.
    "count kept": lambda: of_table(
        lambda self, x: then(self, lambda: setattr(self, "n", self.n + len(x)), lambda: self.layer(x)), n=0
    ),
    "rows kept": lambda: of_table(
        lambda self, x: then(self, lambda: setattr(self, "last", x), lambda: self.layer(x))
    ),
    "hidden kept": lambda: of_table(
        lambda self, x: then(self, lambda: setattr(self, "last", self.layer(x)), lambda: x * 2)
    ),
    "list kept": lambda: of_table(
        lambda self, x: then(self, lambda: self.kept.append(self.layer(x)), lambda: x * 2), kept=[]
    ),
    "closure": with_closure,
    "global list": lambda: of_table(
        lambda self, x: then(self, lambda: KEPT.append(self.layer(x)), lambda: x * 2)
    ),
    "global object": lambda: of_table(
        lambda self, x: then(self, lambda: NAMED.update(a=self.layer(x)), lambda: x * 2)
    ),
    "cached function": lambda: of_table(lambda self, x: remembered(self.layer(x)) * 1),
    "input kept": lambda: of_table(lambda self, x: then(self, lambda: KEPT.append(x), lambda: self.layer(x))),
    "view of input kept": lambda: of_table(
        lambda self, x: then(self, lambda: KEPT.append(x[:, :2]), lambda: self.layer(x))
    ),
    "output kept": lambda: of_table(
        lambda self, x: then(self, lambda: KEPT.append(self.layer(x)), lambda: KEPT[-1])
    ),
    "memory bank": lambda: of_table(bank, queue=torch.zeros(16, 6)),
    "running average": lambda: of_table(averaged, queue=torch.zeros(6)),
    "running average by data": lambda: of_table(averaged_by_data, queue=torch.zeros(6)),
    # Rows are read on the host.
    "item": lambda: of_table(lambda self, x: x if x[0, 0].item() > 9 else -x),
    "truth": lambda: of_table(lambda self, x: x if x.sum() > 0 else -x),
    "tolist": lambda: of_table(lambda self, x: x * (2 if x[:, 0].tolist()[0] > 9 else 1)),
    "numpy": lambda: of_table(lambda self, x: torch.from_numpy(x.detach().numpy() * 2)),
    "asarray": lambda: of_table(lambda self, x: x * float(numpy.asarray(x.detach()).mean())),
    "text": lambda: of_table(lambda self, x: then(self, lambda: KEPT.append(f"{x}"), lambda: self.layer(x))),
    "drawn branch": lambda: of_table(lambda self, x: self.layer(x) if torch.rand(()) > 0.5 else x),
    "drawn by numpy": lambda: of_table(lambda self, x: x * float(numpy.random.rand())),
    "generator of its own": lambda: of_table(
        lambda self, x: x + torch.rand(x.shape, generator=self.own), own=torch.Generator()
    ),
}
