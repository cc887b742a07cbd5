"""Which models run on shards, which in parts; both give one device's outputs, draws and gradients."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from both_ways import differences, flat
from codes import without_codes
from ronde.modules import first_call
from ronde.tensor import rules
from ronde.tensor.global_tensor import materialize, wrap
from ronde.tensor.layout import Layout
from ronde.testing.run_ranks import Rank
from world_sizes import WORLD_SIZES

_D = torch.float64


class Lambda(nn.Module):
    """A module with some layers, whose forward is a function of it and its arguments."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


Pair = namedtuple("Pair", "first second")


class Typed(NamedTuple):
    logits: torch.Tensor
    note: str


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


class Mapping(dict[str, Any]):
    pass


class Hidden:
    """Holds tensors where nobody looks: its attributes are not to be read as they are."""

    def __init__(self, value: torch.Tensor) -> None:
        self.kept = [value]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def _linear() -> nn.Module:
    return nn.Linear(4, 3)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3))


def _conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(3, 2),
    )


class Recurrent(nn.Module):
    def __init__(self, batch_first: bool = True, dropout: float = 0.0, kind: Any = nn.LSTM) -> None:
        super().__init__()
        self.net = kind(4, 5, num_layers=2, batch_first=batch_first, dropout=dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)[0]


def _transformer(dropout: float) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


# name -> (makes a module, makes its arguments, runs on shards)
Model = tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]], bool]
_x: Callable[[], tuple[Any, ...]] = lambda: (torch.randn(7, 4, dtype=_D),)  # noqa: E731
_images: Callable[[], tuple[Any, ...]] = lambda: (torch.randn(7, 2, 6, 6, dtype=_D),)  # noqa: E731
_text: Callable[[], tuple[Any, ...]] = lambda: (torch.randn(7, 5, 8, dtype=_D),)  # noqa: E731
_sequence: Callable[[], tuple[Any, ...]] = lambda: (torch.randn(7, 5, 4, dtype=_D),)  # noqa: E731
_words: Callable[[], tuple[Any, ...]] = lambda: (torch.randint(0, 4, (7, 5)),)  # noqa: E731

ROWWISE: dict[str, Model] = {
    "mlp": (_mlp, _x, True),
    "kept number": (lambda: Keeper(lambda m, out: setattr(m, "kept", len(out))), _x, True),
    "conv": (_conv, _images, True),
    "lstm": (Recurrent, _sequence, True),
    "lstm with state": (lambda: nn.LSTM(4, 5, batch_first=True), _sequence, True),
    "gru": (lambda: Recurrent(kind=nn.GRU), _sequence, True),
    "transformer": (lambda: _transformer(0.0), _text, True),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 3)),
        lambda: (torch.randint(0, 10, (7, 5)),),
        True,
    ),
    "tuple": (lambda: Lambda(lambda m, x: (m.a(x), x * 2, 5, "text", None), a=_linear()), _x, True),
    "list": (lambda: Lambda(lambda m, x: [m.a(x), [x, x.sum(1)]], a=_linear()), _x, True),
    "dict": (lambda: Lambda(lambda m, x: {"a": m.a(x), "b": {"c": x}}, a=_linear()), _x, True),
    "named tuple": (lambda: Lambda(lambda m, x: Pair(m.a(x), x), a=_linear()), _x, True),
    "typed tuple": (lambda: Lambda(lambda m, x: Typed(m.a(x), "note"), a=_linear()), _x, True),
    "dataclass": (lambda: Lambda(lambda m, x: Output(m.a(x)), a=_linear()), _x, True),
    "mapping": (lambda: Lambda(lambda m, x: Mapping(a=m.a(x)), a=_linear()), _x, True),
    "max result": (lambda: Lambda(lambda m, x: (x, m.a(x).max(1)), a=_linear()), _x, True),
    "parameter with the output": (
        lambda: Lambda(lambda m, x: (m.a(x), m.a.weight.square().sum()), a=_linear()),
        _x,
        True,
    ),
    "keyword argument": (
        lambda: Lambda(lambda m, x, scale=1.0: m.a(x) * scale, a=_linear()),
        lambda: (*_x(), 3.0),
        True,
    ),
    "keyword argument named module": (
        lambda: Lambda(
            lambda m, x: m.a(module=x, plain=x), a=Lambda(lambda m, module, plain: m.b(module), b=_linear())
        ),
        _x,
        True,
    ),
    "dict argument": (
        lambda: Lambda(lambda m, b: m.a(b["x"]) + b["y"][0], a=_linear()),
        lambda: ({"x": torch.randn(7, 4, dtype=_D), "y": [torch.randn(7, 3, dtype=_D)]},),
        True,
    ),
    "two batches": (lambda: nn.Bilinear(4, 4, 3), lambda: (*_x(), *_x()), True),
    "mask": (
        lambda: Lambda(lambda m, x, k: m.a(x) * k[:, None], a=_linear()),
        lambda: (*_x(), torch.arange(7.0)),
        True,
    ),
    "whole argument": (
        lambda: Lambda(lambda m, x, w: m.a(x) * w, a=_linear()),
        lambda: (*_x(), torch.arange(3.0)),
        True,
    ),
    "flattened output": (lambda: Lambda(lambda m, x: m.a(x).view(-1, 3), a=_linear()), _sequence, True),
    "second axis output": (lambda: Lambda(lambda m, x: m.a(x).transpose(0, 1), a=_linear()), _sequence, True),
    "outer flattened output": (
        lambda: Lambda(lambda m, x: m.a(x).transpose(0, 1).reshape(-1, 3), a=_linear()),
        _sequence,
        True,
    ),
    "repeated rows": (lambda: Lambda(lambda m, x: m.a(x.repeat_interleave(2, 0)), a=_linear()), _x, True),
    "tiled rows": (lambda: Lambda(lambda m, x: m.a(x.repeat(2, 1)), a=_linear()), _x, True),
    "checkpointed": (
        lambda: Lambda(lambda m, x: torch.utils.checkpoint.checkpoint(m.a, x, use_reentrant=False), a=_mlp()),
        _x,
        True,
    ),
    "checkpointed reentrant": (
        lambda: Lambda(
            lambda m, x: torch.utils.checkpoint.checkpoint(m.a, m.b(x), use_reentrant=True),
            a=_mlp(),
            b=nn.Linear(4, 4),
        ),
        _x,
        True,
    ),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), _x, True),
    "batch of ranks": (_mlp, lambda: (torch.randn(3, 4, dtype=_D),), True),
}


class Keeper(nn.Module):
    def __init__(self, keep: Callable[[Any, torch.Tensor], None]) -> None:
        super().__init__()
        self.a, self.keep, self.kept = nn.Linear(4, 3), keep, None
        self.register_buffer("average", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.a(x)
        self.keep(self, out)
        return out


class Codebook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = torch.cdist(x, self.codes).argmin(1)
        if self.training:
            counts = F.one_hot(place, 4).to(x.dtype)
            self.codes.mul_(0.9).add_(0.1 * (counts.t() @ x.detach()) / counts.sum(0).clamp(min=1)[:, None])
        return x + (self.codes[place] - x).detach()


def _slope(m: Any, x: torch.Tensor) -> torch.Tensor:
    """A model of an energy that gives its force: a gradient taken inside the model, of its own rows."""
    with torch.enable_grad():
        place = x.detach().requires_grad_()
        (force,) = torch.autograd.grad(m.a(place).tanh().sum(), place, create_graph=True)
    return force


ROWWISE["gradient inside"] = (lambda: Lambda(_slope, a=_linear()), _x, True)


IN_PARTS: dict[str, Model] = {
    "gradients by frequency": (
        lambda: nn.Sequential(nn.Embedding(4, 4, scale_grad_by_freq=True), nn.Linear(4, 3)),
        _words,
        False,
    ),
    "gradients of bags by frequency": (
        lambda: nn.Sequential(nn.EmbeddingBag(4, 4, scale_grad_by_freq=True), nn.Linear(4, 3)),
        _words,
        False,
    ),
    "read as a list": (
        lambda: Lambda(lambda m, x: m.a(x) * (2.0 if sum(x.sum(1).tolist()) > 0 else 1.0), a=_linear()),
        _x,
        False,
    ),
    "read by numpy": (
        lambda: Lambda(lambda m, x: m.a(x) * (2.0 if x.numpy().sum() > 0 else 1.0), a=_linear()),
        lambda: (torch.randn(7, 4, dtype=_D),),
        False,
    ),
    "rows by a mask": (lambda: Lambda(lambda m, x: m.a(x)[x[:, 0] > -9], a=_linear()), _x, False),
    "attention over the batch": (
        lambda: Lambda(lambda m, x: (m.a(x) @ m.a(x).t()).softmax(-1) @ x, a=_linear()),
        _x,
        False,
    ),
    "centred": (lambda: Lambda(lambda m, x: m.a(x - x.mean(0)), a=_linear()), _x, False),
    "divided by rows": (lambda: Lambda(lambda m, x: m.a(x) / len(x), a=_linear()), _x, False),
    "divided by shape": (lambda: Lambda(lambda m, x: m.a(x) / x.shape[0], a=_linear()), _x, False),
    "scalar": (lambda: Lambda(lambda m, x: m.a(x).mean(), a=_linear()), _x, False),
    "scalar beside rows": (
        lambda: Lambda(lambda m, x: (m.a(x), m.a(x).square().mean()), a=_linear()),
        _x,
        False,
    ),
    "loss in a dataclass": (
        lambda: Lambda(lambda m, x, y: Output(m.a(x), F.cross_entropy(m.a(x), y)), a=_linear()),
        lambda: (*_x(), torch.arange(7) % 3),
        False,
    ),
    "kept loss": (lambda: Keeper(lambda m, out: setattr(m, "kept", out.mean())), _x, False),
    "kept rows": (lambda: Keeper(lambda m, out: setattr(m, "kept", out.detach())), _x, False),
    "kept in a list": (
        lambda: Keeper(lambda m, out: setattr(m, "kept", [{"a": out.detach().sum()}])),
        _x,
        False,
    ),
    "moving average": (
        lambda: Keeper(lambda m, out: m.average.mul_(0.9).add_(out.detach().mean(0))),
        _x,
        False,
    ),
    "codebook": (Codebook, _x, False),
    "instance norm": (lambda: nn.InstanceNorm2d(2, affine=True, track_running_stats=True), _images, False),
    "host read": (
        lambda: Lambda(lambda m, x: m.a(x) * (2.0 if x.sum().item() > 0 else 1.0), a=_linear()),
        _x,
        False,
    ),
    "branch": (lambda: Lambda(lambda m, x: m.a(x) if x.mean() > 0 else m.a(-x), a=_linear()), _x, False),
    "sorted": (lambda: Lambda(lambda m, x: m.a(x).sort(0)[0], a=_linear()), _x, False),
    "reversed": (lambda: Lambda(lambda m, x: m.a(x).flip(0), a=_linear()), _x, False),
    "last row": (lambda: Lambda(lambda m, x: m.a(x)[-1:], a=_linear()), _x, False),
    "dropped rows": (lambda: Lambda(lambda m, x: m.a(x)[m.a(x)[:, 0] > 0], a=_linear()), _x, False),
    "running sum": (lambda: Lambda(lambda m, x: m.a(x).cumsum(0), a=_linear()), _x, False),
    "maximum over the batch": (lambda: Lambda(lambda m, x: m.a(x) / x.abs().max(), a=_linear()), _x, False),
    "in a set": (lambda: Lambda(lambda m, x: Hidden(m.a(x)), a=_linear()), _x, False),
    "norm of the batch": (lambda: Lambda(lambda m, x: m.a(x) / x.norm(), a=_linear()), _x, False),
    "enumerated rows": (
        lambda: Lambda(lambda m, x: m.a(x) + torch.arange(len(x))[:, None], a=_linear()),
        _x,
        False,
    ),
    "batch of one": (_mlp, lambda: (torch.randn(1, 4, dtype=_D),), False),
    "unbatched": (_linear, lambda: (torch.randn(4, dtype=_D),), False),
}


def _noise(function: Callable[[torch.Tensor], torch.Tensor], forms: Any = _x) -> Model:
    return (lambda: Lambda(lambda m, x: function(x)), forms, True)


DRAWS: dict[str, Model] = {
    "dropout": (
        lambda: nn.Sequential(nn.Linear(4, 9), nn.Dropout(0.4), nn.Linear(9, 3), nn.Dropout(0.2)),
        _x,
        True,
    ),
    "dropout1d": (lambda: nn.Sequential(nn.Dropout1d(0.5)), _sequence, True),
    "dropout2d": (lambda: nn.Sequential(nn.Conv2d(2, 5, 3), nn.Dropout2d(0.5)), _images, True),
    "dropout3d": (lambda: nn.Dropout3d(0.5), lambda: (torch.ones(7, 2, 2, 2, 2, dtype=_D),), True),
    "alpha dropout": (lambda: nn.AlphaDropout(0.3), _x, True),
    "feature alpha dropout": (lambda: nn.FeatureAlphaDropout(0.3), _sequence, True),
    "F.dropout": _noise(lambda x: F.dropout(x, 0.3, training=True)),
    "F.dropout inplace": _noise(lambda x: F.dropout(x * 1, 0.3, training=True, inplace=True)),
    "transposed dropout": _noise(
        lambda x: F.dropout(x.transpose(0, 1), 0.3, True).transpose(0, 1), _sequence
    ),
    "channels last": (
        lambda: nn.Sequential(nn.Conv2d(2, 5, 3), nn.Dropout(0.5)).to(memory_format=torch.channels_last),
        lambda: (torch.randn(7, 2, 6, 6, dtype=_D).to(memory_format=torch.channels_last),),
        True,
    ),
    "rand_like": _noise(lambda x: x * torch.rand_like(x)),
    "randn_like": _noise(lambda x: x + torch.randn_like(x)),
    "randn": _noise(lambda x: x + torch.randn(x.shape, dtype=x.dtype)),
    "randn of rows": _noise(lambda x: x + torch.randn(x.size(0), 1, dtype=x.dtype)),
    "rand of transposed rows": _noise(lambda x: x + torch.rand(4, len(x), dtype=x.dtype).t()),
    "randint": _noise(lambda x: x + torch.randint(0, 5, (len(x), 4))),
    "randint_like": _noise(lambda x: x + torch.randint_like(x, 0, 5)),
    "normal": _noise(lambda x: torch.normal(x, 1.0)),
    "normal of both": _noise(lambda x: torch.normal(x, x.abs() + 0.1)),
    "normal of spread": _noise(lambda x: torch.normal(0.0, x.abs())),
    "normal_": _noise(lambda x: x + torch.empty_like(x).normal_()),
    "new_empty": _noise(lambda x: x + x.new_empty(x.shape).uniform_(-1, 1)),
    "bernoulli": _noise(lambda x: torch.bernoulli(x.sigmoid())),
    "bernoulli_": _noise(lambda x: x * torch.empty_like(x).bernoulli_(0.3)),
    "bernoulli_ of tensor": _noise(lambda x: x * torch.zeros_like(x).bernoulli_(x.detach().sigmoid())),
    "exponential": _noise(lambda x: x * torch.empty_like(x).exponential_()),
    "gumbel": _noise(lambda x: F.gumbel_softmax(x, hard=True)),
    "multinomial": _noise(
        lambda x: x + torch.multinomial(x.detach().softmax(-1), 2, replacement=True).sum(1, True)
    ),
    "multinomial one": _noise(lambda x: x + torch.multinomial(x.detach().softmax(-1), 1)),
    "without replacement": _noise(lambda x: x + torch.multinomial(x.detach().softmax(-1), 2).sum(1, True)),
    "poisson": _noise(lambda x: torch.poisson(x.abs() * 3)),
    "distribution": _noise(lambda x: torch.distributions.Normal(x, 1.0).rsample()),
    "categorical": _noise(lambda x: x + torch.distributions.Categorical(logits=x.detach()).sample()[:, None]),
    "rrelu": (nn.RReLU, _x, True),
    "attention": _noise(
        lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], dropout_p=0.3), _text
    ),
    "lstm": (lambda: Recurrent(dropout=0.4), _sequence, True),
    "multi-head": (
        lambda: Lambda(
            lambda m, x: m.a(x, x, x)[0], a=nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)
        ),
        _text,
        True,
    ),
    "transformer": (lambda: _transformer(0.2), _text, True),
    "independent of the batch": _noise(lambda x: x + torch.randn(4, dtype=x.dtype)),
    "both kinds": _noise(
        lambda x: F.dropout(x + torch.rand(1, dtype=x.dtype), 0.3) * torch.rand(len(x), 1, dtype=x.dtype)
    ),
    "flattened draw": _noise(lambda x: F.dropout(x.reshape(-1, 4), 0.5).view_as(x), _sequence),
    "outer flattened draw": _noise(
        lambda x: F.dropout(x.transpose(0, 1).reshape(-1, 4), 0.5).view(5, -1, 4).transpose(0, 1), _sequence
    ),
    "checkpointed": (
        lambda: Lambda(
            lambda m, x: torch.utils.checkpoint.checkpoint(m.a, x, use_reentrant=False),
            a=nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3), nn.Dropout(0.1)),
        ),
        _x,
        True,
    ),
    "permuted": _noise(lambda x: x[torch.randperm(len(x))]),
    "own generator": _noise(lambda x: x + torch.randn(x.shape, generator=torch.Generator().manual_seed(1))),
    "dropped layer": _noise(lambda x: x * 2 if torch.rand(()) > 0.3 else x),
}
_DRAWN_IN_PARTS = {"permuted", "own generator", "dropped layer", "poisson", "rrelu"}

CASES = {"row by row": ROWWISE, "in parts": IN_PARTS, "draws": DRAWS}


class World:
    def __init__(self, session: Any) -> None:
        self.session = session

    def batch(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self.batch(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.batch(item) for item in value]
        context = None if self.session is None else self.session.context
        if (
            context is None
            or not isinstance(value, torch.Tensor)
            or value.dim() < 1
            or len(value) < context.world_size
        ):
            return value
        if len(value) not in (3, 7) or value.shape == (3,):
            return value
        layout = Layout(0, len(value), context.world_size)
        return wrap(context, layout.take(value, context.rank).clone(), layout, rules.table())


def _steps(model: Model, session: Any, from_loader: bool) -> tuple[list[Any], Any]:
    """Two training steps and an evaluation: outputs, gradients, buffers, what is kept, random states."""
    make, arguments, _ = model
    torch.manual_seed(11)
    module = make().double()
    world = World(session)
    found: list[Any] = []
    last: Any = None
    for step in range(3):
        module.train(step < 2)
        inputs = arguments()
        torch.manual_seed(100 + step)
        last = module(*(world.batch(value) if from_loader else value for value in inputs))
        total: Any = 0.0
        for value in _tensors(last):
            found.append(materialize(value))
            if value.requires_grad:
                total = total + value.square().sum()
        if isinstance(total, torch.Tensor) and step < 2:
            total.backward()
        found.append(torch.get_rng_state())
    found += [p.grad for p in module.parameters()] + list(module.buffers())
    found += [materialize(value) for value in flat(getattr(module, "kept", None))]
    return found, last


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, Hidden):
        value = value.kept
    if dataclasses.is_dataclass(value):
        value = list(vars(value).values())
    return [item for item in flat(value) if isinstance(item, torch.Tensor)]


def _model(rank: Rank, group: str, name: str, from_loader: bool) -> list[str]:
    model = CASES[group][name]
    expected, plain = _steps(model, None, from_loader)
    with rank.session() as session:
        found, last = _steps(model, session, from_loader)
        problems = [
            f"{i} {text}"
            for i, (a, b) in enumerate(zip(expected, found, strict=True))
            for text in differences(a, b, 1e-11)
        ]
        # Parts of a model that runs in parts are cut too; the note tells.
        in_one_piece = sum(session.tally.sharded.values()) == 3 and not session.notes
        if in_one_piece != (model[2] and name not in _DRAWN_IN_PARTS):
            problems.append(f"cut {session.tally.sharded}; {without_codes(session.notes)}")
        if type(last) is not type(plain) and not isinstance(last, torch.Tensor):
            problems.append(f"returned a {type(last).__name__}")
    return problems


# Every third is tried every day; `make soak` has all.
_MODELS = [
    pytest.param(group, name, id=f"{group}-{name}", marks=pytest.mark.soak if place % 3 else ())
    for group in CASES
    for place, name in enumerate(CASES[group])
]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize(("group", "name"), _MODELS)
def test_a_model_gives_one_devices_answer(ranks: Any, group: str, name: str, world_size: int) -> None:
    assert ranks(world_size, _model, group, name, True) == [[]] * world_size


def _drawn_in_inference_mode(rank: Rank) -> list[str]:
    """There torch hands over as one operation what is made of several, of which one draws."""
    problems: list[str] = []
    for name in (
        "dropout",
        "dropout2d",
        "alpha dropout",
        "F.dropout inplace",
        "attention",
        "multi-head",
        "lstm",
    ):
        make, arguments, _ = DRAWS[name]
        for inside in (True, False):

            def drawn(
                session: Any, inside: bool = inside, make: Any = make, arguments: Any = arguments
            ) -> Any:
                torch.manual_seed(11)
                module = make().double()
                with torch.inference_mode():
                    inputs = arguments()
                with torch.inference_mode() if inside else torch.no_grad():
                    found = [
                        materialize(each)
                        for _ in range(2)
                        for each in _tensors(module(*(World(session).batch(value) for value in inputs)))
                    ]
                return [*found, torch.get_rng_state()]

            expected = drawn(None)
            with rank.session() as session:
                found = drawn(session)
                for one, other in zip(expected, found, strict=True):
                    problems += [f"{name} {text}" for text in differences(one, other, 1e-11)]
                if sum(session.tally.sharded.values()) != 2 or session.notes:
                    problems.append(f"{name}: {session.tally.sharded} {without_codes(session.notes)}")
    return problems


def test_draws_in_inference_mode_are_cut(ranks: Any) -> None:
    assert ranks(2, _drawn_in_inference_mode) == [[]] * 2


@pytest.mark.parametrize("name", ["mlp", "lstm", "flattened output"])
def test_a_whole_batch_is_cut_too(ranks: Any, name: str) -> None:
    assert ranks(2, _model, "row by row", name, False) == [[]] * 2


def _squeezed(rank: Rank, plan: str) -> list[Any]:
    """Batches of which some rank, or some piece, has one row; then one of which none has."""
    model = Lambda(lambda m, x: m.b(m.a(x).relu()).squeeze(), a=nn.Linear(4, 5), b=nn.Linear(5, 1)).double()
    batches = [torch.randn(rows, 4, dtype=_D) for rows in (4, 5, 12)]
    expected = [model(batch).detach() for batch in batches]
    found: list[Any] = []
    with rank.session(plan) as session:
        for batch, plain in zip(batches, expected, strict=True):
            cut = session.tally.sharded.get("Lambda", 0)
            result = materialize(model(batch)).detach()
            cut = session.tally.sharded.get("Lambda", 0) - cut
            found.append((result.shape, torch.allclose(result, plain), cut))
        return [*found, without_codes(session.notes)]


@pytest.mark.parametrize(("world_size", "plan"), [(3, "ddp"), (2, "micro-batches=2")])
def test_a_single_row_may_take_another_form(ranks: Any, world_size: int, plan: str) -> None:
    right = [(torch.Size([rows]), True, int(rows == 12)) for rows in (4, 5, 12)]
    reason = "it treats a single row differently from a row among several"
    said = f"Lambda is computed whole where a rank has a single row: {reason}"
    assert ranks(world_size, _squeezed, plan) == [[*right, [said]]] * world_size


def _exchanges(rank: Rank) -> list[list[str]]:
    """What a rank exchanges in the fourth step of a classifier: in forward and loss, and in backward."""
    rows = torch.arange(64.0).view(16, 4) / 7
    data = torch.utils.data.TensorDataset(rows, torch.arange(16) % 3)
    seen: list[str] = []
    with rank.session() as session:
        loader = torch.utils.data.DataLoader(data, 4)
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        comm = session.context.comm
        plain = comm.announce
        comm.announce = lambda operation, *given: seen.append(operation) or plain(operation, *given)
        try:
            for inputs, targets in loader:
                seen.clear()
                loss = nn.functional.cross_entropy(model(inputs), targets)
                forward = list(seen)
                seen.clear()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        finally:
            del comm.announce
    return [forward, seen]


def test_a_step_exchanges_no_more_than_it_must(ranks: Any) -> None:
    assert ranks(2, _exchanges) == [[["all_reduce"], []]] * 2


def _bounded(x: torch.Tensor) -> torch.Tensor:
    return x.tanh()


def _spread(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(0)


class Wrapped(nn.Module):
    """As a loss or a solver that is made where it is used."""

    def __init__(self, inner: nn.Module, scale: float, after: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.scale, self.after = inner, scale, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.inner(x) * self.scale)


def _made_anew(rank: Rank) -> tuple[list[int], list[str]]:
    torch.manual_seed(0)
    inner, x = nn.Linear(6, 3).to(_D), torch.randn(7, 6, dtype=_D)
    counts: list[int] = []
    with (
        rank.session() as session,
        mock.patch.object(first_call, "observe", wraps=first_call.observe) as tried,
    ):
        for after in (_bounded, _spread):
            for call in range(40):
                scale = 2.0 if call > 20 else 1.0
                out = materialize(Wrapped(inner, scale, after)(x))
                assert torch.allclose(out, after(F.linear(x, inner.weight, inner.bias) * scale), atol=1e-12)
            counts.append(tried.call_count)
        return counts, without_codes(session.notes)


class Hidden1(nn.Module):
    """Its layers are where nobody counts them, or behind a function."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner[0](x) if isinstance(self.inner, list) else self.inner(x)


class Sampler(nn.Module):
    def forward(self, x: torch.Tensor, net: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return net(x)


def _told_apart(rank: Rank) -> list[bool]:
    torch.manual_seed(0)
    x = torch.randn(7, 6, dtype=_D)
    alone, mixing = (
        nn.Sequential(nn.Linear(6, 3), Lambda(after)).to(_D)
        for after in (lambda m, value: value.tanh(), lambda m, value: value - value.mean(0))
    )
    nets, sampler, found = [alone] * 5 + [mixing], Sampler(), []

    def named(*, net: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        def call(value: torch.Tensor, *, net: nn.Module = net) -> torch.Tensor:
            return net(value)

        return call

    with torch.no_grad():
        expected = [net(x) for net in nets]
    with rank.session(), torch.no_grad():
        for net, right in zip(nets, expected, strict=True):
            ways = [
                Hidden1([net])(x),
                Hidden1(lambda value, net=net: net(value))(x),
                sampler(x, lambda value, net=net: net(value)),
                sampler(x, named(net=net)),
                sampler(x, net.forward),
            ]
            found += [torch.allclose(materialize(way), right, atol=1e-12) for way in ways]
    return found


def test_modules_that_only_look_alike_are_told_apart(ranks: Any) -> None:
    assert ranks(2, _told_apart) == [[True] * 30] * 2


def test_modules_made_anew_are_observed_a_few_times(ranks: Any) -> None:
    for (alone, mixing), notes in ranks(2, _made_anew):
        assert alone == 2
        assert 2 < mixing < 20  # both axes, and the layer inside
        assert len(notes) == 1
        assert notes[0].startswith("Wrapped runs in parts, not as one piece: rows of its output depend on")


class Counter(nn.Linear):
    """Counts its calls, or the rows of its batches."""

    def __init__(self, rows: bool) -> None:
        super().__init__(6, 3)
        self.rows, self.seen = rows, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.shape[0] if self.rows else 1
        return super().forward(x) * (2 if self.seen > 20 else 1)


def _counted(rank: Rank, rows: bool) -> list[str]:
    with rank.session() as session:
        torch.manual_seed(0)
        model = Counter(rows)
        for _ in range(40):
            model(torch.randn(7, 6))
        return without_codes(session.notes)


def test_a_count_of_calls_is_not_spoken_of(ranks: Any) -> None:
    assert ranks(2, _counted, False) == [[]] * 2


def test_a_count_of_rows_is_told_of_once(ranks: Any) -> None:
    for notes in ranks(2, _counted, True):
        assert [note for note in notes if "it keeps seen, which depends on the batch" in note] == notes[:1]


class Charged(nn.Module):
    """Sums over the first axis, of time, and keeps what it has summed up."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.charge = nn.Linear(6, 3), torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.net(x)
        self.charge = out[0].detach()
        return out.mean(0)


def _charged(rank: Rank) -> tuple[list[str], int]:
    with rank.session() as session:
        model = Charged()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        F.cross_entropy(model(torch.randn(7, 10, 6)), torch.arange(10) % 3).backward()
        optimizer.step()
        return without_codes(session.notes), session.tally.samples


def test_what_is_said_and_counted_is_of_the_axis_whose_rows_come_out(ranks: Any) -> None:
    said = "Charged runs in parts, not as one piece: it keeps charge, which depends on the batch, on itself"
    assert ranks(2, _charged) == [([said], 10)] * 2
