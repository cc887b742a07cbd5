"""A session of one rank in this process, around a piece of a script."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ronde.launch.rank_config import RankConfig, RankPlace
from ronde.launch.run_spec import RunSpec
from ronde.plan import Plan
from ronde.process.seeds import seed_all
from ronde.runtime.session import Session

__all__ = ["alone"]


@contextmanager
def alone(folder: Path, plan: str, device: str = "cpu") -> Iterator[Session]:
    """The boundary around the code inside, as around a script; files are not mediated."""
    folder.mkdir(exist_ok=True)
    store = folder / f"store-{len(list(folder.iterdir()))}"
    place = RankPlace(
        rank=0, world_size=1, local_rank=0, local_world_size=1, run_dir=str(folder), store=f"file://{store}",
        device=device,
    )  # fmt: skip
    config = RankConfig(run=RunSpec(script="", plan=plan), place=place)
    seed_all(0)
    session = Session(config, Plan.parse(plan))
    session.install_boundary()
    try:
        yield session
    finally:
        session.uninstall_boundary()
        session.close()
