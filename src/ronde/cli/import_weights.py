"""`ronde import`: a checkpoint with weights that others have written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ronde.cli.export import writing_to
from ronde.cluster.linux import check_linux
from ronde.launch.announce import say

__all__ = ["import_weights"]


def import_weights(
    weights: Annotated[
        Path,
        typer.Argument(
            metavar="WEIGHTS",
            help="A folder of Hugging Face's or torch's distributed layout, or a file .safetensors or .pt.",
        ),
    ],
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="The directory of checkpoints, or one of them.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the new checkpoint goes: a new folder.")],
    model: Annotated[
        str, typer.Option(metavar="NAME", help="The script's variable, where it has several models.")
    ] = "",
) -> None:
    """Write a checkpoint like another one, whose model has other weights.

    `ronde run --checkpoint DIR --resume` goes on from it: with the optimizer's state, the generators and the
    step of the other one.
    """
    check_linux()
    from ronde.checkpoint.export import find_checkpoint
    from ronde.checkpoint.weights import copy_with_weights

    place, _ = find_checkpoint(checkpoint, say)
    with writing_to(out):
        copy_with_weights(place, model, weights, out)
    say(f"{place.name} with the weights of {weights} is in {out}; go on by --checkpoint {out} --resume")
