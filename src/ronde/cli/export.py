"""`ronde export`: one version of a model, in forms that others read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ronde.cluster.linux import check_linux
from ronde.errors import UsageError
from ronde.launch.announce import say

__all__ = ["export"]

ROWS = ("full", "int8")


def export(
    path: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The directory of a run with --publish.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new folder.", show_default="RUN_DIR/export-VERSION"),
    ] = None,
    rows: Annotated[
        str, typer.Option(metavar="|".join(ROWS), help="Rows of tables as they are, or in a quarter of it.")
    ] = "full",
    version: Annotated[int | None, typer.Option(min=1, help="Which one.", show_default="the newest")] = None,
) -> None:
    """Write a model that needs nothing else: program, parameters, tables as parquet.

    ronde serve takes it; torch, safetensors and whatever reads parquet do, too.
    """
    check_linux()
    if rows not in ROWS:
        raise UsageError(f"--rows {rows} is neither full nor int8")
    try:
        from ronde.server.serving.exported import export as export_
        from ronde.server.serving.replica import Replica
        from ronde.server.serving.serve import source_of
    except ImportError as error:
        raise UsageError(
            f"ronde export needs a package that is missing ({error}): pip install 'ronde[serve]'"
        ) from None
    snapshot = Replica(source_of(path), version).snapshot
    folder = out if out is not None else path / f"export-{snapshot.version}"
    try:
        export_(snapshot, folder, int8=rows == "int8")
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written ({error.strerror or error}); choose another folder by --out DIR"
        ) from None
    rest = "" if snapshot.program is not None else f"; without a program: {snapshot.no_program}"
    say(f"version {snapshot.version} is in {folder}{rest}")
