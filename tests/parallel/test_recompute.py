"""Under recompute, blocks are computed again in backward, with the same numbers and less memory."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import random
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from codes import without_code
from peak_bytes import PeakBytes
from ronde.errors import UsageError
from ronde.parallel.compute.recompute import Inside, Recompute
from ronde.patching.patches import Patches
from ronde.policies.repeated_blocks import repeated_blocks

EXTENTS = ("full", "selective")


@contextmanager
def recomputing(extent: Any) -> Iterator[list[str]]:
    """As one rank runs, without a boundary; gives what was noted."""
    patches, notes = Patches(), dict[str, None]()
    said: list[str] = []

    def note(sentence: str) -> None:
        if sentence not in notes:
            notes[sentence] = None
            said.append(without_code(sentence))

    Recompute(extent, Inside(lambda: True, lambda: False, note)).install(patches)
    try:
        yield said
    finally:
        patches.restore()


class Block(nn.Module):
    """Batch norm, dropout, something in place, an attribute and a buffer that change."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.ReLU(inplace=True)
        self.inner = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(inplace=True))
        self.drop = nn.Dropout(0.3)
        self.register_buffer("used", torch.zeros(()))
        self.calls = 0

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.calls += 1
        self.used += 1
        return self.drop(self.inner(self.first(x + 0))) * self.used * scale + x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(4, 8)
        self.blocks = nn.ModuleList([Block(8) for _ in range(3)])
        self.leave = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.leave(x)


def _train(twice: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = Net().double()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    found: list[torch.Tensor] = []
    for _ in range(3):
        loss = model(torch.randn(9, 4, dtype=torch.float64)).square().mean()
        model.eval()
        optimizer.zero_grad()
        loss.backward(retain_graph=twice)
        if twice:
            loss.backward()
        model.train()
        optimizer.step()
        found.append(loss.detach())
    found += [value.detach().double() for value in model.state_dict().values()]
    return [*found, torch.tensor([block.calls for block in model.blocks]), torch.rand(2)]


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("twice", [False, True])
def test_training_is_the_same_to_the_bit(extent: str, twice: bool) -> None:
    expected = _train(twice)
    with recomputing(extent) as notes:
        found = _train(twice)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert notes == []


@pytest.mark.parametrize("extent", EXTENTS)
def test_a_gradient_has_a_gradient(extent: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))).double()
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)

    def penalty() -> list[torch.Tensor]:
        (grad,) = torch.autograd.grad(model(x).pow(2).sum(), x, create_graph=True)
        return list(torch.autograd.grad(grad.norm(), [*model.parameters()][:-1]))

    expected = penalty()
    with recomputing(extent):
        found = penalty()
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-14)


def test_blocks_live_on_their_arguments_alone() -> None:
    layers = [nn.Sequential(nn.Linear(32, 32), *(nn.Tanh() for _ in range(6))) for _ in range(12)]
    model, x = nn.Sequential(*layers), torch.randn(512, 32)
    most: dict[str, int] = {}
    for extent in ("none", "selective", "full"):
        with recomputing(extent) if extent != "none" else pytest.MonkeyPatch.context():
            with PeakBytes() as alive:
                model(x).sum().backward()
            most[extent] = alive.most
    # Kept of each block: seven activations; the matrix product; nothing but the argument.
    assert most["full"] < 0.35 * most["none"]
    assert most["full"] < most["selective"] < 0.5 * most["none"]


def test_a_product_is_not_computed_again_where_it_is_kept() -> None:
    class Counted(torch.utils._python_dispatch.TorchDispatchMode):
        products = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.products += func is torch.ops.aten.addmm.default
            return func(*args, **(kwargs or {}))

    counts: list[int] = []
    for extent in EXTENTS:
        model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.GELU()) for _ in range(3)))
        with recomputing(extent), Counted() as counted:
            model(torch.randn(5, 4)).sum().backward()
        counts.append(counted.products)
    assert counts == [6, 3]


class Recurrent(nn.Module):
    """torch's cells write into products: through parts of them, which have counts of changes of their own."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cell, self.norm = getattr(nn, kind)(4, 4), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.cell(x)
        return x + self.norm(found[0] if isinstance(found, tuple) else found)


class Rewrites(nn.Module):
    """A product that is changed in place, and used after that."""

    def __init__(self, change: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.first, self.change = nn.Linear(4, 4), change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = self.first(x)
        self.change(product)
        return torch.sigmoid(product)


def _through_data(product: torch.Tensor) -> None:
    product.data.mul_(2)


def _without_gradient(product: torch.Tensor) -> None:
    with torch.no_grad():
        product[1:] += 1


def _into(product: torch.Tensor) -> None:
    torch.mul(product.detach(), 3, out=product.detach())


@pytest.mark.parametrize(
    "block",
    [
        *(
            lambda kind=kind: Recurrent(kind)
            for kind in ("RNN", "GRU", "LSTM", "RNNCell", "GRUCell", "LSTMCell")
        ),
        *(
            lambda change=change: Rewrites(change)
            for change in (
                lambda product: product.add_(1),
                lambda product: product.view(-1)[3:].exp_(),
                lambda product: torch._foreach_add_([product], 1.0),
                _through_data,
                _without_gradient,
                _into,
            )
        ),
    ],
)
def test_a_product_that_is_written_over_is_computed_again(block: Callable[[], nn.Module]) -> None:
    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(block(), block()).double()
        model(torch.randn(5, 4, dtype=torch.float64)).square().sum().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    expected = gradients()
    with recomputing("selective"):
        found = gradients()
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_a_product_that_the_script_changes_is_computed_again() -> None:
    """Behind forward, of what a block returns beside what it goes on with."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            product = self.first(x)
            return product, self.second(product.tanh()).sin()

    def gradients(model: nn.ModuleList, x: torch.Tensor) -> list[torch.Tensor]:
        (one, two), (three, four) = (block(x) for block in model)
        one.add_(1)
        three.detach().mul_(2)
        return list(torch.autograd.grad((one + two + three + four).sum(), [*model.parameters()]))

    class Model(nn.ModuleList):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return gradients(self, x)

    model, x = Model([Two(), Two()]).double(), torch.randn(5, 4, dtype=torch.float64)
    expected = gradients(model, x)
    with recomputing("selective"):
        found = model(x)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_a_product_of_inference_mode_is_kept() -> None:
    class Teacher(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.teacher = nn.Linear(4, 4), torch.ones(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.inference_mode():
                target = torch.mm(x, self.teacher)
            return self.layer(x).tanh() * target.clone()

    model = nn.Sequential(Teacher(), nn.Sequential(nn.Linear(4, 4)), Teacher())
    x = torch.randn(5, 4)
    expected = torch.autograd.grad(model(x).sum(), model[0].layer.weight)
    with recomputing("selective"):
        found = torch.autograd.grad(model(x).sum(), model[0].layer.weight)
    assert torch.equal(expected[0], found[0])


def test_nothing_stays_on_the_model() -> None:
    with recomputing("full"):
        model = Net()
        before = {id(part): set(vars(part)) for part in model.modules()}
        model(torch.randn(9, 4)).sum().backward()
        assert {id(part): set(vars(part)) for part in model.modules()} == before
        stream = io.BytesIO()
        torch.save(model, stream)
        copied = copy.deepcopy(model)
        assert list(copied.state_dict()) == list(Net().state_dict())
        copied(torch.randn(9, 4)).sum().backward()


class Changing(nn.Module):
    """Changes its argument where nobody would look for it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.mul_(2))


def test_what_cannot_be_computed_again_is_refused() -> None:
    with recomputing("full"):
        with pytest.raises(UsageError, match="Changing changes its argument in place, and recompute=full"):
            nn.Sequential(Changing(), Changing())(torch.randn(3, 4))
        model = Net()
        loss = model(torch.randn(9, 4)).sum()
        with torch.no_grad():
            model.blocks[0].inner[0].weight.add_(1)
        with pytest.raises(UsageError, match=r"parameters or tensors of .* were changed in place"):
            loss.backward()
        given = torch.randn(9, 4)
        loss = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4)) for _ in range(2)))(given).sum()
        given.zero_()
        with pytest.raises(
            UsageError, match="argument of Sequential was changed in place between its forward"
        ):
            loss.backward()


def test_a_layer_in_place_may_come_first() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4)) for _ in range(3)))
    x = torch.randn(3, 4, requires_grad=True)
    (expected,) = torch.autograd.grad(model(x + 0).sum(), x)
    with recomputing("full"):
        (found,) = torch.autograd.grad(model(x + 0).sum(), x)
    assert torch.equal(found, expected)


class Seen:
    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []


class Dense(nn.Module):
    """Takes the sum of what was before it, and may add to that itself, as attention does to a cache."""

    def __init__(self, width: int, *, adds: bool) -> None:
        super().__init__()
        self.inner, self.adds = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(width, width)), adds

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor] | Seen) -> torch.Tensor:
        seen = cache.seen if isinstance(cache, Seen) else cache
        if self.adds:
            seen.append(x)
        return torch.tanh(self.inner(torch.stack([x, *seen]).sum(0)))


class Through(nn.Module):
    """Hands one list, or object, to all its blocks."""

    def __init__(self, cache: type, *, adds: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Dense(4, adds=adds) for _ in range(3))
        self.cache, self.adds = cache, adds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cache = self.cache()
        for block in self.blocks:
            x = block(x, cache)
            if not self.adds:
                (cache.seen if isinstance(cache, Seen) else cache).append(x)
        return x


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("cache", [list, Seen])
@pytest.mark.parametrize("extent", EXTENTS)
def test_a_block_is_given_again_what_it_was_given(extent: str, cache: type, adds: bool) -> None:
    """By the time of backward the list that a model hands through its blocks is longer."""

    def trained() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Through(cache, adds=adds)
        loss = model(torch.randn(2, 4)).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    expected = trained()
    with recomputing(extent) as said:
        found = trained()
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
    sentence = (
        f"Dense keeps all its activations: it is given a Seen, which may hold something else when "
        f"recompute={extent} computes it again"
    )
    assert said == ([sentence] if cache is Seen else [])


_NUMBERS = [itertools.count(1)]


class Own(nn.Module):
    """Scales by the next number of an iterator."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.numbers: Any = itertools.cycle([1.0, 0.5, 2.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.number()

    def number(self) -> float:
        return next(self.numbers)


class Later(Own):
    """Has an iterator from its first call on."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = None

    def number(self) -> float:
        self.numbers = self.numbers or iter(range(1, 100))
        return next(self.numbers)


class OfAll(Own):
    """All blocks have one iterator."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = None

    def number(self) -> float:
        return next(_NUMBERS[0])


@pytest.mark.parametrize(
    ("block", "thing"),
    [(Own, "cycle numbers"), (Later, "range_iterator numbers"), (OfAll, "count _NUMBERS")],
)
def test_a_block_that_uses_an_iterator_is_not_computed_again(block: Callable[[], Any], thing: str) -> None:
    def trained() -> list[torch.Tensor]:
        _NUMBERS[0] = itertools.count(1)
        torch.manual_seed(0)
        model = nn.Sequential(*[block() for _ in range(3)])
        for _ in range(3):
            model(torch.randn(2, 4)).sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    expected = trained()
    with recomputing("full") as said:
        found = trained()
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
    assert [note.partition(": ")[2] for note in said] == [
        f"it uses the {thing}, which recompute=full cannot restore to recompute the block"
    ]


_SETTINGS = types.SimpleNamespace(scale=1.0)
_SHIFT = torch.zeros(())
_CALLS = [0]


class Worldly(nn.Module):
    """Draws by every generator, reads what others set, counts on itself and around it, and prints."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.seen: list[float] = []
        self.counts = {"calls": 0}
        self.generator = torch.Generator().manual_seed(3)
        self.offset = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(1.0)
        self.counts["calls"] += 1
        _CALLS[0] += 1
        print("called", _CALLS[0])
        x = self.layer(x) + self.offset + _SHIFT
        if random.random() < 0.3:
            return x
        drawn = np.random.uniform() + torch.rand((), generator=self.generator)
        return torch.tanh(x * x.sigmoid() * _SETTINGS.scale * drawn * (1 + 0.1 * len(self.seen)))


def _worldly() -> list[Any]:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    _CALLS[0] = 0
    blocks = [nn.Sequential(Worldly(4)) for _ in range(3)]
    inside = [block[0] for block in blocks]
    model, x = nn.Sequential(*blocks), torch.randn(5, 4)
    for _ in range(2):
        first = model(x).sum()
        _SETTINGS.scale = 0.5
        for tensor in (_SHIFT, *(each.offset for each in inside)):
            tensor.fill_(0.7)
        (first + model(x).sum()).backward()
        _SETTINGS.scale = 1.0
        for tensor in (_SHIFT, *(each.offset for each in inside)):
            tensor.zero_()
    counts = [(len(each.seen), each.counts["calls"]) for each in inside]
    drawn = random.random(), np.random.rand(), [each.generator.get_state().tolist() for each in inside]
    return [[p.grad.tolist() for p in model.parameters() if p.grad is not None], counts, _CALLS[0], drawn]


@pytest.mark.parametrize("extent", EXTENTS)
def test_a_block_finds_the_world_as_it_was(extent: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And leaves it as it is: what it drew, counted and printed in forward it does not a second time."""
    expected = _worldly()
    printed = capsys.readouterr().out
    with recomputing(extent) as said:
        assert _worldly() == expected
    assert capsys.readouterr().out == printed
    assert not said


def test_a_model_goes_when_its_script_lets_go() -> None:
    with recomputing("full"):
        model = Net()
        model(torch.randn(9, 4)).sum().backward()
        gone = weakref.ref(model.blocks[0])
        del model
        gc.collect()
        assert gone() is None


def test_what_is_not_recomputed_is_said() -> None:
    with recomputing("full") as notes:
        nn.Sequential(nn.Linear(4, 4), nn.Tanh())(torch.randn(3, 4))
        assert [note.split(":")[0] for note in notes] == ["Sequential keeps all its activations"]
        net = Net()
        net.blocks[1].register_forward_hook(lambda *_: None)
        net(torch.randn(3, 4)).sum().backward()
        assert "it has forward hooks" in notes[-1]
        assert len(notes) == 2


class InParts(nn.Module):
    """Its body is carried out as script, its blocks one by one: it cannot be cut as one piece."""

    def __init__(self, where: dict[str, bool]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))
        self.head = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self._where = where

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in (*self.blocks, self.head):
            self._where["script"] = False
            x = block(x)
            self._where["script"] = True
        return x


def test_blocks_of_a_model_in_parts_are_recomputed() -> None:
    """Each is called by itself, and none of them says that it has no blocks."""
    where, notes, again = {"script": True}, list[str](), list[None]()
    inside = Inside(
        lambda: not where["script"], lambda: where["script"], notes.append, lambda: again.append(None)
    )
    patches = Patches()
    Recompute("full", inside).install(patches)
    try:
        InParts(where)(torch.randn(3, 4)).sum().backward()
    finally:
        patches.restore()
    assert (len(again), notes) == (3, [])


def test_a_model_that_is_not_trained_keeps_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with recomputing("full") as notes:
        with torch.no_grad():
            model(torch.randn(3, 4))
        assert notes == []
        model(torch.randn(3, 4))
        assert len(notes) == 1


def test_a_parametrization_is_no_model() -> None:
    """Registering one calls it by itself, before there is a model."""
    with recomputing("full") as notes:
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))(torch.randn(3, 4)).sum().backward()
    assert [note.split(":")[0] for note in notes] == ["ParametrizedLinear keeps all its activations"]


def _names(part: str, count: int) -> list[str]:
    return [f"{part}.layers.{place}" for place in range(count)]


Made = Callable[[], nn.Module]


@pytest.mark.parametrize(
    ("made", "names"),
    [
        (Net, ["blocks.0", "blocks.1", "blocks.2"]),
        (
            lambda: nn.Transformer(8, 2, 2, 3, 16, batch_first=True),
            [*_names("encoder", 2), *_names("decoder", 3)],
        ),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), []),
        (lambda: nn.Sequential(*(nn.Sequential(nn.Linear(2, 2)) for _ in range(2))), ["0", "1"]),
        (
            lambda: nn.Sequential(nn.Sequential(Block(2), Block(2)), nn.Sequential(Block(2))),
            ["0.0", "0.1", "1.0"],
        ),
    ],
)
def test_blocks_are_what_repeats(made: Made, names: list[str]) -> None:
    model = made()
    known = {id(part): name for name, part in model.named_modules()}
    assert [known[id(block)] for block in repeated_blocks(model)] == names


def test_what_is_called_in_backward_is_no_model() -> None:
    """A checkpoint of the script's computes a part of a model again, by itself."""
    part = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = part

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.utils.checkpoint.checkpoint(self.part, x, use_reentrant=False)

    with recomputing("full") as notes:
        Whole()(torch.randn(3, 4)).sum().backward()
    assert [note.split(":")[0] for note in notes] == ["Whole keeps all its activations"]
