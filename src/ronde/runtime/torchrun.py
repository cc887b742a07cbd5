"""The environment that torchrun gives to a script that distributes its work itself."""

from __future__ import annotations

from ronde.launch.rank_config import RankConfig

__all__ = ["torchrun_environment"]


def torchrun_environment(config: RankConfig) -> dict[str, str]:
    """What torchrun sets for a script that distributes its work itself."""
    # Under torchrun the agent's store is there already, and rank 0 must not open another on its port.
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True"} if config.store.startswith("tcp://") else {}
    return {
        **agent,
        "RANK": str(config.rank),
        "WORLD_SIZE": str(config.world_size),
        "LOCAL_RANK": str(config.local_rank),
        "LOCAL_WORLD_SIZE": str(config.local_world_size),
        "GROUP_RANK": "0",
        "MASTER_ADDR": config.master_address,
        "MASTER_PORT": str(config.master_port),
    }
