"""`ronde export`: one version of a model in standard formats."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from ronde.cluster.linux import check_linux
from ronde.errors import UsageError
from ronde.launch.announce import say

__all__ = ["export", "writing_to"]

ROWS = ("full", "int8")
LAYOUTS = ("torch", "hf", "dcp")


def export(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_DIR|CHECKPOINT", help="Directory of a run with --publish, or of checkpoints."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="New directory.", show_default="export-VERSION next to it"),
    ] = None,
    rows: Annotated[str, typer.Option(metavar="|".join(ROWS), help="Precision of rows of tables.")] = "full",
    version: Annotated[
        int | None, typer.Option(min=1, help="Version to export.", show_default="the newest")
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            metavar="|".join(LAYOUTS),
            help="Format for a checkpoint: .pt and .safetensors, Hugging Face, or torch's distributed.",
        ),
    ] = "torch",
) -> None:
    """Write a self-contained model: program, parameters, tables as parquet.

    `ronde serve` serves it; torch, safetensors and readers of parquet read it. For a checkpoint only the
    parameters of its models are written.
    """
    check_linux()
    if rows not in ROWS:
        raise UsageError(f"--rows {rows} is neither full nor int8 [R737]")
    if to not in LAYOUTS:
        raise UsageError(f"--to {to} is not one of {', '.join(LAYOUTS)} [R520]")
    if _is_of_checkpoints(path):
        _export_checkpoint(path, out, rows, version, to)
        return
    if to != "torch":
        raise UsageError(f"--to {to} is for checkpoints, and {path} has none; leave it out [R520]")
    with _needing_packages():
        from ronde.server.serving.exported import export as export_
        from ronde.server.serving.replica import Replica
        from ronde.server.serving.serve import source_of
    snapshot = Replica(source_of(path), version).snapshot
    folder = out if out is not None else path / f"export-{snapshot.version}"
    with writing_to(folder):
        export_(snapshot, folder, int8=rows == "int8")
    rest = "" if snapshot.program is not None else f"; without a program: {snapshot.no_program}"
    say(f"version {snapshot.version} is in {folder}{rest} [R738]")


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Raise `UsageError` instead of an `OSError`, if `folder` cannot be written."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written ({error.strerror or error}); choose another folder by --out "
            "DIR [R737]"
        ) from None


@contextmanager
def _needing_packages() -> Iterator[None]:
    """Raise `UsageError` instead of an `ImportError`."""
    try:
        yield
    except ImportError as error:
        raise UsageError(
            f"ronde export needs a package that is missing ({error}): pip install 'ronde[serve]' [R735]"
        ) from None


def _is_of_checkpoints(path: Path) -> bool:
    return (path / "manifest.json").is_file() or any(path.glob("step-*/manifest.json"))


def _export_checkpoint(path: Path, out: Path | None, rows: str, version: int | None, to: str) -> None:
    for option, value in (("--rows", rows if rows != "full" else None), ("--version", version)):
        if value is not None:
            raise UsageError(
                f"{option} {value} applies to published models only; leave it out, or name step-N of "
                f"{path} [R520]"
            )
    from ronde.checkpoint.export import export_models, find_checkpoint
    from ronde.checkpoint.layouts import LAYOUTS as SAID

    place, state = find_checkpoint(path, say)
    folder = out if out is not None else place.parent / f"export-{int(place.name.removeprefix('step-'))}"
    with _needing_packages(), writing_to(folder):
        names = export_models(place, state, folder, cast(Any, to))
    say(f"{', '.join(names)} of {place.name} {SAID[cast(Any, to)]} in {folder} [R520]")
