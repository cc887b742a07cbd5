"""The place of a pod in an indexed job of Kubernetes, such as JobSet's."""

from __future__ import annotations

from collections.abc import Mapping

from ronde.cluster.environment import ClusterEnvironment, number_in
from ronde.cluster.master import master
from ronde.errors import UsageError

__all__ = ["pod_of_job"]

# : Number of pods, set by `ronde launch k8s` in its manifests; Kubernetes tells a pod only its index.
PODS_KEY = "RONDE_PODS"


def pod_of_job(environment: Mapping[str, str]) -> ClusterEnvironment | None:
    """Read the place of a pod with one rank; None outside of a job.

    The first pod of a JobSet has the host name JOBSET-JOB-0-0 in the set's own subdomain.

    Raises:
        UsageError: the address of the first pod is unknown.
    """
    if environment.get(PODS_KEY, "1") in ("", "1") or "JOB_COMPLETION_INDEX" not in environment:
        return None
    name, job = environment.get("JOBSET_NAME", ""), environment.get("REPLICATED_JOB_NAME", "")
    if not environment.get("MASTER_ADDR") and not (name and job):
        raise UsageError(
            "JOB_COMPLETION_INDEX is set, but neither MASTER_ADDR nor JOBSET_NAME and REPLICATED_JOB_NAME: "
            "ronde cannot tell where the first pod is; set MASTER_ADDR, or write the manifest by `ronde "
            "launch k8s` [R163]"
        )
    address, port = master(environment, f"{name}-{job}-0-0.{name}", f"kubernetes {name} {job}")
    return ClusterEnvironment(
        rank=number_in(environment, "JOB_COMPLETION_INDEX", "the job"),
        world_size=number_in(environment, PODS_KEY, "the job"),
        local_rank=0,
        local_world_size=1,
        master_address=address,
        master_port=port,
        run_id=f"kubernetes {name} {job} {address}",
        restart_count=int(environment.get("JOBSET_RESTART_ATTEMPT", "0") or "0"),
        agent_store=False,
        launcher="Kubernetes",
        node=number_in(environment, "JOB_COMPLETION_INDEX", "the job"),
        nodes=number_in(environment, PODS_KEY, "the job"),
    )
