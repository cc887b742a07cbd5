"""What lies at a tie or a kink is turned, and a departure that begins there is called rounding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from ronde.verify.clauses.verdict import Status
from ronde.verify.perturb_ties import AtKinks
from ronde.verify.proof import Proof, judge
from ronde.verify.record import Twin, Writer, read_record
from ronde.verify.report import to_text
from ronde.verify.runs import FinishedRun, Job, run_plain
from support.warm import WarmHost

CLOSE, FAR = 1e-7, 1e-2


@pytest.mark.parametrize(
    ("operation", "numbers", "moved"),
    [
        (F.relu, [1.0, CLOSE, -CLOSE, FAR], [1.0, -CLOSE, CLOSE, FAR]),
        (torch.abs, [1.0, -CLOSE, 0.0], [1.0, CLOSE, 0.0]),
        (lambda x: x.clamp(0.5, 0.9), [1.0, 0.5 + CLOSE, 0.9 - CLOSE], [1.0, 0.5 - CLOSE, 0.9 + CLOSE]),
        (lambda x: x > 0.5, [1.0, 0.5 + CLOSE, 0.6], [1.0, 0.5 - CLOSE, 0.6]),
        (torch.max, [0.0, 1.0, 1.0 + CLOSE], [0.0, 1.0 + CLOSE, 1.0]),
        (torch.argmin, [FAR, FAR + CLOSE, 1.0], [FAR + CLOSE, FAR, 1.0]),
        (lambda x: x.topk(2), [1.0, 1.0 - CLOSE, 0.2], [1.0 - CLOSE, 1.0, 0.2]),
        (
            lambda x: F.max_pool2d(x.view(1, 1, 2, 2), 2),
            [0.1, 1.0, 1.0 - CLOSE, 0.3],
            [0.1, 1.0 - CLOSE, 1.0, 0.3],
        ),
        (torch.exp, [0.0, CLOSE], [0.0, CLOSE]),
    ],
)
def test_what_lies_at_a_tie_or_a_kink_is_on_its_other_side(
    operation: Callable[..., object], numbers: list[float], moved: list[float]
) -> None:
    told: list[tuple[str, int, int, float]] = []
    start = torch.tensor(numbers, dtype=torch.float64).float().requires_grad_()
    with AtKinks(lambda *each: told.append(each)):
        read = start * 1.0
        operation(read)
    torch.testing.assert_close(read.detach(), torch.tensor(moved), rtol=1e-7, atol=1e-9)
    assert sum(count for _, count, _, _ in told) == sum(a != b for a, b in zip(numbers, moved, strict=True))
    # What an operation has not made, data and parameters, is left alone.
    assert start.tolist() == torch.tensor(numbers).tolist()


def test_gradients_go_where_the_numbers_lie() -> None:
    weight = torch.tensor([1.0, 1.0 + 2e-7], requires_grad=True)
    with AtKinks(lambda *_: None):
        (weight * 1.0).max().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [1.0, 0.0]
    with AtKinks(lambda *_: None):
        (torch.tensor([CLOSE, 1.0]).requires_grad_() * 1.0).relu().sum().backward()


TIE = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([{first}, {second}]))

    def forward(self, x):
        return x @ self.weight + (self.weight * 1.0).max()

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(3):
    x = torch.randn(8, 2)
    loss = (model(x) - x.sum(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
"""
LARGER = "1.0000001192092896"


def proof_of(host: WarmHost, folder: Path, plain: tuple[str, str], other: tuple[str, str]) -> Proof:
    """Of a run that differs by the weights at the start; no other twin is to justify that."""
    (folder / "project").mkdir(parents=True)
    job = Job(script="train.py", double=False, directory=folder / "project")

    def run(
        name: str, weights: tuple[str, str], twin: Twin = "", like: FinishedRun | None = None
    ) -> FinishedRun:
        text = TIE.format(first=weights[0], second=weights[1])
        (folder / "project" / "train.py").write_text(text)
        return run_plain(job, folder / name, twin=twin, like=like, starter=host.start)

    reference = run("plain", plain)
    others = run("other", other, like=reference)

    def start(twin: Twin) -> FinishedRun:
        return run("turned", plain, "turned", reference) if twin == "turned" else reference

    return judge(job, reference, others, ranks=1, start=start)


def test_a_departure_at_a_tie_is_called_rounding(host: WarmHost, tmp_path: Path) -> None:
    proof = proof_of(host, tmp_path, ("1.0", LARGER), (LARGER, "1.0"))
    assert proof.holds, to_text(proof)
    assert proof.rounding is not None
    assert (proof.rounding.step, proof.rounding.turned.place) == (1, "Model, max")
    assert "rounding: from step 1 on, by a tie or a kink" in to_text(proof)


def test_a_departure_elsewhere_is_not(host: WarmHost, tmp_path: Path) -> None:
    proof = proof_of(host, tmp_path, ("1.0", "2.0"), ("1.001", "2.0"))
    assert proof.rounding is None
    assert not proof.holds
    assert proof.verdicts[1].status is Status.broken


def test_places_are_written_down(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), 0)
    writer.event("turned", place="features.0, relu", count=2, of=10, apart=1e-8)
    (turned,) = read_record(tmp_path, 0).turned
    assert (turned.step, turned.place, turned.count, turned.of, turned.apart) == (
        1,
        "features.0, relu",
        2,
        10,
        1e-8,
    )
