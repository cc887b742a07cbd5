"""Connections of this rank to the parameter servers of the run."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from ronde.comm.rendezvous import connect_store
from ronde.errors import UsageError
from ronde.launch.announce import say
from ronde.launch.rank_config import RankConfig
from ronde.launch.rank_environment import run_id_of
from ronde.launch.server_config import rule_of_servers
from ronde.plan import Plan

if TYPE_CHECKING:
    from ronde.server.transport.client import Client

__all__ = ["connect", "name_of_run"]


def connect(config: RankConfig, plan: Plan) -> Client | None:
    """Connect to all servers; None where the plan has none.

    Raises:
        UsageError: the addresses are missing or of another number; or a needed package is not installed.
        PeerLost: one did not come.
        ServerRefused: one is of another run, or was started for another plan.
    """
    count = plan.state.server_count
    if not count:
        return None
    if len(config.run.servers) != count:
        raise UsageError(
            f"the plan has {count} parameter servers, and {len(config.run.servers)} are known; start the run "
            f"by `ronde run --servers {count}` [R418]"
        )
    try:
        from ronde.server.transport.client import Client
    except ModuleNotFoundError as error:
        raise UsageError(
            f"parameter servers need {error.name}, which is not installed: pip install 'ronde[server]' [R419]"
        ) from None
    return Client(
        config.run.servers,
        bytes.fromhex(config.run.server_token),
        worker=config.place.rank,
        workers=config.place.world_size,
        timeout=config.run.timeout,
        run=name_of_run(config),
        expects={"update": rule_of_servers(plan), "staleness": plan.update.staleness or 0},
        say=say if config.place.rank == 0 else lambda words: None,
    )


def name_of_run(config: RankConfig) -> str:
    """Return the name by which servers know the run.

    It is rank 0's, as each host has one of its own.
    """
    own = run_id_of(config, os.environ)
    if config.place.local_world_size == config.place.world_size:
        return own
    store = connect_store(config.place.store, config.place.world_size, timedelta(seconds=config.run.timeout))
    if config.place.rank == 0:
        store.set("ronde/run", own)
    return store.get("ronde/run").decode()
