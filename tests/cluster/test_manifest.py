"""Manifests are what their YAML says, and name each rank's place."""

from __future__ import annotations

from typing import Any

import pytest

from ronde.cluster.manifest import KINDS, Wanted, manifest, to_yaml
from ronde.errors import UsageError
from ronde.launch.placement import resolve_placement

yaml = pytest.importorskip("yaml")

WORDS = ("--plan", "zero3,bucket-mb=10", "train.py", "--name", "it's: 1", "no", "")


def wanted(**changes: Any) -> Wanted:
    fields = {"name": "digits", "image": "reg/img:1", "pods": 2, "ranks": 1, "gpus": False, "words": WORDS}
    return Wanted(**{**fields, **changes})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 4])
def test_yaml_says_the_same(kind: str, ranks: int) -> None:
    made = manifest(kind, wanted(ranks=ranks, gpus=True))
    assert yaml.safe_load(to_yaml(made)) == made


def test_a_jobset_tells_each_pod_its_place() -> None:
    spec = manifest("jobset", wanted())["spec"]
    job = spec["replicatedJobs"][0]
    container = job["template"]["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["python", "-m", "ronde", "run", *WORDS]
    names = {each["name"]: each.get("value") for each in container["env"]}
    told = {
        **{name: value for name, value in names.items() if value},
        "JOB_COMPLETION_INDEX": "1",
        "JOBSET_NAME": "digits",
        "REPLICATED_JOB_NAME": job["name"],
    }
    place = resolve_placement(None, None, told, devices=0, parent=1).place
    assert place is not None
    assert (place.rank, place.world_size) == (1, 2)
    assert place.master_address == f"digits-{job['name']}-0-0.{spec['network']['subdomain']}"


def test_several_ranks_in_a_pod_are_torchruns() -> None:
    pod = manifest("jobset", wanted(ranks=4, gpus=True))["spec"]["replicatedJobs"][0]["template"]["spec"]
    container = pod["template"]["spec"]["containers"][0]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 4}}
    line = container["command"][2]
    assert "--nproc-per-node 4" in line
    assert "--master-addr digits-workers-0-0.digits" in line
    assert container["command"][4:] == list(WORDS)


def test_a_trainjob() -> None:
    trainer = manifest("trainjob", wanted(ranks=2))["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 2)
    assert trainer["command"][:4] == ["torchrun", "-m", "ronde", "run"]


def test_refused() -> None:
    with pytest.raises(UsageError, match="--kind pod is not written; jobset and trainjob are"):
        manifest("pod", wanted())
    with pytest.raises(UsageError, match="--name My_Job is not a name for Kubernetes"):
        manifest("jobset", wanted(name="My_Job"))
