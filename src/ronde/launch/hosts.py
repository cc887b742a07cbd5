"""The hosts of a run, and how they are reached."""

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
        way: command that reaches them; this host itself needs none, unless `always`.
        always: whether the way is taken to this host too: the user has named the command.
        variables: environment that was asked for, `NAME` or `NAME=VALUE`.
        local_address: address by which other hosts reach this one; "": to be found by asking them.
        store: the command of the store's process.
        reference: description of a host (`agent.about_this_host`) to which all are to be alike; None: to the
            first of them.
    """

    shares: tuple[tuple[str, int], ...]
    way: RemoteExec = dataclasses.field(default_factory=RemoteExec)
    always: bool = False
    variables: tuple[str, ...] = ()
    local_address: str = ""
    store: tuple[str, ...] = STORE
    reference: Mapping[str, Any] | None = None
