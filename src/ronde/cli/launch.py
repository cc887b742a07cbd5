"""`ronde launch`: what others need to start ranks."""

from __future__ import annotations

from typing import Annotated

import typer

from ronde.cluster.manifest import Wanted, manifest, to_yaml
from ronde.errors import UsageError

__all__ = ["launch"]

launch = typer.Typer(
    help="Write what schedulers need to start ranks.", no_args_is_help=True, rich_markup_mode=None
)


@launch.callback()
def _group() -> None:
    """Write what schedulers need to start ranks."""


@launch.command("k8s", context_settings={"allow_interspersed_args": False})
def k8s(  # noqa: PLR0913 - one parameter per option
    words: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT ARGS...", help="What stands behind ronde run; its options behind --."),
    ],
    image: Annotated[
        str, typer.Option("--image", metavar="IMAGE", help="With torch, ronde and the script in it.")
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Of the job.")] = "ronde",
    pods: Annotated[int, typer.Option(min=1, metavar="N", help="How many pods.")] = 1,
    ranks_per_pod: Annotated[int, typer.Option(min=1, metavar="N", help="How many ranks in each.")] = 1,
    gpus: Annotated[bool, typer.Option("--gpus", help="Each rank has a CUDA device.")] = False,
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="jobset, or trainjob of Kubeflow's trainer.")
    ] = "jobset",
    shm: Annotated[str, typer.Option(metavar="SIZE", help="Of /dev/shm in a pod of a JobSet.")] = "8Gi",
    show: Annotated[
        bool, typer.Option("--print", help="Print the manifest, for kubectl apply -f -.")
    ] = False,
) -> None:
    """Write a manifest by which Kubernetes runs a script on ranks in pods."""
    if not show:
        raise UsageError(
            "ronde speaks to no cluster by itself; add --print, and give the manifest to kubectl: ronde "
            "launch k8s ... --print train.py | kubectl apply -f -"
        )
    wanted = Wanted(
        name=name, image=image, pods=pods, ranks=ranks_per_pod, gpus=gpus, words=tuple(words), shm=shm
    )
    print(to_yaml(manifest(kind, wanted)), end="")
