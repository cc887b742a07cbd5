"""A loss that is still under way behaves as the value that it will be."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ronde.testing.run_ranks import Rank
from world_sizes import WORLD_SIZES

ROWS = 7


def _batch() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    model = torch.nn.Linear(4, 3).double()
    return model, torch.randn(ROWS, 4, dtype=torch.float64), torch.randint(3, (ROWS,))


def _step(use: Callable[[torch.Tensor, torch.nn.Module], Any]) -> tuple[Any, list[torch.Tensor]]:
    model, x, y = _batch()
    loss = F.cross_entropy(model(x), y)
    result = use(loss, model)
    return result, [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def _backward(loss: Any, model: Any) -> float:
    loss.backward()
    return loss.item()


def _read_in_inference_mode(loss: Any, model: Any) -> float:
    with torch.inference_mode():
        first = loss.item()
    loss.backward()
    return first


def _made_in_inference_mode(loss: Any, model: Any) -> float:
    _, x, y = _batch()
    with torch.inference_mode():
        other = F.cross_entropy(model(x), y) * 2
    loss.backward()
    return other.item()


def _scaled(loss: Any, model: Any) -> float:
    part = 0.5 * (-loss / 4) + 1.0
    part.backward()
    return part.item()


def _two(loss: Any, model: Any) -> float:
    total = loss + loss * 2
    total.backward()
    return float(total.detach())


def _with_regulariser(loss: Any, model: Any) -> float:
    total = loss + 0.1 * model.weight.square().sum()
    total.backward()
    return total.item()


def _not_linear(loss: Any, model: Any) -> float:
    (loss.exp() * loss).backward()
    return loss.item()


def _in_place(loss: Any, model: Any) -> float:
    loss /= 3
    loss.backward()
    return loss.item()


def _hook(loss: Any, model: Any) -> list[float]:
    seen: list[float] = []
    loss.register_hook(lambda grad: seen.append(grad.item()))
    loss.backward()
    return [*seen, loss.item()]


def _second_order(loss: Any, model: Any) -> float:
    (grad,) = torch.autograd.grad(loss, [model.weight], create_graph=True)
    (grad.square().sum() * loss).backward()
    return grad.sum().item()


def _root_of_autograd(loss: Any, model: Any) -> float:
    torch.autograd.backward([loss, loss * 2.0])
    return loss.item()


def _read_only(loss: Any, model: Any) -> list[Any]:
    saved = io.BytesIO()
    torch.save(loss.detach(), saved)
    saved.seek(0)
    array = loss.detach().numpy()
    stacked = torch.stack([loss, loss]).mean().item()
    formatted = f"{loss.item():.9f} {str(loss.detach())[:12]}"
    compared = [bool(loss < 100), loss.isfinite().item(), loss.requires_grad]
    copied = copy.deepcopy(loss.detach()).tolist()
    return [
        float(array),
        stacked,
        formatted,
        *compared,
        copied,
        torch.load(saved).item(),
    ]


def _running(loss: Any, model: Any) -> list[float]:
    running = 0.0
    running += loss
    average = loss * 2
    loss /= 4
    loss.backward()
    return [running.item(), average.item(), loss.item()]  # pyright: ignore[reportAttributeAccessIssue]


def _long_sum(loss: Any, model: Any) -> float:
    total = loss
    for _ in range(3000):
        total = total + loss
    total.backward()
    return total.item() / 3000


USES = (
    *(_running, _long_sum),
    *(_backward, _read_in_inference_mode, _made_in_inference_mode),
    *(_scaled, _two, _with_regulariser, _not_linear),
    *(_in_place, _hook, _second_order, _root_of_autograd, _read_only),
)


def _on_rank(rank: Rank, name: str) -> tuple[Any, list[torch.Tensor], str]:
    use = next(use for use in USES if use.__name__ == name)
    kinds: list[str] = []

    def noted(loss: torch.Tensor, model: torch.nn.Module) -> Any:
        kinds.append(type(loss).__name__)
        return use(loss, model)

    with rank.session():
        result, grads = _step(noted)
    return result, grads, kinds[0]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__.strip("_"))
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_as_the_value(ranks: Callable[..., list[Any]], world_size: int, use: Any) -> None:
    expected, expected_grads = _step(use)
    for result, grads, kind in ranks(world_size, _on_rank, use.__name__):
        assert kind == "DeferredScalar"
        if isinstance(expected, float):
            assert result == pytest.approx(expected, rel=1e-12)
        else:
            assert _rounded(result) == _rounded(expected)
        assert len(grads) == len(expected_grads)
        for grad, other in zip(grads, expected_grads, strict=True):
            torch.testing.assert_close(grad, other, rtol=1e-12, atol=1e-14)


def _rounded(values: list[Any]) -> list[Any]:
    return [round(value, 11) if isinstance(value, float) else value for value in values]


def _printed(model: torch.nn.Module, x: torch.Tensor) -> str:
    with torch.no_grad():
        shown = repr(F.mse_loss(model(x), torch.zeros(ROWS, 3, dtype=torch.float64)))
    return shown + repr([F.mse_loss(model(x), x[:, :3])]).partition(", grad_fn")[0]


def _printed_on_rank(rank: Rank) -> str:
    with rank.session():
        model, x, _ = _batch()
        return _printed(model, x)


def test_it_prints_as_in_plain_python(ranks: Callable[..., list[Any]]) -> None:
    """But for the name of its node."""
    model, x, _ = _batch()
    assert ranks(2, _printed_on_rank) == [_printed(model, x)] * 2
