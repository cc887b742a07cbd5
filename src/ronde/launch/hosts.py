"""The hosts of a run, and the command that reaches them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ronde.launch.remote_command import RemoteExec
from ronde.launch.store_process import STORE

__all__ = ["Hosts"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Hosts:
    """Hosts of the ranks.

    Attributes:
        shares: the hosts by name, each with its number of ranks.
        way: command that starts a process on a host; this host needs none, unless `always`.
        always: whether this host is also reached by the command, because the user has named it.
        variables: environment that was asked for, `NAME` or `NAME=VALUE`.
        local_address: address by which other hosts reach this one; "": to be found by asking them.
        store: the command of the store's process.
        reference: description of a host (`agent.about_this_host`) that all must match; None: the first of
            them.
    """

    shares: tuple[tuple[str, int], ...]
    way: RemoteExec = dataclasses.field(default_factory=RemoteExec)
    always: bool = False
    variables: tuple[str, ...] = ()
    local_address: str = ""
    store: tuple[str, ...] = STORE
    reference: Mapping[str, Any] | None = None
