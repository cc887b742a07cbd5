"""Gradients of scripts that mix models on shards with operations on whole values: those of one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from both_ways import ROWS, differences
from ronde.errors import UsageError
from ronde.tensor import rules
from ronde.tensor.global_tensor import materialize, wrap
from ronde.tensor.layout import Layout
from ronde.testing.run_ranks import Rank
from world_sizes import WORLD_SIZES

Gradients = dict[str, Any]
_D = torch.float64


class World:
    """A script's surroundings: a model, data, and where its loader's batches come from."""

    def __init__(self, session: Any = None) -> None:
        self.session = session
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
        self.other = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()
        self.x = self.batch(torch.randn(ROWS, 4, dtype=_D))
        self.y = self.batch(torch.randint(0, 3, (ROWS,)))
        self.z = self.batch(torch.randn(ROWS, 3, dtype=_D))
        self.whole = torch.randn(ROWS, 4, dtype=_D)

    def batch(self, value: torch.Tensor) -> torch.Tensor:
        """As from a loader."""
        if self.session is None:
            return value
        context = self.session.context
        layout = Layout(0, len(value), context.world_size)
        return wrap(context, layout.take(value, context.rank).clone(), layout, rules.table())

    def gradients(self, *more: torch.Tensor, **named: Any) -> Gradients:
        """Every gradient there is, and what else is worth comparing."""
        found = {name: p.grad for name, p in self.model.named_parameters()}
        found.update({f"other.{name}": p.grad for name, p in self.other.named_parameters()})
        found.update({f"more.{place}": value for place, value in enumerate(more)})
        return {**found, **named}


def cross_entropy(w: World) -> Any:
    loss = F.cross_entropy(w.model(w.x), w.y)
    loss.backward()
    return w.gradients(loss)


def whole_input(w: World) -> Any:
    loss = F.cross_entropy(w.model(w.whole), w.y)
    loss.backward()
    return w.gradients(loss)


def token_weighted(w: World) -> Any:
    weights = (w.x[:, 0] > 0).double() + 0.5
    losses = F.cross_entropy(w.model(w.x), w.y, reduction="none")
    loss = (losses * weights).sum() / weights.sum()
    loss.backward()
    return w.gradients(loss)


def contrastive(w: World) -> Any:
    a, b = F.normalize(w.model(w.x), dim=1), F.normalize(w.model(w.x + 0.1), dim=1)
    scale = nn.Parameter(torch.tensor(2.0, dtype=_D))
    logits = a @ b.t() * scale.exp()
    loss = F.cross_entropy(logits, torch.arange(len(logits)))
    loss.backward()
    return w.gradients(loss, scale.grad)


def clipped(w: World) -> Any:
    loss = F.cross_entropy(w.model(w.x), w.y)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(w.model.parameters(), 0.1)
    return w.gradients(loss, norm)


def regularised(w: World) -> Any:
    loss = F.cross_entropy(w.model(w.x), w.y) + 0.1 * sum(p.square().sum() for p in w.model.parameters())
    loss.backward()
    return w.gradients(loss)


def gradient_penalty(w: World) -> Any:
    real, fake = w.z, w.model(w.x)
    mix = torch.rand(ROWS, 1, dtype=_D)
    between = (mix * real + (1 - mix) * fake.detach()).requires_grad_()
    scores = w.other(between)
    (grad,) = torch.autograd.grad(scores, between, torch.ones_like(scores), create_graph=True)
    loss = w.other(fake).mean() - w.other(real).mean() + 10 * ((grad.norm(2, dim=1) - 1) ** 2).mean()
    loss.backward()
    return w.gradients(loss, grad)


def penalty_by_sum(w: World) -> Any:
    x = w.z.clone().requires_grad_(True)
    out = w.other(x)
    (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    loss = out.square().mean() + grad.square().sum(1).mean()
    loss.backward()
    return w.gradients(loss, x.grad)


def fgsm(w: World) -> Any:
    x = w.x
    x.requires_grad = True
    loss = F.cross_entropy(w.model(x), w.y)
    w.model.zero_grad()
    loss.backward()
    attacked = torch.clamp(x + 0.1 * x.grad.sign(), -1, 1).detach()
    w.model.zero_grad()
    second = F.cross_entropy(w.model(attacked), w.y)
    second.backward()
    return w.gradients(loss, second, x.grad, attacked)


def pgd(w: World) -> Any:
    delta = torch.zeros_like(w.x, requires_grad=True)
    for _ in range(2):
        loss = F.cross_entropy(w.model(w.x + delta), w.y)
        loss.backward()
        delta.data = (delta + 0.1 * delta.grad.detach().sign()).clamp(-0.2, 0.2)
        delta.grad.zero_()
    w.model.zero_grad()
    F.cross_entropy(w.model(w.x + delta.detach()), w.y).backward()
    return w.gradients(delta.data)


def maml(w: World) -> Any:
    parameters = dict(w.model.named_parameters())
    inner = F.cross_entropy(functional_call(w.model, parameters, (w.x,)), w.y)
    grads = torch.autograd.grad(inner, tuple(parameters.values()), create_graph=True)
    fast = {name: p - 0.1 * g for (name, p), g in zip(parameters.items(), grads, strict=True)}
    outer = F.cross_entropy(functional_call(w.model, fast, (w.x * 0.5 + 1,)), w.y)
    outer.backward()
    return w.gradients(inner, outer, *grads)


def hypernetwork(w: World) -> Any:
    code = nn.Parameter(torch.ones(3, dtype=_D))
    weight = torch.tanh(w.other[0](code))  # a leaf's function, replicated
    features = w.model(w.x)
    out = features @ torch.outer(torch.ones(3, dtype=_D), weight)
    loss = out.square().mean()
    loss.backward()
    return w.gradients(loss, code.grad)


def generated_weights(w: World) -> Any:
    code = nn.Parameter(torch.full((3,), 0.3, dtype=_D))
    made = {
        "0.weight": torch.outer(w.other[0](code), torch.ones(3, dtype=_D)),
        "0.bias": torch.zeros(5, dtype=_D),
    }
    out = functional_call(w.other, made, (w.z,))
    loss = out.sigmoid().mean()
    loss.backward()
    return w.gradients(loss, code.grad)


def prompt(w: World) -> Any:
    class Prompted(nn.Module):
        def forward(self, x: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
            return x * extra + extra.sum()

    leaf = nn.Parameter(torch.ones(3, dtype=_D))
    model = Prompted()
    loss = (model(w.model(w.x), leaf).square().mean() + model(w.z, leaf.exp() * 2).mean()) * leaf.sum()
    loss.backward()
    return w.gradients(loss, leaf.grad)


def hessian_vector(w: World) -> Any:
    parameters = list(w.model.parameters())
    loss = F.cross_entropy(w.model(w.x), w.y)
    grads = torch.autograd.grad(loss, parameters, create_graph=True)
    dot = sum((g * torch.ones_like(g)).sum() for g in grads)
    products = torch.autograd.grad(dot, parameters, retain_graph=True)
    dot.backward()
    return w.gradients(loss, dot, *grads, *products)


def third_order(w: World) -> Any:
    x = w.z.clone().requires_grad_()
    (first,) = torch.autograd.grad(w.other(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
    loss = second.square().mean()
    loss.backward()
    return w.gradients(first, second, loss)


def two_losses(w: World) -> Any:
    features = w.model(w.x)
    first, second = F.cross_entropy(features, w.y), w.other(features).square().mean()
    first.backward(retain_graph=True)
    half = {name: p.grad.clone() for name, p in w.model.named_parameters()}
    second.backward()
    return w.gradients(first, second, *half.values())


def twice(w: World) -> Any:
    loss = F.cross_entropy(w.model(w.x), w.y)
    loss.backward(retain_graph=True)
    loss.backward()
    return w.gradients(loss)


def chosen_inputs(w: World) -> Any:
    features = w.model(w.x)
    loss = w.other(features).square().mean()
    loss.backward(inputs=list(w.other.parameters()), retain_graph=True)
    first = [p.grad.clone() for p in w.other.parameters()]
    loss.backward(inputs=[w.model[0].weight])
    return w.gradients(loss, *first)


def grad_of_outputs(w: World) -> Any:
    features = w.model(w.x)
    loss = F.cross_entropy(features * 2, w.y) + features.std()
    wrt_features, wrt_weight = torch.autograd.grad(loss, [features, w.model[0].weight], retain_graph=True)
    (again,) = torch.autograd.grad(features.sum(), features)
    return w.gradients(wrt_features, wrt_weight, again)


def grad_of_rows(w: World) -> Any:
    x = w.x.clone().requires_grad_()
    out = w.model(x)
    rows = [torch.autograd.grad(out[0, k], x, retain_graph=True)[0][0] for k in range(3)]
    weighted = torch.autograd.grad(out, x, grad_outputs=w.z, retain_graph=True)[0]
    unused = torch.autograd.grad(out.sum(), [x, w.other[0].weight], allow_unused=True)
    return w.gradients(*rows, weighted, unused[0], unused=unused[1])


def edges_of_the_graph(w: World) -> Any:
    x = w.whole.clone().requires_grad_()
    out = w.model(x)
    loss = out.square().mean()
    edge = torch.autograd.graph.get_gradient_edge
    (wrt_input,) = torch.autograd.grad(loss, edge(x), retain_graph=True)
    wrt_both = torch.autograd.grad(edge(loss), [edge(w.model[0].weight), x], retain_graph=True)
    return w.gradients(wrt_input, *wrt_both)


def named_inputs(w: World) -> Any:
    inputs = dict(w.model.named_parameters())
    try:
        found = torch.autograd.grad(w.model(w.x).sum(), inputs)
    except (TypeError, RuntimeError):  # before torch 2.13
        found = torch.autograd.grad(w.model(w.x).sum(), [*inputs.values()])
    return w.gradients(*(found.values() if isinstance(found, dict) else found))


def backward_of_rows(w: World) -> Any:
    out = w.model(w.x)
    out.backward(gradient=w.z, retain_graph=True)
    w.other(w.z).backward(torch.ones(ROWS, 1, dtype=_D))
    torch.autograd.backward([out.sum(), out.mean()])
    return w.gradients()


def frozen(w: World) -> Any:
    w.model[0].requires_grad_(False)
    loss = F.cross_entropy(w.model(w.x), w.y)
    loss.backward()
    first = loss.detach()
    w.model[0].requires_grad_(True)
    F.cross_entropy(w.model(w.x), w.y).backward()
    return w.gradients(first)


def accumulated(w: World) -> Any:
    for part in (slice(0, 3), slice(3, 5), slice(5, ROWS)):
        loss = F.cross_entropy(w.model(w.batch(w.whole[part])), w.y[part], reduction="sum") / ROWS
        loss.backward()
    return w.gradients()


def unused_parameter(w: World) -> Any:
    class Branched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 2).double(), nn.Linear(4, 2).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    model = Branched()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(w.x).sum().backward()
    optimizer.step()
    return {name: p.grad for name, p in model.named_parameters()} | {"weight": model.used.weight}


def shared_by_script(w: World) -> Any:
    weight = w.model[0].weight
    loss = F.cross_entropy(w.model(w.x), w.y) + (w.x @ weight.t()).square().mean() + weight.exp().mean()
    loss.backward()
    return w.gradients(loss)


def past_forward(w: World) -> Any:
    hidden = w.model[1](w.model[0](w.x))
    out = F.linear(hidden, w.model[2].weight, w.model[2].bias)
    loss = F.cross_entropy(out, w.y) + hidden.mean()
    loss.backward()
    return w.gradients(loss)


def no_grad_then_grad(w: World) -> Any:
    with torch.no_grad():
        target = w.model(w.x)
    with torch.inference_mode():
        seen = w.model(w.x).argmax(1).float().mean().item()
    loss = F.mse_loss(w.model(w.x * 1.1), target)
    loss.backward()
    return w.gradients(loss, target, seen=seen, flags=(target.requires_grad, target.is_leaf))


def detached(w: World) -> Any:
    features = w.model(w.x)
    loss = w.other(features.detach()).mean() + features.data.mean() * features.sum()
    loss.backward()
    return w.gradients(loss)


def reinforced(w: World) -> Any:
    policy = torch.distributions.Categorical(logits=w.model(w.x))
    action = w.y
    returns = w.z[:, 0]
    loss = (
        -(policy.log_prob(action) * (returns - returns.mean()) / (returns.std() + 1e-8)).mean()
        - policy.entropy().mean()
    )
    loss.backward()
    return w.gradients(loss)


def variational(w: World) -> Any:
    mean, spread = w.model(w.x), w.z * 0.1
    code = mean + torch.randn_like(mean) * spread.exp()
    loss = F.mse_loss(w.other(code), w.x[:, :1], reduction="sum") - 0.5 * torch.sum(
        1 + spread - mean.pow(2) - spread.exp()
    )
    loss.backward()
    return w.gradients(loss, code)


def scaled_by_host(w: World) -> Any:
    loss = F.cross_entropy(w.model(w.x), w.y)
    (loss / loss.item() if loss > 0.1 else loss).backward()
    return w.gradients(loss)


def distilled(w: World) -> Any:
    student, teacher = w.model(w.x), w.z
    loss = F.kl_div(F.log_softmax(student / 2, -1), F.softmax(teacher / 2, -1), reduction="batchmean") * 4
    loss = (
        loss
        + torch.cdist(student, student).mean()
        + student.t().matmul(student).sub(torch.eye(3)).pow(2).sum()
    )
    loss.backward()
    return w.gradients(loss)


def mixup(w: World) -> Any:
    order = torch.randperm(ROWS)
    x = 0.3 * w.x + 0.7 * w.x[order]
    out = w.model(x)
    loss = 0.3 * F.cross_entropy(out, w.y) + 0.7 * F.cross_entropy(out, w.y[order])
    loss.backward()
    return w.gradients(loss)


def hard_examples(w: World) -> Any:
    losses = F.cross_entropy(w.model(w.x), w.y, reduction="none")
    loss = losses.topk(3)[0].mean() + losses[losses > losses.mean()].sum() + losses.max()
    loss.backward()
    return w.gradients(loss)


def hooks(w: World) -> Any:
    w.model[0].weight.register_hook(lambda grad: grad * 2)
    features = w.model(w.x)
    seen: list[torch.Tensor] = []
    features.register_hook(seen.append)
    F.cross_entropy(features, w.y).backward()
    return w.gradients(*seen)


def hooks_after_use(w: World) -> Any:
    """What was computed before a hook was set sends its gradient through it as well."""
    features = w.model(w.x)
    reverse = features.clone()
    reverse.register_hook(lambda grad: -0.5 * grad)
    seen: list[torch.Tensor] = []
    features.register_hook(lambda grad: seen.append(grad.norm(dim=1).mean()))
    features.retain_grad()
    (
        F.cross_entropy(features, w.y) + reverse.square().sum() + torch.cdist(features, features).sum()
    ).backward()
    return w.gradients(*seen, features.grad)


def clamping_hooks(w: World) -> Any:
    for p in w.model.parameters():
        p.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    scale = nn.Parameter(torch.ones(3, dtype=_D))
    scale.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    F.cross_entropy(w.model(w.x) * scale, w.y).backward()
    return w.gradients(scale.grad)


def lbfgs(w: World) -> Any:
    optimizer = torch.optim.LBFGS(w.model.parameters(), lr=0.5, max_iter=3, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(w.model(w.x), w.y)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    return w.gradients(*(p.detach() for p in w.model.parameters()))


def checkpointed(w: World) -> Any:
    from torch.utils.checkpoint import checkpoint

    for reentrant in (True, False):
        x = w.x.clone().requires_grad_()
        features = checkpoint(w.model, x, use_reentrant=reentrant)
        F.cross_entropy(features, w.y).backward()
    return w.gradients()


SCRIPTS: dict[str, Callable[[World], Gradients]] = {
    function.__name__: function
    for function in (
        cross_entropy,
        whole_input,
        token_weighted,
        contrastive,
        clipped,
        regularised,
        gradient_penalty,
        penalty_by_sum,
        fgsm,
        pgd,
        maml,
        hypernetwork,
        generated_weights,
        prompt,
        hessian_vector,
        third_order,
        two_losses,
        twice,
        chosen_inputs,
        grad_of_outputs,
        grad_of_rows,
        edges_of_the_graph,
        named_inputs,
        backward_of_rows,
        frozen,
        accumulated,
        unused_parameter,
        shared_by_script,
        past_forward,
        no_grad_then_grad,
        detached,
        reinforced,
        variational,
        scaled_by_host,
        distilled,
        mixup,
        hard_examples,
        hooks,
        hooks_after_use,
        clamping_hooks,
        lbfgs,
        checkpointed,
    )
}


def _gradients(rank: Rank, name: str) -> list[str]:
    expected = SCRIPTS[name](World())
    with rank.session() as session:
        found = {key: materialize(value) for key, value in SCRIPTS[name](World(session)).items()}
        problems = [
            f"{key} {text}" for key in expected for text in differences(expected[key], found.get(key), 1e-11)
        ]
        if not sum(session.tally.sharded.values()):
            problems.append("no model ran on shards")
    return problems


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", list(SCRIPTS))
def test_gradients_are_those_of_one_device(ranks: Any, name: str, world_size: int) -> None:
    assert ranks(world_size, _gradients, name) == [[]] * world_size


def _at_once(rank: Rank) -> list[str]:
    """Several gradients by vmap, in which ranks cannot meet; of what is no model's, they are as ever."""
    from torch.autograd.functional import jacobian

    own, basis = torch.eye(3, dtype=_D).requires_grad_(), torch.eye(9, dtype=_D).view(9, 3, 3)
    model, x, said = nn.Linear(4, 3).double(), torch.randn(ROWS, 4, dtype=_D), list[str]()
    with rank.session():
        torch.autograd.grad(own.exp(), own, basis, is_grads_batched=True)
        given = torch.ones(2, ROWS, 3, dtype=_D)
        for take in (
            lambda: torch.autograd.grad(model(x), model.weight, given, is_grads_batched=True),
            lambda: jacobian(lambda x: model(x).sum(0), x, vectorize=True),
        ):
            with pytest.raises(UsageError, match="several gradients at once") as raised:
                take()
            said.append(str(raised.value))
    return said


def test_several_gradients_at_once_are_refused(ranks: Any) -> None:
    assert all(len(said) == 2 for said in ranks(2, _at_once))
