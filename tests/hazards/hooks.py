"""Hooks of the user's, functions with a backward of their own, and what hangs on gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hazards.harness import Hazard, Lambda, loader, modelled, through, train

T = torch.Tensor


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def _forward_hook() -> Iterator[Any]:
    model, seen = _net(), []
    model[1].register_forward_hook(lambda m, args, out: seen.append(out.detach()))
    yield from train(model)
    yield seen


def _forward_hook_changes() -> Iterator[Any]:
    model = _net()
    model[0].register_forward_hook(lambda m, args, out: out - out.mean(0))
    yield from train(model)


def _forward_pre_hook() -> Iterator[Any]:
    model, seen = _net(), []
    model[2].register_forward_pre_hook(lambda m, args: seen.append(args[0].norm().item()))
    yield from train(model)
    yield seen


def _later_hook() -> Iterator[Any]:
    """Registered after some steps, and taken away again."""
    model, seen, handles = _net(), [], []

    def before(m: Any, step: int) -> None:
        if step == 2:
            handles.append(
                model[1].register_forward_hook(lambda m, args, out: seen.append(out.mean().item()))
            )
        if step == 4:
            handles.pop().remove()

    yield from train(model, before=before)
    yield seen


def _backward_hook() -> Iterator[Any]:
    model, seen = _net(), []
    model[1].register_full_backward_hook(lambda m, into, out: seen.append(out[0].norm().item()))
    yield from train(model)
    yield seen


def _parameter_hook(change: Any) -> Any:
    def script() -> Iterator[Any]:
        model = _net()
        model[0].weight.register_hook(change)
        yield from train(model)

    return script


def _parameter_hook_after_forward() -> Iterator[Any]:
    """Registered between forward and backward: the graph is there already."""
    model = _net()

    def loss(out: T, y: T) -> Any:
        if not model[0].weight._backward_hooks:
            model[0].weight.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
        return F.cross_entropy(out, y)

    yield from train(model, loss=loss)


def _step(parameter: Any) -> None:
    parameter.data.sub_(0.1 * parameter.grad)


def _post_accumulate() -> Iterator[Any]:
    model = _net()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(_step)
    yield from train(model)


def _global_hook() -> Iterator[Any]:
    seen: list[Any] = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda m, args, out: seen.append(out.detach().mean()) if isinstance(m, nn.Tanh) else None
    )
    try:
        yield from train(_net())
    finally:
        handle.remove()
    yield seen


class GradCam(nn.Module):
    """Keeps the gradient of its features by a hook set in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.gradient = nn.Linear(4, 6), nn.Linear(6, 3), None

    def keep(self, gradient: T) -> None:
        self.gradient = gradient

    def forward(self, x: T) -> T:
        features = self.body(x).tanh()
        if features.requires_grad:
            features.register_hook(self.keep)
        return self.head(features)


def _grad_cam() -> Iterator[Any]:
    model = GradCam()
    yield from train(model, seen=lambda: None if model.gradient is None else model.gradient.clone())


class Retaining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.features = nn.Linear(4, 6), nn.Linear(6, 3), None

    def forward(self, x: T) -> T:
        self.features = self.body(x)
        if self.features.requires_grad:
            self.features.retain_grad()
        return self.head(self.features.tanh())


def _retained() -> Iterator[Any]:
    model = Retaining()

    def before(m: Any, step: int) -> None:
        read.append(None if model.features is None else model.features.grad)

    read: list[Any] = []
    yield from train(model, before=before)
    yield read


# Centres the gradient over the batch.
_Centred = through(lambda gradient: gradient - gradient.mean(0))
# Gradient reversal: row by row.
_Scaled = through(lambda gradient: -0.5 * gradient)
_Noisy = through(lambda gradient: gradient + 0.01 * torch.randn_like(gradient))
_Unit = through(lambda gradient: gradient / gradient.norm())


def _function(function: Any) -> Any:
    return modelled(
        lambda: Lambda(lambda m, x: m.b(function.apply(m.a(x).tanh())), a=nn.Linear(4, 5), b=nn.Linear(5, 3))
    )


class SelfTrained(nn.Module):
    """Takes a gradient step of its own inside forward."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x: T) -> T:
        if self.training:
            loss = self.a(x).square().mean()
            loss.backward()
            with torch.no_grad():
                self.a.weight -= 0.01 * self.a.weight.grad
            self.a.weight.grad = None
        return self.a(x)


def _gradient_of_input() -> Iterator[Any]:
    """Saliency: the gradient with respect to the batch."""
    model = _net()
    read = []

    def call(m: Any, x: T, y: T) -> Any:
        x = x.clone().requires_grad_(torch.is_grad_enabled())
        out = m(x)
        if torch.is_grad_enabled():
            out.square().sum().backward(retain_graph=True)
            read.append(x.grad.clone())
        return out

    yield from train(model, call=call)
    yield read


_HOOKS = "hooks"


def _hook_of_several() -> Iterator[Any]:
    """A hook that waits for several gradients."""
    model, seen = nn.Linear(4, 3).double(), list[int]()
    torch.autograd.graph.register_multi_grad_hook(
        list(model.parameters()), lambda found: seen.append(len(found))
    )
    for x, y in loader():
        F.cross_entropy(model(x), y).backward()
    yield seen


class EqualLR:
    """Makes the weight before each forward, as in many a StyleGAN."""

    def __init__(self, scale: float) -> None:
        self.scale, self.calls = scale, 0

    def __call__(self, module: Any, given: Any) -> None:
        module.weight = module.raw * self.scale


class Counting(EqualLR):
    """Every other weight is a larger one."""

    def __call__(self, module: Any, given: Any) -> None:
        self.calls += 1
        module.weight = module.raw * (self.scale + self.calls % 2)


class LooksLater(EqualLR):
    """Begins to look at the batch after some calls."""

    def __call__(self, module: Any, given: Any) -> None:
        self.calls += 1
        module.weight = module.raw * (self.scale if self.calls < 4 else 1 / given[0].norm())


def _spectral(module: Any, given: Any) -> None:
    """Power iteration, one step for each call."""
    with torch.no_grad():
        v = F.normalize(module.raw.t() @ module.u, dim=0)
        module.u.copy_(F.normalize(module.raw @ v, dim=0))
    module.weight = module.raw / (module.u @ (module.raw @ v))


def _weighted(hook: Any) -> Any:
    """Two layers whose weights a hook makes."""

    def script() -> Iterator[Any]:
        model = _net()
        for place in (0, 2):
            layer: Any = model[place]
            layer.raw = layer.weight
            del layer._parameters["weight"]
            layer.register_buffer("u", F.normalize(torch.arange(1.0, len(layer.raw) + 1).double(), dim=0))
            layer.register_forward_pre_hook(hook())
        yield from train(model)

    return script


def _regularized() -> Iterator[Any]:
    """The weight that a hook has made is used by the script, too."""
    model = _net()
    layer: Any = model[0]
    layer.raw = layer.weight
    del layer._parameters["weight"]
    layer.register_forward_pre_hook(EqualLR(0.7))
    yield from train(model, loss=lambda out, y: F.cross_entropy(out, y) + 0.1 * layer.weight.square().sum())


HAZARDS = {
    "a weight is made": Hazard(_weighted(lambda: EqualLR(0.7)), "parts", _HOOKS),
    "a weight is made by its norm": Hazard(_weighted(lambda: _spectral), "right"),
    "a weight is made and used": Hazard(_regularized, "right"),
    "a weight is made by the count": Hazard(_weighted(lambda: Counting(0.7)), "right"),
    "a weight is made of the batch later": Hazard(_weighted(lambda: LooksLater(0.7)), "parts", _HOOKS),
    "of several parameters": Hazard(_hook_of_several, "right"),
    "forward hook": Hazard(_forward_hook, "parts", _HOOKS),
    "forward hook that changes": Hazard(_forward_hook_changes, "parts", _HOOKS),
    "forward pre-hook": Hazard(_forward_pre_hook, "parts", _HOOKS),
    "hook for a while": Hazard(_later_hook, "parts", _HOOKS),
    "backward hook": Hazard(_backward_hook, "parts", _HOOKS),
    "parameter hook": Hazard(_parameter_hook(lambda grad: grad.clamp(-0.01, 0.01)), "parts", _HOOKS),
    "parameter hook by norm": Hazard(_parameter_hook(lambda grad: grad / grad.norm()), "parts", _HOOKS),
    "parameter hook after forward": Hazard(_parameter_hook_after_forward, "refused", "before the forward"),
    "optimizer in backward": Hazard(_post_accumulate, "whole"),
    "hook for all modules": Hazard(_global_hook, "parts", _HOOKS),
    "hook set in forward": Hazard(_grad_cam, "parts", "register_hook"),
    "gradient retained in forward": Hazard(_retained, "parts", ""),
    "backward over the batch": Hazard(_function(_Centred), "parts", "backward"),
    "backward by norm": Hazard(_function(_Unit), "parts", "backward"),
    "backward that draws": Hazard(_function(_Noisy), "parts", "random draws"),
    "backward row by row": Hazard(_function(_Scaled), "whole"),
    "step inside forward": Hazard(modelled(SelfTrained), "parts", ""),
    "gradient of the batch": Hazard(_gradient_of_input, "right"),
}
