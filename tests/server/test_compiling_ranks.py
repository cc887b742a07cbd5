"""Ranks that compile the loops of tables at once, each for itself."""

from __future__ import annotations

import os
import tempfile
import textwrap
from pathlib import Path

import pytest

from ronde.testing import forked

SCRIPT = """
    import torch, ronde
    table = ronde.EmbeddingTable(4)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    for _ in range(3):
        table(torch.arange(8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(len(table))
"""


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["ddp", "hybrid"])
def test_nothing_was_compiled_before(tmp_path: Path, plan: str) -> None:
    """Under names with something random in them, and not among temporary files."""
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    command = ["run", "--ranks", "2", "--plan", plan, "train.py"]
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as compiled:
        environment = {**os.environ, "NUMBA_CACHE_DIR": compiled}
        done = forked.run(command, directory=tmp_path, environment=environment)
    assert (done.returncode, done.stdout) == (0, "8\n"), done.stderr
