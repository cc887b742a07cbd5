"""The environment that torchrun gives to a script that distributes its work itself."""

from __future__ import annotations

from ronde.launch.rank_config import RankConfig

__all__ = ["torchrun_environment"]


def torchrun_environment(config: RankConfig) -> dict[str, str]:
    """Return the environment that torchrun sets, with the addresses of servers.

    The latter are for the script's `ronde.KVStore`.
    """
    # Under torchrun the agent already runs a store, and rank 0 must not open another on its port.
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True"} if config.place.store.startswith("tcp://") else {}
    servers: dict[str, str] = {}
    if config.run.servers:
        from ronde.launch.server_config import SERVERS_KEY, TOKEN_KEY

        servers = {SERVERS_KEY: ",".join(config.run.servers), TOKEN_KEY: config.run.server_token}
    return {
        **agent,
        "RANK": str(config.place.rank),
        "WORLD_SIZE": str(config.place.world_size),
        "LOCAL_RANK": str(config.place.local_rank),
        "LOCAL_WORLD_SIZE": str(config.place.local_world_size),
        "GROUP_RANK": str(config.place.host),
        "GROUP_WORLD_SIZE": str(config.place.hosts),
        "MASTER_ADDR": config.place.master_address,
        "MASTER_PORT": str(config.place.master_port),
        **servers,
    }
