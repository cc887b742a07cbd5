"""Peers: other libraries for data-parallel training."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Sequence
from importlib.metadata import version

from ronde.bench.choice import check_known
from ronde.errors import UsageError

__all__ = ["LIMIT", "PEERS", "Peer", "choose"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """A library and the script in `workloads/` that uses it as its documentation says.

    Attributes:
        name: the word of `--against`; the script is `with_NAME.py`.
        title: the name in a table.
        distribution, module: the installed package, and the imported module.
        by_horovodrun: whether `ronde horovodrun` starts the script, which finds Horovod's names in ronde.
    """

    name: str
    title: str
    distribution: str
    module: str
    by_horovodrun: bool = False

    @property
    def script(self) -> str:
        return f"with_{self.name}.py"

    @property
    def version(self) -> str:
        return f"{self.distribution} {version(self.distribution)}"


PEERS = {
    peer.name: peer
    for peer in (
        Peer(name="ddp", title="DDP", distribution="torch", module="torch"),
        Peer(name="zero", title="ZeroRedundancyOptimizer", distribution="torch", module="torch"),
        Peer(
            name="horovod", title="Horovod script", distribution="torch", module="torch", by_horovodrun=True
        ),
        Peer(name="fsdp2", title="FSDP2", distribution="torch", module="torch"),
        Peer(name="accelerate", title="Accelerate", distribution="accelerate", module="accelerate"),
        Peer(name="fabric", title="Fabric", distribution="lightning-fabric", module="lightning_fabric"),
    )
}

LIMIT = Peer(name="apart", title="no communication", distribution="torch", module="torch")
"""As many processes, each by itself on its share of the batch: the speed without any exchange."""


def choose(names: Sequence[str]) -> tuple[Peer, ...]:
    """Return the peers of these names, once each.

    Raises:
        UsageError: one is unknown or not installed.
    """
    check_known(names, PEERS, what="peer")
    chosen = tuple(PEERS[name] for name in dict.fromkeys(names))
    for peer in chosen:
        if importlib.util.find_spec(peer.module) is None:
            raise UsageError(
                f"the peer {peer.name!r} is not installed: pip install 'ronde[bench]' brings "
                f"{peer.distribution}, or leave it out of --against [R851]"
            )
    return chosen
