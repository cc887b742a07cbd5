"""Every operation that keeps a global tensor sharded gives torch's values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from both_ways import ROWS, Inputs, compare_all
from ronde.tensor import rules
from ronde.testing.run_ranks import Rank
from world_sizes import WORLD_SIZES

Case = Callable[[Inputs], Any]

# Layouts of a batch: (shape, arguments of `Inputs.batch`).
_FORMS: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "first": ((ROWS, 3), {}),
    "second": ((3, ROWS), {"dim": 1}),
    "inner": ((ROWS * 2, 3), {"inner": 2}),
    "outer": ((2 * ROWS, 3), {"outer": 2}),
}

_UNARY = """
abs absolute acos asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1
floor frac lgamma log log10 log1p log2 logit nan_to_num neg negative positive rad2deg reciprocal round
rsqrt sigmoid sign sgn sin sinh sqrt square tan tanh trunc fix isnan isinf isfinite i0 sinc relu relu6
elu selu celu gelu silu mish leaky_relu softplus softsign hardtanh hardswish hardsigmoid hardshrink
softshrink tanhshrink logsigmoid double half bfloat16 float int long short bool byte cpu clone detach
contiguous zeros_like ones_like __neg__ __abs__ logical_not
""".split()
_BINARY = """
add sub subtract mul multiply div divide true_divide remainder fmod pow float_power atan2 maximum minimum
fmax fmin hypot xlogy logaddexp logaddexp2 eq ne lt le gt ge not_equal less less_equal greater
greater_equal isclose logical_and logical_or logical_xor copysign __add__ __radd__ __sub__ __rsub__
__mul__ __rmul__ __truediv__ __rtruediv__ __mod__ __rmod__ __pow__ __rpow__ __eq__ __ne__ __lt__ __le__
__gt__ __ge__ rsub
""".split()
_BITWISE = """
bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__ __rand__ __ror__ __rxor__
""".split()

Call = Callable[..., Any]
# Calls of the other functions: `(function, batch, inputs, form)`.
_OWN: dict[str, list[Call]] = {
    "acosh": [lambda f, x, m, form: f(x + 1)],
    "softmin": [lambda f, x, m, form: f(x, dim=_other(form))],
    "clamp": [lambda f, x, m, form: f(x, 0.3, 0.6), lambda f, x, m, form: f(x, max=m.leaf(*x.shape))],
    "clip": [lambda f, x, m, form: f(x, min=0.4)],
    "clamp_max": [lambda f, x, m, form: f(x, 0.5)],
    "clamp_min": [lambda f, x, m, form: f(x, 0.5)],
    "threshold": [lambda f, x, m, form: f(x, 0.5, 0.1)],
    "bitwise_not": [lambda f, x, m, form: f(x > 0.5)],
    "__invert__": [lambda f, x, m, form: f(x > 0.5)],
    "heaviside": [lambda f, x, m, form: f(x.detach() - 0.5, torch.tensor(0.5, dtype=torch.float64))],
    "lerp": [
        lambda f, x, m, form: f(x, m.leaf(*x.shape), 0.3),
        lambda f, x, m, form: f(x, m.inner(*x.shape), x),
    ],
    "addcmul": [lambda f, x, m, form: f(x, m.inner(*x.shape), x, value=0.5)],
    "addcdiv": [lambda f, x, m, form: f(x, x, m.leaf(*x.shape))],
    "floor_divide": [
        lambda f, x, m, form: f(x.detach() * 9, 2.0),
        lambda f, x, m, form: f(x.detach(), m.values(*x.shape)),
    ],
    "__floordiv__": [lambda f, x, m, form: f(x.detach() * 9, 2.0)],
    "__rfloordiv__": [lambda f, x, m, form: f(x.detach(), 2.0)],
    "where": [
        lambda f, x, m, form: torch.where(x > 0.5, x, m.leaf(x.shape[1])),
        lambda f, x, m, form: torch.where(m.values(*x.shape) > 0.5, x, 0.0),
    ],
    "masked_fill": [
        lambda f, x, m, form: f(x, x > 0.5, 0.1),
        lambda f, x, m, form: f(x, m.values(*x.shape) > 0.4, 2),
    ],
    "type": [lambda f, x, m, form: f(x, torch.float32)],
    "to": [lambda f, x, m, form: f(x, torch.float32), lambda f, x, m, form: f(x, "cpu", dtype=torch.float16)],
    "__get__": [lambda f, x, m, form: f(x[:])],  # data
    "type_as": [lambda f, x, m, form: f(x, torch.zeros(1))],
    "full_like": [lambda f, x, m, form: f(x, 3.0)],
    "detach_": [
        lambda f, x, m, form: (f(torch.zeros_like(x)), f(x.detach() * 2)),
    ],
    "empty_like": [lambda f, x, m, form: torch.zeros_like(f(x))],
    "normalize": [
        lambda f, x, m, form: f(x, dim=_other(form)),
        lambda f, x, m, form: f(x, 1.0, _other(form)),
    ],
    "flip": [lambda f, x, m, form: f(x, [_other(form)]), lambda f, x, m, form: f(x, dims=(_other(form),))],
    "topk": [lambda f, x, m, form: f(x, 2, _other(form))],
    "sort": [lambda f, x, m, form: f(x, dim=_other(form), descending=True)],
    "argsort": [lambda f, x, m, form: f(x, _other(form))],
    "gather": [lambda f, x, m, form: f(x, _other(form), x.argsort(_other(form)))],
    "cat": [
        lambda f, x, m, form: f([x, x * 2], _other(form)),
        lambda f, x, m, form: f((x, x), dim=_other(form)),
    ],
    "concat": [lambda f, x, m, form: f([x, x * 2], _other(form))],
    "sum": [
        lambda f, x, m, form: f(x, _other(form)),
        lambda f, x, m, form: f(x, dim=[_other(form)], keepdim=True),
        lambda f, x, m, form: f(x, _other(form), dtype=torch.float32),
    ],
    "mean": [lambda f, x, m, form: f(x, _other(form)), lambda f, x, m, form: f(x, _other(form) - 2, True)],
    "view": [lambda f, x, m, form: f(x, *x.shape, 1), lambda f, x, m, form: f(x, (1, -1, x.shape[1]))],
    "reshape": [lambda f, x, m, form: f(x, (*x.shape, 1)), lambda f, x, m, form: f(x, [1, *x.shape])],
    "flatten": [
        lambda f, x, m, form: f(x),
        lambda f, x, m, form: f(x[None], 0, 1),
        lambda f, x, m, form: f(x, start_dim=1),
    ],
    "unsqueeze": [lambda f, x, m, form: [f(x, dim) for dim in range(-3, 3)]],
    "squeeze": [
        lambda f, x, m, form: f(x),
        lambda f, x, m, form: f(x.unsqueeze(1), 1),
        lambda f, x, m, form: f(x[None], 0),
        lambda f, x, m, form: f(x[:, None, :, None], (1, 3)),
        lambda f, x, m, form: f(x[:, None, :, None]),
    ],
    "permute": [lambda f, x, m, form: f(x, (1, 0)), lambda f, x, m, form: f(x[..., None], (2, 0, -2))],
    "transpose": [lambda f, x, m, form: f(x, 0, 1), lambda f, x, m, form: f(x[None], -1, 0)],
    "swapaxes": [lambda f, x, m, form: f(x, 0, 1)],
    "swapdims": [lambda f, x, m, form: f(x, 0, -1)],
    "t": [lambda f, x, m, form: f(x)],
    "view_as": [lambda f, x, m, form: f(x, torch.zeros(*x.shape, 1))],
    "reshape_as": [lambda f, x, m, form: f(x, x[None])],
    "__getitem__": [
        lambda f, x, m, form: f(x, (slice(None), None)),
        lambda f, x, m, form: f(x, (..., None)),
        lambda f, x, m, form: f(x, None),
        lambda f, x, m, form: f(x, ...),
        lambda f, x, m, form: f(x, _elsewhere(form, 1)),
        lambda f, x, m, form: f(x, _elsewhere(form, -1)),
        lambda f, x, m, form: f(x, _elsewhere(form, slice(0, 3, 2))),
        lambda f, x, m, form: f(x, _elsewhere(form, slice(-2, None))),
    ],
}
for _name in ("softmax", "_safe_softmax", "log_softmax", "cumsum", "cumprod", "logcumsumexp"):
    _OWN[_name] = [lambda f, x, m, form: f(x, dim=_other(form)), lambda f, x, m, form: f(x, _other(form) - 2)]
for _name in ("argmax", "argmin", "amax", "amin", "max", "min", "logsumexp", "prod"):
    _OWN[_name] = [
        lambda f, x, m, form: f(x, _other(form)),
        lambda f, x, m, form: f(x, dim=_other(form) - 2, keepdim=True),
    ]
for _name in ("all", "any"):
    _OWN[_name] = [
        lambda f, x, m, form: f(x > 0.4, _other(form)),
        lambda f, x, m, form: f(x > 0.4, dim=_other(form)),
    ]


def _other(form: str) -> int:
    """The dimension that is not the batch."""
    return 0 if form == "second" else 1


def _elsewhere(form: str, key: Any) -> Any:
    return key if form == "second" else (slice(None), key)


_LOSSES = """
mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div
soft_margin_loss poisson_nll_loss gaussian_nll_loss cross_entropy nll_loss
""".split()  # tested in test_losses_ranks.py


_SPELT = {"log_sigmoid": "logsigmoid", "_threshold": "threshold", "__rdiv__": "__rtruediv__"}


def _names() -> dict[str, list[Any]]:
    """Every function that has a rule, by its name without the module."""
    found: dict[str, list[Any]] = {}
    for function in rules.table():
        name = function.__name__.removeprefix("special_")
        found.setdefault(_SPELT.get(name, name), []).append(function)
    return found


_OPERANDS: dict[str, Callable[[Inputs, Any, str], tuple[Any, Any]]] = {
    "two shards": lambda m, x, form: (x, m.batch(*x.shape, **_FORMS[form][1])),
    "a shard and itself": lambda m, x, form: (x, x),
    "a whole leaf": lambda m, x, form: (x, m.leaf(*x.shape)),
    "a whole value": lambda m, x, form: (x, m.inner(*x.shape)),
    "a whole value first": lambda m, x, form: (m.inner(*x.shape), x),
    "a row": lambda m, x, form: (x, m.leaf(x.shape[1]) if form != "second" else m.leaf(3, 1)),
    "a row in a graph": lambda m, x, form: (m.inner(1, x.shape[1]) if form != "second" else m.inner(3, 1), x),
    "a scalar tensor": lambda m, x, form: (x, m.leaf()),
    "more dimensions": lambda m, x, form: (x, m.inner(2, *x.shape)),
    "many copies": lambda m, x, form: (m.leaf(2, 1, 1), x),
}


def _calls(name: str, function: Any) -> Iterator[tuple[str, Case]]:
    """Calls of a function that keep its result sharded: in every layout, with every kind of operand."""
    if name in _OWN:
        for form, (shape, cut) in _FORMS.items():
            for place, call in enumerate(_OWN[name]):
                yield f"{form}, call {place}", partial(_called, call, function, shape, cut, form)
    elif name in _UNARY:
        for form, (shape, cut) in _FORMS.items():
            yield form, lambda m, shape=shape, cut=cut: function(m.batch(*shape, **cut))
    elif name in _BINARY or name in _BITWISE:
        # Each kind of operand in one layout; which, differs from function to function.
        forms = [*_FORMS] * 5
        for place, (operands, make) in enumerate(_OPERANDS.items(), len(name) % 4):
            yield (
                f"{forms[place]}, {operands}",
                partial(_operated, function, make, forms[place], name in _BITWISE),
            )
    else:
        raise LookupError(f"no call is written down for the rule {name!r}; add it to _OWN")


def _called(call: Any, function: Any, shape: Any, cut: Any, form: str, m: Inputs) -> Any:
    return call(function, m.batch(*shape, **cut), m, form)


def _operated(function: Any, make: Any, form: str, bits: bool, m: Inputs) -> Any:
    shape, cut = _FORMS[form]
    operands = make(m, m.batch(*shape, **cut), form)
    return function(*(value.detach() > 0.5 if bits else value for value in operands))


def _every_spelling(rank: Rank, names: list[str]) -> list[str]:
    cases: dict[str, Case] = {}
    for name in names:
        for spelling, function in enumerate(_names()[name]):
            calls = list(_calls(name, function))
            for label, case in calls if spelling == 0 else calls[spelling % len(calls) :][:2]:
                cases[f"{name} #{spelling}, {label}"] = case
    # Gradients pass through the narrow type, where the factor W between ranks rounds.
    return compare_all(rank, cases, kept=True, tolerance=1e-2 if names == _NARROWING else 1e-12)


_NARROWING = ["to", "type", "float", "half", "bfloat16", "type_as", "sum"]


def _portions() -> list[list[str]]:
    """Names of functions that are tried together: a call of the ranks takes longer than a case."""
    names = [name for name in _names() if name not in (*_LOSSES, *_NARROWING, "cuda")]
    return [_NARROWING, *(names[start : start + 10] for start in range(0, len(names), 10))]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("names", _portions(), ids=lambda names: names[0])
def test_rules_give_torchs_values_and_gradients(ranks: Any, names: list[str], world_size: int) -> None:
    assert ranks(world_size, _every_spelling, names) == [[]] * world_size


_WITH_AXIS = "softmax log_softmax cumsum cumprod logcumsumexp argsort sort squeeze unsqueeze cat".split()
_WITH_KEEPDIMS = """
argmax argmin amax amin max min logsumexp prod median sum mean mode nansum all any kthvalue
""".split()


def _in_numpys_words(rank: Rank) -> list[str]:
    """`axis`, `keepdims`, `x`, as torch's own functions take them too."""
    cases: dict[str, Case] = {}
    for form, (shape, cut) in _FORMS.items():
        x = lambda m, shape=shape, cut=cut: m.batch(*shape, **cut)  # noqa: E731
        axis = _other(form)
        for name in _WITH_AXIS:
            call = partial(getattr(torch, name), axis=axis)
            if name == "cat":
                cases[f"{form}, {name}"] = lambda m, x=x, call=call: call([x(m), x(m)])
            elif name == "squeeze":
                cases[f"{form}, {name}"] = lambda m, x=x, call=call: call(x(m)[None, ..., None])
            else:
                cases[f"{form}, {name}"] = lambda m, x=x, call=call: call(x(m))
        for name in _WITH_KEEPDIMS:
            more = {"k": 2} if name == "kthvalue" else {}
            call = partial(getattr(torch, name), axis=axis, **more)
            cases[f"{form}, {name}"] = lambda m, x=x, call=call: [
                call(x(m)), call(x(m), keepdims=True), call(x(m), keepdim=True)
            ]  # fmt: skip
        cases[f"{form}, first"] = lambda m, x=x, axis=axis: [
            torch.amax(input=x(m), dim=axis), torch.amax(x=x(m), axis=axis), torch.exp(a=x(m))
        ]  # fmt: skip
        cases[f"{form}, third"] = lambda m, x=x: torch.where(
            condition=x(m) > 0.5, input=x(m), other=0.5 * x(m)
        )
        cases[f"{form}, second"] = lambda m, x=x: [torch.add(x1=x(m), x2=x(m)), torch.mul(x(m), other=x(m))]
    return compare_all(rank, cases)


def test_rules_know_numpys_words(ranks: Any) -> None:
    assert ranks(2, _in_numpys_words) == [[]] * 2
