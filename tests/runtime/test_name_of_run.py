"""Parameter servers are told one name of a run, on however many hosts its ranks are."""

from __future__ import annotations

from pathlib import Path

import pytest

from ronde.launch.rank_config import RankConfig, RankPlace
from ronde.launch.rank_environment import RUN_ID_KEY
from ronde.launch.run_spec import RunSpec
from ronde.runtime.servers import name_of_run


@pytest.mark.parametrize("of_host", [1, 2])
def test_every_host_has_rank_0s_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_host: int) -> None:
    names: list[str] = []
    for rank in range(2):
        place = RankPlace(
            rank=rank,
            world_size=2,
            local_rank=rank if of_host == 2 else 0,
            local_world_size=of_host,
            run_dir=str(tmp_path),
            store=f"file://{tmp_path / 'store'}",
        )
        config = RankConfig(run=RunSpec(script="train.py", timeout=5.0), place=place)
        monkeypatch.setenv(RUN_ID_KEY, "one" if of_host == 2 else f"host-{rank}")
        names.append(name_of_run(config))
    assert names == (["one"] * 2 if of_host == 2 else ["host-0"] * 2)
