"""Attributes and other numbers that change a model's behaviour from call to call."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from hazards.harness import Hazard, Lambda, data, loader, modelled, train

T = torch.Tensor
_MIXED = "rows of its output depend on other rows"
LIMIT = {"step": 0}
MIX = 0.0


class Mixer(nn.Module):
    """Adds the mean over the batch, if told so."""

    mix_for_all = 0.0

    def __init__(self, told: Callable[[Any], float]) -> None:
        super().__init__()
        self.a, self.told = nn.Linear(4, 3), told
        self.mix, self.flag, self.calls = 0.0, False, 0
        self.config = types.SimpleNamespace(mix=0.0)
        self.table = {"mix": 0.0}
        self.settings = Settings()

    def forward(self, x: T) -> T:
        self.calls += 1
        h = self.a(x)
        if self.told(self):
            h = h + self.told(self) * h.mean(0)
        return h


@dataclasses.dataclass
class Settings:
    mix: float = 0.0


def _set(where: Any, name: str) -> Callable[[Any, int], None]:
    def before(m: Any, step: int) -> None:
        owner = where(m)
        value = 0.5 if step >= 2 else 0.0
        if isinstance(owner, dict):
            owner[name] = value
        else:
            setattr(owner, name, value)

    return before


def _told(told: Callable[[Any], Any], before: Any = None) -> Any:
    def script() -> Iterator[Any]:
        global MIX
        MIX = 0.0
        Mixer.mix_for_all = 0.0
        yield from train(Mixer(told), before=before, epochs=3)
        MIX = 0.0
        Mixer.mix_for_all = 0.0

    return script


def _set_global(m: Any, step: int) -> None:
    global MIX
    MIX = 0.5 if step >= 2 else 0.0


class _Template(nn.Module):
    """A base class, whose forward calls what its subclasses have, directly or not."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x: T) -> T:
        return self.features(x)


class _Subclass(_Template):
    def features(self, x: T) -> T:
        h = self.a(x)
        return h + MIX * h.mean(0) if MIX else h


class _OfALibrary(nn.TransformerEncoderLayer):
    """A library's forward calls this method."""

    def _ff_block(self, x: T) -> T:
        h = super()._ff_block(x)
        return h + MIX * h.mean(0) if MIX else h


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def encode(self, x: T) -> T:
        h = self.a(x)
        return h + MIX * h.mean(0) if MIX else h


class _Calling(nn.Module):
    """Calls a method of its part that is not `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.part = _Encoder()

    def forward(self, x: T) -> T:
        return self.part.encode(x)


class _Decorated(nn.Module):
    """Its method is inside a library's function."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x: T) -> T:
        return self.a(x) * (1 + self.shift(x))

    @torch.no_grad()
    def shift(self, x: T) -> T:
        return MIX * x.std() if MIX else x.new_zeros(())


class _Plain:
    """Settings, without a method."""

    mix = 0.0


class _Set(nn.Module):
    """Goes by settings of that kind."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x: T) -> T:
        h = self.a(x)
        return h + _Plain.mix * h.mean(0) if _Plain.mix else h


def _by(make: Callable[[], nn.Module], **options: Any) -> Any:
    """Trains a model whose methods read MIX, which the script sets later."""

    def script() -> Iterator[Any]:
        global MIX
        MIX = 0.0
        yield from train(make(), before=_set_global, **options)
        MIX = 0.0

    return script


def _plain_class() -> Iterator[Any]:
    _Plain.mix = 0.0
    yield from train(_Set(), before=_set(lambda m: _Plain, "mix"))
    _Plain.mix = 0.0


class Stage(enum.Enum):
    WARM = 0
    FULL = 1


class Slotted:
    __slots__ = ("mix",)

    def __init__(self) -> None:
        self.mix = 0.0


class Switched(nn.Module):
    """Adds the mean over the batch once something, whatever it is kept in, says so; counts nothing."""

    def __init__(self, flag: Any, is_on: Callable[[Any], Any]) -> None:
        super().__init__()
        self.a, self.flag, self.is_on = nn.Linear(4, 3), flag, is_on

    def forward(self, x: T) -> T:
        h = self.a(x)
        return h + h.mean(0) if self.is_on(self.flag) else h


def _switched(off: Callable[[], Any], is_on: Callable[[Any], Any], switch: Callable[[Any], Any]) -> Hazard:
    """The flag of a model is replaced by what `switch` returns, if that is not None."""

    def before(m: Any, step: int) -> None:
        if step == 2:
            told = switch(m.flag)
            m.flag = m.flag if told is None else told

    def script() -> Iterator[Any]:
        yield from train(Switched(off(), is_on), before=before)

    return Hazard(script, "parts", _MIXED)


class _Argued(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x: T, stage: Any) -> T:
        h = self.a(x)
        return h + h.mean(0) if stage is Stage.FULL or (stage is not Stage.WARM and stage > 0.5) else h


def _argued(off: Any, on: Any) -> Hazard:
    def script() -> Iterator[Any]:
        step = iter(range(1000))
        yield from train(_Argued(), call=lambda m, x, y: m(x, on if next(step) >= 2 else off))

    return Hazard(script, "parts", _MIXED)


def _by_a_schedule(kind: Any, limit: Any) -> Hazard:
    """Another value at every call, until there have been too many to be observed: it decides at last."""

    def before(m: Any, step: int) -> None:
        m.flag = kind(step)

    def script() -> Iterator[Any]:
        yield from train(Switched(kind(0), lambda flag: flag == limit), before=before, epochs=9)

    return Hazard(script, "parts", _MIXED)


def _unread_text() -> Iterator[Any]:
    """What it was made of changes at every call and is looked at by nothing."""
    model = Switched(None, lambda flag: False)
    yield from train(model, before=lambda m, step: setattr(m, "name", f"step {step}"), epochs=9)


class Scheduled(nn.Module):
    """Dropout that begins later: the first call has shown no draw."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.drop, self.b = nn.Linear(4, 9), nn.Dropout(0.0), nn.Linear(9, 3)

    def forward(self, x: T) -> T:
        return self.b(self.drop(self.a(x)))


class WarmUp(nn.Module):
    """Changes its behaviour after some calls, by a counter that `where` holds."""

    def __init__(self, counter: Callable[[Any], int]) -> None:
        super().__init__()
        self.a, self.b, self.counter = nn.Linear(4, 3), nn.Linear(4, 3), counter
        self.step = 0
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: T) -> T:
        if self.training:
            self.step += 1
            self.steps += 1
            LIMIT["step"] += 1
        h = self.a(x)
        return h - h.mean(0) if self.counter(self) > 20 else h + self.b(x)


def _warm_up(counter: Callable[[Any], int]) -> Any:
    def script() -> Iterator[Any]:
        LIMIT["step"] = 0
        yield from train(WarmUp(counter), epochs=9)

    return script


class Annealed(nn.Module):
    """A number that is another one at every call, and only ever multiplies."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.beta = nn.Linear(4, 3), 0.0

    def forward(self, x: T) -> T:
        return self.a(x) * (1 + self.beta)


def _annealed() -> Iterator[Any]:
    yield from train(Annealed(), before=lambda m, step: setattr(m, "beta", step / 30), epochs=9)


def _every_other_call() -> Iterator[Any]:
    """Two ways of going, neither of which mixes rows, by a number that counts."""

    def forward(m: Any, x: T, step: int) -> T:
        return m.a(x).tanh() if step % 2 else m.a(x)

    step = iter(range(1000))
    model = Lambda(forward, a=nn.Linear(4, 3))
    yield from train(model, call=lambda m, x, y: m(x, next(step)), epochs=9)


def _seldom() -> Iterator[Any]:
    """Another way at every eighth call."""

    def forward(m: Any, x: T, step: int) -> T:
        return m.a(x).tanh() if step % 8 == 7 else m.a(x)

    step = iter(range(1000))
    model = Lambda(forward, a=nn.Linear(4, 3))
    yield from train(model, call=lambda m, x, y: m(x, next(step)), epochs=15)


def _standardized() -> Iterator[Any]:
    """A norm of weights, and a number that changes: calls are compared."""

    def forward(m: Any, x: T, alpha: float) -> T:
        weight = nn.functional.batch_norm(m.weight, None, None, training=True)
        return x @ weight * (1 + alpha)

    step = iter(range(1000))
    model = Lambda(forward, weight=nn.Parameter(torch.linspace(-1, 2, 12).view(4, 3)))
    yield from train(model, call=lambda m, x, y: m(x, next(step) / 30), epochs=9)


def _annealed_argument() -> Iterator[Any]:
    class Reversal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 3)

        def forward(self, x: T, alpha: float) -> T:
            return alpha * self.a(x) + (1 - alpha) * self.a(x) * (1 + alpha)

    step = iter(range(1000))
    yield from train(Reversal(), call=lambda m, x, y: m(x, next(step) / 30), epochs=9)


def _argument_decides() -> Iterator[Any]:
    class Stepped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 3)

        def forward(self, x: T, step: int) -> T:
            h = self.a(x)
            return h - h.mean(0) if step > 20 else h

    step = iter(range(1000))
    yield from train(Stepped(), call=lambda m, x, y: m(x, next(step)), epochs=9)


def _decides_in_a_tensor(made: Callable[[float], T]) -> Callable[[], Iterator[Any]]:
    """A number that changes at every call is looked at as a tensor."""

    def forward(m: Any, x: T, alpha: float) -> T:
        h = m.a(x)
        return h - h.mean(0) if made(alpha) > 0.7 else h

    def script() -> Iterator[Any]:
        step = iter(range(1000))
        model = Lambda(forward, a=nn.Linear(4, 3))
        yield from train(model, call=lambda m, x, y: m(x, next(step) / 30), epochs=9)

    return script


def _modes_of_parts() -> Iterator[Any]:
    """A frozen batch norm inside a model that trains, thawed later."""
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 3))

    def before(m: Any, step: int) -> None:
        m.train()
        m[1].train(step >= 2)
        m[2].train(step >= 3)

    yield from train(model, before=before)


def _layer_replaced() -> Iterator[Any]:
    class Whitened(nn.Module):
        def forward(self, x: T) -> T:
            return x - x.mean(0)

    model = nn.Sequential(nn.Linear(4, 3), nn.Identity())

    def before(m: Any, step: int) -> None:
        if step == 2:
            m[1] = Whitened()

    yield from train(model, before=before)


def _forward_replaced() -> Iterator[Any]:
    model = nn.Sequential(nn.Linear(4, 3), nn.Identity())

    def before(m: Any, step: int) -> None:
        if step == 2:
            m[1].forward = lambda x: x - x.mean(0)

    yield from train(model, before=before)


def _function_replaced() -> Iterator[Any]:
    class Acting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.act = nn.Linear(4, 3), torch.tanh

        def forward(self, x: T) -> T:
            return self.act(self.a(x))

    def before(m: Any, step: int) -> None:
        if step == 2:
            m.act = lambda h: h.softmax(0)

    yield from train(Acting(), before=before)


def _text_decides() -> Iterator[Any]:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm = nn.Linear(4, 3), "rows"

        def forward(self, x: T) -> T:
            h = self.a(x)
            return h - h.mean(1, keepdim=True) if self.norm == "rows" else h - h.mean(0)

    yield from train(Named(), before=lambda m, step: setattr(m, "norm", "rows" if step < 2 else "batch"))


def _decided_by_a_closure() -> Iterator[Any]:
    step = 0

    class Closed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 3)

        def forward(self, x: T) -> T:
            h = self.a(x)
            return h - h.mean(0) if step > 2 else h

    def before(m: Any, now: int) -> None:
        nonlocal step
        step = now

    yield from train(Closed(), before=before)


def _evaluated_in_between() -> Iterator[Any]:
    """No gradient, another size of batch, the mode of training left on."""
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    x = torch.linspace(-1, 1, 20, dtype=torch.float64).view(5, 4)
    read = []

    def before(m: Any, step: int) -> None:
        with torch.no_grad():
            read.append(m(x).sum().item())

    yield from train(model, before=before)
    yield read


def _cumulative() -> Iterator[Any]:
    """momentum=None, which update_bn sets too: each batch weighs 1/number, so the layer reads its counter."""
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=None), nn.ReLU(), nn.Linear(6, 3))
    yield from train(model)
    update_bn(loader(), model)
    yield [value.clone() for value in model.buffers()]


def _evaluated_first() -> Iterator[Any]:
    """The first call of all under inference_mode, in which nothing has a gradient graph."""
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double().eval()
    with torch.inference_mode():
        for x, _ in loader():
            yield model(x)
    yield from train(model.train())


class _WithHistory(nn.Module):
    """The script writes what it has seen into a dict of the model's, which no code of the model names."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)
        self.history: dict[str, list[float]] = {"loss": []}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x)


@dataclasses.dataclass
class _Scale:
    """Can be called, and has no hash."""

    by: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


HAZARDS = {
    "a history of the script's": Hazard(
        modelled(_WithHistory, before=lambda m, step: m.history["loss"].append(step)), "whole"
    ),
    "a part of what has no hash": Hazard(
        modelled(
            lambda: Lambda(
                lambda m, x: m.scale(m.a(x)), a=nn.Linear(4, 3), scale=functools.partial(_Scale(2.0))
            )
        ),
        "whole",
    ),
    "attribute set by the script": Hazard(_told(lambda m: m.mix, _set(lambda m: m, "mix")), "parts", _MIXED),
    "in a namespace": Hazard(_told(lambda m: m.config.mix, _set(lambda m: m.config, "mix")), "parts", _MIXED),
    "in a dict": Hazard(_told(lambda m: m.table["mix"], _set(lambda m: m.table, "mix")), "parts", _MIXED),
    "in a dataclass": Hazard(
        _told(lambda m: m.settings.mix, _set(lambda m: m.settings, "mix")), "parts", _MIXED
    ),
    "of the class": Hazard(
        _told(lambda m: m.mix_for_all, _set(lambda m: Mixer, "mix_for_all")), "parts", _MIXED
    ),
    "a dataclass is replaced": _switched(Settings, lambda f: f.mix, lambda f: Settings(mix=0.5)),
    "a dict is replaced": _switched(lambda: {"on": 0}, lambda f: f["on"], lambda f: {"on": 1}),
    "a dict in a dict": _switched(
        lambda: {"a": {"on": 0}}, lambda f: f["a"]["on"], lambda f: f["a"].update(on=1)
    ),
    "an entry of a dict comes": _switched(dict, lambda f: "on" in f, lambda f: f.update(on=1)),
    "a member of an enum": _switched(lambda: Stage.WARM, lambda f: f is Stage.FULL, lambda f: Stage.FULL),
    "a number of numpy": _switched(lambda: np.float32(0), lambda f: f > 0.5, lambda f: np.float32(1)),
    "an array of numpy": _switched(lambda: np.zeros(2), lambda f: f[1] > 0.5, lambda f: f.fill(1)),
    "in a tuple": _switched(lambda: (0, False), lambda f: f[1], lambda f: (0, True)),
    "in a list": _switched(lambda: [0, False], lambda f: f[1], lambda f: f.__setitem__(1, True)),
    "in a list in a list": _switched(
        lambda: [0, [None]], lambda f: f[1][0], lambda f: f[1].__setitem__(0, True)
    ),
    "in a set": _switched(set, lambda f: "on" in f, lambda f: f.add("on")),
    "in slots": _switched(Slotted, lambda f: f.mix, lambda f: setattr(f, "mix", 0.5)),
    "a type of torch": _switched(
        lambda: torch.float32, lambda f: f is torch.float64, lambda f: torch.float64
    ),
    "a function in a dict": _switched(
        lambda: {"f": torch.sum}, lambda f: f["f"] is torch.mean, lambda f: f.update(f=torch.mean)
    ),
    "a member of an enum as an argument": _argued(Stage.WARM, Stage.FULL),
    "a number of numpy as an argument": _argued(np.float32(0), np.float32(1)),
    "a number of numpy that changes": _by_a_schedule(np.int64, 20),
    "a text that changes": _by_a_schedule(str, "20"),
    "a list that changes": _by_a_schedule(lambda step: [step], [20]),
    "a text that changes, unread": Hazard(_unread_text, "whole"),
    "of a class without methods": Hazard(_plain_class, "parts", _MIXED),
    "in a method of a subclass": Hazard(_by(_Subclass), "parts", _MIXED),
    "in a method that a library calls": Hazard(
        _by(
            lambda: _OfALibrary(4, 2, 8, 0.0, torch.tanh, batch_first=True),
            batches=loader(dataset=data(3, 4)),
        ),
        "parts",
        _MIXED,
    ),
    "in a method of a part": Hazard(_by(_Calling), "parts", _MIXED),
    "in a method inside a decorator": Hazard(_by(_Decorated), "parts", _MIXED),
    "global variable": Hazard(_told(lambda m: MIX, _set_global), "parts", _MIXED),
    "text": Hazard(_text_decides, "parts", _MIXED),
    "closure": Hazard(_decided_by_a_closure, "parts", _MIXED),
    "count of calls": Hazard(_told(lambda m: 0.5 if m.calls > 3 else 0.0), "parts", ""),
    "dropout later": Hazard(
        lambda: train(Scheduled(), before=lambda m, step: setattr(m.drop, "p", 0.3 * (step >= 2))), "whole"
    ),
    "warm-up by attribute": Hazard(_warm_up(lambda m: m.step), "parts", ""),
    "warm-up by buffer": Hazard(_warm_up(lambda m: m.steps), "parts", "host"),
    "warm-up by global dict": Hazard(_warm_up(lambda m: LIMIT["step"]), "parts", ""),
    "every other call": Hazard(_every_other_call, "parts", "change often"),
    "seldom": Hazard(_seldom, "whole"),
    "norm of weights, annealed": Hazard(_standardized, "whole"),
    "annealed": Hazard(_annealed, "whole"),
    "annealed argument": Hazard(_annealed_argument, "whole"),
    "argument decides in a product": Hazard(
        _decides_in_a_tensor(lambda alpha: alpha * torch.ones(())), "parts", _MIXED
    ),
    "argument decides in a tensor": Hazard(
        _decides_in_a_tensor(lambda alpha: torch.tensor([alpha, 0.0]).max()), "parts", _MIXED
    ),
    "argument decides": Hazard(_argument_decides, "parts", ""),
    "modes of parts": Hazard(_modes_of_parts, "whole"),
    "layer replaced": Hazard(_layer_replaced, "parts", _MIXED),
    "forward replaced": Hazard(_forward_replaced, "parts", _MIXED),
    "function replaced": Hazard(_function_replaced, "parts", _MIXED),
    "evaluated in between": Hazard(_evaluated_in_between, "whole"),
    "cumulative batch norm": Hazard(_cumulative, "whole"),
    "evaluated first": Hazard(_evaluated_first, "whole"),
}
