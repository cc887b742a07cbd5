"""Steps in one pass give what torch's other implementation gives, and leave the same state behind."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from ronde.parallel.compute import fused_step
from ronde.patching.patches import Patches

OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    "Adam": partial(torch.optim.Adam, lr=0.1, weight_decay=0.01),
    "amsgrad": partial(torch.optim.Adam, lr=0.1, amsgrad=True),
    "AdamW": partial(torch.optim.AdamW, lr=0.1),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.01),
}


@pytest.fixture
def patches() -> Iterator[Patches]:
    patches = Patches()
    yield patches
    patches.restore()


def train(make: Any, steps: int = 4) -> tuple[list[torch.Tensor], dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(size, generator=generator).requires_grad_() for size in ((7, 5), (1001,), ())]
    optimizer = make(leaves)
    for step in range(steps):
        optimizer.zero_grad()
        for leaf in leaves[: 2 + step % 2]:
            leaf.grad = torch.randn(leaf.shape, generator=generator)
        optimizer.step()
    return [leaf.detach() for leaf in leaves], optimizer.state_dict()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_result_and_the_state_are_those_of_torchs_choice(name: str, patches: Patches) -> None:
    expected, plain_state = train(OPTIMIZERS[name])
    fused_step.install(patches)
    got, state = train(OPTIMIZERS[name])
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(got, expected, strict=True))
    assert state["param_groups"] == plain_state["param_groups"]
    assert state["state"].keys() == plain_state["state"].keys()
    for place, entry in plain_state["state"].items():
        for key, value in entry.items():
            other = state["state"][place][key]
            if isinstance(value, torch.Tensor):
                assert (other.dtype, other.shape) == (value.dtype, value.shape)
                assert torch.allclose(other, value, rtol=1e-5, atol=1e-6)
            else:
                assert other == value


def seen_fused(make: Any, leaf: torch.Tensor, patches: Patches) -> list[Any]:
    """What the innermost step finds in its group."""
    seen: list[Any] = []
    plain = torch.optim.Adam.step.__wrapped__  # type: ignore[attr-defined]

    def look(optimizer: Any, closure: Any = None) -> Any:
        seen.append(optimizer.param_groups[0]["fused"])
        return plain(optimizer, closure)

    step = fused_step._around(look)
    optimizer = make([leaf])
    leaf.grad = torch.ones_like(leaf)
    step(optimizer)
    assert "_need_device_dtype_check_for_fused" not in vars(optimizer)
    return [*seen, optimizer.param_groups[0]["fused"]]


def test_only_what_the_user_left_open_is_chosen(patches: Patches) -> None:
    def leaf(**kind: Any) -> torch.Tensor:
        return torch.zeros(5, requires_grad=True, **kind)

    adam = torch.optim.Adam
    assert seen_fused(adam, leaf(), patches) == [True, None]
    assert seen_fused(partial(adam, foreach=True), leaf(), patches) == [None, None]
    assert seen_fused(partial(adam, fused=False), leaf(), patches) == [False, False]
    assert seen_fused(partial(adam, lr=torch.tensor(0.1)), leaf(), patches) == [None, None]
    assert seen_fused(adam, leaf(dtype=torch.float64), patches) == [None, None]
    assert seen_fused(adam, leaf(dtype=torch.bfloat16), patches) == [None, None]


@pytest.mark.parametrize("saved", [False, True])
def test_a_state_in_another_order_of_axes_is_not_taken_for_the_parameters(
    saved: bool, patches: Patches
) -> None:
    def train() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        leaf = torch.randn(3, 4, 5, 6, generator=generator).requires_grad_()
        optimizer = torch.optim.Adam([leaf], lr=0.1)
        for step in range(3):
            if step == 1:
                leaf.data = leaf.data.contiguous(memory_format=torch.channels_last)
                if saved:
                    optimizer.load_state_dict(optimizer.state_dict())
            leaf.grad = torch.empty_like(leaf).copy_(torch.randn(leaf.shape, generator=generator)).detach()
            optimizer.step()
        return [leaf.detach(), optimizer.state[leaf]["exp_avg"]]

    expected = train()
    fused_step.install(patches)
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(train(), expected, strict=True))


def test_a_state_of_another_size_is_torchs_error(patches: Patches) -> None:
    fused_step.install(patches)
    leaf = torch.zeros(4, 5, requires_grad=True)
    optimizer = torch.optim.Adam([leaf])
    for rows in (4, 3):
        leaf.data = leaf.data[:rows]
        leaf.grad = torch.ones(rows, 5)
        if rows == 3:
            with pytest.raises(RuntimeError, match="size of tensor"):
                optimizer.step()
        else:
            optimizer.step()


class Own(torch.optim.Adam):
    """A user's class, which may rely on how torch's works."""


def test_a_subclass_is_left_alone(patches: Patches) -> None:
    assert seen_fused(Own, torch.zeros(5, requires_grad=True), patches) == [None, None]


def test_parameters_that_come_late_start_as_on_their_own(patches: Patches) -> None:
    expected, _ = train(OPTIMIZERS["momentum"], steps=1)
    fused_step.install(patches)
    got, state = train(OPTIMIZERS["momentum"], steps=1)
    assert all(torch.equal(a, b) for a, b in zip(got[2:], expected[2:], strict=True))
    assert 2 not in state["state"]
