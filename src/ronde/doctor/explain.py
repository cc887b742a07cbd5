"""The rules from evidence to a cause, in order.

The first that knows an answer gives it. What has ended a run comes before what made it wait, and that before
what makes it slow. A rule that cannot tell says nothing: "unknown" is an answer too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ronde.doctor.causes import crashes, errors, network, paths, slowness, stalls
from ronde.trace.evidence import Evidence
from ronde.trace.explanation import Explanation

__all__ = ["RULES", "explain"]

Rule = Callable[[Evidence], Explanation | None]

RULES: tuple[Rule, ...] = (
    # Ends.
    crashes.launcher_lost,
    network.host_lost,
    network.host_silent,
    network.link_cut,
    errors.loader_killed,
    paths.shapes_differ,
    paths.paths_differ,
    crashes.memory_of_the_host,
    crashes.killed,
    crashes.bus_error,
    crashes.crashed,
    crashes.signalled,
    errors.known_error,
    errors.refused,
    errors.not_finite_error,
    errors.script_error,
    crashes.launcher_gave_up,
    # Waiting.
    stalls.stopped,
    stalls.died,
    stalls.ended_early,
    crashes.exited,
    stalls.interpreter_held,
    stalls.uninterruptible,
    stalls.loader_stopped,
    stalls.loader_frozen,
    stalls.not_begun,
    stalls.waits_for_lock,
    stalls.sleeps,
    stalls.waits_for_others,
    stalls.waits_for_data,
    stalls.computes,
    network.slow_link,
    network.waits_for_hosts,
    paths.all_wait,
    crashes.peer_lost,
    # Slow, or wrong, and going on.
    slowness.not_finite,
    slowness.files_run_out,
    slowness.oversubscribed,
    slowness.slow_loader,
    slowness.straggler,
    slowness.fine,
)


def explain(evidence: Evidence) -> Explanation:
    """The first answer of the rules."""
    for rule in RULES:
        found = rule(evidence)
        if found is not None:
            return _placed(found, evidence)
    seen = ", ".join(
        f"rank {each.rank} {each.standing or each.process.state or 'gone'}" for each in evidence.ranks
    )
    return Explanation(
        cause="unknown",
        rank=None,
        summary="the evidence does not tell what happened",
        evidence=(seen,) if seen else (),
        fix=f"look at the ranks' logs in {evidence.run_directory}",
        told=True,
    )


def _placed(found: Explanation, evidence: Evidence) -> Explanation:
    """Add the host of the explanation's rank, unless a host is named."""
    rank = None if found.rank is None else evidence.rank(found.rank)
    if rank is None or found.host:
        return found
    return dataclasses.replace(found, host=evidence.host_of(rank).name)
