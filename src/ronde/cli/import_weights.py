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
            help="Directory of Hugging Face or torch distributed checkpoint, or a .safetensors or .pt file.",
        ),
    ],
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="Directory of checkpoints, or one checkpoint.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New directory for the checkpoint.")],
    model: Annotated[
        str, typer.Option(metavar="NAME", help="Variable of the script, if it has several models.")
    ] = "",
) -> None:
    """Write a copy of a checkpoint with other weights for its model.

    `ronde run --checkpoint DIR --resume` goes on from it: with the optimizer's state, the generators and the
    step of the other one.
    """
    check_linux()
    from ronde.checkpoint.export import find_checkpoint
    from ronde.checkpoint.weights import copy_with_weights

    place, _ = find_checkpoint(checkpoint, say)
    with writing_to(out):
        copy_with_weights(place, model, weights, out)
    say(
        f"{place.name} with the weights of {weights} is in {out}; continue by --checkpoint {out} "
        "--resume [R522]"
    )
