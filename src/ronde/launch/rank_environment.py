"""The environment variables of a rank process, made from the launcher's."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ronde.cluster.environment import hidden_from_script, marks_of_schedulers
from ronde.launch.allocator import keeping_memory, returning_memory
from ronde.launch.rank_config import ENVIRONMENT_KEY, RankConfig
from ronde.launch.shared_devices import nccl_environment
from ronde.plan import Plan

__all__ = ["RUN_ID_KEY", "rank_environment", "run_id_of", "threads_per_rank"]

RUN_ID_KEY = "RONDE_RUN_ID"  # every descendant of a rank inherits it, so it identifies the processes of a run

THREADS = "OMP_NUM_THREADS"  # torch, MKL and OpenBLAS use it unless their own variable is set
HASH_SEED = "PYTHONHASHSEED"


def threads_per_rank(
    environment: Mapping[str, str], *, asked: int | None, cores: int, ranks: int
) -> int | None:
    """Choose a rank's threads; None leaves them to libraries or the user's variable.

    A single rank keeps the setting of plain Python.
    """
    if asked is not None:
        return asked
    if environment.get(THREADS) or ranks == 1:
        return None
    return max(1, cores // ranks)


def run_id_of(config: RankConfig, environment: Mapping[str, str]) -> str:
    """Return the id of a rank's run."""
    return environment.get(RUN_ID_KEY) or os.path.basename(config.place.run_dir)


def rank_environment(
    environment: Mapping[str, str],
    config: RankConfig,
    *,
    run_id: str,
    threads: int | None,
    device: str | None,
    shared: bool = False,
) -> dict[str, str]:
    """Make the environment of a rank: its configuration, without marks of other launchers.

    `device` is the only CUDA device that the rank sees, so that `cuda:0` is its own; `shared` tells that
    ranks of this host share devices. A script that is distributed by itself sees all, for it takes the one of
    its LOCAL_RANK, and a scheduler's variables too. The order of sets must be the same on all ranks, hence a
    fixed hash seed; "random" would make it differ.
    """
    hidden = hidden_from_script(environment)
    if not config.run.native:
        hidden |= marks_of_schedulers(environment)
    result = {name: value for name, value in environment.items() if name not in hidden}
    if threads is not None:
        result[THREADS] = str(threads)
    if result.get(HASH_SEED, "random") in ("", "random"):
        result[HASH_SEED] = "0"
    if device is not None:
        if not config.run.native:
            result["CUDA_VISIBLE_DEVICES"] = device
            result |= nccl_environment(config.place, result) if shared else {}
    elif config.place.world_size > 1:
        result.update(_memory(result, config))
    result[RUN_ID_KEY] = run_id
    result[ENVIRONMENT_KEY] = config.to_json()
    return result


def _memory(environment: Mapping[str, str], config: RankConfig) -> dict[str, str]:
    """Choose the allocator's variables of a rank on the CPU."""
    if not Plan.parse(config.run.plan).state.cuts_parameters:
        return keeping_memory(environment)
    # Ranks of one host have whole parameters outside of the heap, so only blocks of that size are often
    # allocated and freed there.
    on_one_host = config.place.local_world_size == config.place.world_size
    return returning_memory(environment, blocks=4 << 20 if on_one_host else 1 << 20)
