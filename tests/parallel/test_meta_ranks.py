"""A model of the device `meta` is cut as it is given memory: no rank ever holds it whole."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.utils._device
from torch import nn

import ronde
from alone import alone
from ronde.comm.process_group import Comm
from ronde.runtime import api
from ronde.testing.run_ranks import Rank

Ranks = Callable[..., list[Any]]
WIDTH, BLOCKS = 512, 6  # in single precision a block has a mebibyte
VOCABULARY = 700


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * torch.tanh(self.layer(self.norm(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(torch.zeros(5, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def tie(self) -> None:
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def there(net: nn.Module) -> int:
    """Bytes of parameters that have memory of this rank's own."""
    with torch._C.DisableTorchFunctionSubclass():
        return sum(
            each.untyped_storage().nbytes() for each in dict.fromkeys(net.parameters()) if not each.is_meta
        )


def on_meta() -> Net:
    with torch.device("meta"):
        return Net().double()


def values() -> dict[str, torch.Tensor]:
    """What a file may hold, drawn by a generator of its own."""
    draw = torch.Generator().manual_seed(9)
    kind = {"generator": draw, "dtype": torch.float64}
    shapes = {name: each.shape for name, each in on_meta().state_dict().items()}
    return {
        name: torch.randn(shape, **kind) * 0.02 + (name.endswith("norm.weight"))
        for name, shape in shapes.items()
    }


def drawn(seen: list[int]) -> Net:
    """Initialized module by module, as libraries do."""
    net = on_meta().to_empty(device="cpu")
    net.tie()

    def init(module: nn.Module) -> None:
        seen.append(there(net))
        if isinstance(module, nn.LayerNorm):
            module.reset_parameters()
        for each in module.parameters(recurse=False):
            if not isinstance(module, nn.LayerNorm):
                nn.init.normal_(each, std=0.02)
        for buffer in module.buffers(recurse=False):
            nn.init.ones_(buffer)

    net.apply(init)
    return net


def loaded(seen: list[int]) -> Net:
    net = on_meta().to_empty(device="cpu")
    net.load_state_dict(values())
    net.tie()
    seen.append(there(net))
    return net


def assigned(_: list[int]) -> Net:
    net = on_meta()
    net.load_state_dict(values(), assign=True)
    net.tie()
    return net


def trained(
    make: Callable[[list[int]], Net], deferred: bool, seen: list[int]
) -> tuple[list[torch.Tensor], int]:
    """Losses and parameters of two steps in double precision, and a draw from the generator then."""
    torch.manual_seed(4)
    with ronde.deferred() if deferred else nullcontext():
        net = make(seen)
    if deferred:
        seen.append(there(net))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    found: list[torch.Tensor] = []
    for _ in range(2):
        tokens = torch.randint(0, VOCABULARY, (4, 5))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(tokens).view(-1, VOCABULARY), tokens.view(-1))
        loss.backward()
        seen.append(there(net))
        optimizer.step()
        found.append(loss.detach())
    return found + [each.detach().clone() for each in net.parameters()], int(torch.randint(1 << 30, ()))


MAKING = {each.__name__: each for each in (drawn, loaded, assigned)}


def compared(rank: Rank, plan: str, name: str, deferred: bool, copied: bool) -> tuple[bool, int, int]:
    """Whether it is the model that it is under `ddp`, the most bytes of it seen, and the summary's."""
    apart = mock.patch.object(Comm, "shares_host", False) if copied else nullcontext()
    results: list[Any] = []
    seen: list[int] = []
    counted = 0
    for each in ("ddp", plan):
        seen.clear()
        with apart, rank.session(each) as session, mock.patch.object(api._Process, "session", session):
            results.append(trained(MAKING[name], deferred, seen))
            counted = session.memory.memory().peaks["parameters"]
    (expected, draw), (found, other) = results
    close = [torch.allclose(a, b, rtol=1e-11, atol=1e-13) for a, b in zip(expected, found, strict=True)]
    return draw == other and all(close), max(seen), counted


BLOCK = 8 * (WIDTH * WIDTH + 3 * WIDTH)
# The largest unit is the embedding; the untied head stays its own until it is let go of.
LARGEST = 8 * WIDTH * (VOCABULARY + 5)
WHOLE = LARGEST + BLOCKS * BLOCK


@pytest.mark.parametrize(
    ("plan", "copied", "name", "deferred"),
    [
        pytest.param("zero3", False, "drawn", False, marks=pytest.mark.soak),
        pytest.param("zero3", False, "loaded", True, marks=pytest.mark.soak),
        ("zero3", True, "drawn", True),
        ("central", False, "loaded", False),
        pytest.param("zero3", True, "loaded", False, marks=pytest.mark.soak),
        pytest.param("central", False, "drawn", True, marks=pytest.mark.soak),
    ],
)
def test_what_to_empty_makes_is_cut(ranks: Ranks, plan: str, copied: bool, name: str, deferred: bool) -> None:
    for right, most, _ in ranks(2, compared, plan, name, deferred, copied):
        assert right
        assert most <= 2 * LARGEST


_MORE_ASSIGNED = (("zero3", True), ("central", False))


@pytest.mark.parametrize(
    ("plan", "copied"),
    [("zero3", False), *(pytest.param(*each, marks=pytest.mark.soak) for each in _MORE_ASSIGNED)],
)
def test_what_is_assigned_is_cut_when_the_model_is_done(ranks: Ranks, plan: str, copied: bool) -> None:
    for right, most, _ in ranks(2, compared, plan, "assigned", True, copied):
        assert right
        assert most <= 2 * LARGEST


def test_without_a_word_what_is_assigned_is_cut_at_the_first_call(ranks: Ranks) -> None:
    for right, most, _ in ranks(2, compared, "zero3", "assigned", False, False):
        assert right
        assert most <= 2 * LARGEST


def in_a_thread(rank: Rank) -> tuple[bool, int]:
    """Where ranks are not in step a model gets its memory whole, and is cut when it is called."""
    found: list[list[torch.Tensor]] = []
    held = 0
    for plan in ("ddp", "zero3"):
        with rank.session(plan):
            net = on_meta()
            thread = threading.Thread(target=lambda made=net: made.to_empty(device="cpu"))
            thread.start()
            thread.join()
            held = there(net)
            net.load_state_dict(values())
            net(torch.zeros(4, 5, dtype=torch.int64)).square().mean().backward()
            found.append([each.detach().clone() for each in net.parameters()])
    return all(map(torch.equal, *found)), held


def test_in_another_thread_nothing_is_cut(ranks: Ranks) -> None:
    for right, held in ranks(2, in_a_thread):
        assert right
        assert held >= WHOLE


def test_one_rank_that_offloads_everything(tmp_path: Path) -> None:
    seen: list[int] = []
    expected, draw = trained(drawn, False, seen)
    seen.clear()
    with alone(tmp_path, "zero3,offload=all"):
        found, other = trained(drawn, False, seen)
    assert draw == other
    assert max(seen) <= 2 * LARGEST
    for one, another in zip(expected, found, strict=True):
        torch.testing.assert_close(one, another, rtol=1e-11, atol=1e-13)


def test_the_summary_tells_of_parts_only(ranks: Ranks) -> None:
    for right, _, counted in ranks(2, compared, "zero3", "drawn", False, False):
        assert right
        # Half of the model, of the untied head that was there for a moment, and two units.
        assert counted <= (WHOLE + LARGEST) / 2 + 2 * LARGEST
        assert counted < WHOLE


def _made_on_meta(rank: Rank, plan: str) -> list[str]:
    # As in a process where nobody has asked yet which functions make tensors.
    torch.utils._device._device_constructors.cache_clear()
    with rank.session(plan), torch.device("meta"):
        made = [torch.tensor([1.0]), torch.as_tensor([1.0]), torch.asarray([1.0]), torch.ones(1)]
    return [each.device.type for each in made]


@pytest.mark.parametrize("plan", ["ddp", "zero3", pytest.param("central", marks=pytest.mark.soak)])
def test_tensors_are_made_on_the_device_of_a_context(ranks: Ranks, plan: str) -> None:
    """`from_pretrained` asks by such a one whether it builds on `meta`."""
    assert ranks(2, _made_on_meta, plan) == [["meta"] * 4] * 2
