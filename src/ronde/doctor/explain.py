"""The rules that find a cause in evidence, in order.

The first rule that applies gives the answer. Causes that ended a run come before causes of waiting, and these
before causes of slowness. A rule without enough evidence does not apply; the last answer is "unknown".
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
    # Rules about ended runs.
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
    # Rules about runs that wait.
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
    # Rules about runs that are slow or wrong.
    slowness.not_finite,
    slowness.files_run_out,
    slowness.oversubscribed,
    slowness.slow_loader,
    slowness.straggler,
    slowness.fine,
)


def explain(evidence: Evidence) -> Explanation:
    """Return the answer of the first rule that applies."""
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
