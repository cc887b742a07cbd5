"""Which modules are cut, and which are not."""

from __future__ import annotations

import pytest
import torch

from rowwise.mixing_cases import CASES as MIXING
from rowwise.one_rank import observe
from rowwise.rowwise_cases import CASES as ROWWISE
from rowwise.rowwise_cases import Case

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad"),
]

# Without gradients less is looked at.
MODES = [pytest.param(True, id="gradients"), pytest.param(False, id="plain", marks=pytest.mark.soak)]


@pytest.mark.parametrize("gradients", MODES)
@pytest.mark.parametrize("name", ROWWISE)
def test_rows_apart_are_cut(name: str, gradients: bool) -> None:
    torch.manual_seed(0)
    case = ROWWISE[name]()
    with torch.set_grad_enabled(gradients):
        observed = observe(case.module, case.args, axes=case.axes)
    assert observed.verdict.sharded, observed.verdict.reason
    assert any(axis.dim is not None for axis in observed.verdict.outputs)


@pytest.mark.parametrize("gradients", MODES)
@pytest.mark.parametrize("name", MIXING)
def test_rows_that_meet_are_not_cut(name: str, gradients: bool) -> None:
    torch.manual_seed(0)
    case: Case = MIXING[name]()
    if case.gradients and not gradients:
        pytest.skip("it is a matter of gradients")
    before = {key: value.clone() for key, value in case.module.state_dict().items()}
    state = torch.get_rng_state()
    with torch.set_grad_enabled(gradients):
        observed = observe(case.module, case.args, axes=case.axes)
    assert not observed.verdict.sharded
    assert observed.output is None
    assert torch.equal(state, torch.get_rng_state())
    for key, value in case.module.state_dict().items():
        assert torch.equal(value, before[key]), key
