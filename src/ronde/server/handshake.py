"""Comparison of a worker's HELLO with the configuration of this server.

Servers that were started by hand know the run from their command line, and ranks from theirs. A difference
would train by another rule than the plan's, or continue from an earlier run's state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["misfit"]


def misfit(about: Mapping[str, Any], known_run: str, hello: Mapping[str, Any]) -> str:
    """Return why a worker does not fit this server, and the fix; "" otherwise.

    Args:
        about: configuration of this server: its index (`server`), number of `servers` and `workers`, and rule
            (`update`, `staleness`); missing entries are not compared.
        known_run: id of the run that owns the server's state; "" if it has no owner yet.
        hello: the worker's values of the same entries, and its `run`.
    """

    def differs(name: str) -> bool:
        return name in about and name in hello and hello[name] != about[name]

    def told(name: str) -> str:
        return str(hello.get(name))[:40]

    if hello.get("workers") != about["workers"]:
        return (
            f"it was started for {about['workers']} workers, and this run has {told('workers')}; start it "
            f"again with --workers {told('workers')} [R432]"
        )
    if differs("servers") or differs("server"):
        return (
            f"it is server {about['server']} of {about['servers']}, and this run has it as {told('server')} "
            f"of {told('servers')}; give --servers all endpoints, in the order of their --index [R432]"
        )
    if differs("update") or (about.get("update") == "bounded" and differs("staleness")):
        return (
            f"it was started with --update {about['update']} --staleness {about['staleness']}, and the plan "
            f"needs --update {told('update')} --staleness {told('staleness')} [R432]"
        )
    run = hello.get("run")
    if known_run and run and run != known_run:
        return (
            "it has the state of an earlier run; a new run needs a server that was started anew, with "
            "another --state directory or none [R432]"
        )
    return ""
