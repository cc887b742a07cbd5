"""What `ronde plan show --script` lists of a model."""

from __future__ import annotations

from meshes.models import MODELS
from ronde.plan import expand
from ronde.runtime.structure import lines_of_cuts


def test_experts_beside_tensor_are_no_cut_matrices():
    *matrices, experts = lines_of_cuts(MODELS["mixtral"](), expand("tensor=2,expert=2"))
    assert not any("experts" in line for line in matrices)
    assert any("q_proj" in line and "dimension 0" in line for line in matrices)
    assert "4 experts of Mixture, 1 on each rank: 1,536 of 6,144 parameters, 2 times" in experts
