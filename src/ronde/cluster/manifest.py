"""Manifests of Kubernetes, a JobSet or a TrainJob, as data and as YAML."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Any

from ronde.cluster.kubernetes import PODS_KEY
from ronde.errors import UsageError

__all__ = ["KINDS", "Wanted", "manifest", "to_yaml"]

KINDS = ("jobset", "trainjob")

# DNS labels; pods' host names consist of it and "-workers-0-0".
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_PLAIN = re.compile(r"[A-Za-z_/][\w./-]*")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
_JOB = "workers"
_PORT = 29500
_ANNOTATIONS = {
    "JOBSET_NAME": "jobset.sigs.k8s.io/jobset-name",
    "REPLICATED_JOB_NAME": "jobset.sigs.k8s.io/replicatedjob-name",
    "JOBSET_RESTART_ATTEMPT": "jobset.sigs.k8s.io/restart-attempt",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A job for Kubernetes.

    Attributes:
        name: name of the job, in Kubernetes' form.
        image: image with Python, torch, ronde and the script.
        pods, ranks: number of pods, and of ranks in each.
        gpus: whether each rank has a CUDA device.
        words: arguments of `ronde run`.
        shm: size of /dev/shm in Kubernetes' notation; the default of 64 MB is too small for loaders.
    """

    name: str
    image: str
    pods: int
    ranks: int
    gpus: bool
    words: tuple[str, ...]
    shm: str = "8Gi"


def manifest(kind: str, wanted: Wanted) -> dict[str, Any]:
    """Return the manifest, in the form of Kubernetes' API.

    Raises:
        UsageError: the kind is unknown, or Kubernetes does not allow the name.
    """
    if not _NAME.fullmatch(wanted.name):
        raise UsageError(
            f"--name {wanted.name} is not a name for Kubernetes; use at most 40 small letters, digits, "
            "hyphens [R164]"
        )
    if kind == "jobset":
        return _jobset(wanted)
    if kind == "trainjob":
        return _trainjob(wanted)
    raise UsageError(f"--kind {kind} is not written; {' and '.join(KINDS)} are [R164]")


def _jobset(wanted: Wanted) -> dict[str, Any]:
    variables: list[dict[str, Any]] = [{"name": PODS_KEY, "value": str(wanted.pods)}]
    variables += [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{path}']"}}}
        for name, path in _ANNOTATIONS.items()
    ]
    container: dict[str, Any] = {
        "name": "ronde",
        "image": wanted.image,
        "command": _command(wanted),
        "env": variables,
        "ports": [{"containerPort": _PORT}],
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    if wanted.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": wanted.ranks}}
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": wanted.shm}}],
    }
    job = {
        "parallelism": wanted.pods,
        "completions": wanted.pods,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": wanted.name},
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": wanted.name},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [{"name": _JOB, "replicas": 1, "template": {"spec": job}}],
        },
    }


def _command(wanted: Wanted) -> list[str]:
    """Return the command of a pod: the rank, or torchrun for several."""
    if wanted.ranks == 1:
        return ["python", "-m", "ronde", "run", *wanted.words]
    line = (
        f"exec python -m torch.distributed.run --nnodes {wanted.pods} --nproc-per-node {wanted.ranks} "
        f'--node-rank "$JOB_COMPLETION_INDEX" --master-addr {wanted.name}-{_JOB}-0-0.{wanted.name} '
        f'--master-port {_PORT} -m ronde run "$@"'
    )
    return ["sh", "-c", line, "ronde", *wanted.words]


def _trainjob(wanted: Wanted) -> dict[str, Any]:
    """Return a TrainJob.

    Its runtime `torch-distributed` gives each pod the variables PET_*, which torchrun reads.
    """
    trainer: dict[str, Any] = {
        "image": wanted.image,
        "numNodes": wanted.pods,
        "numProcPerNode": wanted.ranks,
        "command": ["torchrun", "-m", "ronde", "run", *wanted.words],
    }
    if wanted.gpus:
        trainer["resourcesPerNode"] = {"limits": {"nvidia.com/gpu": wanted.ranks}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": wanted.name},
        "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer},
    }


def to_yaml(value: dict[str, Any]) -> str:
    """Write block style YAML, with ambiguous strings quoted as in JSON."""
    return "\n".join(_mapping(value, 0)) + "\n"


def _mapping(value: dict[str, Any], depth: int) -> list[str]:
    lines: list[str] = []
    for key, item in value.items():
        head = "  " * depth + f"{_scalar(key)}:"
        if isinstance(item, dict) and item:
            lines += [head, *_mapping(item, depth + 1)]
        elif isinstance(item, (list, tuple)) and item:
            lines += [head, *_sequence(item, depth)]
        else:
            lines.append(f"{head} {_scalar(item)}")
    return lines


def _sequence(items: Sequence[Any], depth: int) -> list[str]:
    lines: list[str] = []
    for item in items:
        if isinstance(item, dict):
            first, *others = _mapping(item, depth + 1)
            lines += ["  " * depth + "- " + first.lstrip(), *others]
        else:
            lines.append("  " * depth + f"- {_scalar(item)}")
    return lines


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)
