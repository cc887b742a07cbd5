"""Tensors hash by when that was first asked of them, and like nothing else."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import torch
from ronde.process.tensor_hash import number_tensors

number_tensors()
tensors = [torch.ones(2, each) for each in range(3, 7)]
parameters = [torch.nn.Parameter(each) for each in tensors]
mixed = {key: place for place, key in enumerate([*range(20), *tensors, *parameters])}
assert [mixed[each] for each in parameters] == [24, 25, 26, 27]
assert len({*tensors, *parameters}) == 8
print("fine")
"""


def test_a_tensor_is_the_key_of_nothing_else() -> None:
    # A process of its own: what hashes so does for as long as it lives.
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr
