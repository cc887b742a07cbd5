"""Batches that are lists of samples: one device's answer, a true sentence, the number of samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from both_ways import differences
from codes import without_codes
from ronde.modules.batch_arguments import LISTED, listed_samples
from ronde.tensor.tree import leaves
from ronde.testing.run_ranks import Rank

_D = torch.float64


class Detector(nn.Module):
    """Pads images to one size, runs its backbone on all of them at once and its head on each."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, images: Any) -> dict[str, torch.Tensor]:
        images = [image["image"] if isinstance(image, dict) else image for image in images]
        high = max(image.shape[1] for image in images)
        padded = [nn.functional.pad(image, (0, 0, 0, high - image.shape[1])) for image in images]
        features = self.backbone(torch.stack(padded))
        scores = torch.stack([self.head(feature.mean((1, 2))) for feature in features])
        return {"size": scores.square().mean(), "sign": scores.tanh().sum()}


class Checks(Detector):
    """Looks for boxes without an area first, as torchvision's detectors do."""

    def forward(self, images: Any) -> dict[str, torch.Tensor]:
        if any((image["box"][2:] <= image["box"][:2]).any() for image in images):
            raise ValueError
        return super().forward(images)


class Sum(nn.Module):
    """Takes a list of inputs, each of them with the batch on its first axis."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        return self.layer(sum(inputs, torch.zeros((), dtype=_D)))


def _images(channels: int, *, even: bool = False) -> list[torch.Tensor]:
    make = torch.Generator().manual_seed(2)
    return [
        torch.rand(channels, 6 if even else 5 + place % 3, 6, generator=make, dtype=_D) for place in range(5)
    ]


def _pair(rows: int) -> list[torch.Tensor]:
    return list(torch.rand(2, rows, 4, generator=torch.Generator().manual_seed(3), dtype=_D))


CASES: dict[str, Any] = {
    # One row on the first axis, as many as there are channels, as many as the image is high.
    "grey": (lambda: Detector(1), lambda: _images(1), 5, [LISTED], "Sequential"),
    "grey, of one size": (lambda: Detector(1), lambda: _images(1, even=True), 5, [LISTED], "Sequential"),
    "colours": (lambda: Detector(3), lambda: _images(3), 5, [LISTED], "Sequential"),
    "a tuple": (lambda: Detector(3), lambda: tuple(_images(3)), 5, [LISTED], "Sequential"),
    "mappings": (
        lambda: Detector(3),
        lambda: [{"image": image, "id": place} for place, image in enumerate(_images(3))],
        5,
        [LISTED],
        "Sequential",
    ),
    "checked boxes": (
        lambda: Checks(3),
        lambda: [{"image": image, "box": torch.tensor([0.0, 0.0, 1.0, 1.0])} for image in _images(3)],
        5,
        ["its forward reads its argument on the host"],
        "Sequential",
    ),
    "several inputs": (Sum, lambda: _pair(6), 6, [], "Sum"),
    "a vector": (lambda: nn.Linear(4, 2), lambda: _pair(6)[0][0], 1, [], None),
    "numbers of tokens": (
        lambda: nn.Embedding(9, 2),
        lambda: torch.tensor([1, 2, 8, 4]),
        4,
        [],
        "Embedding",
    ),
}


def _trained(make: Any, inputs: Any) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model = make().to(_D)
    found = []
    for _ in range(2):
        made = model(inputs)
        total: Any = sum(value.square().sum() for value in leaves(made))
        total.backward()
        found.append(total.detach())
    return [*found, *(parameter.grad for parameter in model.parameters())]


def _on_ranks(rank: Rank, name: str) -> list[str]:
    make, inputs, samples, reasons, cut = CASES[name]
    expected = _trained(make, inputs())
    with rank.session() as session:
        found = _trained(make, inputs())
        problems = [text for pair in zip(expected, found, strict=True) for text in differences(*pair, 1e-11)]
        said = [note.partition("one piece: ")[2] for note in without_codes(session.notes)]
        if said != without_codes(reasons):
            problems.append(f"said {without_codes(session.notes)}")
        if session.tally.samples != 2 * samples:
            problems.append(f"counted {session.tally.samples} samples")
        if list(session.tally.sharded) != ([] if cut is None else [cut]):
            problems.append(f"cut {session.tally.sharded}")
    return problems


@pytest.mark.parametrize("name", CASES)
def test_a_list_of_samples_gives_one_devices_answer(ranks: Any, name: str) -> None:
    assert ranks(2, _on_ranks, name) == [[]] * 2


def test_what_is_a_list_of_samples() -> None:
    x = torch.zeros(3)
    assert listed_samples(([x, x],), {}) == 2
    assert listed_samples((7, (x,)), {}) == 1
    assert listed_samples((), {"images": [{"image": x}]}) == 1
    # The first argument with tensors decides; hidden state, packed sequences and weights are no samples.
    assert listed_samples((x, (x, x)), {}) is None
    assert listed_samples((nn.utils.rnn.pack_sequence([x, x]),), {}) is None
    assert listed_samples(([nn.Parameter(x)],), {}) is None
    assert listed_samples(([x, 1.0],), {}) is None
    assert listed_samples(({"a": [x, x]},), {}) is None
    assert listed_samples(([], "no tensor"), {}) is None
