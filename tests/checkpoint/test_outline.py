"""Values made again from their form."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ronde.checkpoint.outline import NoOutline, Outlines, build
from ronde.errors import RondeError


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    names: list[str]
    loss: torch.Tensor | None = None


def test_form_and_small_values() -> None:
    logits = torch.randn(40, 50, requires_grad=True) * 2
    made = build(Outlines().of((Output(logits, ["a"], torch.tensor(3.5)), {"n": torch.arange(3)}, None)))
    output, rest, nothing = made
    assert nothing is None
    assert output.names == ["a"]
    assert output.loss.item() == 3.5
    assert rest["n"].tolist() == [0, 1, 2]
    assert (output.logits.shape, output.logits.dtype) == ((40, 50), torch.float32)
    assert output.logits.requires_grad
    assert not output.logits.is_leaf
    assert torch.allclose(output.logits.sum(1), torch.ones(40))


def test_equal_forms_are_one_object() -> None:
    outlines = Outlines()
    assert outlines.of(torch.zeros(600)) is outlines.of(torch.ones(600))


def test_a_graph_of_the_earlier_run_is_refused() -> None:
    made = build(Outlines().of(torch.ones(600, requires_grad=True)))
    with pytest.raises(RondeError, match="a graph that was made before the checkpoint"):
        made.sum().backward()


@pytest.mark.parametrize("value", [lambda: 0, torch.eye(3).to_sparse()])
def test_what_has_no_form(value: object) -> None:
    with pytest.raises(NoOutline):
        Outlines().of(value)
