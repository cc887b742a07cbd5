"""Objects among the arguments and results of models: plain ones are taken apart, of others it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from codes import without_codes
from ronde.tensor.global_tensor import GlobalTensor
from ronde.testing.run_ranks import Rank

ROWS = 7


class Batch:
    """As a collate function makes one."""

    def __init__(self, x: torch.Tensor, mask: torch.Tensor) -> None:
        self.inputs = {"x": x, "mask": mask}
        self.size = len(x)

    def masked(self) -> torch.Tensor:
        return self.inputs["x"] * self.inputs["mask"]


class Closed(Batch):
    """Fetches what it has not, as the graphs of libraries do."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Counted(Batch):
    """What is known of a part of it is not what is known of all."""

    def masked(self) -> torch.Tensor:
        return super().masked() / self.size


class Result:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.layer(batch.masked())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, batch: Batch) -> Result:
        return Result(self.inner(batch) * len(batch.masked()) ** 0)


class Notes(Inner):
    """Writes to what it is given."""

    def forward(self, batch: Batch) -> torch.Tensor:
        batch.inputs["x"] = batch.inputs["x"] * 2
        return super().forward(batch)


def _given(kind: Callable[..., Batch]) -> Batch:
    torch.manual_seed(1)
    return kind(torch.randn(ROWS, 4, dtype=torch.float64), torch.ones(ROWS, 1, dtype=torch.float64))


def _trained(
    make: Callable[[], nn.Module], kind: Callable[..., Batch]
) -> tuple[Any, list[float], list[float]]:
    """The output of a second call, the gradients, and what is left in the batch."""
    torch.manual_seed(0)
    model, batch = make().double(), _given(kind)
    for _ in range(2):
        out = model(batch)
        logits = out.logits if isinstance(out, Result) else out
        logits.pow(2).mean().backward()
    gradients = [
        value for p in model.parameters() if p.grad is not None for value in p.grad.flatten().tolist()
    ]
    return out, gradients, batch.inputs["x"].flatten().tolist()


def _on_ranks(rank: Rank, make: Callable[[], nn.Module], kind: Callable[..., Batch]) -> Any:
    with rank.session() as session:
        out, gradients, left = _trained(make, kind)
        logits = out.logits if isinstance(out, Result) else out
        return isinstance(logits, GlobalTensor), gradients, left, without_codes(session.notes)


_NOT_TAKEN_APART = (
    "runs in parts, not as one piece: one of its arguments is a Closed, whose tensors are not found; "
    "give the model the tensors in it, or a dict, a dataclass or a plain object of them"
)


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (Inner, Batch, []),
        (
            Net,
            Batch,
            ["Net runs in parts, not as one piece: it depends on the number of rows"],
        ),
        (Net, Closed, [f"Net {_NOT_TAKEN_APART}"]),
        (Inner, Closed, [f"Inner {_NOT_TAKEN_APART}"]),
        (
            Notes,
            Batch,
            ["Notes runs in parts, not as one piece: it changes a list, dict or object among its arguments"],
        ),
    ],
)
def test_plain_objects_are_taken_apart_and_of_others_it_is_told(
    ranks: Any, make: Callable[[], nn.Module], kind: Callable[..., Batch], said: list[str]
) -> None:
    _, gradients, left = _trained(make, kind)
    for in_rows, found, kept, notes in ranks(2, _on_ranks, make, kind):
        assert in_rows
        assert found == pytest.approx(gradients, rel=1e-12)
        assert kept == pytest.approx(left, rel=1e-12)
        assert notes == said


def test_a_number_in_an_object_may_tell_of_the_whole_batch(ranks: Any) -> None:
    _, gradients, _ = _trained(Inner, Counted)
    for _, found, _, _ in ranks(2, _on_ranks, Inner, Counted):
        assert found == pytest.approx(gradients, rel=1e-12)


class Recommends(nn.Module):
    """Makes tensors of arrays itself."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(9, 3)
        self.head = nn.Linear(3, 1)

    def forward(self, seen: Any) -> torch.Tensor:
        return self.head(self.items(torch.as_tensor(seen)).mean(1))


def _recommended(*, arrays: bool) -> list[float]:
    torch.manual_seed(0)
    model = Recommends().double()
    seen = np.arange(ROWS * 2).reshape(ROWS, 2) % 9
    for _ in range(2):
        model(seen if arrays else torch.as_tensor(seen)).pow(2).mean().backward()
    assert model.items.weight.grad is not None
    return model.items.weight.grad.flatten().tolist()


def _recommended_on_ranks(rank: Rank, arrays: bool) -> Any:
    with rank.session() as session:
        return _recommended(arrays=arrays), without_codes(session.notes), dict(session.tally.sharded)


@pytest.mark.parametrize("arrays", [False, True])
def test_arrays_of_numpy_are_not_cut_and_it_is_told(ranks: Any, arrays: bool) -> None:
    expected = _recommended(arrays=arrays)
    told = (
        "Recommends runs in parts, not as one piece: its arguments are NumPy arrays, which are not cut; give "
        "it tensors (torch.as_tensor(...))"
    )
    for gradients, notes, sharded in ranks(2, _recommended_on_ranks, arrays):
        assert gradients == pytest.approx(expected, rel=1e-12)
        assert notes == ([told] if arrays else [])
        assert sharded == ({"Embedding": 2, "Linear": 2} if arrays else {"Recommends": 2})


class Attends(nn.Module):
    """Attention by `flex_attention`, with a mask that is given to it."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(4, 12)

    def forward(self, x: torch.Tensor, mask: Any) -> torch.Tensor:
        query, key, value = self.into(x).detach().unflatten(-1, (3, 1, 4)).permute(2, 0, 3, 1, 4).unbind()
        # On CPU it has no backward.
        seen: Any = flex_attention(query, key, value, block_mask=mask)
        return seen.sum(1).mean(1) + self.into(x).mean((1, 2), keepdim=True)[:, 0]


def _attended(batched: bool) -> tuple[torch.Tensor, list[float]]:
    torch.manual_seed(0)
    model, x = Attends().double(), torch.randn(ROWS, 8, 4, dtype=torch.float64)
    places = torch.arange(ROWS)

    def ahead(b: torch.Tensor, _: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q >= k + (places[b] if batched else 0)

    mask = create_block_mask(ahead, ROWS if batched else None, None, 8, 8, device="cpu", BLOCK_SIZE=8)
    out = model(x, mask)
    out.pow(2).sum().backward()
    assert model.into.weight.grad is not None
    return out, [*out.detach().nan_to_num().flatten().tolist(), *model.into.weight.grad.flatten().tolist()]


def _attended_on_ranks(rank: Rank, batched: bool) -> Any:
    with rank.session() as session:
        out, values = _attended(batched)
        return isinstance(out, GlobalTensor), values, without_codes(session.notes)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("batched", [False, True])
def test_a_mask_of_flex_attention_that_tells_no_rows_apart_enters_whole(ranks: Any, batched: bool) -> None:
    _, expected = _attended(batched)
    for in_rows, values, notes in ranks(2, _attended_on_ranks, batched):
        assert values == pytest.approx(expected, rel=1e-11, nan_ok=True)
        assert in_rows or batched
        assert bool(notes) == batched
