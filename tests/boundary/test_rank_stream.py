"""`rng=per-rank`: a stream of each rank's own, which follows from the script's seed."""

from __future__ import annotations

import torch

from ronde.boundary.randomness import RankStream

CPU = torch.device("cpu")


def drawn(stream: RankStream) -> list[float]:
    with stream:
        return torch.rand(3).tolist()


def test_ranks_draw_apart_and_each_goes_on_where_it_was() -> None:
    torch.manual_seed(5)
    zero, one = RankStream(0, CPU), RankStream(1, CPU)
    draws = [drawn(zero), drawn(one), drawn(zero), drawn(one)]
    assert len({value for draw in draws for value in draw}) == 12


def test_the_script_draws_as_if_the_model_had_not() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    first = torch.rand(1)
    drawn(RankStream(1, CPU))
    assert torch.equal(torch.cat([first, torch.rand(1)]), expected)


def test_the_scripts_seed_decides() -> None:
    stream = RankStream(1, CPU)
    found = []
    for seed in (5, 6, 5):
        torch.manual_seed(seed)
        found.append(drawn(stream))
    assert found[0] == found[2] != found[1]
