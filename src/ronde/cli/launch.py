"""`ronde launch`: manifests for schedulers."""

from __future__ import annotations

from typing import Annotated

import typer

from ronde.cluster.manifest import Wanted, manifest, to_yaml
from ronde.errors import UsageError

__all__ = ["launch"]

launch = typer.Typer(
    help="Write manifests by which schedulers start ranks.", no_args_is_help=True, rich_markup_mode=None
)


@launch.callback()
def _group() -> None:
    """Write manifests by which schedulers start ranks."""


@launch.command("k8s", context_settings={"allow_interspersed_args": False})
def k8s(  # noqa: PLR0913 - one parameter per option
    words: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT ARGS...", help="Arguments of ronde run; its options after --."),
    ],
    image: Annotated[
        str, typer.Option("--image", metavar="IMAGE", help="Image with torch, ronde and the script.")
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the job.")] = "ronde",
    pods: Annotated[int, typer.Option(min=1, metavar="N", help="Number of pods.")] = 1,
    ranks_per_pod: Annotated[int, typer.Option(min=1, metavar="N", help="Number of ranks in each pod.")] = 1,
    gpus: Annotated[bool, typer.Option("--gpus", help="Request a CUDA device for each rank.")] = False,
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="jobset, or Kubeflow Trainer's trainjob.")
    ] = "jobset",
    shm: Annotated[str, typer.Option(metavar="SIZE", help="Size of /dev/shm in a pod of a JobSet.")] = "8Gi",
    show: Annotated[
        bool, typer.Option("--print", help="Print the manifest, for kubectl apply -f -.")
    ] = False,
) -> None:
    """Write a manifest by which Kubernetes runs a script on ranks in pods."""
    if not show:
        raise UsageError(
            "ronde speaks to no cluster by itself; add --print, and give the manifest to kubectl: ronde "
            "launch k8s ... --print train.py | kubectl apply -f - [R164]"
        )
    wanted = Wanted(
        name=name, image=image, pods=pods, ranks=ranks_per_pod, gpus=gpus, words=tuple(words), shm=shm
    )
    print(to_yaml(manifest(kind, wanted)), end="")
