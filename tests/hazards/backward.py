"""Functions whose backward does more than arithmetic: it calls modules, runs backward again, reads values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from hazards.harness import Hazard, Lambda, modelled, through, train

T = torch.Tensor


class _Reversible(torch.autograd.Function):
    """Half of the features are computed again in backward; no parameter is among its arguments."""

    @staticmethod
    def forward(ctx: Any, x: T, inner: nn.Module, seen: list[Any]) -> T:
        a, b = x.chunk(2, 1)
        ctx.state = torch.get_rng_state()
        with torch.no_grad():
            out = torch.cat([a + inner(b), b], 1)
        ctx.out, ctx.inner, ctx.seen = out.detach(), inner, seen
        return out

    @staticmethod
    def backward(ctx: Any, *grads: T) -> Any:
        _, b = ctx.out.chunk(2, 1)
        of_a, of_b = grads[0].chunk(2, 1)
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            b = b.detach().requires_grad_()
            torch.autograd.backward(ctx.inner(b), of_a)
        ctx.seen.append(b.shape[1])
        return torch.cat([of_a, of_b + b.grad], 1), None, None


class Block(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: T) -> T:
        return _Reversible.apply(x, self.inner, [])


def _inner(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), *more)


def _stacked(*blocks: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), *blocks, nn.Linear(6, 3))


def _first_reversible() -> nn.Module:
    """What is given to the function has no gradient: nor have the parameters inside."""
    twice = Lambda(lambda m, x: torch.cat([x[:, :3], x[:, :3]], 1))
    return nn.Sequential(twice, Block(_inner()), nn.Linear(6, 3))


def _nested() -> nn.Module:
    """A function inside a function, each with dropout to be drawn again."""
    block = Block(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.3)))
    return _stacked(Block(nn.Sequential(nn.Linear(3, 4), block, nn.Linear(4, 3), nn.Dropout(0.3))))


class _Checkpoint(torch.autograd.Function):
    """That of many a diffusion model."""

    @staticmethod
    def forward(ctx: Any, function: Any, length: int, *args: T) -> T:
        ctx.function, ctx.inputs, ctx.parameters = function, args[:length], args[length:]
        with torch.no_grad():
            return function(*ctx.inputs)

    @staticmethod
    def backward(ctx: Any, *grads: T) -> Any:
        inputs = [value.detach().requires_grad_(True) for value in ctx.inputs]
        with torch.enable_grad():
            out = ctx.function(*(value.view_as(value) for value in inputs))
        found = torch.autograd.grad(out, [*inputs, *ctx.parameters], grads[0], allow_unused=True)
        return None, None, *found


def _checkpointed(inner: nn.Module, x: T) -> T:
    return _Checkpoint.apply(inner, 1, x, *inner.parameters())


def _diffusion() -> nn.Module:
    return Lambda(lambda m, x: m.b(_checkpointed(m.a, x)), a=_mlp(), b=nn.Linear(6, 3))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6))


def _in_parts(part: Callable[[], nn.Module]) -> Any:
    """A body that uses the whole batch, around a module that is given what another has computed."""

    def body(m: Any, x: T) -> T:
        return m.b(m.part(m.a(x) * 0.7)) + x.mean()

    return modelled(lambda: Lambda(body, a=nn.Linear(4, 6), b=nn.Linear(6, 3), part=part()))


class Recomputed(nn.Module):
    """Computed again by torch's reentrant checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.part = _inner(nn.Dropout(0.3))

    def forward(self, x: T) -> T:
        return torch.utils.checkpoint.checkpoint(self.part, x, use_reentrant=True)


class Function(nn.Module):
    """A function as a module without parameters."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: T) -> T:
        return self.function.apply(x)


def _unit(gradient: T) -> T:
    return gradient / gradient.norm()


def _clipped(gradient: T) -> T:
    return gradient / gradient.norm() if gradient.norm().item() > 100.0 else gradient


@torch.library.custom_op("hazards::centred", mutates_args=())
def _operator(x: T) -> T:
    return x.clone()


torch.library.register_autograd("hazards::centred", lambda ctx, gradient: gradient - gradient.mean(0))


class _ByHand(torch.autograd.Function):
    """Gives a parameter its gradient itself."""

    @staticmethod
    def forward(ctx: Any, x: T, layer: nn.Linear) -> T:
        ctx.x, ctx.layer = x.detach(), layer
        return x @ layer.weight.detach().t()

    @staticmethod
    def backward(ctx: Any, *grads: T) -> Any:
        weight, found = ctx.layer.weight, grads[0].t() @ ctx.x
        weight.grad = found if weight.grad is None else weight.grad + found
        return grads[0] @ weight.detach(), None


class _ByOtherName(_ByHand):
    """By the other name of the same field."""

    @staticmethod
    def backward(ctx: Any, *grads: T) -> Any:
        weight, found = ctx.layer.weight, grads[0].t() @ ctx.x
        weight._grad = found if weight._grad is None else weight._grad + found
        return grads[0] @ weight.detach(), None


def _by_hand(kind: Any = _ByHand) -> nn.Module:
    layer = nn.Linear(6, 3, bias=False)
    return Lambda(lambda m, x: kind.apply(m.a(x).tanh(), m.b), a=nn.Linear(4, 6), b=layer)


class Borrowing(nn.Module):
    """Its reversible block is no submodule of it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
        self.kept = [Block(_inner()).double()]

    def forward(self, x: T) -> T:
        return self.b(self.kept[0](self.a(x)))


class Equilibrium(nn.Module):
    """A fixed point, whose gradient is another: a hook solves for it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.f, self.b = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: T) -> T:
        x = self.a(x)
        z = torch.zeros_like(x)
        with torch.no_grad():
            for _ in range(20):
                z = torch.tanh(0.3 * self.f(z) + x)
        z = torch.tanh(0.3 * self.f(z) + x)
        if z.requires_grad:
            at = z.detach().clone().requires_grad_()
            again = torch.tanh(0.3 * self.f(at) + x)

            def solve(gradient: T) -> T:
                found = gradient
                for _ in range(20):
                    found = torch.autograd.grad(again, at, found, retain_graph=True)[0] + gradient
                return found

            z.register_hook(solve)
        return self.b(z)


def _recomputed(part: Callable[[], nn.Module], **options: Any) -> Any:
    """A part inside a checkpoint of torch's."""

    def body(m: Any, x: T) -> T:
        return m.b(torch.utils.checkpoint.checkpoint(m.part, m.a(x), **options))

    return modelled(lambda: Lambda(body, a=nn.Linear(4, 6), b=nn.Linear(6, 3), part=part()))


def _operators() -> nn.Module:
    return Lambda(lambda m, x: m.b(_operator(m.a(x))), a=nn.Linear(4, 6), b=nn.Linear(6, 3))


class Hooked(nn.Module):
    """Looks at the gradient where there will be one."""

    def forward(self, x: T) -> T:
        x = x * 1.0
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient / gradient.norm())
        return x


def _in_script() -> Iterator[Any]:
    """The script itself gives parts of its model to such functions."""
    first, second, last = nn.Linear(4, 6).double(), _mlp().double()[2:], nn.Linear(3, 3).double()
    model = nn.ModuleList([first, Block(_inner().double()), second, last])

    def call(m: Any, x: T, y: T) -> T:
        hidden = _Reversible.apply(_checkpointed(m[0], x), m[1].inner, [])
        return m[3](_checkpointed(m[2], hidden)[:, :3])

    yield from train(model, call=call, loss=lambda out, y: F.cross_entropy(out, y))


HAZARDS = {
    "reversible": Hazard(
        modelled(lambda: _stacked(Block(_inner()), Block(_inner()))), "parts", "runs backward"
    ),
    "reversible first": Hazard(modelled(_first_reversible), "whole"),
    "reversible with dropout": Hazard(
        modelled(lambda: _stacked(Block(_inner(nn.Dropout(0.3))))), "parts", "random draws"
    ),
    "reversible with batch norm": Hazard(
        modelled(lambda: _stacked(Block(_inner(nn.BatchNorm1d(3))))), "parts", "on itself"
    ),
    "reversible around another": Hazard(modelled(_nested), "parts", "random draws"),
    "reversible inside a body": Hazard(_in_parts(lambda: Block(_inner())), "parts", "other rows"),
    "checkpoint by hand": Hazard(modelled(_diffusion), "parts", "outside of the module"),
    "reversible in a checkpoint": Hazard(
        _recomputed(lambda: Block(_inner(nn.Dropout(0.3))), use_reentrant=False), "parts", "random draws"
    ),
    "reversible in a reentrant checkpoint": Hazard(
        _recomputed(lambda: Block(_inner(nn.Dropout(0.3))), use_reentrant=True), "parts", "random draws"
    ),
    "a checkpoint in a reversible": Hazard(
        modelled(lambda: _stacked(Block(Recomputed()))), "parts", "random draws"
    ),
    "mixes rows in a reentrant checkpoint": Hazard(
        _recomputed(lambda: Function(through(_unit)), use_reentrant=True), "parts", "mixes rows"
    ),
    "clips a gradient": Hazard(
        modelled(lambda: _stacked(Function(through(lambda gradient: gradient.clamp(-0.01, 0.01))))),
        "parts",
        "not linear",
    ),
    "clips what is large": Hazard(
        modelled(lambda: _stacked(Function(through(lambda gradient: gradient.clamp(-9, 9))))),
        "parts",
        "not linear",
    ),
    "borrows a block": Hazard(modelled(Borrowing), "whole"),
    "in the script": Hazard(_in_script, "right"),
    "mixes rows inside a body": Hazard(_in_parts(lambda: Function(through(_unit))), "parts", "mixes rows"),
    "an operator that mixes rows": Hazard(modelled(_operators), "parts", "mixes rows"),
    "reads a value": Hazard(modelled(lambda: _stacked(Function(through(_clipped)))), "parts", "not linear"),
    "gives a gradient by hand": Hazard(modelled(_by_hand), "parts", "runs backward"),
    "gives a gradient by its other name": Hazard(
        modelled(lambda: _by_hand(_ByOtherName)), "parts", "runs backward"
    ),
    "fixed point by a hook": Hazard(modelled(Equilibrium), "parts", "register_hook"),
    "hook inside a body": Hazard(_in_parts(Hooked), "parts", "register_hook"),
    "in place inside a body": Hazard(
        _in_parts(lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6))), "parts", "other rows"
    ),
}
