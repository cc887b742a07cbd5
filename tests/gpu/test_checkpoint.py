"""A training on a CUDA device, killed and resumed: it ends as the one left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from killed import Place, assert_same

pytestmark = pytest.mark.gpu
# Sums in a fixed order: what is compared is the checkpoint.
ENVIRONMENT = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
# With dropout drawn on the device, with several backwards.
EXACT = ("transformer", "gradient_accumulation")
# cuDNN's backward of a convolution adds in an order of its own, another in every run.
CLOSE = ("classifier",)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", EXACT + CLOSE)
def test_a_script_that_is_killed_goes_on(script: str, tmp_path: Path) -> None:
    whole = Place(tmp_path / "whole", script, ENVIRONMENT)
    cut = Place(tmp_path / "cut", script, ENVIRONMENT)
    said = whole.finish(1)
    cut.kill_when_saved(1)
    assert cut.newest()
    rest = cut.finish(1, "--resume")
    if script in EXACT:
        assert said.endswith(rest)
    assert list(cut.files()) == list(whole.files())
    for name in whole.files():
        assert_same(whole.path / name, cut.path / name, exact=script in EXACT)
