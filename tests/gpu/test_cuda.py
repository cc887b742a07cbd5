"""What only a CUDA device can show: one rank on it, ranks on the CPU beside it, and its generator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from packages import missing
from ronde.rng.draws import Draw, SlicedDraws
from ronde.rng.rank_stream import RankStream
from ronde.tensor.layout import Layout
from ronde.testing.parity import assert_parity

pytestmark = pytest.mark.gpu

SCRIPTS = [
    script for script in sorted((Path(__file__).parents[1] / "scripts").glob("*.py")) if not missing(script)
]
CUDA = torch.device("cuda")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_one_rank_on_the_device(script: Path, tmp_path: Path) -> None:
    assert_parity(script, ranks=1, place=tmp_path, devices=("0",))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_ranks_on_the_cpu_beside_it(script: Path, tmp_path: Path) -> None:
    assert_parity(script, ranks=2, place=tmp_path)


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("randn", lambda rows: torch.randn(rows, 5, device=CUDA)),
        ("bernoulli_", lambda rows: torch.empty(rows, 5, device=CUDA).bernoulli_(0.3)),
        ("rand_like", lambda rows: torch.rand_like(torch.empty(rows, 5, device=CUDA))),
        ("native_dropout", lambda rows: torch.native_dropout(torch.ones(rows, 5, device=CUDA), 0.4, True)[0]),
    ],
)
def test_ranks_take_their_rows_of_what_one_device_draws(name: str, draw: object) -> None:
    assert callable(draw)
    torch.manual_seed(7)
    whole, after = draw(6), torch.rand(1, device=CUDA)
    for rank in range(2):
        torch.manual_seed(7)
        with SlicedDraws([Draw(name, 2, 0)], Layout(0, 6, 2), rank):
            mine = draw(3)
        assert torch.equal(mine, whole[3 * rank : 3 * rank + 3])
        assert torch.equal(torch.rand(1, device=CUDA), after)


def test_streams_of_ranks_leave_the_scripts_generator_alone() -> None:
    torch.manual_seed(7)
    expected = torch.cat([torch.rand(1, device=CUDA) for _ in range(2)])
    torch.manual_seed(7)
    first = torch.rand(1, device=CUDA)
    with RankStream(1, CUDA, [].append).drawing([], Layout(0, 2, 2)):
        drawn = torch.rand(2, device=CUDA)
    assert torch.equal(torch.cat([first, torch.rand(1, device=CUDA)]), expected)
    assert not torch.equal(drawn, expected)
