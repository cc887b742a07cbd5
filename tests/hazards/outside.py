"""Global variables, closures, threads, transforms: what reaches a model past its arguments."""

from __future__ import annotations

import contextlib
import contextvars
import io
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from hazards.harness import D, Hazard, Lambda, data, loader, modelled, train

T = torch.Tensor
SEEN: list[Any] = []
COUNTS: dict[str, int] = {}
CACHE: dict[int, T] = {}
LAST: Any = None
STEP = 0


class Speaks(nn.Module):
    """A linear layer with something done on the side."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)


class Appends(Speaks):
    def forward(self, x: T) -> T:
        SEEN.append(len(x))
        return self.a(x)


class AppendsRows(Speaks):
    def forward(self, x: T) -> T:
        h = self.a(x)
        _remember(h.detach())
        return h


def _remember(value: Any) -> None:
    """A helper, so that the list is not named in forward itself."""
    SEEN.append(value)


class Counts(Speaks):
    def forward(self, x: T) -> T:
        COUNTS["rows"] = COUNTS.get("rows", 0) + len(x)
        return self.a(x)


QUEUE: queue.SimpleQueue[int] = queue.SimpleQueue()
HERE = threading.local()
CALLS: contextvars.ContextVar[int] = contextvars.ContextVar("CALLS", default=0)


class Hands(Speaks):
    """To a writer of metrics, say."""

    def forward(self, x: T) -> T:
        QUEUE.put(1)
        return self.a(x)


class CountsHere(Speaks):
    def forward(self, x: T) -> T:
        HERE.calls = getattr(HERE, "calls", 0) + 1
        CALLS.set(CALLS.get() + 1)
        return self.a(x)


def _handed() -> Iterator[Any]:
    while not QUEUE.empty():
        QUEUE.get()
    yield from train(Hands())
    yield QUEUE.qsize()


def _counted_here() -> Iterator[Any]:
    HERE.calls = 0
    CALLS.set(0)
    yield from train(CountsHere(), seen=lambda: (HERE.calls, CALLS.get()))


class CountsCalls(Speaks):
    def forward(self, x: T) -> T:
        global STEP
        STEP += 1
        return self.a(x)


class SetsGlobal(Speaks):
    def forward(self, x: T) -> T:
        global LAST
        LAST = self.a(x)
        return LAST


class Caches(Speaks):
    """A cache of the module's file, by the length of a row."""

    def forward(self, x: T) -> T:
        if x.shape[1] not in CACHE:
            CACHE[x.shape[1]] = torch.linspace(0.5, 1.5, x.shape[1], dtype=x.dtype)
        return self.a(x * CACHE[x.shape[1]])


class Prints(Speaks):
    def forward(self, x: T) -> T:
        print("rows:", len(x))
        return self.a(x)


class PrintsAlike(Speaks):
    def forward(self, x: T) -> T:
        print("forward")
        return self.a(x)


class Logs(Speaks):
    def forward(self, x: T) -> T:
        logging.getLogger("hazard").warning("rows: %d", len(x))
        return self.a(x)


def _with_globals(make: Any, read: Any) -> Any:
    def script() -> Iterator[Any]:
        global LAST, STEP
        SEEN.clear()
        COUNTS.clear()
        CACHE.clear()
        LAST, STEP = None, 0
        yield from train(make(), seen=read)
        SEEN.clear()
        COUNTS.clear()
        CACHE.clear()
        LAST = None

    return script


def _printing(make: Any) -> Any:
    def script() -> Iterator[Any]:
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            yield from list(train(make()))
        yield told.getvalue()

    return script


def _logging() -> Iterator[Any]:
    told = io.StringIO()
    handler, logger = logging.StreamHandler(told), logging.getLogger("hazard")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield from list(train(Logs()))
    finally:
        logger.removeHandler(handler)
    yield told.getvalue()


def _closure_of_batch_length() -> Iterator[Any]:
    """A weight for each row, which the model reads past its arguments."""
    weight: Any = None
    model = Lambda(lambda m, x: m.a(x) * weight, a=nn.Linear(4, 3))

    def call(m: Any, x: T, y: T) -> T:
        nonlocal weight
        weight = (y + 1.0)[:, None].to(x.dtype)
        return m(x)

    yield from train(model, call=call)


def _memory_of_features() -> Iterator[Any]:
    """Nearest neighbours among features that the script stored: as long as another batch."""
    body = nn.Linear(4, 5).double()

    class Neighbours(nn.Module):
        memory: Any = None

        def __init__(self) -> None:
            super().__init__()
            self.b = nn.Linear(5, 3)

        def forward(self, h: T) -> T:
            return self.b((h @ self.memory.t()).softmax(1) @ self.memory)

    model = Neighbours()
    # Batches of equal size: only so are both halves of one length.
    batches = loader(8, dataset=data(rows=24))
    x, _ = next(iter(batches))
    x, _ = list(batches)[1]

    def call(m: Any, x: T, y: T) -> T:
        return m(body(x).detach())

    with torch.no_grad():
        model.memory = body(x)
    yield from train(model, call=call, batches=batches)


def _leaf_in_a_closure() -> Iterator[Any]:
    prompt = torch.zeros(4, dtype=D, requires_grad=True)
    yield from train(
        Lambda(lambda m, x: m.a(x + prompt), a=nn.Linear(4, 3)), seen=lambda: prompt.grad.clone()
    )


def _new_leaf_each_step() -> Iterator[Any]:
    """An adversarial direction, made anew for each batch, that the model finds in a closure."""
    delta: Any = None
    read = []
    model = Lambda(lambda m, x: m.a(x + delta), a=nn.Linear(4, 3))

    def call(m: Any, x: T, y: T) -> T:
        nonlocal delta
        delta = torch.zeros(4, dtype=D, requires_grad=torch.is_grad_enabled())
        return m(x)

    def seen() -> Any:
        read.append(delta.grad)
        return delta.grad.clone()

    yield from train(model, call=call, seen=seen)


def _graph_from_outside() -> Iterator[Any]:
    """A hypernetwork's weight, made in the script and read past the arguments."""
    maker, weight = nn.Linear(2, 12).double(), None
    model = Lambda(lambda m, x: m.a(x) + x @ weight.view(4, 3), a=nn.Linear(4, 3))

    def call(m: Any, x: T, y: T) -> T:
        nonlocal weight
        weight = maker(torch.ones(2, dtype=D))
        return m(x)

    yield from train(model, call=call)
    yield maker.weight.grad


def _tensor_changed() -> Iterator[Any]:
    total = torch.zeros(3, dtype=D)

    def forward(m: Any, x: T) -> T:
        h = m.a(x)
        total.add_(h.detach().mean(0))
        return h

    yield from train(Lambda(forward, a=nn.Linear(4, 3)), seen=lambda: total.clone())


def _other_model() -> Iterator[Any]:
    """A teacher in a closure, whose batch norm goes on."""
    teacher = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    yield from train(Lambda(lambda m, x: m.a(x) + teacher(x).detach(), a=nn.Linear(4, 3)))
    yield list(teacher.buffers())


def _in_a_thread() -> Iterator[Any]:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))

    def call(m: Any, x: T, y: T) -> T:
        result: list[Any] = []
        grad = torch.is_grad_enabled()

        def work() -> None:
            with torch.set_grad_enabled(grad):
                result.append(m(x))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return result[0]

    yield from train(model, call=call)


def _elsewhere(function: Callable[[], Any]) -> Any:
    """What it returns, or raises, in another thread."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function).result()


def _read_in_a_thread(read: Callable[[T, T], Any]) -> Callable[[], Iterator[Any]]:
    """A thread is given a model's output and its loss, to log or draw them."""

    def script() -> Iterator[Any]:
        model = nn.Linear(4, 3).double()
        for x, y in loader():
            out = model(x)
            loss = F.cross_entropy(out, y)
            yield _elsewhere(lambda out=out, loss=loss: read(out.detach(), loss.detach()))

    return script


def _read_in_two_threads() -> Iterator[Any]:
    model = nn.Linear(4, 3).double()
    outputs = [model(x).detach() for x, _ in loader()]
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        yield one.submit(outputs[0].numpy).result()
        yield other.submit(outputs[1].numpy).result()


class _BackwardElsewhere:
    """A loss whose backward is run by another thread."""

    def __init__(self, loss: Any) -> None:
        self.loss = loss

    def backward(self) -> None:
        _elsewhere(self.loss.backward)

    def item(self) -> float:
        return self.loss.item()


def _backward_in_a_thread() -> Iterator[Any]:
    yield from train(
        nn.Linear(4, 3), loss=lambda out, y: _BackwardElsewhere(F.cross_entropy(out, y) + out.square().mean())
    )


def _all_in_a_thread() -> Iterator[Any]:
    found: list[Any] = []

    def work() -> None:
        found.extend(train(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    yield found


def _vmapped() -> Iterator[Any]:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    yield from train(model, call=lambda m, x, y: torch.func.vmap(m)(x))


def _functional() -> Iterator[Any]:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))

    def call(m: Any, x: T, y: T) -> T:
        return torch.func.functional_call(m, {k: v * 2 for k, v in m.named_parameters()}, (x,))

    yield from train(model, call=call)


def _per_sample_gradients() -> Iterator[Any]:
    model = nn.Linear(4, 3).double()
    read = []

    def one(parameters: Any, x: T) -> T:
        return torch.func.functional_call(model, parameters, (x[None],)).square().sum()

    def call(m: Any, x: T, y: T) -> T:
        grads = torch.func.vmap(torch.func.grad(one), (None, 0))(
            {k: v.detach() for k, v in m.named_parameters()}, x
        )
        read.append(grads["weight"].norm(dim=(1, 2)).sum())
        return m(x)

    yield from train(model, call=call)
    yield read


def _nested_calls() -> Iterator[Any]:
    """The script calls the parts of a model itself, the whole of it in evaluation."""
    model = Lambda(lambda m, x: m.b(m.n(m.a(x))), a=nn.Linear(4, 6), n=nn.BatchNorm1d(6), b=nn.Linear(6, 3))
    yield from train(model, call=lambda m, x, y: m.b(m.n(m.a(x))) if m.training else m(x))


def _scripted(function: Any) -> Any:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 3)

        def forward(self, x: T) -> T:
            return self.a(x)

    def script() -> Iterator[Any]:
        example = torch.ones(8, 4, dtype=D)
        model = Lambda(function, a=nn.Linear(4, 3)).double()
        yield from train(torch.jit.trace(model, example, check_trace=False))

    return script


def _weighted_l1() -> Iterator[Any]:
    model = nn.Linear(4, 3)

    def loss(out: T, y: T) -> Any:
        target = F.one_hot(y, 3).to(D)
        weight = (target + 0.5).to(D)
        return F.l1_loss(out, target, weight=weight) + F.mse_loss(out, target, weight=weight)

    yield from train(model, loss=loss)


def _weighted_losses(reduction: str) -> Any:
    def script() -> Iterator[Any]:
        def loss(out: T, y: T) -> Any:
            target = F.one_hot(y, 3).to(D)
            weight = torch.ones(target.shape, dtype=D) * torch.tensor([1.0, 2.0, 4.0], dtype=D)
            options = {"weight": weight, "reduction": reduction}
            total = F.l1_loss(out, target, **options) + F.huber_loss(out, target, **options)
            return (total + F.mse_loss(out, target, **options)).sum()

        yield from train(nn.Linear(4, 3), loss=loss)

    return script


class Branches(nn.Module):
    """Parameters that only the branches of a condition close over."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: T) -> Any:
        return self.a(x) + torch.cond(x.mean() > 0, lambda t: self.b(t), lambda t: self.b(-t), (x,))


def _condition_in_the_script() -> Iterator[Any]:
    model = nn.ParameterDict({"w": torch.ones(4, 3, dtype=D), "v": torch.ones(3, dtype=D)})
    layer = nn.Linear(4, 3)

    def call(_: nn.Module, x: T, y: T) -> Any:
        taken = torch.tensor(len(y) > 6)
        return layer(x) + torch.cond(taken, lambda t: t @ model["w"], lambda t: t @ model["w"] * 2, (x,))

    layer.double()
    yield from train(model, call=call)


class Counted(nn.Module):
    """A parametrization that counts, and draws."""

    made: T

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("made", torch.zeros((), dtype=D))

    def forward(self, weight: T) -> T:
        self.made += 1
        return F.dropout(weight * (1 + self.made / 10), 0.3)


def _weights_made_once() -> Iterator[Any]:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    parametrize.register_parametrization(model[0], "weight", Counted().double())

    def call(model: nn.Module, x: T, _: T) -> Any:
        with parametrize.cached():
            return model(x) + model(x * 2)

    yield from train(model, call=call)
    yield torch.rand(2)


HAZARDS = {
    "global list": Hazard(_with_globals(Appends, lambda: list(SEEN)), "parts", "SEEN"),
    "global list in a helper": Hazard(
        _with_globals(AppendsRows, lambda: [x.clone() for x in SEEN]), "parts", "SEEN"
    ),
    "global dict": Hazard(_with_globals(Counts, lambda: dict(COUNTS)), "parts", "COUNTS"),
    "global number": Hazard(_with_globals(CountsCalls, lambda: STEP), "right"),
    "global tensor set": Hazard(_with_globals(SetsGlobal, lambda: LAST.detach().clone()), "parts", "LAST"),
    "handed to a queue": Hazard(_handed, "whole"),
    "counted in this thread": Hazard(_counted_here, "right"),
    "global cache": Hazard(_with_globals(Caches, lambda: sorted(CACHE)), "right"),
    "print": Hazard(_printing(Prints), "parts", "the number of rows"),
    "print alike": Hazard(_printing(PrintsAlike), "right"),
    "log": Hazard(_logging, "parts", "a variable or object outside of the module"),
    "rows in a closure": Hazard(_closure_of_batch_length, "parts", ""),
    "features stored": Hazard(_memory_of_features, "parts", "not among its arguments"),
    "leaf in a closure": Hazard(_leaf_in_a_closure, "whole"),
    "new leaf each step": Hazard(_new_leaf_each_step, "right"),
    "graph from outside": Hazard(_graph_from_outside, "parts", "outside"),
    "tensor in a closure changed": Hazard(_tensor_changed, "parts", "in place"),
    "teacher in a closure": Hazard(_other_model, "right"),
    "in a thread": Hazard(_in_a_thread, "right"),
    "backward in a thread": Hazard(_backward_in_a_thread, "refused", "thread"),
    "loss read in a thread": Hazard(_read_in_a_thread(lambda out, loss: loss.item()), "right"),
    "output read in a thread": Hazard(
        _read_in_a_thread(lambda out, loss: torch.from_numpy(out.numpy())), "right"
    ),
    "output summed in a thread": Hazard(_read_in_a_thread(lambda out, loss: out.sum()), "right"),
    "outputs read in two threads": Hazard(_read_in_two_threads, "refused", "more than one thread uses"),
    "all in a thread": Hazard(_all_in_a_thread, "right"),
    "vmap": Hazard(_vmapped, "right"),
    "functional call": Hazard(_functional, "right"),
    "per-sample gradients": Hazard(_per_sample_gradients, "right"),
    "parts called by the script": Hazard(_nested_calls, "whole"),
    "traced": Hazard(_scripted(lambda m, x: m.a(x)), "whole"),
    "traced over the batch": Hazard(_scripted(lambda m, x: m.a(x - x.mean(0))), "right"),
    "weighted L1": Hazard(_weighted_l1, "right"),
    "weighted, mean": Hazard(_weighted_losses("mean"), "right"),
    "weighted, sum": Hazard(_weighted_losses("sum"), "right"),
    "weighted, none": Hazard(_weighted_losses("none"), "right"),
    "condition in a model": Hazard(modelled(Branches), "parts", "reads a value of the batch on the host"),
    "condition in the script": Hazard(_condition_in_the_script, "right"),
    "weights made once": Hazard(_weights_made_once, "right"),
    "no gradient inside": Hazard(
        modelled(lambda: Lambda(lambda m, x: m.b(_frozen(m, x)), a=nn.Linear(4, 5), b=nn.Linear(5, 3))),
        "whole",
    ),
}


def _frozen(m: Any, x: T) -> T:
    with torch.no_grad():
        return m.a(x).tanh()
