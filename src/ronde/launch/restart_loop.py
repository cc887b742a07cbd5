"""Run a job to its end, with as many restarts as its policy allows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from ronde.errors import LaunchError
from ronde.launch.failure_policy import Decision, FailurePolicy
from ronde.launch.job import LaunchJob, Outcome
from ronde.launch.launcher import launch
from ronde.trace.events import write_event

if TYPE_CHECKING:
    from ronde.launch.elastic import ElasticHosts
    from ronde.launch.hosts import Hosts
    from ronde.launch.run_end import Explain

__all__ = ["launch_with_policy"]


def launch_with_policy(
    job: LaunchJob,
    hosts: Hosts | None,
    policy: FailurePolicy,
    say: Callable[[str], object],
    *,
    explain: Explain | None = None,
    elastic: ElasticHosts | None = None,
    launching: Callable[..., Outcome] = launch,
) -> Outcome:
    """Run a job to its end, with restarts of its ranks.

    Args:
        hosts: the hosts of ranks; None: this one.
        explain: function that interprets evidence of a stall or a failure.
        elastic: finds the present hosts; None: they stay the same.
        launching: runs the job once, as `launch`.

    Raises:
        UsageError, LaunchError: the ranks could not be started the first time, or there are too few hosts.
    """
    failures = 0
    while True:
        with contextlib.ExitStack() as watching:
            changed = None
            if elastic is not None and hosts is not None:
                job, hosts = elastic.placed(job, hosts)
                changed = watching.enter_context(elastic.watching(hosts))
            try:
                outcome = launching(job, hosts, explain, changed)
            except LaunchError as error:
                if elastic is None or not job.attempt:
                    raise
                say(str(error))
                outcome = None
        has_changed = changed is not None and changed.is_set()
        decision = policy.on_end(outcome, failures=failures, hosts_changed=has_changed)
        if decision is Decision.RAISE:
            return outcome or Outcome(exit_code=1)
        if decision is Decision.RESIZE:
            reason, words = "hosts", "the hosts have changed [R158]"
        else:
            failures += 1
            reason = "failure"
            words = (
                f"restart {failures} of {policy.restarts}, from the newest checkpoint in "
                f"{job.run.checkpoint} [R158]"
            )
        say(words)
        write_event(job.run_directory.path, "restart", words, reason=reason)
        job = job.resumed(job.attempt + 1)
        job.run_directory.begin_attempt(job.attempt)
